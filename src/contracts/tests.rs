//! A directory of contracts, from its files to verdicts, pages and the AsyncAPI document.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::asyncapi::{self, Info};
use super::*;
use crate::config::Columns;
use crate::config::template::Template;
use crate::routing::contract_topic;

fn example() -> Contracts {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/contracts");
    Contracts::load(&directory).unwrap_or_else(|faults| panic!("{faults}"))
}

fn of(files: &[(&str, Value)]) -> Result<Contracts, Faults> {
    let file =
        |(path, schema): &(&str, Value)| SourceFile { path: (*path).to_owned(), text: schema.to_string() };
    Contracts::of(files.iter().map(file).collect())
}

fn topic_of(contract: &Contract) -> Topic {
    contract_topic(contract, &Template::parse("outbox.event.${aggregate_type}").unwrap(), &Columns::default())
}

fn said(contracts: &Contracts, event_type: &str, payload: Option<&str>) -> String {
    match contracts.check("order", event_type, payload.map(str::as_bytes)) {
        Verdict::NoContract => "no contract".to_owned(),
        Verdict::Valid => "kept".to_owned(),
        Verdict::Violated(violation) => violation.to_string(),
    }
}

#[test]
fn the_example_is_sound() {
    let contracts = example();
    let names: Vec<_> = contracts.iter().map(Contract::name).collect();
    assert_eq!(names, ["order/OrderCancelled", "order/OrderPlaced", "payment/PaymentReceived"]);
    assert_eq!(contracts.warnings(), []);
    for contract in contracts.iter() {
        assert!(!contract.facts.examples.is_empty(), "{}", contract.path);
    }
}

#[test]
fn what_is_no_schema_at_all_is_said_once() {
    let faults = of(&[("order/OrderPlaced.json", json!([]))]).unwrap_err();
    let [fault] = faults.0.as_slice() else { panic!("{faults}") };
    assert!(fault.what.starts_with("this is not a valid JSON Schema: "), "{fault}");
}

