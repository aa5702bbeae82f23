use pg_logical::pgoutput::{Message, wire};
use pg_logical::{Lsn, PgTimestamp};
use proptest::prelude::*;

mod rules;
mod values;

use super::*;
use crate::config::TableName;
use crate::config::template::Template;
use crate::outbox::Outbox;
use crate::topic_name::{self, TopicNameError};

const ORIGIN: Origin =
    Origin { final_lsn: Lsn(0x16_b374), xid: 741, commit_time: PgTimestamp(5_000_000), ordinal: 2 };

/// One row of a table with two additional columns, routed by `template`.
struct Case<'a> {
    template: &'a str,
    timestamp: RecordTimestamp,
    aggregate_type: Option<&'a str>,
    aggregate_id: Option<&'a str>,
    payload: Option<&'a str>,
    payload_type: u32,
    headers: Option<&'a str>,
    created_at: Option<&'a str>,
    region: Option<&'a str>,
    idempotency_key: Option<&'a str>,
    /// `[route.headers]`
    route_headers: &'a [(&'a str, &'a str)],
}

impl Default for Case<'_> {
    fn default() -> Self {
        Case {
            template: "outbox.event.${aggregate_type}",
            timestamp: RecordTimestamp::Commit,
            aggregate_type: Some("order"),
            aggregate_id: Some("42"),
            payload: Some(r#"{"total": 7}"#),
            payload_type: 3802,
            headers: Some("{}"),
            created_at: Some("2026-11-21 09:06:15.123456+00"),
            region: Some("eu"),
            idempotency_key: None,
            route_headers: &[],
        }
    }
}

/// A record that owns its data.
#[derive(Debug, PartialEq)]
struct RoutedRecord {
    topic: String,
    key: Option<String>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<String>)>,
    timestamp: i64,
}

impl Case<'_> {
    fn route_headers(&self) -> Vec<NamedTemplate> {
        let header = |(name, value): &(&str, &str)| NamedTemplate {
            name: (*name).to_owned(),
            value: Template::parse(value).unwrap(),
        };
        self.route_headers.iter().map(header).collect()
    }

    fn route(&self) -> Result<RoutedRecord, Unroutable> {
        let columns = Columns::default();
        let topic = Template::parse(self.template).unwrap();
        let headers = self.route_headers();
        let route = Route { topic, headers, timestamp: self.timestamp, ..Route::default() };
        let mut router = Router::new(&route, &columns, &Topics::default());
        let table = TableName { schema: "public".into(), name: "outbox".into() };
        let mut outbox = Outbox::new(vec![table], columns, router.extra_columns().to_vec(), false);
        let names = [
            ("id", 2950),
            ("aggregate_type", 25),
            ("aggregate_id", 25),
            ("event_type", 25),
            ("payload", self.payload_type),
            ("headers", 3802),
            ("created_at", 1184),
            ("region", 25),
            ("idempotency_key", 25),
        ];
        let relation = wire::relation(7, ("public", "outbox"), &names);
        let Ok(Message::Relation(relation)) = Message::decode(&relation) else { panic!("not a relation") };
        outbox.relation(&relation, false).unwrap();
        let row = [
            Some("e1"),
            self.aggregate_type,
            self.aggregate_id,
            Some("made"),
            self.payload,
            self.headers,
            self.created_at,
            self.region,
            self.idempotency_key,
        ];
        let bytes = wire::insert(7, &row);
        let Ok(Message::Insert(insert)) = Message::decode(&bytes) else { panic!("not an insert") };
        let event = outbox.event(&insert).unwrap().unwrap();
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        let Routed::Record(record) = router.route(&event, &ORIGIN)? else { panic!("dropped") };
        Ok(RoutedRecord {
            topic: record.topic.to_owned(),
            key: record.key.map(text),
            value: record.value.map(<[u8]>::to_vec),
            headers: record.headers.iter().map(|(name, value)| (name.to_owned(), value.map(text))).collect(),
            timestamp: record.timestamp,
        })
    }
}

fn no_value(purpose: super::Purpose, name: &str) -> Unroutable {
    Unroutable::NoValue { purpose, name: name.to_owned(), reason: "is NULL" }
}

#[test]
fn a_business_key_becomes_a_header_unless_one_is_configured() {
    let headers = |case: Case<'_>| {
        let record = case.route().unwrap();
        let of_keys = record.headers.into_iter().filter(|(name, _)| name == "idempotency-key");
        of_keys.map(|(_, value)| value.unwrap()).collect::<Vec<_>>()
    };
    let keyed = || Case { idempotency_key: Some("paid:7"), ..Case::default() };
    assert_eq!(headers(keyed()), ["paid:7"]);
    assert!(headers(Case::default()).is_empty());
    let configured = [("idempotency-key", "${idempotency_key}/${region}")];
    assert_eq!(headers(Case { route_headers: &configured, ..keyed() }), ["paid:7/eu"]);
    // that of the application's column `headers` is dropped
    let member = Some(r#"{"idempotency-key": "other"}"#);
    assert_eq!(headers(Case { headers: member, ..keyed() }), ["paid:7"]);
    assert_eq!(headers(Case { headers: member, ..Case::default() }), ["other"]);
}

