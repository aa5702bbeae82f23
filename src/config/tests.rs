//! Tests `load`: from text and environment variables to a configuration or an error message.

mod environment;
mod example;
mod files;
mod polling;
mod routes;
pub(super) mod schema;
mod variables;

use std::path::{Path, PathBuf};
use std::time::Duration;

use pg_logical::conninfo::{HostAddr, Password, SslMode};
use pg_logical::{Environment, Secret};

use super::bookmarks::Bookmarks;
use super::convert::Brokers;
use super::load::{Loaded, load, parse};
use super::*;

const URL: &str = "postgres://outbox_router@db/shop";

fn env() -> Environment {
    Environment::empty().with_user("me")
}

fn with(variables: &[(&str, &str)]) -> Environment {
    variables
        .iter()
        .fold(env(), |env, (name, value)| env.with_variable(&format!("OUTBOX_ROUTER_{name}"), value))
}

/// The smallest valid configuration, followed by `more`.
fn minimal(more: &str) -> String {
    format!("postgres.url = \"{URL}\"\nkafka.\"bootstrap.servers\" = \"kafka:9092\"\n{more}")
}

fn parse_file(text: &str, env: &Environment) -> Result<Config, String> {
    let parsed = parse(Some((Path::new("outbox-router.toml"), text)), env, Brokers::Required);
    parsed.map(|parsed| parsed.config).map_err(|error| error.to_string())
}

