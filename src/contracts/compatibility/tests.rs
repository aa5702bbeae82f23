//! Former schemas against new ones: what each rule forbids.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::directory::SourceFile;
use super::super::{Contracts, Verdict};
use super::{Change, Direction, Rule, compare};

/// A contract with this schema.
fn contracts(schema: &Value) -> Contracts {
    with_parts(schema, &[])
}

fn with_parts(schema: &Value, parts: &[(&str, Value)]) -> Contracts {
    let mut files = vec![SourceFile { path: "order/Event.json".to_owned(), text: schema.to_string() }];
    files.extend(
        parts.iter().map(|(path, part)| SourceFile { path: (*path).to_owned(), text: part.to_string() }),
    );
    Contracts::of(files).unwrap_or_else(|faults| panic!("{faults}"))
}

fn changes_of(old: &Contracts, new: &Contracts) -> Vec<Change> {
    let contract = |contracts| Contracts::get(contracts, "order", "Event").unwrap();
    compare((old, contract(old)), (new, contract(new)))
}

fn changes(old: Value, new: Value) -> Vec<Change> {
    changes_of(&contracts(&old), &contracts(&new))
}

fn lines(changes: &[Change]) -> String {
    let line = |change: &Change| {
        let direction = match change.direction {
            Some(Direction::Backward) => "backward",
            Some(Direction::Forward) => "forward",
            None => "any",
        };
        let judged = if change.judged { "" } else { " (undecided)" };
        format!(
            "  {direction}{judged} {}: {}\n",
            if change.at.is_empty() { "/" } else { &change.at },
            change.what
        )
    };
    if changes.is_empty() { "  compatible\n".to_owned() } else { changes.iter().map(line).collect() }
}

/// A schema with numbers that no float holds.
fn exact(schema: &str) -> Value {
    serde_json::from_str(schema).unwrap()
}

/// What is forbidden from the first schema to the second, for each case in both directions.
fn table(cases: &[(&str, Value, Value)]) -> String {
    let case = |(name, old, new): &(&str, Value, Value)| {
        format!("{name}\n{}", lines(&changes(old.clone(), new.clone())))
    };
    cases.iter().map(case).collect::<Vec<_>>().join("\n")
}

#[test]
fn properties() {
    let id = json!({"type": "string"});
    let object = |properties: Value, more: Value| {
        let mut schema = json!({"type": "object", "properties": properties});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    insta::assert_snapshot!(table(&[
        (
            "an optional property more",
            object(json!({"id": id}), json!({})),
            object(json!({"id": id, "note": id}), json!({})),
        ),
        (
            "an optional property more, in a closed schema",
            object(json!({"id": id}), json!({"additionalProperties": false})),
            object(json!({"id": id, "note": id}), json!({"additionalProperties": false})),
        ),
        (
            "an optional property more, in a schema that says others may be there",
            object(json!({"id": id}), json!({"additionalProperties": true})),
            object(json!({"id": id, "note": id}), json!({"additionalProperties": true})),
        ),
        (
            "a required property more",
            object(json!({"id": id}), json!({})),
            object(json!({"id": id, "note": id}), json!({"required": ["note"]})),
        ),
        (
            "a property is required now",
            object(json!({"id": id}), json!({})),
            object(json!({"id": id}), json!({"required": ["id"]})),
        ),
        (
            "another type",
            object(json!({"n": {"type": "integer"}}), json!({})),
            object(json!({"n": {"type": "string"}}), json!({})),
        ),
        (
            "a wider type, deep inside",
            object(
                json!({"a": {"type": "array", "items": object(json!({"n": {"type": "integer"}}), json!({}))}}),
                json!({})
            ),
            object(
                json!({"a": {"type": "array", "items": object(json!({"n": {"type": "number"}}), json!({}))}}),
                json!({})
            ),
        ),
        (
            "closed now",
            object(json!({"id": id, "old": id}), json!({})),
            object(json!({"id": id}), json!({"additionalProperties": false})),
        ),
        (
            "closed by unevaluatedProperties over a reference",
            json!({"allOf": [{"$ref": "#/$defs/base"}], "$defs": {"base": object(json!({"id": id}), json!({}))},
                "properties": {"old": id}}),
            json!({"allOf": [{"$ref": "#/$defs/base"}], "$defs": {"base": object(json!({"id": id}), json!({}))},
                "unevaluatedProperties": false}),
        ),
        ("a free object gets a form", json!({"type": "object"}), object(json!({"id": id}), json!({}))),
        (
            "names by pattern",
            json!({"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": false}),
            json!({"patternProperties": {"^x-": {"type": "string", "maxLength": 3}}, "additionalProperties": false}),
        ),
        (
            "another pattern",
            json!({"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": false}),
            json!({"patternProperties": {"^y-": {"type": "string"}}, "additionalProperties": false}),
        ),
        (
            "how many",
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1, "maxProperties": 9}),
        ),
        (
            "depending on each other",
            object(json!({"a": id, "b": id}), json!({})),
            object(json!({"a": id, "b": id}), json!({"dependentRequired": {"a": ["b"]}})),
        ),
        (
            "rules for names",
            object(json!({"a": id}), json!({})),
            object(json!({"a": id}), json!({"propertyNames": {"maxLength": 1}})),
        ),
    ]));
}

