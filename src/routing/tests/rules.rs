//! `[[route.rules]]`, `[topics] allow` and partitions, from the text of the configuration to the record.

use super::values::{Row, Table};

/// Topic and partition, "dropped", or the reason for a refusal.
fn outcome(config: &str, row: &[(&str, Option<&str>)]) -> String {
    let mut table = Table::new(config, &[("region", 25), ("shard", 23)]);
    match table.route(row) {
        Ok(Row::Record { topic, partition, .. }) => match partition {
            Some(partition) => format!("{topic}[{partition}]"),
            None => topic,
        },
        Ok(Row::Dropped) => "dropped".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let config = r#"
        [[route.rules]]
        match = { aggregate_type = "order", event_type = ["/Order(Placed|Paid)/", "OrderLost"] }
        topic = "orders.${match.1 | default('lost') | lower}"
        [[route.rules]]
        match = { aggregate_type = "order", region = ["eu", "us"] }
        topic = "orders.${region}"
        partition = "3"
        [[route.rules]]
        match = { region = false, headers.test = "/.*/" }
        drop = true
    "#;
    let order = |event_type, region| [("event_type", Some(event_type)), ("region", region)];
    for (row, expected) in [
        (order("OrderPlaced", Some("eu")), "orders.placed"),
        (order("OrderLost", Some("eu")), "orders.lost"),
        (order("OrderPlacedX", Some("eu")), "orders.eu[3]"),
        (order("OrderX", Some("asia")), "outbox.event.order"),
        (order("OrderX", None), "outbox.event.order"),
    ] {
        assert_eq!(outcome(config, &row), expected, "{row:?}");
    }
    let test = [("region", None), ("headers", Some(r#"{"test": true}"#))];
    assert_eq!(outcome(config, &test), "dropped");
}

#[test]
fn named_groups_and_the_whole_match() {
    let config = r#"
        [route]
        topic = "${aggregate_type}"
        [[route.rules]]
        match = { aggregate_type = "/(?<kind>[a-z]+)-(?<version>v\\d+)/", event_type = "/.*(?<last>.)/" }
        topic = "${match.version}.${match.kind}.${match.last}"
    "#;
    let row = |aggregate_type| [("aggregate_type", Some(aggregate_type))];
    assert_eq!(outcome(config, &row("order-v12")), "v12.order.e");
    assert_eq!(outcome(config, &row("order-v12x")), "order-v12x");
}

#[test]
fn what_no_rule_matches_is_routed_dropped_or_stops() {
    let config = |unmatched: &str| {
        format!(
            "route.unmatched = \"{unmatched}\"\n[[route.rules]]\nmatch = {{ region = \"eu\" }}\ntopic = \"t\""
        )
    };
    for (unmatched, expected) in [
        ("route", "outbox.event.order"),
        ("drop", "dropped"),
        ("stop", "no rule of `[[route.rules]]` matches it, and `[route] unmatched` is \"stop\""),
    ] {
        assert_eq!(outcome(&config(unmatched), &[("region", Some("us"))]), expected);
        assert_eq!(outcome(&config(unmatched), &[("region", Some("eu"))]), "t");
    }
}

#[test]
fn a_rule_adds_headers_and_chooses_the_value() {
    let config = r#"
        [route]
        headers.a = "1"
        headers.c = "of all"
        envelope.region = "${region}"
        [[route.rules]]
        match = { region = "eu" }
        headers.b = "${region}"
        headers.c = "of the rule"
        value = "envelope"
    "#;
    let mut table = Table::new(config, &[("region", 25)]);
    let record = table.route(&[("region", Some("eu"))]).unwrap();
    assert_eq!(record.value().as_deref(), Some(r#"{"payload":{"total": 7},"region":"eu"}"#));
    assert_eq!(record.headers(), ["id=e1", "type=made", "a=1", "b=eu", "c=of the rule"]);
    let record = table.route(&[("region", Some("us"))]).unwrap();
    assert_eq!(record.value().as_deref(), Some(r#"{"total": 7}"#));
    assert_eq!(record.headers(), ["id=e1", "type=made", "a=1", "c=of all"]);
}

#[test]
fn partitions_are_numbers() {
    let config = "route.partition = \"${shard}\"";
    let of = |shard| outcome(config, &[("shard", shard)]);
    assert_eq!(of(Some("7")), "outbox.event.order[7]");
    assert_eq!(of(None), "outbox.event.order");
    assert_eq!(of(Some("-1")), "the partition \"-1\" is not a number from 0 to 2147483647");
    assert!(outcome("route.partition = \"${region}\"", &[("region", Some("eu"))]).contains("\"eu\""));
}

#[test]
fn only_allowed_topics_are_written_to() {
    let config =
        "topics.allow = [\"outbox.event.*\", \"/orders-[0-9]+/\"]\nroute.topic = \"${aggregate_type}\"";
    let of = |topic| outcome(config, &[("aggregate_type", Some(topic))]);
    assert_eq!(of("outbox.event.x"), "outbox.event.x");
    assert_eq!(of("orders-12"), "orders-12");
    // the whole name has to match, and a full stop is literal
    for topic in ["orders", "orders-12x", "xorders-12", "x.outbox.event.x", "outboxXevent.x", "outbox.event"]
    {
        assert_eq!(of(topic), format!("the topic \"{topic}\" is not in `[topics] allow`"));
    }
}

#[test]
fn an_expression_that_takes_too_long_is_an_error_of_the_event() {
    let config = r#"
        [[route.rules]]
        match = { aggregate_type = '/(?:(a*)*)*\1(?=b)c/' }
        drop = true
    "#;
    let long = "a".repeat(64);
    let error = outcome(config, &[("aggregate_type", Some(&long))]);
    assert!(error.ends_with("takes too many steps for `aggregate_type`"), "{error}");
}
