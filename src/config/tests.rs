//! The way from a text and variables to a configuration or a message, as `load` goes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::conninfo::{HostAddr, Password, SslMode};
use super::environment::Environment;
use super::load::{Loaded, load, parse};
use super::secret::Secret;
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

/// The least that works, and `more` behind it.
fn minimal(more: &str) -> String {
    format!("postgres.url = \"{URL}\"\nkafka.\"bootstrap.servers\" = \"kafka:9092\"\n{more}")
}

fn parse_file(text: &str, env: &Environment) -> Result<Config, String> {
    let parsed = parse(Some((Path::new("outbox-router.toml"), text)), env);
    parsed.map(|parsed| parsed.config).map_err(|error| error.to_string())
}

fn good(text: &str, env: &Environment) -> Config {
    parse_file(text, env).unwrap_or_else(|error| panic!("{error}"))
}

fn property(config: &Config, name: &str) -> Option<String> {
    config.kafka.properties.get(name).map(|value| value.reveal().to_owned())
}

#[test]
fn two_keys_are_enough_and_the_rest_has_defaults() {
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
    assert_eq!(config.outbox.table, TableName { schema: "public".to_owned(), name: "outbox".to_owned() });
    assert_eq!(config.outbox.columns, Columns::default());
    assert_eq!(config.route.topic, "outbox.event.${aggregate_type}");
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
        shutdown_timeout = "1h30m"
        [admin]
        listen = ""
        "#,
        &env(),
    );
    assert_eq!(config.name, "orders");
    assert_eq!(config.postgres.conninfo.hosts[0].addr, HostAddr::Unix(PathBuf::from("/run/pg")));
    assert_eq!(config.postgres.conninfo.password, Some(Password::File(PathBuf::from("/run/secrets/pg"))));
    assert_eq!(
        (config.postgres.slot.as_str(), config.postgres.publication.as_str()),
        ("orders_slot", "Orders")
    );
    assert_eq!(config.postgres.wal_sender_timeout, Duration::from_secs(60));
    assert_eq!(config.outbox.table, TableName { schema: "shop".to_owned(), name: "Out Box".to_owned() });
    let columns = &config.outbox.columns;
    assert_eq!((columns.id.as_str(), columns.payload.as_str()), ("Id", "p"));
    assert_eq!((columns.headers.as_deref(), columns.headers_named), (None, false));
    assert_eq!((columns.created_at.as_deref(), columns.created_at_named), (Some("ts"), true));
    assert_eq!((config.route.topic.as_str(), config.route.timestamp), ("orders", RecordTimestamp::CreatedAt));
    assert_eq!(property(&config, "bootstrap.servers").unwrap(), "a:1,b:2");
    assert_eq!(property(&config, "linger.ms").unwrap(), "20");
    assert_eq!(property(&config, "socket.keepalive.enable").unwrap(), "true");
    assert_eq!((config.topics.create, config.topics.partitions), (false, Some(12)));
    assert_eq!(config.topics.replication_factor, Some(3));
    assert_eq!(config.topics.config["min.insync.replicas"], "2");
    assert_eq!(config.topics.config["retention.ms"], "1000");
    assert_eq!((config.delivery.window_records, config.delivery.window_bytes), (10, 32 << 20));
    assert_eq!(config.delivery.shutdown_timeout, Duration::from_secs(5400));
    assert_eq!(config.admin.listen, None);
}

#[test]
fn the_environment_alone_is_enough() {
    let env = with(&[("POSTGRES__URL", URL), ("KAFKA__BOOTSTRAP_SERVERS", "kafka:9092"), ("NAME", "n")]);
    let config = parse(None, &env).map(|parsed| parsed.config).unwrap();
    assert_eq!(config.name, "n");
    assert_eq!(property(&config, "bootstrap.servers").unwrap(), "kafka:9092");
}

