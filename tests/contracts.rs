//! Payloads that violate their contract are sent and counted, or not sent, as configured.

use std::fs;

use tempfile::TempDir;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Contracts of two event types of the aggregate `order`.
pub(crate) fn contracts() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("order")).unwrap();
    let placed = r#"{"type": "object", "properties": {"total": {"type": "integer", "minimum": 0}}, "required": ["total"]}"#;
    fs::write(directory.path().join("order/placed.json"), placed).unwrap();
    fs::write(directory.path().join("order/paid.json"), r#"{"maxProperties": 1}"#).unwrap();
    directory
}

fn settings(outbox: &Outbox, kafka: &Kafka, contracts: &TempDir) -> Settings {
    Settings::new(outbox, kafka).set("contracts.directory", contracts.path().to_str().unwrap())
}

async fn insert(outbox: &Outbox, event_type: &str, payload: &str) -> String {
    let sql = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', 'a', '{event_type}', '{payload}') RETURNING id::text"
    );
    outbox.query(&sql).await[0].get(0)
}

#[tokio::test]
async fn contract_violations_are_counted_and_logged_once() {
    let (outbox, kafka, contracts) = (Outbox::new().await, Kafka::shared(), contracts());
    let router = Router::active(&settings(&outbox, &kafka, &contracts)).await;
    insert(&outbox, "placed", r#"{"total": 5}"#).await;
    let first = insert(&outbox, "placed", r#"{"total": "pay10ad"}"#).await;
    let second = insert(&outbox, "placed", r#"{"total": -7}"#).await;
    let other = insert(&outbox, "paid", r#"{"pay10ad": 1, "b": 2}"#).await;
    insert(&outbox, "nobody_knows", "[]").await;
    outbox.all_confirmed().await;
    assert_eq!(kafka.records(&outbox.name).await.len(), 5);
    let (_, metrics) = router.get_now("/metrics").await;
    assert!(metrics.contains("outbox_router_contract_violations_total 3\n"), "{metrics}");
    assert_eq!(router.status().unwrap()["totals"]["contract_violations"], 3);

    let log = router.stop().await.log;
    let warning = |id: &str| log.lines().find(|line| line.contains(id));
    let line = warning(&first).unwrap();
    assert!(
        line.contains("order/placed.json: at /total it violates \"type\": it must be of type integer"),
        "{line}"
    );
    assert!(warning(&second).is_none(), "only the first violation of each contract is logged\n{log}");
    assert!(warning(&other).unwrap().contains("order/paid.json"), "{log}");
    assert!(!log.contains("pay10ad"), "{log}");
}

#[tokio::test]
async fn contract_violations_stop_the_router_that_rejects() {
    let (outbox, kafka, contracts) = (Outbox::new().await, Kafka::shared(), contracts());
    let rejecting = settings(&outbox, &kafka, &contracts).set("contracts.on_violation", "reject");
    insert(&outbox, "placed", r#"{"total": 5}"#).await;
    let bad = insert(&outbox, "placed", r#"{"sum": "pay10ad"}"#).await;
    insert(&outbox, "placed", r#"{"total": 6}"#).await;
    let ended = Router::start(&rejecting).exits(3).await;
    ended.says(&[
        &format!(
            "the event with id {bad} cannot be sent: the payload violates the contract order/placed.json"
        ),
        "\"required\": \"total\" is missing",
        "Nothing was skipped",
        "on_violation",
        "outbox-router slot advance --to ",
    ]);
    assert!(!ended.log.contains("pay10ad"), "{}", ended.log);
    assert_eq!(kafka.records(&outbox.name).await.len(), 1, "only the event before it is sent");

    // as the message advises
    let warning = rejecting.set("contracts.on_violation", "warn");
    let router = Router::active(&warning).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(3));
}

#[tokio::test]
async fn invalid_contracts_keep_the_router_from_starting() {
    let (outbox, kafka, contracts) = (Outbox::new().await, Kafka::shared(), contracts());
    fs::write(contracts.path().join("order/bad.json"), r##"{"$ref": "#/nowhere"}"##).unwrap();
    let ended = Router::start(&settings(&outbox, &kafka, &contracts)).exits(2).await;
    assert!(ended.log.contains("order/bad.json at /$ref"), "{}", ended.log);
}
