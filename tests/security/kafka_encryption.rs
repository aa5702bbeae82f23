//! TLS to a real broker: verification of the broker's and the router's certificate.

use super::{SecureKafka, assert_delivers, keystore};
use crate::support::certificates::Authority;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Checks that the router sends nothing, reports why, and goes on trying, because an attacker in between may go away again.
async fn assert_refused(settings: &Settings, outbox: &Outbox, why: &[&str]) {
    let mut router = Router::start(settings);
    router
        .shows(&format!("the status has {why:?}"), |status| {
            let reason = status["reason"].as_str()?;
            why.iter().all(|part| reason.contains(part)).then_some(())
        })
        .await;
    assert_eq!(router.get_now("/readyz").await.0, 503);
    router.stop().await;
    outbox.released().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn kafka_encryption_admits_the_right_broker_and_no_other() {
    let broker = SecureKafka::start("SSL", &[]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.broker.client());
    let settings = broker.settings(&outbox, "ssl");
    assert_delivers("TLS", &settings, &outbox, &kafka).await;
    let check = settings.run(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");

    outbox.insert("order", "a", "\"for the right broker alone\"").await;
    let by_address = settings.clone().set("kafka.'bootstrap.servers'", broker.broker.extra());
    assert_refused(&by_address, &outbox, &["certificate verify failed", "127.0.0.1", "not for the name"])
        .await;
    std::fs::write(broker.path("stranger.crt"), Authority::new("a stranger").certificate).unwrap();
    let stranger = settings.clone().set("kafka.'ssl.ca.location'", broker.path("stranger.crt"));
    assert_refused(&stranger, &outbox, &["certificate verify failed"]).await;
    let check = stranger.run(&["check"]);
    assert!(check.code == 1 && check.out.contains("certificate verify failed"), "{check:?}");
    // the system's authorities did not sign the broker's certificate
    assert_refused(
        &settings.clone().without("kafka.'ssl.ca.location'"),
        &outbox,
        &["certificate verify failed"],
    )
    .await;
    let plain = settings.clone().set("kafka.'security.protocol'", "plaintext");
    assert_refused(&plain, &outbox, &["no Kafka broker answers"]).await;

    broker.broker.stop();
    let expired = broker.authority.issue_expired("localhost", &["localhost"]);
    broker.broker.start_again_with(&[&keystore(broker.folder.path(), "expired", &expired)]);
    assert_refused(&settings, &outbox, &["certificate verify failed", "has expired"]).await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(1));
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn kafka_encryption_shows_the_routers_certificate_to_a_broker_that_asks_for_one() {
    let broker = SecureKafka::start("SSL", &["ssl.client.auth=required"]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.broker.client());
    let anonymous = broker.settings(&outbox, "ssl");
    let with = |name: &str, identity: &crate::support::certificates::Identity| {
        let (certificate, key) = identity.save(broker.folder.path(), name);
        anonymous
            .clone()
            .set("kafka.'ssl.certificate.location'", certificate.to_str().unwrap())
            .set("kafka.'ssl.key.location'", key.to_str().unwrap())
    };
    assert_delivers(
        "its certificate",
        &with("router", &broker.authority.issue("router", &[])),
        &outbox,
        &kafka,
    )
    .await;
    outbox.insert("order", "a", "\"from a router that the broker knows\"").await;
    assert_refused(&anonymous, &outbox, &["bad certificate"]).await;
    let foreign = Authority::new("the authority").issue("router", &[]);
    assert_refused(&with("foreign", &foreign), &outbox, &["certificate unknown"]).await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(1));
}