#[test]
fn values() {
    insta::assert_snapshot!(table(&[
        ("a value more", json!({"enum": ["a", "b"]}), json!({"enum": ["b", "a", "c"]})),
        ("a value more than one", json!({"const": "a"}), json!({"enum": ["a", 7]})),
        ("listed now", json!({"type": "string"}), json!({"enum": ["a"]})),
        (
            "listed as a type",
            json!({"enum": ["a", "bb"]}),
            json!({"type": "string", "maxLength": 2, "pattern": "^[ab]+$"})
        ),
        ("listed as too short", json!({"enum": ["a", "bbb"]}), json!({"type": "string", "maxLength": 2})),
        ("both booleans", json!({"type": "boolean"}), json!({"enum": [true, false]})),
        ("one boolean", json!({"type": "boolean"}), json!({"const": true})),
        ("null allowed", json!({"type": "string"}), json!({"type": ["string", "null"]})),
        (
            "bounds",
            json!({"type": "number", "minimum": 0}),
            json!({"type": "number", "minimum": 1, "maximum": 5})
        ),
        (
            "the same bound for integers",
            json!({"type": "integer", "minimum": 1}),
            json!({"type": "integer", "exclusiveMinimum": 0}),
        ),
        (
            "exclusive",
            json!({"type": "number", "minimum": 1}),
            json!({"type": "number", "exclusiveMinimum": 1})
        ),
        (
            "bounds that no float tells apart",
            exact(
                r#"{"type": "number", "maximum": 18446744073709551617, "minimum": 0.10000000000000000000001}"#
            ),
            exact(r#"{"type": "number", "maximum": 18446744073709551616, "minimum": 0.1}"#)
        ),
        (
            "values that no float tells apart",
            exact(r#"{"enum": [9007199254740993, 1e400]}"#),
            exact(r#"{"enum": [9007199254740992, 10e399]}"#)
        ),
        ("steps", json!({"type": "integer", "multipleOf": 10}), json!({"type": "integer", "multipleOf": 5})),
        (
            "other steps",
            json!({"type": "number", "multipleOf": 0.5}),
            json!({"type": "number", "multipleOf": 0.25})
        ),
        (
            "lengths",
            json!({"type": "string", "maxLength": 5}),
            json!({"type": "string", "minLength": 1, "maxLength": 9})
        ),
        ("a pattern", json!({"type": "string"}), json!({"type": "string", "pattern": "^a"})),
        (
            "another pattern",
            json!({"type": "string", "pattern": "^b"}),
            json!({"type": "string", "pattern": "^a"})
        ),
        ("a format", json!({"type": "string"}), json!({"type": "string", "format": "date-time"})),
        ("a format that nobody knows", json!({"type": "string"}), json!({"type": "string", "format": "sku"})),
        (
            "items",
            json!({"type": "array", "items": {"type": "integer"}}),
            json!({"type": "array", "items": {"type": "number"}, "minItems": 1, "uniqueItems": true})
        ),
        (
            "items by place",
            json!({"type": "array", "prefixItems": [{"type": "string"}], "items": false}),
            json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false}),
        ),
        ("any item", json!({"type": "array"}), json!({"type": "array", "items": {"type": "string"}})),
    ]));
}

#[test]
fn forms() {
    let card = json!({"type": "object", "properties": {"kind": {"const": "card"}, "number": {"type": "string"}}, "required": ["kind"]});
    let cash = json!({"type": "object", "properties": {"kind": {"const": "cash"}}, "required": ["kind"]});
    let gift = json!({"type": "object", "properties": {"kind": {"const": "gift"}}, "required": ["kind"]});
    let long_card = json!({"type": "object", "properties": {"kind": {"const": "card"}, "number": {"type": "string", "minLength": 12}}, "required": ["kind"]});
    insta::assert_snapshot!(table(&[
        ("a form more", json!({"oneOf": [card, cash]}), json!({"oneOf": [cash, card, gift]})),
        ("a form changes", json!({"oneOf": [card, cash]}), json!({"oneOf": [long_card, cash]})),
        (
            "forms that may both fit",
            json!({"type": "object"}),
            json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]})
        ),
        (
            "a type as forms",
            json!({"type": ["string", "null"]}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]})
        ),
        (
            "the same behind a reference",
            json!({"oneOf": [card, cash]}),
            json!({"oneOf": [{"$ref": "#/$defs/card"}, cash], "$defs": {"card": card}})
        ),
        (
            "a condition",
            json!({"type": "object"}),
            json!({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}})
        ),
        (
            "the same condition and more",
            json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "properties": {"a": {"type": "string"}}}),
            json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "properties": {"a": {"type": ["string", "null"]}}}),
        ),
        ("ruled out", json!({"type": "string"}), json!({"type": "string", "not": {"const": ""}})),
        ("nothing", json!(true), json!(false)),
    ]));
}

