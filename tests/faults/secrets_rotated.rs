//! Credentials are replaced while the router runs, as whoever rotates them does: first on the server, and later in the file.

use std::fs;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// The present reason of a router that waits for a server.
async fn is_refused(router: &mut Router, words: &str) {
    router
        .shows("the reason is the refused login", |status| {
            status["reason"].as_str().is_some_and(|reason| reason.contains(words)).then_some(())
        })
        .await;
}

/// User and password change, as dynamic credentials do.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn secrets_rotated_in_the_file_of_the_connection_string_are_used_without_a_restart() {
    let server = PrivatePostgres::start(
        "local all postgres trust\nhost all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256",
        &[],
    )
    .await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    let write = |user: &str, password: &str| {
        let url = format!("postgres://{user}:{password}@{}/{}", outbox.address(), outbox.name);
        fs::write(&file, format!("{url}\n")).unwrap();
    };
    outbox.execute("CREATE ROLE one SUPERUSER LOGIN PASSWORD 'old'; CREATE ROLE two SUPERUSER LOGIN").await;
    write("one", "old");
    let settings = Settings::new(&outbox, &kafka)
        .without("postgres.url")
        .set("postgres.url.file", file.to_str().unwrap());
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename IN ('one', 'two')";
    for (user, password) in [("one", "new"), ("two", "other")] {
        outbox
            .execute(&format!("ALTER ROLE one PASSWORD 'gone'; ALTER ROLE {user} PASSWORD '{password}'"))
            .await;
        outbox.execute(end).await;
        is_refused(&mut router, "password authentication failed").await;
        write(user, password);
        router.ready().await;
    }
    outbox.insert_numbers("order", "a", 3..5).await;
    outbox.all_confirmed().await;
    kafka.holds(&outbox.name, 4).await;
    router.stop().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn secrets_rotated_in_the_file_of_a_kafka_property_are_used_without_a_restart() {
    let plain = "listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
                 user_router=";
    let of = |password: &str| format!("{plain}\"{password}\";");
    let listeners = [
        "listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{extra_port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{extra_port}",
        "sasl.enabled.mechanisms=PLAIN",
    ];
    let broker = PrivateKafka::start(&[&listeners[..], &[of("old").as_str()]].concat()).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "old\n").unwrap();
    let settings = Settings::new(&outbox, &kafka)
        .set("kafka.'bootstrap.servers'", broker.extra())
        .set("kafka.'security.protocol'", "SASL_PLAINTEXT")
        .set("kafka.'sasl.mechanism'", "PLAIN")
        .set("kafka.'sasl.username'", "router")
        .set("kafka.'sasl.password'.file", file.to_str().unwrap());
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    broker.stop();
    is_refused(&mut router, "onnect").await;
    broker.start_again_with(&[&listeners[..], &[of("new").as_str()]].concat());
    // the reason is no longer that of the stopped broker
    is_refused(&mut router, "uthentication").await;
    fs::write(&file, "new\n").unwrap();
    outbox.insert_numbers("order", "a", 3..5).await;
    outbox.all_confirmed().await;
    router.ready().await;
    kafka.holds(&outbox.name, 4).await;
    router.stop().await;
}
