//! The structure of a JSON Schema: which keywords contain schemas, and JSON pointers to places in a schema.

use serde_json::{Map, Value};

/// What a keyword that holds schemas contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// One schema; `items` of draft 07 may be a list of them.
    Schema,
    /// A list of them.
    List,
    /// An object of named schemas; `dependencies` may also contain lists, which are not schemas.
    Named,
}

fn holds(keyword: &str) -> Option<Holds> {
    match keyword {
        "additionalItems"
        | "additionalProperties"
        | "contains"
        | "contentSchema"
        | "else"
        | "if"
        | "items"
        | "not"
        | "propertyNames"
        | "then"
        | "unevaluatedItems"
        | "unevaluatedProperties" => Some(Holds::Schema),
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Some(Holds::List),
        "$defs" | "definitions" | "dependencies" | "dependentSchemas" | "patternProperties"
        | "properties" => Some(Holds::Named),
        _ => None,
    }
}

pub(super) const OWNER: &str = "x-owner";
pub(super) const TOPIC: &str = "x-topic";
pub(super) const IDEMPOTENCY_KEY: &str = "x-idempotency-key";
pub(super) const ORDERING_KEY: &str = "x-ordering-key";
pub(super) const COMPATIBILITY: &str = "x-compatibility";
pub(super) const GUARANTEES: &str = "x-guarantees";

/// The keywords of this project.
pub(super) const OWN_KEYS: &[&str] =
    &[OWNER, TOPIC, IDEMPOTENCY_KEY, ORDERING_KEY, COMPATIBILITY, GUARANTEES];

/// All other keywords of the supported drafts.
const OTHERS: &[&str] = &[
    "$anchor",
    "$comment",
    "$id",
    "$ref",
    "$schema",
    "const",
    "contentEncoding",
    "contentMediaType",
    "default",
    "dependentRequired",
    "deprecated",
    "description",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "readOnly",
    "required",
    "title",
    "type",
    "uniqueItems",
    "writeOnly",
];

/// Whether `keyword` has a meaning in a schema.
pub(super) fn known(keyword: &str) -> bool {
    holds(keyword).is_some() || OTHERS.contains(&keyword)
}

/// The known keyword that `typed` was probably meant to be.
pub(super) fn nearest(typed: &str, among: &[&'static str]) -> Option<&'static str> {
    let score = |name: &'static str| (name, strsim::jaro_winkler(typed, name));
    let best = among.iter().copied().map(score).max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.filter(|(_, score)| *score >= 0.9).map(|(name, _)| name)
}

/// The keyword of the drafts that `typed` was probably meant to be.
pub(super) fn nearest_keyword(typed: &str) -> Option<&'static str> {
    const HOLDING: &[&str] = &[
        "additionalProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "items",
        "prefixItems",
        "properties",
        "patternProperties",
        "propertyNames",
        "contains",
        "unevaluatedProperties",
    ];
    nearest(typed, OTHERS).or_else(|| nearest(typed, HOLDING))
}

/// The JSON pointer to a member or item of `at`.
pub(super) fn join(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// The names in a JSON pointer.
pub(super) fn names(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|name| name.replace("~1", "/").replace("~0", "~"))
}

/// The schemas under a keyword, each with its place relative to it; `None` if the keyword holds no schemas.
pub(super) fn under<'a>(keyword: &str, value: &'a Value) -> Option<Vec<(String, &'a Value)>> {
    match (holds(keyword)?, value) {
        (Holds::Schema | Holds::List, Value::Array(list)) => {
            let items = list.iter().enumerate();
            Some(items.map(|(index, item)| (join("", &index.to_string()), item)).collect())
        }
        (Holds::Named, Value::Object(named)) => {
            let schemas = named.iter().filter(|(_, value)| !value.is_array());
            Some(schemas.map(|(name, value)| (join("", name), value)).collect())
        }
        (Holds::Schema, value) => Some(vec![(String::new(), value)]),
        _ => None,
    }
}

/// The schemas directly in the schema `members`, each with its place.
fn children<'a>(members: &'a Map<String, Value>, at: &str) -> Vec<(String, &'a Value)> {
    let mut found = Vec::new();
    for (keyword, value) in members {
        let at = join(at, keyword);
        let schemas = under(keyword, value).into_iter().flatten();
        found.extend(schemas.map(|(place, schema)| (format!("{at}{place}"), schema)));
    }
    found
}

/// Calls `see` for `schema` and every schema in it, outer ones first, with their places.
pub(super) fn walk<'a>(schema: &'a Value, at: &str, see: &mut impl FnMut(&str, &'a Value)) {
    see(at, schema);
    let Value::Object(members) = schema else { return };
    for (at, child) in children(members, at) {
        walk(child, &at, see);
    }
}

/// Like [`walk`], for schemas that `change` may alter.
pub(super) fn walk_mut(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    let Value::Object(members) = schema else { return };
    change(members);
    for (keyword, value) in members.iter_mut() {
        match (holds(keyword), value) {
            (Some(Holds::Schema | Holds::List), Value::Array(list)) => {
                list.iter_mut().for_each(|item| walk_mut(item, change));
            }
            (Some(Holds::Named), Value::Object(named)) => {
                named.values_mut().for_each(|value| walk_mut(value, change));
            }
            (Some(Holds::Schema), value) => walk_mut(value, change),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finds_schemas_and_nothing_that_looks_like_one() {
        let schema = json!({
            "properties": {"$ref": {"type": "string"}, "a/b": {"items": [true, {"not": {}}]}},
            "const": {"properties": {"x": {}}},
            "examples": [{"items": {}}],
            "dependencies": {"a": ["b"], "c": {"minProperties": 1}},
            "allOf": [{"if": {}}],
        });
        let mut places = Vec::new();
        walk(&schema, "", &mut |at, _| places.push(at.to_owned()));
        assert_eq!(
            places,
            [
                "",
                "/allOf/0",
                "/allOf/0/if",
                "/dependencies/c",
                "/properties/$ref",
                "/properties/a~1b",
                "/properties/a~1b/items/0",
                "/properties/a~1b/items/1",
                "/properties/a~1b/items/1/not",
            ]
        );
        for place in places {
            assert!(schema.pointer(&place).is_some(), "{place}");
        }
    }

    #[test]
    fn a_pointer_is_made_of_names() {
        let at = join(&join("", "a/b"), "c~d");
        assert_eq!(at, "/a~1b/c~0d");
        assert_eq!(names(&at).collect::<Vec<_>>(), ["a/b", "c~d"]);
    }
}