fn good(text: &str, env: &Environment) -> Config {
    schema::check(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    parse_file(text, env).unwrap_or_else(|error| panic!("{error}"))
}

fn property(config: &Config, name: &str) -> Option<String> {
    config.kafka.properties.get(name).map(|value| value.reveal().to_owned())
}

#[test]
fn a_table_name_is_quoted_in_sql() {
    let table = TableName { schema: "public".into(), name: "My Table".into() };
    assert_eq!(table.in_sql(), "\"public\".\"My Table\"");
}

#[test]
fn two_keys_are_enough_and_the_others_have_defaults() {
    let config = good(&minimal(""), &env());
    assert_eq!(config.name, "shop.outbox_router");
    assert_eq!(config.postgres.slot, "outbox_router");
    assert_eq!(config.postgres.publication, "outbox_router");
    assert_eq!(config.postgres.wal_sender_timeout, Duration::from_secs(10));
    assert_eq!(config.postgres.conninfo.user, "outbox_router");
    assert_eq!(config.postgres.conninfo.dbname, "shop");
    assert_eq!(config.postgres.conninfo.ssl_mode, SslMode::Prefer);
    assert_eq!(
        config.postgres.conninfo.hosts[0].addr,
        HostAddr::Tcp { name: "db".to_owned(), hostaddr: None }
    );
    assert_eq!(config.outbox.tables, [TableName { schema: "public".to_owned(), name: "outbox".to_owned() }]);
    assert_eq!(config.outbox.columns, Columns::default());
    assert_eq!(config.route.topic.to_string(), "outbox.event.${aggregate_type}");
    assert_eq!(config.route.timestamp, RecordTimestamp::Commit);
    assert_eq!(property(&config, "bootstrap.servers").unwrap(), "kafka:9092");
    assert_eq!(config.kafka.properties.len(), 1);
    assert!(config.topics.create && config.topics.partitions.is_none() && config.topics.config.is_empty());
    assert_eq!(config.delivery, Delivery::default());
    assert_eq!(config.admin.listen.as_deref(), Some("127.0.0.1:8084"));
}

#[test]
fn every_key_is_read() {
    let config = good(
        r#"
        name = "orders"
        [postgres]
        url = "host=/run/pg dbname=shop user=router"
        password_file = "/run/secrets/pg"
        slot = "orders_slot"
        publication = "Orders"
        wal_sender_timeout = "1m"
        [outbox]
        table = 'Shop."Out Box"'
        columns = { id = "Id", aggregate_type = "at", aggregate_id = "ai", event_type = "et", payload = "p", headers = false, created_at = "ts" }
        [route]
        topic = "orders"
        timestamp = "created_at"
        [kafka]
        bootstrap.servers = "a:1,b:2"
        "linger.ms" = 20
        socket.keepalive.enable = true
        [topics]
        create = false
        partitions = 12
        replication_factor = 3
        config = { "min.insync.replicas" = 2, retention.ms = "1000" }
        [delivery]
        mode = "at-least-once"
        window = { records = 10, bytes = "32MiB" }
        positions_topic = "positions"
        shutdown_timeout = "1h30m"
        [bookmarks]
        every = "10m"
        keep = 6
        max_retained_wal = false
        [admin]
        listen = ""
        "#,
        &env(),
    );
    let every = Duration::from_secs(600);
    assert_eq!(config.bookmarks, Some(Bookmarks { every, keep: 6, max_retained_wal: None }));
    assert_eq!(config.name, "orders");
    assert_eq!(config.postgres.conninfo.hosts[0].addr, HostAddr::Unix(PathBuf::from("/run/pg")));
    assert_eq!(config.postgres.conninfo.password, Some(Password::File(PathBuf::from("/run/secrets/pg"))));
    assert_eq!(
        (config.postgres.slot.as_str(), config.postgres.publication.as_str()),
        ("orders_slot", "Orders")
    );
    assert_eq!(config.postgres.wal_sender_timeout, Duration::from_secs(60));
    assert_eq!(config.outbox.tables, [TableName { schema: "shop".to_owned(), name: "Out Box".to_owned() }]);
    let columns = &config.outbox.columns;
    assert_eq!((columns.id.as_str(), columns.payload.as_str()), ("Id", "p"));
    assert_eq!((columns.headers.as_deref(), columns.headers_required), (None, false));
    assert_eq!((columns.created_at.as_deref(), columns.created_at_required), (Some("ts"), true));
    assert_eq!(
        (config.route.topic.to_string(), config.route.timestamp),
        ("orders".to_owned(), RecordTimestamp::CreatedAt)
    );
    assert_eq!(property(&config, "bootstrap.servers").unwrap(), "a:1,b:2");
    assert_eq!(property(&config, "linger.ms").unwrap(), "20");
    assert_eq!(property(&config, "socket.keepalive.enable").unwrap(), "true");
    assert_eq!((config.topics.create, config.topics.partitions), (false, Some(12)));
    assert_eq!(config.topics.replication_factor, Some(3));
    assert_eq!(config.topics.config["min.insync.replicas"], "2");
    assert_eq!(config.topics.config["retention.ms"], "1000");
    assert_eq!((config.delivery.window_records, config.delivery.window_bytes), (10, 32 << 20));
    assert_eq!(config.delivery.positions_topic.as_deref(), Some("positions"));
    assert_eq!(config.delivery.shutdown_timeout, Duration::from_secs(5400));
    assert_eq!(config.admin.listen, None);
}

#[test]
fn the_printed_configuration_loads_as_the_same() {
    let config = good(
        r#"
        name = "or\"ders"
        [postgres]
        url = "postgres://router@[::1]:5433,db2/shop?sslmode=verify-full&sslrootcert=system&application_name=a%20b"
        password_file = "/run/secrets/pg"
        wal_sender_timeout = "1500ms"
        [outbox]
        table = '"My Shop"."Out""Box"'
        columns = { headers = false, created_at = "ts" }
        [route]
        topic = "orders.${region}"
        timestamp = "created_at"
        [kafka]
        bootstrap.servers = "a:1,b:2"
        linger.ms = 20
        [topics]
        partitions = 12
        config = { min.insync.replicas = 2 }
        [delivery]
        window = { records = 10, bytes = 1025 }
        [admin]
        listen = ""
        "#,
        &env(),
    );
    let printed = config.to_redacted_toml();
    insta::assert_snapshot!(printed);
    assert_eq!(good(&printed, &env()), config);

    let config = good(&minimal(""), &env());
    assert_eq!(good(&config.to_redacted_toml(), &env()), config);
}

#[test]
fn the_printed_configuration_contains_no_secret() {
    let config = good(
        r#"
        [postgres]
        url = "postgres://router:hunter2@db/shop"
        [kafka]
        bootstrap.servers = "a:1"
        sasl.username = "router"
        sasl.password = "hunter2"
        ssl.key.password = "hunter2"
        ssl.key.pem = "hunter2"
        sasl.oauthbearer.token.endpoint.url = "https://user:hunter2@id/token?key=hunter2"
        sasl.kerberos.kinit.cmd = "kinit --password hunter2"
        "#,
        &env(),
    );
    let printed = config.to_redacted_toml();
    assert!(!printed.contains("hunter2"), "{printed}");
    assert!(!format!("{config:?}").contains("hunter2"));
    insta::assert_snapshot!(printed);
}

fn message(text: &str, env: &Environment) -> String {
    match parse_file(text, env) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => error,
    }
}

