use pg_logical::pgoutput::{Message, wire};

use super::*;

const UUID: u32 = 2950;
const TEXT: u32 = 25;
const JSONB: u32 = 3802;
const TIMESTAMPTZ: u32 = 1184;

const TABLE: [(&str, u32); 9] = [
    ("id", UUID),
    ("aggregate_type", TEXT),
    ("aggregate_id", TEXT),
    ("event_type", TEXT),
    ("payload", JSONB),
    ("headers", JSONB),
    ("created_at", TIMESTAMPTZ),
    ("tracing_span_context", TEXT),
    ("idempotency_key", TEXT),
];

fn outbox(columns: Columns, extra: &[&str]) -> Outbox {
    let columns = Columns { tracing_span_context: Some("tracing_span_context".into()), ..columns };
    let table = TableName { schema: "public".into(), name: "outbox".into() };
    let named = |name: &&str| ExtraColumn { name: (*name).to_owned(), key: IN_TOPIC, optional: false };
    Outbox::new(vec![table], columns, extra.iter().map(named).collect(), false)
}

fn describe(
    outbox: &mut Outbox,
    id: u32,
    table: (&str, &str),
    columns: &[(&str, u32)],
) -> Result<(), OutboxError> {
    let bytes = wire::relation(id, table, columns);
    let Ok(Message::Relation(relation)) = Message::decode(&bytes) else { panic!("not a relation") };
    outbox.relation(&relation, false)
}

/// The fields of one row as text, then the additional columns.
fn read(outbox: &Outbox, id: u32, values: &[Option<&str>], extra: usize) -> Option<Vec<Option<String>>> {
    let bytes = wire::insert(id, values);
    let Ok(Message::Insert(insert)) = Message::decode(&bytes) else { panic!("not an insert") };
    let text = |value: Option<&[u8]>| value.map(|value| String::from_utf8(value.to_vec()).unwrap());
    outbox.event(&insert).unwrap().map(|event| {
        let fields = FIELDS.into_iter().map(|field| text(event.field(field)));
        fields.chain((0..extra).map(|n| text(event.extra(n)))).collect()
    })
}

fn texts(values: &[Option<&str>]) -> Vec<Option<String>> {
    values.iter().map(|value| value.map(str::to_owned)).collect()
}

const ROW: [Option<&str>; 9] = [
    Some("1"),
    Some("order"),
    Some("42"),
    Some("made"),
    Some("{}"),
    Some("{}"),
    Some("2026-01-01 00:00:00+00"),
    Some("traceparent=00-1"),
    Some("invoice.paid:7"),
];

#[test]
fn a_row_is_read_by_column_name() {
    let mut outbox = outbox(Columns::default(), &[]);
    describe(&mut outbox, 7, ("public", "outbox"), &TABLE).unwrap();
    assert_eq!(read(&outbox, 7, &ROW, 0), Some(texts(&ROW)));

    // the same columns in reverse order
    let (mut columns, mut row) = (TABLE, ROW);
    columns.reverse();
    row.reverse();
    describe(&mut outbox, 7, ("public", "outbox"), &columns).unwrap();
    assert_eq!(read(&outbox, 7, &row, 0), Some(texts(&ROW)));
}

#[test]
fn other_tables_are_not_ours() {
    let mut outbox = outbox(Columns::default(), &[]);
    describe(&mut outbox, 8, ("public", "orders"), &[("id", UUID)]).unwrap();
    describe(&mut outbox, 9, ("other", "outbox"), &[("id", UUID)]).unwrap();
    assert_eq!(read(&outbox, 8, &[Some("1")], 0), None);
    assert_eq!(read(&outbox, 9, &[Some("1")], 0), None);
}

#[test]
fn added_columns_do_not_matter_and_extra_columns_are_found() {
    let mut outbox = outbox(Columns::default(), &["region"]);
    let columns = [("region", TEXT)].into_iter().chain(TABLE).chain([("more", TEXT)]).collect::<Vec<_>>();
    describe(&mut outbox, 7, ("public", "outbox"), &columns).unwrap();
    let row = [Some("eu")].into_iter().chain(ROW).chain([None]).collect::<Vec<_>>();
    let expected = ROW.into_iter().chain([Some("eu")]).collect::<Vec<_>>();
    assert_eq!(read(&outbox, 7, &row, 1), Some(texts(&expected)));
}

