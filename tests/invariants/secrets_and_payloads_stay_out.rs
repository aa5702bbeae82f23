//! No secret or payload appears in what the router logs, serves or prints, not even at log level trace.

use std::fs;
use std::process::Command;

use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::process;
use crate::support::router::{Ended, Router};
use crate::support::sentences::Sentences;
use crate::support::settings::Settings;

const PG_HBA: &str = "host all postgres 127.0.0.1/32 trust\nhost all router 127.0.0.1/32 scram-sha-256\n";
const PASSWORD: &str = "sesame-7f3a";
const KAFKA_PASSWORD: &str = "opensesame-91bc";
const KEY_PASSWORD: &str = "keysesame-44d0";
const URL_PASSWORD: &str = "urlsesame-2c1d";
const WRONG: &str = "wrong-one-5e5e";
/// Part of keys, payloads and headers.
const PAYLOAD: &str = "pay10ad";

const EVERYTHING: [(&str, &str); 1] = [("RUST_LOG", "trace")];

fn assert_holds_no_secret(what: &str, text: &str) {
    for secret in [PASSWORD, KAFKA_PASSWORD, KEY_PASSWORD, URL_PASSWORD, WRONG, PAYLOAD] {
        let lines: Vec<_> = text.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret} is in {what}:\n{}", lines.join("\n"));
    }
}

/// A listener with password authentication on the broker's extra port.
fn sasl() -> [String; 4] {
    let module = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    [
        "listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{extra_port},\
         CONTROLLER://127.0.0.1:{controller_port}"
            .to_owned(),
        "sasl.enabled.mechanisms=PLAIN".to_owned(),
        "sasl.mechanism.inter.broker.protocol=PLAIN".to_owned(),
        format!(
            "listener.name.sasl_plaintext.plain.sasl.jaas.config={module} user_router=\"{KAFKA_PASSWORD}\";"
        ),
    ]
}

struct Setup {
    // dropped before its server
    outbox: Outbox,
    settings: Settings,
    broker: PrivateKafka,
    _server: PrivatePostgres,
}

impl Setup {
    /// Both servers ask for a password, and librdkafka logs everything.
    async fn new() -> Self {
        let server = PrivatePostgres::start(PG_HBA, &[]).await;
        let broker = PrivateKafka::start(&sasl().each_ref().map(String::as_str)).await;
        server.execute(&[&format!("CREATE ROLE router LOGIN REPLICATION PASSWORD '{PASSWORD}'")]).await;
        let outbox = Outbox::on(&server.url()).await;
        let url = outbox.url().replace("postgres@", &format!("router:{PASSWORD}@"));
        let settings = Settings::new(&outbox, &broker.client())
            .set("postgres.url", url.as_str())
            .set("kafka.debug", "all")
            .set("kafka.'bootstrap.servers'", broker.extra())
            .set("kafka.'security.protocol'", "sasl_plaintext")
            .set("kafka.'sasl.mechanism'", "PLAIN")
            .set("kafka.'sasl.username'", "router")
            .set("kafka.'sasl.password'", KAFKA_PASSWORD)
            // unused without TLS, but still a secret in the configuration
            .set("kafka.'ssl.key.password'", KEY_PASSWORD);
        Setup { _server: server, broker, outbox, settings }
    }

    async fn insert(&self, aggregate_type: &str, headers: &str) {
        let insert = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, headers) \
             VALUES ('{aggregate_type}', '{PAYLOAD}', '{{\"n\": \"{PAYLOAD}\"}}', '{headers}')"
        );
        self.outbox.execute(&insert).await;
    }

    /// Skips the event that stopped the router.
    async fn clear(&self) {
        self.outbox.released().await;
        self.settings.advance_past_everything(&self.outbox).await;
    }

    /// Runs the router at log level trace until it exits with `code`.
    async fn run(&self, settings: &Settings, code: i32) -> Ended {
        let ended = Router::with_variables(settings, &EVERYTHING).exits(code).await;
        assert!(ended.log.contains("TRACE"), "nothing was logged in detail:\n{}", ended.log);
        assert_holds_no_secret("the log", &ended.log);
        ended
    }
}

const HEADERS: &str = "{\"trace\": \"pay10ad\"}";

/// One test, because starting a broker takes longer than the rest.
#[tokio::test]
async fn secrets_and_payloads_stay_out_of_logs_pages_and_output() {
    let setup = Setup::new().await;
    without_faults(&setup).await;
    with_faults(&setup).await;
}

