use proptest::prelude::*;

use super::*;
use crate::golden::rows;

const VALUES: &str = include_str!("golden/values.tsv");

fn key(connect_type: ConnectType, value: &str) -> Result<String, Unwritable> {
    let mut into = String::new();
    write_key(connect_type, value, &mut into).map(|()| into)
}

fn header(connect_type: ConnectType, value: &str) -> Result<String, Unwritable> {
    let mut into = String::new();
    write_header(connect_type, value, &mut into).map(|()| into)
}

fn json(connect_type: ConnectType, value: &str) -> Result<String, Unwritable> {
    let mut into = String::new();
    write_json(connect_type, Some(value), &mut into).map(|()| into)
}

#[test]
fn values_are_written_as_debezium_writes_them() {
    let mut count = 0;
    for [name, oid, modifier, value, as_key, as_header, as_json] in rows(VALUES) {
        let connect_type = ConnectType::of(oid.parse().unwrap(), modifier.parse().unwrap());
        // the text of a bytea is the same for all values of one length
        let expected =
            if as_key == "!" || name.starts_with("bytea") { Err(Unwritable::NoKeyText) } else { Ok(as_key) };
        assert_eq!(key(connect_type, &value), expected, "{name} {value} as key");
        assert_eq!(header(connect_type, &value), Ok(as_header), "{name} {value} as header");
        assert_eq!(json(connect_type, &value), Ok(as_json), "{name} {value} as JSON");
        count += 1;
    }
    assert!(count > 200, "{count}");
}

#[test]
fn json_strings_are_escaped_as_by_jackson() {
    let mut into = String::new();
    write_json_string("\"\\/\u{0}\u{8}\t\n\u{c}\r\u{1f}\u{7f}é\u{2028}😀", &mut into);
    assert_eq!(into, "\"\\\"\\\\/\\u0000\\b\\t\\n\\f\\r\\u001F\u{7f}é\u{2028}\\uD83D\\uDE00\"");
}

#[test]
fn null_is_null_in_json() {
    let mut into = String::new();
    assert_eq!(write_json(ConnectType::of(1700, -1), None, &mut into), Ok(()));
    assert_eq!(into, "null");
}

#[test]
fn built_in_types_are_found_by_name() {
    for (name, oid) in [("int4", 23), ("_int4", 1007), ("timestamptz", 1184), ("varbit", 1562), ("xml", 142)]
    {
        assert_eq!(oid_of(name), Some(oid), "{name}");
    }
    for name in ["citext", "hstore", "mood", "_mood", "_money", "_", "", "point_"] {
        assert_eq!(oid_of(name), None, "{name}");
    }
    for oid in [0, 19, 22, 603, 791, 3220, 16_384, u32::MAX] {
        assert!(ConnectType::of(oid, -1).is_string(), "{oid}");
    }
}

#[test]
fn user_defined_types_are_recognized_by_name() {
    let pairs = r#""b"=>"x\"y", "a"=>NULL"#;
    let moods = r#"{happy,"so so",NULL}"#;
    for (name, value, as_key, as_header, as_json) in [
        ("mood", "happy", "happy", "happy", r#""happy""#),
        ("_mood", moods, "[happy, so so, null]", r#"["happy","so so",null]"#, r#"["happy","so so",null]"#),
        ("_mood", "{}", "[]", "[]", "[]"),
        // an enum of that name
        ("_mood", "happy", "happy", "happy", r#""happy""#),
        ("hstore", "", "{}", "{}", r#""{}""#),
        (
            "hstore",
            pairs,
            r#"{"a":null,"b":"x\"y"}"#,
            r#"{"a":null,"b":"x\"y"}"#,
            r#""{\"a\":null,\"b\":\"x\\\"y\"}""#,
        ),
        (
            "_hstore",
            r#"{"\"a\"=>\"1\"",NULL}"#,
            r#"[{"a":"1"}, null]"#,
            r#"["{\"a\":\"1\"}",null]"#,
            r#"["{\"a\":\"1\"}",null]"#,
        ),
    ] {
        let connect_type = ConnectType::user_defined(name);
        assert_eq!(key(connect_type, value).as_deref(), Ok(as_key), "{name} {value} as key");
        assert_eq!(header(connect_type, value).as_deref(), Ok(as_header), "{name} {value} as header");
        assert_eq!(json(connect_type, value).as_deref(), Ok(as_json), "{name} {value} as JSON");
    }
    assert!(ConnectType::user_defined("mood").is_string());
    assert_eq!(header(ConnectType::user_defined("hstore"), "a=>1"), Err(Unwritable::Malformed));
}

#[test]
fn a_value_that_cannot_be_written_leaves_the_buffer_unchanged() {
    for (oid, value, error) in [
        (16, "true", Unwritable::Malformed),
        (23, "1.0", Unwritable::Malformed),
        (23, "007", Unwritable::Malformed),
        (701, "one", Unwritable::Malformed),
        (1007, "{1,x}", Unwritable::Malformed),
        (1007, "{{1}}", Unwritable::Dimensions),
        (1700, "NaN", Unwritable::NotFinite),
        (1184, "2024-02-29 12:34:56", Unwritable::Malformed),
        (3802, "", Unwritable::Malformed),
    ] {
        let mut into = String::from("before");
        let written = write_header(ConnectType::of(oid, -1), value, &mut into);
        if oid == 3802 {
            assert_eq!(written, Ok(()));
        } else {
            assert_eq!(written, Err(error), "{oid} {value}");
        }
        assert_eq!(into, "before");
    }
}

/// Values that resemble those of some type, and arbitrary texts.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "-?[0-9]{0,40}(\\.[0-9]{0,20})?",
        "[0-9]{1,7}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,6})?([+-][0-9]{2}(:[0-9]{2})?)?)?( BC)?",
        "(-?[0-9]{1,10} (year|mons|days) )?-?[0-9]{1,10}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,6})?",
        "[01]{0,70}",
        "\\\\x([0-9a-f]{2}){0,20}",
        "\\{([0-9\",a\\\\{}]|NULL){0,20}\\}",
        "\\(-?[0-9]e?[0-9]?,[0-9]\\)",
        "-?\\$[0-9,]{0,20}\\.[0-9]{2}",
    ]
}

proptest! {
    #[test]
    fn any_value_is_written_or_refused(
        oid in prop::sample::select((16..4500_u32).filter(|&oid| !ConnectType::of(oid, -1).is_string()).collect::<Vec<_>>()),
        modifier in prop_oneof![Just(-1), 0..8_i32, any::<i32>()],
        value in value(),
    ) {
        let connect_type = ConnectType::of(oid, modifier);
        let _ = (key(connect_type, &value), header(connect_type, &value));
        if let Ok(written) = json(connect_type, &value) {
            prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&written).is_ok(), "{} {:?}", oid, written);
        }
    }

    #[test]
    fn integers_are_written_unchanged(number in any::<i64>()) {
        let text = number.to_string();
        prop_assert_eq!(json(ConnectType::of(20, -1), &text), Ok(text));
    }

    #[test]
    fn json_strings_parse_to_the_original(text in any::<String>()) {
        let mut into = String::new();
        write_json_string(&text, &mut into);
        prop_assert_eq!(serde_json::from_str::<String>(&into).unwrap(), text);
    }
}
