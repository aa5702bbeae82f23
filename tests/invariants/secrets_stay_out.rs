//! Secrets and payloads appear in no log line, whatever happens and however much is logged.

use std::fs;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
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

#[tokio::test]
async fn secrets_and_payloads_stay_out_of_the_log() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    server.execute(&[&format!("CREATE ROLE router LOGIN REPLICATION SUPERUSER PASSWORD '{PASSWORD}'")]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let url = outbox.url().replace("postgres@", &format!("router:{PASSWORD}@"));
    let settings = Settings::new(&outbox, &kafka)
        .set("postgres.url", url.as_str())
        .set("kafka.debug", "all")
        // not used by a broker that asks for no password, and yet there
        .set("kafka.'sasl.username'", "router")
        .set("kafka.'sasl.password'", KAFKA_PASSWORD);

    // all is well, until an event cannot be sent
    let router = Router::with_variables(&settings, &EVERYTHING);
    outbox.insert("order", PAYLOAD, &format!("{{\"n\": \"{PAYLOAD}\"}}")).await;
    outbox.all_confirmed().await;
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", router.pid())).unwrap();
    assert!(!arguments.contains(PASSWORD), "{arguments}");
    let terminate = format!("SELECT pg_terminate_backend({})", outbox.active_pid().await);
    outbox.execute(&terminate).await;
    outbox.insert("an order", "a", &format!("{{\"n\": \"{PAYLOAD}\"}}")).await;
    assert_holds_no_secret(
        &router.exits(3).await.log.replace(&format!("{:?}", outbox.topic("an order")), ""),
    );

    // a refused password
    let wrong = settings.clone().set("postgres.url", url.replace(PASSWORD, "wrong-one"));
    assert_holds_no_secret(&Router::with_variables(&wrong, &EVERYTHING).exits(1).await.log);

    // a broker that does not understand the password
    let sasl =
        settings.set("kafka.'security.protocol'", "sasl_plaintext").set("kafka.'sasl.mechanism'", "PLAIN");
    let mut router = Router::with_variables(&sasl, &EVERYTHING);
    router.logs("not connected").await;
    assert_holds_no_secret(&router.stop().await.log);
}
