//! Routes, rules and the preset.

use super::*;

#[test]
fn messages_for_routes_and_rules() {
    insta::assert_snapshot!(messages(&[
        "preset = \"maxwell\"",
        "outbox.table = []",
        "outbox.table = [\"a.b\", \"A.B\"]",
        "outbox.table = [\"a.b\", 1]",
        "outbox.on_update = \"ignore\"",
        "topics.allow = [\"a b\", \"/(/\"]",
        "route.partition = \"${shard\"",
        "route.value = \"avro\"",
        "route.envelope.a = \"1\"",
        "route.value = \"envelope\"\nroute.envelope.payload = \"1\"",
        "route.expand.null = \"ignore\"",
        "route.topic = \"${match.1}\"",
        "route.cloudevents.extensions.Seq = \"1\"\nroute.cloudevents.extensions.time = \"1\"",
        "route.value = \"cloudevents-binary\"\noutbox.columns.event_type = false",
        "outbox.columns.headers = false\nroute.topic = \"${headers.x}\"",
        "heartbeat.interval = \"900ms\"",
        "heartbeat.interval = true",
        "outbox.message_prefix = \"outbox-router.heartbeat/x\"",
        "route.rules = 1",
        "route.rules = [1]",
        "[[route.rules]]\ntopic = \"t\"",
        "[[route.rules]]\nmatch = {}\ndrop = true",
        "[[route.rules]]\nmatch = { a = \"x\" }",
        "[[route.rules]]\nmatch = { a = \"x\" }\ndrop = true\ntopic = \"t\"",
        "[[route.rules]]\nmatch = { a = \"/(/\" }\ndrop = true",
        "[[route.rules]]\nmatch = { a = [], b = true, \"source.x\" = 1, \"match.1\" = 1 }\ndrop = true",
        "[[route.rules]]\nmatch = { a = \"/(x)/\" }\ntopic = \"${match.2}\"",
        "[[route.rules]]\nmatch = { a = \"/(x)/\", b = \"/(?<y>.)/\" }\ntopic = \"${match.1}\"",
        "[[route.rules]]\nmatch = { a = \"/x\" }\ndrop = true",
        "[[route.rules]]\nmatch = { a = \"/(x)/\", b = \"/(y)/\" }\ntopic = \"${match.1}\"",
        "route.unmatched = \"stop\"",
        "route.topic = \"${payload}\"",
        "route.value = \"cloudevents-binary\"\nroute.headers.ce_id = \"x\"",
        "[[route.rules]]\nmatch = { a = \"x\" }\ntopik = \"t\"",
        "[[route.rules]]\nmatch = { a = \"x\" }\ntopic = \"a b\"",
    ]));
}

#[test]
fn messages_for_texts_that_no_record_can_have() {
    let long = format!("route.topic = \"${{a}}{}\"", "x".repeat(250));
    let mut cases = vec![
        "route.topic = \"${a | default('a b')}\"",
        "route.topic = \"${a | default('')}\"",
        "route.topic = \"${a | default('__A') | lower}\"",
        "delivery.positions_topic = \"p\"\nroute.topic = \"p\"",
        "delivery.positions_topic = \"p\"\n[[route.rules]]\nmatch = { a = \"x\" }\ndrop = true\n[[route.rules]]\nmatch = { a = \"y\" }\ntopic = \"p\"",
        "topics.allow = [\"a.*\"]\nroute.topic = \"b\"",
        "topics.allow = [\"a.*\"]\nroute.topic = \"a.b\"\n[[route.rules]]\nmatch = { a = \"y\" }\ntopic = \"b\"",
        "route.partition = \"p${shard}\"",
        "route.partition = \"${shard | default('-1')}\"",
        "route.cloudevents.source = \"/a b\"",
        "route.cloudevents.source = \"/a%zz\"",
        "route.cloudevents.source = \"1a:b\"",
        "route.cloudevents.source = \"/ü/${aggregate_type}\"",
        "route.cloudevents.source = \"${tenant | default('our shop')}\"",
        "route.cloudevents.source = \"${tenant | default('')}\"",
        "route.cloudevents.type = \"a\\u0007b\"",
        "route.cloudevents.subject = \"${aggregate_id}\\u0000\"",
        "route.cloudevents.dataschema = \"schemas/order.json\"",
        "route.cloudevents.dataschema = \"https://shop.example/{id}\"",
        "route.cloudevents.datacontenttype = \"json\"",
        "route.cloudevents.datacontenttype = \"${type | default('text')}\"",
        "route.cloudevents.extensions.region = \"e\\u0085u\"",
        "route.headers.\"a\\u0000b\" = \"1\"",
    ];
    cases.push(&long);
    insta::assert_snapshot!(messages(&cases));
}

#[test]
fn fixed_texts_that_records_can_have() {
    good(
        &minimal(
            r#"
            topics.allow = ["a.*", "/b+/"]
            [route]
            topic = "${a | default('A B') | kebab}"
            partition = "1${shard | default('0')}"
            [route.cloudevents]
            source = "urn:shop:${tenant | default('OUR%20SHOP') | lower}"
            dataschema = "https://shop.example/${event_type}#1"
            datacontenttype = "application/vnd.shop+json; charset=\"utf-8\""
            subject = "${aggregate_id | default('')}"
            [[route.rules]]
            match = { a = "x" }
            topic = "bbb"
            "#,
        ),
        &env(),
    );
}

#[test]
fn printed_rules_load_as_the_same() {
    let config = good(
        &minimal(
            r#"
            outbox.table = ["orders.outbox", "billing.\"Out Box\""]
            topics.allow = ["a.*", "/b+/"]
            [route]
            partition = "${shard}"
            value = "envelope"
            payload_json = "expand"
            expand.null = "optional_bytes"
            envelope.b = "${b}"
            envelope.a = "${a}"
            [route.cloudevents]
            type = "x.${event_type}"
            extensions.seq = "${source.sequence}"
            [[route.rules]]
            match = { a = ["x", "/y(?<z>.)/", false], headers.b.c = "1" }
            topic = "t.${match.z}"
            headers.q = "1"
            value = "cloudevents-binary"
            [[route.rules]]
            match.event_type = "x"
            drop = true
            "#,
        ),
        &env(),
    );
    assert_eq!(
        config.route.envelope.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(),
        ["b", "a"]
    );
    assert_eq!(good(&config.to_redacted_toml(), &env()), config);
}

#[test]
fn the_preset_changes_defaults_and_every_key_overrides_it() {
    let config = good(&minimal("preset = \"debezium\""), &env());
    let columns = &config.outbox.columns;
    assert_eq!(
        (columns.aggregate_type.as_str(), columns.aggregate_id.as_str()),
        ("aggregatetype", "aggregateid")
    );
    assert_eq!((columns.event_type.as_deref(), columns.headers.as_deref()), (None, None));
    assert_eq!(config.route.text, TextForm::Connect);
    let config = good(
        &format!(
            "preset = \"debezium\"\n{}",
            minimal("outbox.columns.event_type = \"type\"\nroute.text = \"postgres\"")
        ),
        &env(),
    );
    assert_eq!(
        (config.outbox.columns.event_type.as_deref(), config.route.text),
        (Some("type"), TextForm::Postgres)
    );
    let of_variable =
        good(&minimal(""), &with(&[("PRESET", "debezium"), ("OUTBOX__TABLE", "a.b, \"x,y\".z")]));
    assert_eq!(of_variable.outbox.table_names(), "a.b, x,y.z");
    assert_eq!(of_variable.outbox.columns.aggregate_id, "aggregateid");
}
