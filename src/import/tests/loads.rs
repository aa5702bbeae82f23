//! The router's own loader accepts what is printed.

use std::fs;

use pg_logical::Environment;

use super::{EQUIVALENT, SERVER, STANDALONE, TUTORIAL, WITHOUT, WORKER, imported, with};
use crate::config::load::load;
use crate::config::{Config, PayloadJson, TextForm, ValueForm};
use crate::import::{Import, import};

/// Loads it like a user who has put the secrets where the findings say.
fn loaded(import: &Import, variables: &[(&str, &str)]) -> Config {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outbox-router.toml");
    fs::create_dir(directory.path().join("secrets")).unwrap();
    for (_, rest) in import.configuration.lines().filter_map(|line| line.split_once("file = \"secrets/")) {
        let name = rest.split('"').next().unwrap();
        fs::write(directory.path().join("secrets").join(name), "hunter2").unwrap();
    }
    fs::write(&path, &import.configuration).unwrap();
    let environment = variables
        .iter()
        .fold(Environment::empty(), |environment, (name, value)| environment.with_variable(name, value));
    match load(Some(&path), &environment) {
        Ok(loaded) => loaded.config,
        Err(error) => panic!("{error}\n{}", import.configuration),
    }
}

#[test]
fn what_is_printed_loads() {
    for text in [TUTORIAL, EQUIVALENT, WITHOUT, SERVER] {
        loaded(&imported(text), &[]);
        loaded(&import(text, &with(Some("kafka:9092"), Some(WORKER))).unwrap(), &[]);
    }
}

#[test]
fn what_is_kept_elsewhere_comes_from_the_variables_that_are_named() {
    let variables = [
        ("PGHOST", "db"),
        ("PGUSER", "debezium"),
        ("OUTBOX_ROUTER_POSTGRES__SLOT", "shop"),
        ("OUTBOX_ROUTER_KAFKA__SASL_USERNAME", "shop"),
        ("OUTBOX_ROUTER_KAFKA__SASL_PASSWORD", "hunter2"),
    ];
    let import = imported(STANDALONE);
    for (variable, _) in variables {
        assert!(import.findings.iter().any(|finding| finding.meaning.contains(variable)), "{variable}");
    }
    let config = loaded(&import, &variables);
    assert_eq!(config.postgres.slot, "shop");
    assert_eq!(config.postgres.conninfo.user, "debezium");
}

#[test]
fn it_means_what_the_connector_meant() {
    let config = loaded(&imported(EQUIVALENT), &[]);
    let tables: Vec<String> = config.outbox.tables.iter().map(ToString::to_string).collect();
    assert_eq!(tables, ["orders.outbox", "billing.outbox"]);
    assert_eq!(config.route.text, TextForm::Connect);
    assert_eq!(config.route.value, ValueForm::Envelope);
    let expand = PayloadJson::Expand { keep_nulls: true, keep_empty_arrays: false };
    assert_eq!(config.route.payload_json, expand);
    let headers: Vec<&str> = config.route.headers.iter().map(|header| header.name.as_str()).collect();
    assert_eq!(headers, ["eventType", "tenant", "source.system"], "in the connector's order");
    let members: Vec<&str> = config.route.envelope.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(members, ["aggregateId", "occurredAt"]);
    assert_eq!(config.topics.partitions, Some(12));
}

fn with_option(option: &str) -> Import {
    imported(&format!(
        "plugin.name=pgoutput\ndatabase.hostname=db\ndatabase.user=debezium\ntable.include.list=public.outbox\ntransforms=o\n\
         transforms.o.type=io.debezium.transforms.outbox.EventRouter\n{option}"
    ))
}

#[test]
fn placements_load() {
    for placement in [
        "type:header",
        "event_type:header:type,tenant:header",
        "event_type:header:eventType",
        "event_type:envelope:type,kind:header:type",
        "created_at:header",
        "headers:header,a|b:header,id:header,id:header:eventId",
        "aggregateid:header:key,payload:header:body",
        "type:header:id,type:envelope:payload,type:envelope:kind",
        " a : header : x.y , b:ENVELOPE,c:partition,d:partition",
    ] {
        loaded(&with_option(&format!("transforms.o.table.fields.additional.placement={placement}")), &[]);
    }
}

#[test]
fn expressions_of_topics_load() {
    for (regex, replacement) in [
        ("(?<routedByValue>.*)", "x.${routedByValue}"),
        ("(a)(b)?", "x.$1$2"),
        ("(?i)(order)s?", "$0.\\\\$1"),
        ("(?i)(order)s?", "$0.$1"),
        (r"([a-z]+?)_\\d+", "events.$1"),
        (r"\\p{Alpha}+", "all"),
        (r"\\Qa.b\\E/(.*)", "$1"),
        (r#"it's \\("(.*)"\\)"#, "$1"),
        ("(", "x"),
        ("(a)", "$2"),
    ] {
        let option = format!(
            "transforms.o.route.topic.regex={regex}\ntransforms.o.route.topic.replacement={replacement}"
        );
        loaded(&with_option(&option), &[]);
    }
}
