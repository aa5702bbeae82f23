//! Secrets and payloads appear in nothing that the router writes or shows, whatever happens and however much is logged.

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
const WRONG: &str = "wrong-one-5e5e";
/// In keys, payloads and headers.
const PAYLOAD: &str = "pay10ad";

const EVERYTHING: [(&str, &str); 1] = [("RUST_LOG", "trace")];

fn assert_holds_no_secret(what: &str, text: &str) {
    for secret in [PASSWORD, KAFKA_PASSWORD, KEY_PASSWORD, WRONG, PAYLOAD] {
        let lines: Vec<_> = text.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret} is in {what}:\n{}", lines.join("\n"));
    }
}

/// A listener that asks for a password, at the broker's extra port.
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

struct Setting {
    // the database goes before its server
    outbox: Outbox,
    settings: Settings,
    broker: PrivateKafka,
    _server: PrivatePostgres,
}

impl Setting {
    /// Both servers ask for a password, and the librdkafka of the router tells all it can.
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
            // of no use without TLS, and yet there
            .set("kafka.'ssl.key.password'", KEY_PASSWORD);
        Setting { _server: server, broker, outbox, settings }
    }

    async fn insert(&self, aggregate_type: &str, headers: &str) {
        let insert = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, headers) \
             VALUES ('{aggregate_type}', '{PAYLOAD}', '{{\"n\": \"{PAYLOAD}\"}}', '{headers}')"
        );
        self.outbox.execute(&insert).await;
    }

    /// Leaves out what stopped the router.
    async fn clear(&self) {
        self.outbox.released().await;
        self.settings.advance_past_everything(&self.outbox).await;
    }

    /// A run that ends with this code.
    async fn run(&self, settings: &Settings, code: i32) -> Ended {
        let ended = Router::with_variables(settings, &EVERYTHING).exits(code).await;
        assert!(ended.log.contains("TRACE"), "nothing was logged in detail:\n{}", ended.log);
        assert_holds_no_secret("the log", &ended.log);
        ended
    }
}

const HEADERS: &str = "{\"trace\": \"pay10ad\"}";

/// One test, for a broker of its own costs more than all the rest.
#[tokio::test]
async fn secrets_and_payloads_stay_out_of_all_that_is_written_shown_or_printed() {
    let setting = Setting::new().await;
    all_is_well(&setting).await;
    all_that_can_fail(&setting).await;
}

async fn all_is_well(setting: &Setting) {
    let router = Router::with_variables(&setting.settings, &EVERYTHING);
    setting.insert("order", HEADERS).await;
    setting.outbox.all_confirmed().await;
    // a connection that breaks in the middle
    let terminate = format!("SELECT pg_terminate_backend({})", setting.outbox.active_pid().await);
    setting.outbox.execute(&terminate).await;
    setting.insert("order", HEADERS).await;
    setting.outbox.all_confirmed().await;

    let process = format!("/proc/{}", router.pid());
    let arguments = fs::read(format!("{process}/cmdline")).unwrap();
    assert_holds_no_secret("the arguments", &String::from_utf8_lossy(&arguments));
    for page in ["/status", "/metrics", "/readyz", "/healthz"] {
        let (status, body) = router.get(page).unwrap();
        assert_eq!(status, 200, "{page}: {body}");
        assert_holds_no_secret(page, &body);
    }
    let ended = router.stop().await;
    assert!(ended.log.contains("TRACE"), "nothing was logged in detail:\n{}", ended.log);
    assert_holds_no_secret("the log", &ended.log);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outbox-router.toml");
    fs::write(&file, setting.settings.text()).unwrap();
    for arguments in
        [&["check", "--print-config"][..], &["check", "--json"], &["check"], &["status", "--json"]]
    {
        for level in ["info", "trace"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-router"));
            command.arg("-c").arg(&file).args(arguments).env_clear().env("RUST_LOG", level);
            let output = process::output(&mut command);
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let well = if arguments[0] == "check" { 0 } else { 1 };
            assert_eq!(output.status.code(), Some(well), "{arguments:?}: {out}{err}");
            assert!(!out.is_empty());
            assert_holds_no_secret(&format!("{arguments:?}"), &format!("{out}{err}"));
        }
    }
}

async fn all_that_can_fail(setting: &Setting) {
    let kafka = setting.broker.client();
    let Setting { outbox, settings, .. } = setting;

    // events that cannot be sent: no topic, no headers, too large before and after it is compressed
    setting.insert("an order", HEADERS).await;
    setting.run(settings, 3).await.says(&["is not valid"]);
    setting.clear().await;
    setting.insert("order", "[\"pay10ad\"]").await;
    setting.run(settings, 3).await.says(&["headers"]);
    setting.clear().await;
    let before = kafka.count(&outbox.name).await.unwrap();
    kafka.alter_topic(&outbox.topic("order"), &[("max.message.bytes", "100")]).await;
    setting.insert("order", HEADERS).await;
    setting.run(settings, 3).await.says(&["larger than max.message.bytes"]);
    outbox.released().await;
    let compressed = settings.clone().set("kafka.'compression.type'", "zstd");
    setting.run(&compressed, 3).await.says(&["Kafka refuses the event"]);
    setting.clear().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(before));

    // passwords that are refused, and settings that are not understood
    let url = outbox.url().replace("postgres@", &format!("router:{WRONG}@"));
    let mut sentences = Sentences::default();
    let known =
        [(setting.broker.extra(), "BROKER"), (outbox.address(), "HOST"), (outbox.name.as_str(), "NAME")];
    for (case, key, value, code) in [
        ("Postgres's password", "postgres.url", url.as_str(), 1),
        ("Kafka's password", "kafka.'sasl.password'", WRONG, 1),
        ("a mechanism that the broker does not offer", "kafka.'sasl.mechanism'", "SCRAM-SHA-256", 1),
    ] {
        let ended = setting.run(&settings.clone().set(key, value), code).await;
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
