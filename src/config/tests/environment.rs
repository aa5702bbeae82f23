//! Environment variables that override the file, and libpq's variables, which only fill gaps.

use super::*;

#[test]
fn the_environment_alone_is_enough() {
    let env = with(&[("POSTGRES__URL", URL), ("KAFKA__BOOTSTRAP_SERVERS", "kafka:9092"), ("NAME", "n")]);
    let config = parse(None, &env, Brokers::Required).map(|parsed| parsed.config).unwrap();
    assert_eq!(config.name, "n");
    assert_eq!(property(&config, "bootstrap.servers").unwrap(), "kafka:9092");
}

#[test]
fn the_environment_overrides_the_file() {
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
fn the_url_overrides_postgres_variables() {
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
fn with_several_hosts_the_primary_is_preferred_unless_the_url_says_otherwise() {
    use pg_logical::conninfo::TargetSessionAttrs;
    for (url, wanted) in [
        ("postgres://db/shop", TargetSessionAttrs::Any),
        ("postgres://a,b/shop", TargetSessionAttrs::Primary),
        ("postgres://a,b/shop?target_session_attrs=any", TargetSessionAttrs::Primary),
        ("postgres://a,b/shop?target_session_attrs=standby", TargetSessionAttrs::Standby),
    ] {
        let config = good(&minimal(""), &with(&[("POSTGRES__URL", url)]));
        assert_eq!(config.postgres.conninfo.target_session_attrs, wanted, "{url}");
    }
}
