//! A slot that is missing or not usable is neither created nor changed: exit code 3.

use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::Router;
use crate::support::sentences::Sentences;
use crate::support::settings::Settings;
use crate::support::shared;

/// Table and publication, but no slot.
async fn without_slot() -> Outbox {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{TABLE}; {PUBLICATION}")).await;
    outbox
}

/// The slots of this name, with plugin, database and position.
async fn slots(outbox: &Outbox) -> Vec<String> {
    let sql = format!(
        "SELECT concat_ws(' ', slot_name, plugin, database, confirmed_flush_lsn) FROM pg_replication_slots \
         WHERE slot_name = '{}'",
        outbox.name
    );
    outbox.query(&sql).await.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn bad_input_of_a_missing_or_foreign_slot_exits_with_3() {
    let kafka = Kafka::shared();
    let mut sentences = Sentences::default();

    let outbox = without_slot().await;
    outbox.insert("order", "a", "{}").await;
    let ended = Router::start(&Settings::new(&outbox, &kafka)).exits(3).await;
    sentences.of("no slot", &outbox, &ended);
    assert_eq!(slots(&outbox).await, Vec::<String>::new());

    outbox.create_slot("test_decoding").await;
    let before = slots(&outbox).await;
    let ended = Router::start(&Settings::new(&outbox, &kafka)).exits(3).await;
    sentences.of("a slot of another plugin", &outbox, &ended);
    assert_eq!(slots(&outbox).await, before);

    let physical = without_slot().await;
    physical.execute(&format!("SELECT pg_create_physical_replication_slot('{}', true)", physical.name)).await;
    let ended = Router::start(&Settings::new(&physical, &kafka)).exits(3).await;
    sentences.of("a physical slot", &physical, &ended);
    physical.execute(&format!("SELECT pg_drop_replication_slot('{}')", physical.name)).await;

    let (here, there) = (without_slot().await, Outbox::new().await);
    let before = slots(&there).await;
    let settings = Settings::new(&here, &kafka).set("postgres.slot", there.name.as_str());
    let ended = Router::start(&settings).exits(3).await;
    sentences.add("a slot of another database", &ended, &[(&here.name, "HERE"), (&there.name, "THERE")]);
    assert_eq!(slots(&there).await, before);

    insta::assert_snapshot!(sentences.text());
    for outbox in [&outbox, &physical, &here] {
        assert_eq!(kafka.count(&outbox.name).await, Ok(0));
    }
}