#[test]
fn a_schema_that_contains_itself() {
    let tree = |value: Value| json!({"type": "object", "properties": {"value": value, "left": {"$ref": "#"}, "right": {"$ref": "#"}}});
    insta::assert_snapshot!(table(&[
        ("the same", tree(json!({"type": "integer"})), tree(json!({"type": "integer", "description": "x"}))),
        ("wider", tree(json!({"type": "integer"})), tree(json!({"type": "number"}))),
    ]));
}

#[test]
fn what_changes_in_a_part_is_found() {
    let order = json!({"type": "object", "properties": {"total": {"$ref": "../_parts/money.json"}}});
    let money = |least: i64| json!({"type": "integer", "minimum": least});
    let old = with_parts(&order, &[("_parts/money.json", money(0))]);
    let new = with_parts(&order, &[("_a/other.json", json!({})), ("_parts/money.json", money(1))]);
    assert_eq!(changes_of(&old, &old), []);
    insta::assert_snapshot!(lines(&changes_of(&old, &new)));
}

#[test]
fn a_rule_looks_in_its_directions_only() {
    let schema = |rule: &str, required: Value| json!({"x-compatibility": rule, "properties": {"a": {}, "b": {}}, "required": required});
    let directions = |rule: &str, from: Value, to: Value| -> Vec<_> {
        changes(schema(rule, from), schema(rule, to)).iter().map(|change| change.direction.unwrap()).collect()
    };
    for (rule, more, less) in [
        ("backward", vec![Direction::Backward], vec![]),
        ("forward", vec![], vec![Direction::Forward]),
        ("full", vec![Direction::Backward], vec![Direction::Forward]),
        ("none", vec![], vec![]),
    ] {
        assert_eq!(directions(rule, json!([]), json!(["a"])), more, "{rule}");
        assert_eq!(directions(rule, json!(["a"]), json!([])), less, "{rule}");
    }
    assert_eq!(Rule::default(), Rule::Full);
}