/// One line for each faulty configuration and its message.
fn messages(cases: &[&str]) -> String {
    cases.iter().map(|case| format!("{case}\n    {}\n", message(&minimal(case), &env()))).collect()
}

#[test]
fn messages_for_unknown_keys() {
    insta::assert_snapshot!(messages(&[
        "nmae = \"x\"",
        "postgres.slott = \"x\"",
        "postgres.password = \"hunter2\"",
        "frobnicate = 1",
        "[postgress]\nurl = 1",
        "[outbox.columns]\nagregate_id = \"x\"",
        "[delivery]\nwindow.record = 1",
        "[shard]\ncount = 2",
    ]));
}

/// Finding an unknown key takes as much time as the whole file, so only some of them are looked for.
#[test]
fn a_few_of_very_many_problems_are_reported() {
    let many = |heading: &str, line: &str, count: u32| {
        let lines: String = (0..count).map(|n| line.replace("{n}", &n.to_string()) + "\n").collect();
        message(&minimal(&format!("{heading}\n{lines}")), &env())
    };
    for (heading, line) in [("", "x{n} = 1"), ("[outbox]", "x{n} = 1"), ("[[route.rules]]", "x{n} = 1")] {
        let message = many(heading, line, 5_000);
        assert!(
            message.starts_with("OBR-2002: The configuration has 21 problems:"),
            "{heading} {line}: {message}"
        );
        assert!(message.contains("more keys are unknown"), "{message}");
    }
    let message = many("", "kafka.x{n} = 1", 200);
    assert!(message.starts_with("OBR-2002: The configuration has 200 problems:"), "{message}");
    assert_eq!(message.matches("librdkafka has no property").count(), 100, "{message}");
    assert!(
        message.contains("  and 100 more, which `outbox-router config validate --json` lists"),
        "{message}"
    );
}

#[test]
fn a_heartbeat_is_off_unless_it_has_an_interval() {
    let interval = |text: &str| good(&minimal(text), &env()).heartbeat;
    for off in ["", "heartbeat.interval = false", "heartbeat.interval = \"\""] {
        assert_eq!(interval(off), None, "{off}");
    }
    assert_eq!(interval("heartbeat.interval = \"10s\""), Some(Duration::from_secs(10)));
}

#[test]
fn messages_for_values_of_the_wrong_type() {
    insta::assert_snapshot!(messages(&[
        "name = 5",
        "name = [\"x\"]",
        "name = 1979-05-27",
        "name = { a = 1 }",
        "outbox = \"hunter2\"",
        "outbox.columns = [1]",
        "topics.create = \"yes\"",
        "topics.create = 1",
        "topics.partitions = \"six\"",
        "topics.partitions = 1.5",
        "topics.partitions = true",
        "delivery.shutdown_timeout = 10",
        "delivery.window.bytes = 1.5",
        "kafka.linger.ms = 1.5",
        "kafka.linger.ms = [1]",
        "topics.config.\"retention.ms\" = 1.0",
        "name = 99999999999999999999",
    ]));
}