async fn without_faults(setup: &Setup) {
    // unused without tokens and Kerberos, but librdkafka logs them
    let url = format!("https://user:{URL_PASSWORD}@127.0.0.1:1/token?key={URL_PASSWORD}");
    let settings = setup.settings.clone().set("kafka.'sasl.oauthbearer.token.endpoint.url'", url);
    let settings =
        settings.set("kafka.'sasl.kerberos.kinit.cmd'", format!("kinit --password {URL_PASSWORD}"));
    let router = Router::with_variables(&settings, &EVERYTHING);
    setup.insert("order", HEADERS).await;
    setup.outbox.all_confirmed().await;
    // a session that is terminated
    let terminate = format!("SELECT pg_terminate_backend({})", setup.outbox.active_pid().await);
    setup.outbox.execute(&terminate).await;
    setup.insert("order", HEADERS).await;
    setup.outbox.all_confirmed().await;

    let process = format!("/proc/{}", router.pid());
    let arguments = fs::read(format!("{process}/cmdline")).unwrap();
    assert_holds_no_secret("the arguments", &String::from_utf8_lossy(&arguments));
    for page in ["/status", "/metrics", "/readyz", "/healthz"] {
        let (status, body) = router.get_now(page).await;
        assert_eq!(status, 200, "{page}: {body}");
        assert_holds_no_secret(page, &body);
    }
    let ended = router.stop().await;
    assert!(ended.log.contains("TRACE"), "nothing was logged in detail:\n{}", ended.log);
    assert_holds_no_secret("the log", &ended.log);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outbox-router.toml");
    fs::write(&file, settings.text()).unwrap();
    for arguments in [
        &["config", "show"][..],
        &["config", "validate", "--json"],
        &["check", "--json"],
        &["check"],
        &["status", "--json"],
    ] {
        for level in ["info", "trace"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-router"));
            command.arg("-c").arg(&file).args(arguments).env_clear().env("RUST_LOG", level);
            let output = process::output(&mut command);
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let expected = if arguments[0] == "status" { 1 } else { 0 };
            assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {out}{err}");
            assert!(!out.is_empty());
            assert_holds_no_secret(&format!("{arguments:?}"), &format!("{out}{err}"));
        }
    }
}

async fn with_faults(setup: &Setup) {
    let kafka = setup.broker.client();
    let Setup { outbox, settings, .. } = setup;

    // events that cannot be sent: invalid topic, invalid headers, too large, too large even compressed
    setup.insert("an order", HEADERS).await;
    setup.run(settings, 3).await.says(&["is not valid"]);
    setup.clear().await;
    setup.insert("order", "[\"pay10ad\"]").await;
    setup.run(settings, 3).await.says(&["headers"]);
    setup.clear().await;
    let before = kafka.count(&outbox.name).await.unwrap();
    kafka.alter_topic(&outbox.topic("order"), &[("max.message.bytes", "100")]).await;
    setup.insert("order", HEADERS).await;
    setup.run(settings, 3).await.says(&["larger than max.message.bytes"]);
    outbox.released().await;
    let compressed = settings.clone().set("kafka.'compression.type'", "zstd");
    setup.run(&compressed, 3).await.says(&["Kafka refuses the event"]);
    setup.clear().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(before));

    // refused passwords, and an invalid configuration
    let url = outbox.url().replace("postgres@", &format!("router:{WRONG}@"));
    let mut sentences = Sentences::default();
    let known =
        [(setup.broker.extra(), "BROKER"), (outbox.address(), "HOST"), (outbox.name.as_str(), "NAME")];
    for (case, key, value, code) in [
        ("Postgres's password", "postgres.url", url.as_str(), 1),
        ("Kafka's password", "kafka.'sasl.password'", WRONG, 1),
        ("a mechanism that the broker does not offer", "kafka.'sasl.mechanism'", "SCRAM-SHA-256", 1),
    ] {
        let ended = setup.run(&settings.clone().set(key, value), code).await;
        sentences.add(case, &ended, &known);
    }
    let broken = format!("postgres://router:{WRONG}@127.0.0.1:port/x");
    for (case, key, value) in [
        ("a URL that is none", "postgres.url", broken.as_str()),
        ("a password under an unknown key", "kafka.'sasl.passwort'", WRONG),
    ] {
        let ended = Router::with_variables(&settings.clone().set(key, value), &EVERYTHING).exits(2).await;
        assert_holds_no_secret("the log", &ended.log);
        sentences.add(case, &ended, &known);
    }
    insta::assert_snapshot!("refused", sentences.text());
}