#[test]
fn the_environment_is_laid_over_the_file() {
    let env = with(&[
        ("POSTGRES__SLOT", "from_env"),
        ("OUTBOX__COLUMNS__PAYLOAD", "body"),
        ("OUTBOX__COLUMNS__HEADERS", "false"),
        ("DELIVERY__WINDOW__BYTES", "1MiB"),
        ("TOPICS__PARTITIONS", "6"),
        ("TOPICS__CREATE", "false"),
        ("TOPICS__CONFIG__CLEANUP_POLICY", "compact"),
        ("KAFKA__METADATA_BROKER_LIST", "env:1"),
        ("KAFKA__LOG_LEVEL", "7"),
        ("SERVICE_HOST", "10.0.0.1"),
        ("PORT_8084_TCP_ADDR", "10.0.0.1"),
    ]);
    let config = good(
        &minimal(
            "kafka.linger.ms = 1\nkafka.log_level = 3\n[outbox]\ncolumns.id = \"uid\"\n[topics]\npartitions = 1\n",
        ),
        &env,
    );
    assert_eq!(config.postgres.slot, "from_env");
    assert_eq!(config.postgres.conninfo.dbname, "shop", "what the variables do not name stays");
    assert_eq!((config.outbox.columns.id.as_str(), config.outbox.columns.payload.as_str()), ("uid", "body"));
    assert_eq!(config.outbox.columns.headers, None);
    assert_eq!(config.delivery.window_bytes, 1 << 20);
    assert_eq!((config.topics.create, config.topics.partitions), (false, Some(6)));
    assert_eq!(config.topics.config["cleanup.policy"], "compact");
    assert_eq!(property(&config, "bootstrap.servers").unwrap(), "env:1", "an alias names the same property");
    assert_eq!(property(&config, "linger.ms").unwrap(), "1");
    assert_eq!(property(&config, "log_level").unwrap(), "7");
}

#[test]
fn postgres_variables_lie_under_the_url() {
    let env = env()
        .with_variable("PGUSER", "somebody")
        .with_variable("PGPASSWORD", "secret")
        .with_variable("PGSSLMODE", "require");
    let conninfo = good(&minimal(""), &env).postgres.conninfo;
    assert_eq!(conninfo.user, "outbox_router");
    assert_eq!(conninfo.password, Some(Password::Given(Secret::new("secret"))));
    assert_eq!(conninfo.ssl_mode, SslMode::Require);
}

#[test]
fn any_text_may_stand_in_a_file_of_its_own_beside_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("url", &format!("{URL}\n"));
    write("password", "p w\r\n");
    write("window", "2MiB\n");
    write(
        "outbox-router.toml",
        r#"
        [postgres]
        url = { file = "url" }
        password_file = "password"
        [kafka]
        bootstrap.servers = "kafka:9092"
        sasl.password = { file = "password" }
        [delivery]
        window.bytes = { file = "window" }
        "#,
    );
    let env = env().with_variable(
        "OUTBOX_ROUTER_KAFKA__SSL_KEY_PASSWORD__FILE",
        directory.path().join("password").to_str().unwrap(),
    );
    let path = directory.path().join("outbox-router.toml");
    let Loaded { config, file, warnings } = load(Some(&path), &env).unwrap();
    assert_eq!(config.postgres.conninfo.dbname, "shop");
    assert_eq!(config.postgres.conninfo.password, Some(Password::File(directory.path().join("password"))));
    assert_eq!(property(&config, "sasl.password").unwrap(), "p w");
    assert_eq!(property(&config, "ssl.key.password").unwrap(), "p w");
    assert_eq!(config.delivery.window_bytes, 2 << 20);
    assert_eq!(file, Some(path));
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn a_property_whose_name_ends_in_file_is_not_taken_for_a_file_to_read() {
    let text = minimal("kafka.sasl.oauthbearer.assertion.file = \"/nowhere\"\n");
    match parse_file(&text, &env()) {
        Ok(config) => assert_eq!(property(&config, "sasl.oauthbearer.assertion.file").unwrap(), "/nowhere"),
        // librdkafka was built without OIDC
        Err(error) => assert!(error.contains("\"sasl.oauthbearer.assertion.file\" not supported"), "{error}"),
    }
}