#[test]
fn headers_that_are_none_say_where() {
    let headers = "{\"ok\": \"first\",\n \"é\": tru}";
    let error = Case { headers: Some(headers), ..Case::default() }.route().unwrap_err();
    assert_eq!(error, Unroutable::Headers { at: headers.find('}').unwrap() + 1 });
}

#[test]
fn the_defaults_make_the_record_of_the_contract() {
    let pair = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
    assert_eq!(
        Case { headers: Some(r#"{"traceparent": "00-1"}"#), ..Case::default() }.route(),
        Ok(RoutedRecord {
            topic: "outbox.event.order".into(),
            key: Some("42".into()),
            value: Some(br#"{"total": 7}"#.to_vec()),
            headers: vec![pair("id", "e1"), pair("type", "made"), pair("traceparent", "00-1")],
            timestamp: ORIGIN.commit_time.unix_millis(),
        })
    );
}

#[test]
fn nulls_are_no_key_no_value_and_no_headers() {
    let case = Case { aggregate_id: None, payload: None, headers: None, ..Case::default() };
    let routed = case.route().unwrap();
    assert_eq!((routed.key, routed.value, routed.headers.len()), (None, None, 2));
}

#[test]
fn created_at_is_the_timestamp_where_asked_for() {
    let case = Case { timestamp: RecordTimestamp::CreatedAt, ..Case::default() };
    assert_eq!(case.route().unwrap().timestamp, 1_795_251_975_123);
    // the sink replaces it, because it knows the topic's limits
    let case =
        Case { timestamp: RecordTimestamp::CreatedAt, created_at: Some("infinity"), ..Case::default() };
    assert_eq!(case.route().unwrap().timestamp, i64::MIN);
}

#[test]
fn payload_bytes_pass_through() {
    // JSON that any parser would change when writing it again
    let odd = "{\"a\" : 1.0,\n \"a\":2 }";
    assert_eq!(Case { payload: Some(odd), ..Case::default() }.route().unwrap().value, Some(odd.into()));
    let case = Case { payload: Some("\\x00ff7B"), payload_type: 17, ..Case::default() };
    assert_eq!(case.route().unwrap().value, Some(vec![0, 0xff, b'{']));
    for bad in ["00", "\\x0", "\\xgg", "\\x-1"] {
        let case = Case { payload: Some(bad), payload_type: 17, ..Case::default() };
        assert_eq!(case.route(), Err(Unroutable::Bytea), "{bad}");
    }
}

#[test]
fn any_column_can_make_the_topic() {
    let topic = |template| Case { template, ..Case::default() }.route().unwrap().topic;
    assert_eq!(topic("${region}.${aggregate_type}.v1"), "eu.order.v1");
    assert_eq!(topic("${event_type}${event_type}"), "mademade");
    assert_eq!(topic("fixed"), "fixed");
}

#[test]
fn hostile_values_never_become_a_topic() {
    let long = "x".repeat(300);
    for value in ["a b", "../etc", "a\r\nb", "", "é", "a\0", long.as_str()] {
        let case = Case { template: "${aggregate_type}", aggregate_type: Some(value), ..Case::default() };
        assert!(matches!(case.route(), Err(Unroutable::Topic { .. })), "{value:?}");
    }
    let case = Case { template: "__${aggregate_type}", ..Case::default() };
    assert!(matches!(case.route(), Err(Unroutable::Topic { error: TopicNameError::Reserved, .. })));
    let case = Case { aggregate_type: None, ..Case::default() };
    assert_eq!(case.route(), Err(no_value(super::Purpose::Topic, "aggregate_type")));
}

#[test]
fn an_error_quotes_neither_headers_nor_line_breaks() {
    let error = Case { headers: Some(r#"["s3cret"]"#), ..Case::default() }.route().unwrap_err();
    assert!(matches!(error, Unroutable::Headers { .. }) && !error.to_string().contains("s3cret"), "{error}");
    let error =
        Case { aggregate_type: Some("a\r\nINFO all is well"), ..Case::default() }.route().unwrap_err();
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
fn a_name_is_a_configuration_key_first_and_a_column_second() {
    let columns = Columns { aggregate_type: "aggregatetype".into(), ..Columns::default() };
    for name in ["aggregate_type", "aggregatetype"] {
        assert_eq!(field(name, &columns), Some(Field::AggregateType), "{name}");
    }
    let off = Columns { event_type: None, ..Columns::default() };
    assert_eq!(field("event_type", &off), None, "a column of the table's own then");
    // `column.` ignores the keys
    let topic =
        Template::parse("${tenant}-${tenant}-${region}-${column.aggregate_type}-${column.id}").unwrap();
    let router = Router::new(&Route { topic, ..Route::default() }, &columns, &Topics::default());
    let extra: Vec<_> = router.extra_columns().iter().map(|extra| extra.name.as_str()).collect();
    assert_eq!(extra, ["tenant", "region", "aggregate_type"]);
}

#[test]
fn headers_are_made_of_columns_constants_and_the_place_in_the_log() {
    let pair = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
    let case = Case {
        headers: Some(r#"{"source": "forged", "trace": "00-1"}"#),
        region: None,
        route_headers: &[
            ("z", "first as in the file"),
            ("source", "shop"),
            ("region", "${region}"),
            ("sequence", "${source.sequence}"),
            ("tenant", "${headers.trace | lower}"),
        ],
        ..Case::default()
    };
    assert_eq!(
        case.route().unwrap().headers,
        [
            pair("id", Some("e1")),
            pair("type", Some("made")),
            pair("z", Some("first as in the file")),
            pair("source", Some("shop")),
            pair("region", None),
            pair("sequence", Some("000000000016b3740000000000000002")),
            pair("tenant", Some("00-1")),
            pair("trace", Some("00-1")),
        ]
    );
    let half = Case { region: None, route_headers: &[("x", "in ${region}")], ..Case::default() };
    let missing = no_value(super::Purpose::Header("x".into()), "region");
    assert_eq!(half.route(), Err(missing));
}

#[test]
fn headers_origin_and_filters_can_make_the_topic() {
    let headers = r#"{"tenant": "ACME Ltd", "n": 7, "none": null, "tenant2": "a\u0062"}"#;
    let topic = |template| {
        let case = Case {
            template,
            headers: Some(headers),
            aggregate_type: Some("PurchaseOrder"),
            ..Case::default()
        };
        case.route().map(|routed| routed.topic)
    };
    for (template, expected) in [
        ("${aggregate_type | kebab}.v1", "purchase-order.v1"),
        ("${aggregate_type | lower}", "purchaseorder"),
        ("${headers.tenant | kebab}.${headers.n}.${headers.tenant2}", "acme-ltd.7.ab"),
        ("${headers.none | default('eu')}.${headers.absent | default('us')}", "eu.us"),
        ("${source.schema}.${source.table}", "public.outbox"),
        ("x${source.xid}", "x741"),
        ("${source.sequence}", "000000000016b3740000000000000002"),
    ] {
        assert_eq!(topic(template), Ok(expected.to_owned()), "{template}");
    }
    assert_eq!(topic("${headers.none}"), Err(no_value(super::Purpose::Topic, "headers.none")));
    assert!(matches!(topic("${source.lsn}"), Err(Unroutable::Topic { .. })), "a slash");
}

proptest! {
    #[test]
    fn any_row_is_a_record_that_kafka_takes_or_an_error(
        aggregate_type: Option<String>, aggregate_id: Option<String>,
        payload: Option<String>, headers: Option<String>,
    ) {
        let case = Case {
            aggregate_type: aggregate_type.as_deref(),
            aggregate_id: aggregate_id.as_deref(),
            payload: payload.as_deref(),
            headers: headers.as_deref(),
            ..Case::default()
        };
        if let Ok(routed) = case.route() {
            prop_assert_eq!(topic_name::check(&routed.topic), Ok(()));
            prop_assert_eq!(routed.key, aggregate_id);
            prop_assert_eq!(routed.value, payload.map(String::into_bytes));
        }
    }
}

#[test]
fn secrets_and_payloads_are_not_in_debug() {
    let columns = Columns::default();
    let topic = Template::parse("t").unwrap();
    let mut router = Router::new(&Route { topic, ..Route::default() }, &columns, &Topics::default());
    let table = TableName { schema: "public".into(), name: "outbox".into() };
    let mut outbox = Outbox::new(vec![table], columns, Vec::new(), false);
    let names = [
        ("id", 2950),
        ("aggregate_type", 25),
        ("aggregate_id", 25),
        ("event_type", 25),
        ("payload", 25),
        ("headers", 25),
    ];
    let relation = wire::relation(7, ("public", "outbox"), &names);
    let Ok(Message::Relation(relation)) = Message::decode(&relation) else { panic!("not a relation") };
    outbox.relation(&relation, false).unwrap();
    let row = ["e1", "order", "s3cret", "made", "s3cret", r#"{"a": "s3cret"}"#].map(Some);
    let bytes = wire::insert(7, &row);
    let message = Message::decode(&bytes).unwrap();
    let Message::Insert(insert) = message else { panic!("not an insert") };
    let event = outbox.event(&insert).unwrap().unwrap();
    let routed = router.route(&event, &ORIGIN).unwrap();
    let values: Vec<_> = insert.new.values().collect();
    let shown = format!("{message:?} {values:?} {event:?} {routed:?}");
    // as text and as a list of numbers
    assert!(!shown.contains("s3cret") && !shown.contains("115, 51"), "{shown}");
}