#[test]
fn what_keeps_its_contract_and_what_breaks_it() {
    let contracts = example();
    let good = contracts.get("order", "OrderPlaced").unwrap().facts.examples[0].clone();
    let with = |place: &str, value: Value| {
        let mut payload = good.clone();
        *payload.pointer_mut(place).unwrap() = value;
        payload.to_string()
    };
    let mut missing = good.clone();
    missing.as_object_mut().unwrap().remove("total");
    let cancelled = |more: &str| {
        format!(r#"{{"order_id": "6f1f5f2e-6d0c-4a55-9a53-2f7c4f2a9a10", "reason": "stock"{more}}}"#)
    };
    let cases = [
        ("as it should be", "OrderPlaced", Some(good.to_string())),
        ("no contract", "OrderLost", Some("{".to_owned())),
        ("missing", "OrderPlaced", Some(missing.to_string())),
        ("another type", "OrderPlaced", Some(with("/items/0/quantity", json!("two")))),
        ("too small", "OrderPlaced", Some(with("/items/0/quantity", json!(0)))),
        ("too few", "OrderPlaced", Some(with("/items", json!([])))),
        ("no such value", "OrderPlaced", Some(with("/channel", json!("fax")))),
        ("not the pattern", "OrderPlaced", Some(with("/total/currency", json!("euro")))),
        ("not the format", "OrderPlaced", Some(with("/placed_at", json!("yesterday")))),
        ("not listed", "OrderCancelled", Some(cancelled(r#", "alice@example.com": 1"#))),
        ("listed", "OrderCancelled", Some(cancelled(r#", "note": null"#))),
        ("not JSON", "OrderCancelled", Some("{\"order_id\": secret}".to_owned())),
        ("not closed", "OrderCancelled", Some("[".repeat(1000))),
        ("nested deeply", "OrderCancelled", Some("[".repeat(1000) + &"]".repeat(1000))),
        ("NULL", "OrderCancelled", None),
    ];
    let lines: Vec<String> = cases
        .iter()
        .map(|(case, event_type, payload)| {
            format!("{case}: {}", said(&contracts, event_type, payload.as_deref()))
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

/// A contract whose numbers no `f64` holds, written as text.
fn of_text(schema: &str) -> Contracts {
    let file = SourceFile { path: "order/Placed.json".to_owned(), text: schema.to_owned() };
    Contracts::of(vec![file]).unwrap_or_else(|faults| panic!("{schema}: {faults}"))
}

#[test]
fn numbers_are_compared_exactly() {
    let mut wrong: Vec<String> = Vec::new();
    for (schema, kept, broken) in [
        (
            r#"{"maximum": 18446744073709551616}"#,
            &["18446744073709551616", "1.8446744073709551616e19", "-1e400"][..],
            &["18446744073709551617", "18446744073709551616.01", "1.844674407370955161600001e19", "1e400"][..],
        ),
        (
            r#"{"minimum": 0.1}"#,
            &["0.1", "0.10", "1e-1", "0.10000000000000000000001", "1e400", "1e99999"],
            &["0.09999999999999999999999", "1e-400", "-1e400"],
        ),
        (r#"{"exclusiveMaximum": 1e400}"#, &["9.99e399", "1e399", "0"], &["1e400", "10e399", "1e401"]),
        (
            r#"{"exclusiveMinimum": 9007199254740992}"#,
            &["9007199254740993"],
            &["9007199254740992", "9007199254740992.0"],
        ),
        (
            r#"{"multipleOf": 0.01}"#,
            &["1.50", "100000000000000000000.01", "1e400"],
            &["0.015", "100000000000000000000.015", "1e-400"],
        ),
        (r#"{"multipleOf": 3}"#, &["300000000000000000003", "3e400"], &["300000000000000000002", "1e400"]),
        (
            r#"{"const": 9007199254740993}"#,
            &["9007199254740993", "9007199254740993.0", "9.007199254740993e15"],
            &["9007199254740992", "9007199254740994"],
        ),
        (r#"{"enum": [1e400, 0.1]}"#, &["1e400", "10e399", "0.10"], &["1e401", "0.1000000000000000000001"]),
        (
            r#"{"type": "integer"}"#,
            &["1e400", "1.0", "18446744073709551617"],
            &["1.00000000000000000000001", "1e-400"],
        ),
        (
            r#"{"uniqueItems": true}"#,
            &["[9007199254740992, 9007199254740993]", "[1e400, 1e401]"],
            &["[1e400, 10e399]", "[18446744073709551617, 18446744073709551617.0]"],
        ),
    ] {
        let contracts = of_text(schema);
        let is_kept = |payload: &&&str| said(&contracts, "Placed", Some(payload)) == "kept";
        wrong.extend(
            kept.iter().filter(|payload| !is_kept(payload)).map(|payload| format!("{schema} {payload}")),
        );
        wrong.extend(broken.iter().filter(is_kept).map(|payload| format!("{schema} {payload}")));
    }
    assert_eq!(wrong, [""; 0]);
}

/// `jsonb` prints numbers without an exponent.
#[test]
fn a_number_may_be_as_long_as_postgres_permits() {
    let contracts = of_text(r#"{"type": "integer", "exclusiveMinimum": 1e131071, "multipleOf": 2}"#);
    let long = |last: char| format!("1{}{last}", "0".repeat(131_070));
    assert_eq!(said(&contracts, "Placed", Some(&long('2'))), "kept");
    for broken in [long('0'), long('1'), format!("{}.5", long('2'))] {
        assert_ne!(said(&contracts, "Placed", Some(&broken)), "kept");
    }
}

#[test]
fn a_tree_may_be_as_deep_as_postgres_permits() {
    let contracts = of_text(
        r##"{"type": ["object", "integer"], "properties": {"left": {"$ref": "#"}}, "required": ["left"],
             "allOf": [{"anyOf": [{"type": "integer"}, {"propertyNames": {"maxLength": 4}}]}], "unevaluatedProperties": false}"##,
    );
    let tree = |depth: usize, leaf: &str| r#"{"left":"#.repeat(depth) + leaf + &"}".repeat(depth);
    for depth in [1, 126, 127, 128, 5_000, payload::MAX_DEPTH] {
        assert_eq!(said(&contracts, "Placed", Some(&tree(depth, "1e400"))), "kept", "{depth}");
        let violation = said(&contracts, "Placed", Some(&tree(depth, "null")));
        assert!(violation.contains("\"type\"") && violation.len() < 400, "{depth}: {violation}");
    }
}

#[test]
fn halves_of_surrogate_pairs_are_characters() {
    let contracts = of_text(r#"{"type": "string", "minLength": 2, "maxLength": 2}"#);
    assert_eq!(said(&contracts, "Placed", Some(r#""\ud83da""#)), "kept");
    assert_eq!(said(&contracts, "Placed", Some(r#""\ud83d\ude00!""#)), "kept");
    assert_ne!(said(&contracts, "Placed", Some(r#""\ud83d""#)), "kept");
}

#[test]
fn null_is_judged_as_json_null() {
    let contracts = of(&[("order/Gone.json", json!({"type": ["object", "null"]}))]).unwrap();
    assert_eq!(said(&contracts, "Gone", None), "kept");
    assert_eq!(said(&contracts, "Gone", Some("null")), "kept");
}

#[test]
fn what_is_null_or_no_text_names_no_contract() {
    let contracts = of(&[("order/Gone.json", json!(false))]).unwrap();
    assert!(contracts.violation(Some(b"order"), Some(b"Gone"), None).is_some());
    for (aggregate_type, event_type) in
        [(None, Some(b"Gone".as_slice())), (Some(b"order".as_slice()), None), (Some(b"\xff"), Some(b"Gone"))]
    {
        assert_eq!(contracts.violation(aggregate_type, event_type, None), None);
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let files = [
        ("order/bad_keyword.json", json!({"type": "text", "minLength": -1})),
        ("order/bad_pattern.json", json!({"pattern": "("})),
    ];
    let early = of(&files).unwrap_err();
    let files = [
        ("Loose.json", json!({})),
        ("order/deep/Deep.json", json!({})),
        ("order/bad_pattern.json", json!({"pattern": "a(?!b"})),
        (
            "order/facts.json",
            json!({
                "x-owner": 7, "x-topic": "a b", "x-compatibility": "ful", "x-guarantees": [1],
                "x-idempotency-key": ["id", "/nowhere", "/maybe"], "x-ordering-key": "/in/it",
                "properties": {"maybe": {}, "in": {"$ref": "#/$defs/in"}}, "required": ["in"],
                "$defs": {"in": {"properties": {"it": {}}, "required": ["it"]}},
            }),
        ),
        ("order/example.json", json!({"type": "object", "required": ["a"], "examples": [{"a": 1}, {}, 5]})),
    ];
    let late = of(&files).unwrap_err();
    insta::assert_snapshot!(format!("{early}\n\n{late}"));
    let error = late.into_error(Path::new("contracts")).to_string();
    assert!(
        error.starts_with("OBR-2004: The contracts in contracts have 12 faults:\n  Loose.json: "),
        "{error}"
    );
}

#[test]
fn the_pages() {
    let pages = markdown::pages(&example(), topic_of);
    let text: Vec<String> = pages.iter().map(|page| format!("=== {}\n{}", page.path, page.text)).collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn a_page_of_everything_else_a_schema_may_say() {
    let schema = json!({
        "description": "First | line.\nSecond <b>line</b>. ",
        "deprecated": true,
        "type": ["object", "null"],
        "properties": {
            "tree": {"$ref": "#/$defs/tree"},
            "me": {"$ref": "#"},
            "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "a|b`c"}], "maxItems": 2, "uniqueItems": true},
            "map": {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0, "maximum": 9.5, "multipleOf": 0.5}},
            "like": {"patternProperties": {"^x-": {"type": "string", "default": "x", "minLength": 1}}, "minProperties": 1},
            "old": {"type": "string", "deprecated": true, "contentMediaType": "text/html"},
            "any": {},
            "either": {"anyOf": [{"type": "string"}, {"title": "number", "type": "integer"}]},
            "choice": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}, "not": {"required": ["c"]}}
        },
        "$defs": {"tree": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}},
    });
    let pages = markdown::pages(&of(&[("a b/c.json", schema)]).unwrap(), topic_of);
    insta::assert_snapshot!(
        pages.iter().map(|page| page.text.as_str()).collect::<Vec<_>>().join("\n=====\n")
    );
}

#[test]
fn the_asyncapi_document() {
    let info = Info { title: "Events of the shop".to_owned(), version: "1.2.0".to_owned() };
    let text = asyncapi::document(&example(), &info, topic_of).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    every_reference_leads_somewhere(&document, &document);
    insta::assert_snapshot!(text);
}

#[test]
fn an_asyncapi_document_of_odd_names_and_references() {
    let contracts = of(&[
        ("a b/c.json", json!({"$ref": "../_p/x y.json#/$defs/m%20n", "minProperties": 1})),
        (
            "a_b/c.json",
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "../a b/c.json", "type": "object"}),
        ),
        ("_p/x y.json", json!({"$defs": {"m n": {"$anchor": "here", "items": {"$ref": "#here"}}}})),
        ("d/e.json", json!({"x-topic": "orders", "deprecated": true, "examples": [5], "type": "integer"})),
    ]);
    let info = Info { title: "x".to_owned(), version: "1".to_owned() };
    let text = asyncapi::document(&contracts.unwrap(), &info, topic_of).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    every_reference_leads_somewhere(&document, &document);
    insta::assert_snapshot!(text);
}

fn every_reference_leads_somewhere(document: &Value, value: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                let place = reference.strip_prefix('#').unwrap().replace("%20", " ").replace("%24", "$");
                assert!(document.pointer(&place).is_some(), "{reference}");
            }
            members.values().for_each(|value| every_reference_leads_somewhere(document, value));
        }
        Value::Array(items) => {
            items.iter().for_each(|value| every_reference_leads_somewhere(document, value))
        }
        _ => {}
    }
}

/// JSON in which all texts and names are secret.
fn secrets() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        any::<i32>().prop_map(|n| json!(n)),
        Just(json!("pay10ad"))
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = prop_oneof![
            Just("pay10ad"),
            proptest::sample::select(vec![
                "order_id", "items", "sku", "quantity", "price", "total", "amount", "channel", "note"
            ]),
        ];
        prop_oneof![
            proptest::collection::btree_map(name, inner.clone(), 0..5).prop_map(|members| json!(members)),
            proptest::collection::vec(inner, 0..3).prop_map(|items| json!(items)),
        ]
    })
}

proptest! {
    #[test]
    fn no_verdict_quotes_a_payload(payload in secrets(), cut in 0..200usize) {
        let strict = json!({
            "additionalProperties": {"additionalProperties": {"type": "boolean"}, "items": {"type": "boolean"}, "maximum": 0, "minLength": 9},
            "propertyNames": {"maxLength": 6},
            "unevaluatedProperties": false,
        });
        let loose = json!({"additionalProperties": {"$ref": "Strict.json"}, "not": {"type": "string"}});
        let contracts = of(&[("order/Strict.json", strict), ("order/Loose.json", loose)]).unwrap();
        let whole = payload.to_string();
        let cut: String = whole.chars().take(cut).collect();
        for (contracts, event_type) in [(&contracts, "Strict"), (&contracts, "Loose"), (&example(), "OrderPlaced")] {
            for text in [&whole, &cut] {
                let said = said(contracts, event_type, Some(text));
                prop_assert!(!said.contains("pay10ad"), "{said}");
            }
        }
    }
}