#[test]
fn messages_for_bad_values() {
    insta::assert_snapshot!(messages(&[
        "name = \"\"",
        "name = \"a\\nb\"",
        "postgres.slot = \"Outbox-Router\"",
        "postgres.publication = \"\"",
        "postgres.wal_sender_timeout = \"500ms\"",
        "postgres.wal_sender_timeout = \"10000d\"",
        "outbox.table = \"my-outbox\"",
        "outbox.table = \"a.b.c\"",
        "outbox.columns.id = \"\"",
        "outbox.columns.headers = true",
        "[route]\ntopic = \"\"",
        "[route]\ntimestamp = \"now\"",
        "[route]\ntimestamp = \"created_at\"\n[outbox]\ncolumns.created_at = false",
        "route.headers.id = \"x\"",
        "route.headers.\"\" = \"x\"",
        "route.headers.a = \"${b | upper}\"",
        "route.headers.a = \"${source.offset}\"",
        "route.headers.a = 7.5",
        "topics.partitions = 0",
        "topics.replication_factor = 40000",
        "delivery.mode = \"exactly-twice\"",
        "delivery.window.records = 0",
        "delivery.window.bytes = \"0\"",
        "delivery.window.bytes = \"lots\"",
        "delivery.shutdown_timeout = \"soon\"",
        "delivery.positions_topic = \"no topic\"",
        "bookmarks.every = \"1s\"",
        "bookmarks.every = \"1h\"\nbookmarks.keep = 0",
        "bookmarks.every = \"1h\"\nbookmarks.max_retained_wal = \"much\"",
        "admin.listen = \"8084\"",
        "admin.listen = \"localhost:99999\"",
        "name = { file = \"no/such/file\" }",
        "shards.count = 0\nshards.only = [1]",
    ]));
}

#[test]
fn messages_for_kafka_properties() {
    insta::assert_snapshot!(messages(&[
        "kafka.acks = \"1\"",
        "kafka.enable.idempotence = false",
        "kafka.group.id = \"x\"",
        "kafka.sasl.pasword = \"hunter2\"",
        "kafka.socket.keepalive.enable = \"hunter2\"",
        "kafka.metadata.broker.list = \"again:9092\"",
        "kafka.bootstrap.servers = \"again:9092\"",
        "kafka.queue.buffering.max.kbytes = 1024",
        "kafka.ssl.keystore.password.hunter2 = 1",
        "kafka.sasl.mechanisms = \"OAUTHBEARER\"",
        "kafka.sasl.mechanism = \"OAUTHBEARER\"\nkafka.sasl.oauthbearer.method = \"default\"",
    ]));
}

/// librdkafka reads enumerations and booleans in any case.
#[test]
fn oauthbearer_with_a_source_of_tokens_is_accepted() {
    for source in [
        "sasl.oauthbearer.method = \"OIDC\"",
        "enable.sasl.oauthbearer.unsecure.jwt = true",
        "enable.sasl.oauthbearer.unsecure.jwt = \"True\"",
        "enable.sasl.oauthbearer.unsecure.jwt = \"T\"",
        "enable.sasl.oauthbearer.unsecure.jwt = 1",
    ] {
        good(&minimal(&format!("kafka.sasl.mechanism = \"OAUTHBEARER\"\nkafka.{source}")), &env());
    }
}

#[test]
fn messages_for_broken_syntax() {
    insta::assert_snapshot!(messages(&[
        "name = ",
        "name = \"hunter2",
        "name = hunter2",
        "postgres.url = \"postgres://u:hunter2@h/d\"",
        "[postgres",
        "=",
    ]));
}

#[test]
fn messages_for_missing_keys() {
    let nothing = message("", &env());
    let no_file = parse(None, &env(), Brokers::Required).map(|_| ()).unwrap_err();
    let empty = message("postgres.url = \"\"\nkafka.bootstrap.servers = \" \"", &env());
    let no_user = parse_file(
        "postgres.url = \"postgres://h/d\"\nkafka.bootstrap.servers = \"k\"",
        &Environment::empty(),
    );
    let unusable =
        message("postgres.url = \"postgres:///d\"\nkafka.bootstrap.servers = \"SASL_SSL://u:p@k:1\"", &env());
    insta::assert_snapshot!(format!("{nothing}\n{no_file}\n{empty}\n{}\n{unusable}", no_user.unwrap_err()));
}