#[test]
fn one_column_may_serve_several_fields() {
    let columns = Columns { aggregate_type: "event_type".into(), ..Columns::default() };
    let mut outbox = outbox(columns, &[]);
    let table: Vec<_> = TABLE.into_iter().filter(|(name, _)| *name != "aggregate_type").collect();
    describe(&mut outbox, 7, ("public", "outbox"), &table).unwrap();
    let row: Vec<_> = ROW.into_iter().enumerate().filter(|(n, _)| *n != 1).map(|(_, value)| value).collect();
    let mut expected = ROW;
    expected[1] = ROW[3];
    assert_eq!(read(&outbox, 7, &row, 0), Some(texts(&expected)));
}

#[test]
fn a_missing_column_is_named_unless_it_may_be_missing() {
    for field in FIELDS {
        let mut outbox = outbox(Columns::default(), &[]);
        let table: Vec<_> = TABLE.into_iter().filter(|(name, _)| *name != field.key()).collect();
        let result = describe(&mut outbox, 7, ("public", "outbox"), &table);
        if matches!(field, Field::Headers | Field::CreatedAt | Field::IdempotencyKey) {
            assert_eq!(result, Ok(()));
        } else {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(&format!("no column {:?}", field.key())), "{error}");
        }
    }
}

#[test]
fn a_column_that_the_user_named_must_be_there() {
    let columns = Columns { headers: Some("meta".into()), headers_required: true, ..Columns::default() };
    let error = describe(&mut outbox(columns, &[]), 7, ("public", "outbox"), &TABLE).unwrap_err();
    assert!(error.to_string().contains("no column \"meta\""), "{error}");
    let error = describe(&mut outbox(Columns::default(), &["region"]), 7, ("public", "outbox"), &TABLE);
    assert!(error.unwrap_err().to_string().contains("no column \"region\""));
}

#[test]
fn a_type_that_cannot_hold_headers_is_named() {
    let mut table = TABLE;
    table[5].1 = 23;
    let error = describe(&mut outbox(Columns::default(), &[]), 7, ("public", "outbox"), &table).unwrap_err();
    assert!(error.to_string().contains("column \"headers\""), "{error}");
    table[5].1 = 16_500;
    assert_eq!(describe(&mut outbox(Columns::default(), &[]), 7, ("public", "outbox"), &table), Ok(()));
}

#[test]
fn a_type_is_what_the_stream_last_called_it() {
    let mut outbox = outbox(Columns::default(), &["moods"]);
    let table: Vec<_> = TABLE.into_iter().chain([("moods", 16_500)]).collect();
    let row: Vec<_> = ROW.into_iter().chain([Some("{happy}")]).collect();
    let mut type_of = |namespace, name| {
        outbox.type_name(&TypeName { id: Oid(16_500), namespace, name });
        describe(&mut outbox, 7, ("public", "outbox"), &table).unwrap();
        let bytes = wire::insert(7, &row);
        let Ok(Message::Insert(insert)) = Message::decode(&bytes) else { panic!("not an insert") };
        outbox.event(&insert).unwrap().and_then(|event| event.extra_type(0)).unwrap()
    };
    assert_eq!(type_of("public", "_mood"), ColumnType::own(Oid(16_500), "_mood"));
    // a type of another schema is not JSON, even under the same name
    assert_eq!(type_of("public", "jsonb"), ColumnType::own(Oid(16_500), "jsonb"));
    // domains
    assert_eq!(type_of("", "_int4"), ColumnType::built_in(Oid(1007), -1));
    for (name, base) in [("numeric", 1700), ("_numeric", 1231), ("bit", 1560), ("varbit", 1562)] {
        // not the type without a modifier
        assert_eq!(type_of("", name), ColumnType::own(Oid(base), name));
        assert_eq!(type_of("", name), ColumnType::domain(Oid(base), name));
    }
    for (name, base) in [("jsonb", 3802), ("timestamp", 1114), ("_int4", 1007)] {
        assert_eq!(type_of("", name), ColumnType::domain(Oid(base), name));
    }
    assert_eq!(type_of("pg_catalog", "pg_lsn"), ColumnType::built_in(Oid(16_500), -1));
}

