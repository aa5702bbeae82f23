//! Secrets and payloads appear in no log line, whatever happens and however much is logged.

use std::fs;

use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::settings::Settings;

const PG_HBA: &str = "host all postgres 127.0.0.1/32 trust\nhost all router 127.0.0.1/32 scram-sha-256\n";
const PASSWORD: &str = "sesame-7f3a";
const KAFKA_PASSWORD: &str = "opensesame-91bc";
const PAYLOAD: &str = "pay10ad";

const EVERYTHING: [(&str, &str); 1] = [("RUST_LOG", "trace")];

fn assert_holds_no_secret(log: &str) {
    assert!(log.contains("TRACE"), "nothing was logged in detail:\n{log}");
    for secret in [PASSWORD, KAFKA_PASSWORD, PAYLOAD, "wrong-one"] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret} is in the log:\n{}", lines.join("\n"));
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

#[tokio::test]
async fn secrets_and_payloads_stay_out_of_the_log() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let broker = PrivateKafka::start(&sasl().each_ref().map(String::as_str)).await;
    server.execute(&[&format!("CREATE ROLE router LOGIN REPLICATION PASSWORD '{PASSWORD}'")]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
    let url = outbox.url().replace("postgres@", &format!("router:{PASSWORD}@"));
    let settings = Settings::new(&outbox, &kafka)
        .set("postgres.url", url.as_str())
        .set("kafka.debug", "all")
        .set("kafka.'bootstrap.servers'", broker.extra())
        .set("kafka.'security.protocol'", "sasl_plaintext")
        .set("kafka.'sasl.mechanism'", "PLAIN")
        .set("kafka.'sasl.username'", "router")
        .set("kafka.'sasl.password'", KAFKA_PASSWORD);

    // all is well, then a connection breaks, then an event cannot be sent
    let router = Router::with_variables(&settings, &EVERYTHING);
    outbox.insert("order", PAYLOAD, &format!("{{\"n\": \"{PAYLOAD}\"}}")).await;
    outbox.all_confirmed().await;
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", router.pid())).unwrap();
    assert!(!arguments.contains(PASSWORD), "{arguments}");
    let terminate = format!("SELECT pg_terminate_backend({})", outbox.active_pid().await);
    outbox.execute(&terminate).await;
    outbox.insert("an order", "a", &format!("{{\"n\": \"{PAYLOAD}\"}}")).await;
    let ended = router.exits(3).await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(1));
    assert_holds_no_secret(&ended.log);

    // passwords that are refused
    let wrong = settings.clone().set("postgres.url", url.replace(PASSWORD, "wrong-one"));
    let ended = Router::with_variables(&wrong, &EVERYTHING).exits(1).await;
    assert_holds_no_secret(&ended.says(&["password authentication failed"]).log);
    let wrong = settings.set("kafka.'sasl.password'", "wrong-one");
    let ended = Router::with_variables(&wrong, &EVERYTHING).exits(1).await;
    assert_holds_no_secret(&ended.says(&["refused the credentials"]).log);
}
