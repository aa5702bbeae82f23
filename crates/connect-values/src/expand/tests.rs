use proptest::prelude::*;

use super::*;
use crate::golden::rows;

const DOCUMENTS: &str = include_str!("../golden/documents.tsv");

fn expanded(text: &str, behaviour: Behaviour) -> Result<String, Unexpandable> {
    let mut into = String::new();
    expand(text, behaviour, &mut into).map(|()| into)
}

/// Whether a document has become a string instead of being expanded.
fn is_text(written: String) -> bool {
    written.starts_with('"')
}

#[test]
fn documents_are_expanded_as_by_debezium() {
    let with_nulls = Behaviour { keep_nulls: true, ..Behaviour::default() };
    let mut count = 0;
    for [document, ignored, kept] in rows(DOCUMENTS) {
        for (behaviour, expected) in [(Behaviour::default(), ignored), (with_nulls, kept)] {
            let written = expanded(&document, behaviour).unwrap_or_else(|_| "!".into());
            assert_eq!(written, expected, "{document} {behaviour:?}");
        }
        count += 1;
    }
    assert!(count > 100, "{count}");
}

#[test]
fn objects_of_an_array_have_their_members_in_the_order_of_the_document() {
    for (document, expected) in [
        (r#"{"a":[{"x":1},{"y":2}]}"#, r#"{"a":[{"x":1,"y":null},{"x":null,"y":2}]}"#),
        (r#"{"a":[{"x":1,"y":2},{"y":3,"x":4}]}"#, r#"{"a":[{"x":1,"y":2},{"x":4,"y":3}]}"#),
        (r#"{"a":[{"x":{"p":1}},{"x":{"q":1}}]}"#, r#"{"a":[{"x":{"p":1}},{"x":{"p":null}}]}"#),
    ] {
        assert_eq!(expanded(document, Behaviour::default()).as_deref(), Ok(expected));
    }
}

#[test]
fn a_top_level_array_is_expanded() {
    for (document, expected) in
        [("[1]", "[1]"), (r#"[{"a":null,"b":1.0}]"#, r#"[{"b":1.0}]"#), ("[[1],[],null]", "[[1],[],null]")]
    {
        assert_eq!(expanded(document, Behaviour::default()).as_deref(), Ok(expected));
    }
}

#[test]
fn empty_arrays_are_kept_if_configured() {
    let behaviour = Behaviour { keep_empty_arrays: true, ..Behaviour::default() };
    for (document, expected) in [
        (r#"{"a":[],"b":null}"#, Ok(r#"{"a":[]}"#)),
        (r#"{"a":[[],["x"]]}"#, Ok(r#"{"a":[[],["x"]]}"#)),
        (r#"{"a":[[],[1]]}"#, Err(Unexpandable::Mixed)),
        (r#"{"a":[{"x":[]},{"x":[1]}]}"#, Ok(r#"{"a":[{"x":[]},{"x":[1]}]}"#)),
        (r#"{"a":[{"x":[1]},{"x":[]}]}"#, Ok(r#"{"a":[{"x":[1]},{"x":[]}]}"#)),
        ("[]", Ok("[]")),
    ] {
        assert_eq!(expanded(document, behaviour).as_deref(), expected.as_ref().copied(), "{document}");
    }
}

#[test]
fn a_failed_expansion_says_why_and_leaves_the_buffer_unchanged() {
    for (document, error) in [
        (r#"{"a":9223372036854775808}"#, Unexpandable::Integer),
        (r#"{"a":[{"x":1},{"x":"y"}]}"#, Unexpandable::Mixed),
        (r#"{"a":[[1],["x"]]}"#, Unexpandable::Mixed),
    ] {
        let mut into = String::from("before");
        assert_eq!(expand(document, Behaviour::default(), &mut into), Err(error));
        assert_eq!(into, "before");
    }
    // a document without a schema is a string, whatever else is wrong with it
    let document = r#"{"a":9223372036854775808,"b":[1,"x"]}"#;
    assert!(expanded(document, Behaviour::default()).is_ok_and(is_text));
}

#[test]
fn jacksons_limits_apply() {
    let nested = |depth: usize| format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
    let named = |name: String| format!("{{\"{name}\":1}}");
    let number = |digits: usize| format!("{{\"a\":1{}.5}}", "0".repeat(digits - 2));
    for (within, beyond) in [
        (nested(999), nested(1000)),
        (named("x".repeat(50_000)), named("x".repeat(50_001))),
        (named("\\u0061".repeat(50_000)), named("\\u0061".repeat(50_001))),
        (named("😀".repeat(25_000)), named("😀".repeat(25_001))),
        (number(1_000), number(1_001)),
    ] {
        for (document, becomes_text) in [(within, false), (beyond, true)] {
            assert_eq!(expanded(&document, Behaviour::default()).map(is_text), Ok(becomes_text));
        }
    }
}

/// Documents of all kinds, a few of them broken.
fn document() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        (-9..9_i32).prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:e}")),
        "\"([a-z /é😀]|\\\\[\"nu/]|\\\\u00e9|\\\\ud83d)*\"",
    ];
    let tree = scalar.prop_recursive(5, 60, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5)
                .prop_map(|elements| format!("[{}]", elements.join(" ,"))),
            prop::collection::vec(("[abc😀]?", inner), 0..5).prop_map(|members| {
                let members: Vec<_> =
                    members.iter().map(|(name, value)| format!("\"{name}\" :{value}")).collect();
                format!("{{{}}}", members.join(", "))
            }),
        ]
    });
    prop_oneof![4 => tree.prop_map(|tree| format!("{{\"a\":{tree}}}")), 1 => "[{}\\[\\],:\"a1.e-]{0,20}"]
}

proptest! {
    #[test]
    fn an_expanded_document_is_json(document in document(), nulls in any::<bool>(), arrays in any::<bool>()) {
        let behaviour = Behaviour { keep_nulls: nulls, keep_empty_arrays: arrays };
        let mut into = String::from("x");
        if expand(&document, behaviour, &mut into).is_ok() {
            prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&into[1..]).is_ok(), "{into}");
        } else {
            prop_assert_eq!(into, "x");
        }
    }

    #[test]
    fn expanding_twice_changes_nothing(document in document()) {
        let behaviour = Behaviour { keep_nulls: true, keep_empty_arrays: true };
        let mut once = String::new();
        // numbers out of the range of a double, and nulls from merged schemas, are read differently
        prop_assume!(expand(&document, behaviour, &mut once).is_ok() && !is_text(once.clone()));
        prop_assume!(!once.contains("Infinity"));
        prop_assert_eq!(expanded(&once, behaviour), Ok(once.clone()));
    }

    #[test]
    fn integers_are_written_unchanged(number in any::<i64>()) {
        let document = format!("{{\"a\":{number}}}");
        prop_assert_eq!(expanded(&document, Behaviour::default()), Ok(document));
    }
}