#[test]
fn the_keys_that_consumers_go_by_stay() {
    let schema = |key: &str| {
        let mut schema = json!({"properties": {"a": {}, "b": {}}, "required": ["a", "b"]});
        if !key.is_empty() {
            schema["x-idempotency-key"] = json!([key]);
            schema["x-ordering-key"] = json!(key);
        }
        schema
    };
    assert_eq!(lines(&changes(schema(""), schema("/a"))), "  compatible\n");
    insta::assert_snapshot!(lines(&changes(schema("/a"), schema("/b"))));
}

/// Schemas that describe all their properties, so that writers may write everything they permit.
fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(true)),
        Just(json!({"type": "null"})),
        (0..3i64, 0..4i64)
            .prop_map(|(least, more)| json!({"type": "integer", "minimum": least, "maximum": least + more})),
        (0..3i64).prop_map(|least| json!({"type": "number", "exclusiveMinimum": least})),
        (0..3u64, 0..3u64).prop_map(
            |(least, more)| json!({"type": "string", "minLength": least, "maxLength": least + more})
        ),
        proptest::sample::subsequence(vec![json!(0), json!(1), json!("a"), json!(null), json!(1.5)], 1..4)
            .prop_map(|values| json!({ "enum": values })),
        Just(json!({"type": ["string", "integer"], "multipleOf": 2})),
        Just(json!({"type": "string", "pattern": "^a"})),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let named = proptest::collection::btree_map("[abc]", inner.clone(), 0..3);
        let required = proptest::sample::subsequence(vec!["a", "b", "c"], 0..3);
        let additional = prop_oneof![Just(json!(false)), Just(json!(true)), inner.clone()];
        prop_oneof![
            (named, required, additional).prop_map(|(properties, required, additional)| {
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": additional})
            }),
            (inner.clone(), 0..3u64).prop_map(|(items, most)| json!({"type": "array", "items": items, "maxItems": most})),
            proptest::collection::vec(inner.clone(), 1..3).prop_map(|forms| json!({ "anyOf": forms })),
            proptest::collection::vec(inner.clone(), 1..3).prop_map(|forms| json!({ "oneOf": forms })),
            proptest::collection::vec(inner.clone(), 1..3).prop_map(|forms| json!({ "allOf": forms })),
            inner.clone().prop_map(|form| json!({ "not": form })),
            (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| json!({"if": a, "then": b, "else": c})),
        ]
    })
}

/// Values that such schemas distinguish.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        (0..5i64).prop_map(|n| json!(n)),
        Just(json!(1.5)),
        "[ab]{0,4}".prop_map(|text| json!(text)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::btree_map("[abc]", inner.clone(), 0..3).prop_map(|members| json!(members)),
            proptest::collection::vec(inner, 0..3).prop_map(|items| json!(items)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The central property: what is called compatible is compatible for every value.
    #[test]
    fn what_is_passed_is_read(old in schema(), new in schema(), values in proptest::collection::vec(value(), 40)) {
        let (old_contracts, new_contracts) = (contracts(&old), contracts(&new));
        let changes = changes_of(&old_contracts, &new_contracts);
        let takes = |contracts: &Contracts, value: &Value| {
            contracts.check("order", "Event", Some(value.to_string().as_bytes())) == Verdict::Valid
        };
        for value in &values {
            let (by_old, by_new) = (takes(&old_contracts, value), takes(&new_contracts, value));
            let found = |direction| changes.iter().any(|change| change.direction == Some(direction));
            prop_assert!(!by_old || by_new || found(Direction::Backward), "{value}");
            prop_assert!(!by_new || by_old || found(Direction::Forward), "{value}");
        }
    }

    #[test]
    fn what_did_not_change_is_compatible(schema in schema()) {
        prop_assert_eq!(changes(schema.clone(), schema), []);
    }
}
