//! Whether two schemas are the same apart from annotations and the names of reference targets.

use serde_json::{Map, Value};

use super::super::documents::Node;
use super::super::keywords::under;
use super::kinds::equal;

/// Keywords that affect no validation. Definitions are compared where they are referred to.
pub(super) fn is_annotation(keyword: &str) -> bool {
    matches!(
        keyword,
        "$schema"
            | "$comment"
            | "$defs"
            | "definitions"
            | "title"
            | "description"
            | "default"
            | "deprecated"
            | "readOnly"
            | "writeOnly"
            | "examples"
            | "contentSchema"
    ) || keyword.starts_with("x-")
}

/// Literally the same, except for annotations and the location of reference targets.
pub(super) fn same(a: Node<'_>, b: Node<'_>) -> bool {
    same_within(a, b, &mut Vec::new())
}

/// The same for one keyword; a missing keyword only equals a missing keyword.
pub(super) fn same_keyword(a: &Node<'_>, b: &Node<'_>, keyword: &str) -> bool {
    same_keyword_within(a, b, keyword, &mut Vec::new())
}

type Seen = Vec<(usize, usize)>;

fn same_keyword_within(a: &Node<'_>, b: &Node<'_>, keyword: &str, seen: &mut Seen) -> bool {
    match (a.keyword(keyword), b.keyword(keyword)) {
        (None, None) => true,
        (Some(x), Some(y)) => same_value(keyword, a.child(x), b.child(y), seen),
        _ => false,
    }
}

fn same_within(a: Node<'_>, b: Node<'_>, seen: &mut Seen) -> bool {
    let pair = (a.identity(), b.identity());
    // recursive schemas are the same as far as they were compared
    if seen.contains(&pair) {
        return true;
    }
    seen.push(pair);
    match (a.schema, b.schema) {
        (Value::Object(x), Value::Object(y)) => {
            let count = |members: &Map<String, Value>, node: &Node<'_>| {
                members.keys().filter(|name| !is_annotation(name) && node.keyword(name).is_some()).count()
            };
            count(x, &a) == count(y, &b)
                && x.keys()
                    .filter(|name| !is_annotation(name))
                    .all(|name| same_keyword_within(&a, &b, name, seen))
        }
        (x, y) => x == y,
    }
}

fn same_value(keyword: &str, a: Node<'_>, b: Node<'_>, seen: &mut Seen) -> bool {
    if keyword == "$ref" {
        let (Value::String(x), Value::String(y)) = (a.schema, b.schema) else { return false };
        return match (a.documents.target(x), b.documents.target(y)) {
            (Some((a, _)), Some((b, _))) => same_within(a, b, seen),
            _ => false,
        };
    }
    let Some((within_a, within_b)) = under(keyword, a.schema).zip(under(keyword, b.schema)) else {
        return match (keyword, a.schema, b.schema) {
            // lists whose order does not matter
            ("required" | "enum" | "type", Value::Array(x), Value::Array(y)) => {
                let has_all = |x: &[Value], y: &[Value]| x.iter().all(|x| y.iter().any(|y| equal(x, y)));
                has_all(x, y) && has_all(y, x)
            }
            (_, x, y) => equal(x, y),
        };
    };
    within_a.len() == within_b.len()
        && within_a.iter().zip(&within_b).all(|((place_a, x), (place_b, y))| {
            place_a == place_b && same_within(a.child(x), b.child(y), seen)
        })
        && (keyword != "dependencies" || lists(a.schema) == lists(b.schema))
}

/// The entries of `dependencies` that are not schemas.
fn lists(value: &Value) -> Vec<(&String, &Value)> {
    let members = value.as_object().into_iter().flatten();
    members.filter(|(_, value)| value.is_array()).collect()
}