#[test]
fn messages_for_variables() {
    let messages: Vec<String> = [
        &[("POSTGRES__SLOTT", "x")][..],
        &[("POSTGRES_URL", "x")],
        &[("OUTBOX_COLUMNS_ID", "x")],
        &[("FROBNICATE__X", "1")],
        &[("FROBNICATE", "1")],
        &[("POSTGRES", "hunter2")],
        &[("POSTGRES____URL", "x")],
        &[("", "x")],
        &[("TOPICS__PARTITIONS", "six")],
        &[("TOPICS__CREATE", "yes")],
        &[("KAFKA__SASL_PASWORD", "hunter2")],
        &[("KAFKA__ACKS", "1")],
        &[("POSTGRES__URL", "postgres://u:hunter2@h:port/d")],
        &[("NAME", "x"), ("NAME__FILE", "y")],
        &[("NAME__FILE", "no/such/file")],
    ]
    .iter()
    .map(|variables| format!("{variables:?}\n    {}", message(&minimal(""), &with(variables))))
    .collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_the_file() {
    let text = "[kafka]\nacks = 0\n[postgres]\nslott = 1\nslot = \"X\"\n[topics]\npartitions = 0\n";
    insta::assert_snapshot!(message(text, &with(&[("ADMIN__LISTEN", "x")])));
}

#[test]
fn no_message_contains_a_secret() {
    for case in [
        "postgres.url = \"postgres://u:hunter2/x@h/d\"",
        "postgres.url = \"postgres://u:p@hunter2@h/d\"",
        "postgres.url = \"postgres://u:p%hunter2@h/d\"",
        "postgres.url = \"postgres://u@h/d?hunter2\"",
        "postgres.url = \"host=h password=a hunter2\"",
        "postgres.url = \"host=h password=a hunter2=b\"",
        "postgres.url = \"host=h password='hunter2\"",
        "postgres.url = \"hunter2\"",
        "postgres.url = { file = 5, hunter2 = 1 }",
    ] {
        let text = format!("{case}\nkafka.bootstrap.servers = \"k:1\"");
        let error = message(&text, &env());
        assert!(!error.contains("hunter2"), "{case}: {error}");
        assert!(error.starts_with("OBR-2002: outbox-router.toml:1:"), "{case}: {error}");
    }
}

#[test]
fn the_exit_code_is_that_of_a_usage_error() {
    let error = parse(None, &env(), Brokers::Required).map(|_| ()).unwrap_err();
    let crate::error::Error::Definite(definite) = error else { panic!("{error}") };
    assert_eq!(definite.exit, crate::error::Exit::Usage);
}

#[test]
fn a_program_and_its_arguments_print_the_password() {
    let config = super::minimal_with("postgres.password_command = [\"token\", \"a b\"]");
    let words = ["token", "a b"].map(str::to_owned).to_vec();
    assert_eq!(config.postgres.conninfo.password, Some(Password::Command(words)));
    assert!(config.to_redacted_toml().contains("password_command = [\"token\", \"****\"]\n"));
}

#[test]
fn retention_needs_what_it_is_about() {
    insta::assert_snapshot!(messages(&[
        "retention.keep = \"6d\"",
        "retention.keep = 30",
        "retention.keep = \"40000d\"",
        "retention.keep = \"30d\"\noutbox.columns.created_at = false",
        "retention.keep = \"30d\"\noutbox.table = []\noutbox.message_prefix = \"m\"",
        "retention.keep_archived = \"365d\"",
        "retention = { keep = \"30d\", keep_archived = \"365d\" }",
        "retention = { keep = \"30d\", archive = \"old\", keep_archived = \"30d\" }",
    ]));
    let text = "[retention]\nkeep = \"30d\"\narchive = \"public.old\"\nkeep_archived = \"365d\"\n";
    let config = good(&minimal(text), &env());
    assert!(config.to_redacted_toml().contains(text));
    assert_eq!(good(&minimal("retention.keep = false"), &env()).retention, Retention::default());
}
