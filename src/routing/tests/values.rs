//! Forms of the value, from the text of the configuration to the record.

use super::*;
use crate::config::minimal_with;

/// A router, and a table with the usual and further columns.
pub(super) struct Table {
    router: Router,
    outbox: Outbox,
    columns: Vec<(&'static str, u32)>,
}

/// The result for a row.
#[derive(Debug)]
pub(super) enum Row {
    Dropped,
    Record {
        topic: String,
        partition: Option<i32>,
        key: Option<String>,
        value: Option<String>,
        headers: Vec<String>,
    },
}

impl Row {
    pub(super) fn value(&self) -> Option<String> {
        match self {
            Row::Record { value, .. } => value.clone(),
            Row::Dropped => panic!("dropped"),
        }
    }

    pub(super) fn headers(&self) -> Vec<&str> {
        match self {
            Row::Record { headers, .. } => headers.iter().map(String::as_str).collect(),
            Row::Dropped => panic!("dropped"),
        }
    }
}

impl Table {
    pub(super) fn new(config: &str, more: &[(&'static str, u32)]) -> Self {
        Self::with_payload(config, 3802, more)
    }

    pub(super) fn with_payload(config: &str, payload_type: u32, more: &[(&'static str, u32)]) -> Self {
        Self::described("outbox", config, payload_type, more)
    }

    /// A table of this name in the schema `public`.
    fn named(name: &str, config: &str) -> Self {
        Self::described(name, config, 3802, &[])
    }

    fn described(name: &str, config: &str, payload_type: u32, more: &[(&'static str, u32)]) -> Self {
        let config = minimal_with(config);
        let router = Router::of(&config);
        let mut outbox = Outbox::of(&config, router.extra_columns());
        let mut columns = vec![
            ("id", 2950),
            ("aggregate_type", 25),
            ("aggregate_id", 25),
            ("event_type", 25),
            ("payload", payload_type),
            ("headers", 3802),
            ("created_at", 1184),
        ];
        columns.extend(more);
        let relation = wire::relation(7, ("public", name), &columns);
        let Ok(Message::Relation(relation)) = Message::decode(&relation) else { panic!("not a relation") };
        outbox.relation(&relation, false).unwrap();
        Table { router, outbox, columns }
    }

    /// Routes the usual row with these additional values.
    pub(super) fn route(&mut self, values: &[(&str, Option<&str>)]) -> Result<Row, Unroutable> {
        let usual = [
            ("id", "e1"),
            ("aggregate_type", "order"),
            ("aggregate_id", "42"),
            ("event_type", "made"),
            ("payload", r#"{"total": 7}"#),
        ];
        let value = |name: &str| match values.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => *value,
            None => usual.iter().find(|(known, _)| *known == name).map(|(_, value)| *value),
        };
        let row: Vec<Option<&str>> = self.columns.iter().map(|(name, _)| value(name)).collect();
        let bytes = wire::insert(7, &row);
        let Ok(Message::Insert(insert)) = Message::decode(&bytes) else { panic!("not an insert") };
        let event = self.outbox.event(&insert).unwrap().unwrap();
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let Routed::Record(record) = self.router.route(&event, &ORIGIN)? else { return Ok(Row::Dropped) };
        let header = |(name, value): (&str, Option<&[u8]>)| match value {
            Some(value) => format!("{name}={}", text(value)),
            None => format!("{name} null"),
        };
        Ok(Row::Record {
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: record.key.map(text),
            value: record.value.map(text),
            headers: record.headers.iter().map(header).collect(),
        })
    }
}

fn value(config: &str, payload_type: u32, payload: Option<&str>) -> Result<Option<String>, String> {
    let mut table = Table::with_payload(config, payload_type, &[("n", 23), ("flag", 16), ("note", 25)]);
    let row = [("payload", payload), ("n", Some("12")), ("flag", Some("t"))];
    table.route(&row).map(|row| row.value()).map_err(|error| error.to_string())
}

const ENVELOPE: &str = r#"
    [route]
    value = "envelope"
    envelope.z = "${n}"
    envelope.flag = "${flag}"
    envelope.note = "${note}"
    envelope.text = "${n}/${aggregate_type}"
    envelope.sequence = "${source.sequence}"
"#;

#[test]
fn an_envelope_holds_the_payload_and_typed_members_in_the_order_of_the_file() {
    let rest =
        r#","z":12,"flag":true,"note":null,"text":"12/order","sequence":"000000000016b3740000000000000002"}"#;
    let made = |payload_type, payload| value(ENVELOPE, payload_type, payload);
    for (payload_type, payload, json) in [
        (3802, Some(r#"{"a": [1.0]}"#), r#"{"a": [1.0]}"#),
        (114, Some("[ ]"), "[ ]"),
        (25, Some(" true"), " true"),
        (17, Some(r"\x00ff"), r#""AP8=""#),
        (3802, None, "null"),
    ] {
        assert_eq!(made(payload_type, payload), Ok(Some(format!("{{\"payload\":{json}{rest}"))));
    }
    let error = "the column \"payload\" is put into a JSON value and is not JSON (at byte 1)";
    assert_eq!(made(25, Some("s3cret")), Err(error.to_owned()));
    let as_string = format!("{ENVELOPE}\npayload_json = \"string\"");
    let expected = format!("{{\"payload\":\"a\\\"b\\u0001\"{rest}");
    assert_eq!(value(&as_string, 25, Some("a\"b\u{1}")), Ok(Some(expected)));
}

#[test]
fn a_blank_payload_is_a_tombstone_only_if_that_is_asked_for() {
    for blank in ["", " ", "\t\r\n\u{b}\u{1} "] {
        assert_eq!(value("", 25, Some(blank)), Ok(Some(blank.to_owned())));
        assert_eq!(value("route.tombstone_on_empty = true", 25, Some(blank)), Ok(None));
        assert_eq!(value(&format!("{ENVELOPE}\ntombstone_on_empty = true"), 25, Some(blank)), Ok(None));
    }
    // white space in Unicode, but not for Java's trim
    assert!(value("route.tombstone_on_empty = true", 25, Some("\u{a0}")).unwrap().is_some());
    assert!(value("route.tombstone_on_empty = true", 17, Some(r"\x20")).unwrap().is_some());
    assert_eq!(value("", 25, None), Ok(None));
}

#[test]
fn cloudevents_in_binary_mode() {
    let config = r#"
        [route]
        value = "cloudevents-binary"
        [route.cloudevents]
        source = "/shop/${aggregate_type}"
        extensions.sequence = "${source.sequence}"
        extensions.region = "${region}"
    "#;
    let mut table = Table::new(config, &[("region", 25)]);
    let record = table.route(&[("headers", Some(r#"{"ce_id": "forged", "x": "y"}"#))]).unwrap();
    assert_eq!(record.value().as_deref(), Some(r#"{"total": 7}"#));
    insta::assert_snapshot!(record.headers().join("\n"));
    assert_eq!(table.route(&[("payload", None)]).unwrap().value(), None);
}

#[test]
fn a_cloudevent_has_the_commit_time_where_created_at_cannot_be_written() {
    let config = "route.value = \"cloudevents-binary\"\nroute.timestamp = \"created_at\"";
    let mut table = Table::new(config, &[("created_at", 1184)]);
    let mut time = |created_at: Option<&str>| {
        let record = table.route(&[("created_at", created_at)]).unwrap();
        record.headers().iter().find_map(|header| header.strip_prefix("ce_time=").map(str::to_owned)).unwrap()
    };
    assert_eq!(time(Some("9999-12-31 23:59:59.999999+00")), "9999-12-31T23:59:59.999Z");
    assert_eq!(time(Some("0001-01-01 00:00:00+00")), "0001-01-01T00:00:00.000Z");
    let commit_time = time(None);
    for unwritable in [
        "10000-01-01 00:00:00+00",
        "294276-12-31 23:59:59.999999+00",
        "0044-03-15 12:00:00+00 BC",
        "infinity",
        "-infinity",
    ] {
        assert_eq!(time(Some(unwritable)), commit_time, "{unwritable}");
    }
}

#[test]
fn cloudevents_in_structured_mode() {
    let config = "route.value = \"cloudevents-structured\"";
    let made = |payload_type, payload| {
        let mut table = Table::with_payload(config, payload_type, &[]);
        let record = table.route(&[("payload", payload)]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&record.value().unwrap()).unwrap();
        assert_eq!(json["specversion"], "1.0");
        format!("{}\n{}", record.headers().join("\n"), record.value().unwrap())
    };
    let all = [
        made(3802, Some(r#"{"total": 7.0}"#)),
        made(25, Some("plain \"text\"")),
        made(142, Some("<a/>")),
        made(17, Some(r"\x00ff")),
        made(3802, None),
    ];
    insta::assert_snapshot!(all.join("\n\n"));
}

#[test]
fn names_of_tables_are_encoded_in_the_uris_of_cloudevents() {
    let config = r#"
        route.value = "cloudevents-binary"
        outbox.table = "public.\"Öffentliche Outbox/1\""
        [route.cloudevents]
        dataschema = "https://shop.example/${source.table | lower}"
        type = "${source.table}"
    "#;
    let record = Table::named("Öffentliche Outbox/1", config).route(&[]).unwrap();
    let headers = record.headers();
    for header in [
        "ce_source=/public/%C3%96ffentliche%20Outbox%2F1",
        "ce_dataschema=https://shop.example/%C3%B6ffentliche%20outbox%2F1",
        "ce_type=Öffentliche Outbox/1",
    ] {
        assert!(headers.contains(&header), "{header}: {headers:?}");
    }
}

#[test]
fn what_no_cloudevent_can_bear_is_an_error_of_the_event() {
    let errors = [
        ("", ("id", None)),
        ("", ("event_type", Some(""))),
        ("", ("event_type", Some("a\u{7}"))),
        ("source = \"${aggregate_type}\"", ("aggregate_type", Some("a b"))),
        ("source = \"${aggregate_id}\"", ("aggregate_id", None)),
        ("source = \"${aggregate_id}\"", ("aggregate_id", Some("/a[1]"))),
        ("dataschema = \"${aggregate_id}\"", ("aggregate_id", Some("order.json"))),
        ("datacontenttype = \"${aggregate_id}\"", ("aggregate_id", Some("json"))),
    ];
    let errors = errors.map(|(more, value)| {
        let config =
            format!("route.value = \"cloudevents-binary\"\nroute.topic = \"t\"\n[route.cloudevents]\n{more}");
        Table::new(&config, &[]).route(&[value]).unwrap_err().to_string()
    });
    insta::assert_snapshot!(errors.join("\n"));
}

/// A table may lack columns that no value needs.
#[test]
fn the_preset_takes_a_table_without_a_type() {
    let config = minimal_with("[route]\n");
    assert_eq!(Router::of(&config).extra_columns(), []);
    let preset = crate::config::preset_with("debezium", "");
    assert_eq!(Router::of(&preset).extra_columns(), []);
    let rule = "[[route.rules]]\nmatch = { aggregate_type = \"x\" }\nvalue = \"cloudevents-binary\"\n\
                [route.cloudevents]\ntype = \"${kind}\"";
    assert_eq!(Router::of(&crate::config::preset_with("debezium", rule)).extra_columns().len(), 1);
}

#[test]
fn keys_can_be_json() {
    let key = |aggregate_id| match Table::new("route.key = \"json\"", &[])
        .route(&[("aggregate_id", aggregate_id)])
    {
        Ok(Row::Record { key, .. }) => key.unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!((key(Some("a\"b")), key(None)), (r#""a\"b""#.to_owned(), "null".to_owned()));
}

#[test]
fn without_an_event_type_there_is_no_such_header() {
    let mut table = Table::new("outbox.columns.event_type = false", &[]);
    assert_eq!(table.route(&[]).unwrap().headers(), ["id=e1"]);
}

#[test]
fn columns_that_may_be_missing_leave_headers_members_and_partition_out() {
    let config = r#"
        [route]
        missing_columns = "ignore"
        headers.gone = "${gone}"
        headers.note = "${note}"
        partition = "${gone}"
        value = "envelope"
        envelope.gone = "${gone}"
        envelope.note = "${note}"
    "#;
    let record = Table::new(config, &[("note", 25)]).route(&[]).unwrap();
    assert_eq!(record.headers(), ["id=e1", "type=made", "note null"]);
    assert_eq!(record.value().as_deref(), Some(r#"{"payload":{"total": 7},"note":null}"#));
    assert!(matches!(record, Row::Record { partition: None, key: Some(key), .. } if key == "42"));
}