#[test]
fn created_at_must_be_a_timestamp_only_where_it_is_used() {
    let mut table = TABLE;
    table[6].1 = TEXT;
    let mut lenient = outbox(Columns::default(), &[]);
    assert_eq!(describe(&mut lenient, 7, ("public", "outbox"), &table), Ok(()));
    lenient.wanted.created_at = true;
    assert!(describe(&mut lenient, 7, ("public", "outbox"), &table).is_err());
    assert!(describe(&mut lenient, 7, ("public", "outbox"), &table[..6]).is_err());
}

#[test]
fn a_renamed_outbox_is_an_error_not_silence() {
    let mut outbox = outbox(Columns::default(), &[]);
    describe(&mut outbox, 7, ("public", "outbox"), &TABLE).unwrap();
    let error = describe(&mut outbox, 7, ("public", "outbox_old"), &TABLE).unwrap_err();
    assert!(matches!(error, OutboxError::Renamed { .. }), "{error}");
}

#[test]
fn rows_from_before_the_table_got_its_name_are_events_too() {
    let mut outbox = outbox(Columns::default(), &[]).with_oids([Some(Oid(7))]);
    describe(&mut outbox, 7, ("public", "outbox_before"), &TABLE).unwrap();
    assert_eq!(read(&outbox, 7, &ROW, 0), Some(texts(&ROW)));
    describe(&mut outbox, 7, ("public", "outbox"), &TABLE).unwrap();
    assert_eq!(read(&outbox, 7, &ROW, 0), Some(texts(&ROW)));
    // a later name is still noticed
    assert!(describe(&mut outbox, 7, ("public", "outbox_after"), &TABLE).is_err());
}

#[test]
fn a_row_that_does_not_fit_is_an_error() {
    let mut outbox = outbox(Columns::default(), &[]);
    describe(&mut outbox, 7, ("public", "outbox"), &TABLE).unwrap();
    for (id, values) in [(7, &ROW[..6]), (8, &ROW[..])] {
        let bytes = wire::insert(id, values);
        let Ok(Message::Insert(insert)) = Message::decode(&bytes) else { panic!("not an insert") };
        assert_eq!(outbox.event(&insert).unwrap_err(), OutboxError::Mismatch(id));
    }
}

#[test]
fn printable_values_are_short_and_harmless() {
    assert_eq!(printable(b"a\r\nb\x1b[31m"), "a\\r\\nb\\u{1b}[31m");
    assert_eq!(printable(&[b'x'; 100]).len(), 67);
}

/// A table that was renamed and renamed back is read under both names, once that log is of the past.
#[test]
fn what_bears_our_name_now_may_have_had_any_name() {
    let mut outbox = outbox(Columns::default(), &[]).with_oids([Some(Oid(7))]);
    describe(&mut outbox, 7, ("public", "outbox"), &TABLE).unwrap();
    assert!(describe(&mut outbox, 7, ("public", "elsewhere"), &TABLE).is_err());
    let bytes = wire::relation(7, ("public", "elsewhere"), &TABLE);
    let Ok(Message::Relation(relation)) = Message::decode(&bytes) else { panic!("not a relation") };
    outbox.relation(&relation, true).unwrap();
    assert!(read(&outbox, 7, &ROW, 0).is_some());
}

#[test]
fn payloads_are_not_in_debug() {
    let mut outbox = outbox(Columns::default(), &[]).with_messages(Some("outbox"));
    let content =
        br#"{"id": "1", "aggregate_type": "t", "aggregate_id": "1", "event_type": "e", "payload": "s3cret"}"#;
    let message = LogicalMessage { transactional: true, lsn: pg_logical::Lsn(9), prefix: "outbox", content };
    assert!(outbox.message(&message).unwrap().is_some());
    let shown = format!("{outbox:?}");
    assert!(!shown.contains("s3cret") && shown.contains("OwnedRow"), "{shown}");
}
