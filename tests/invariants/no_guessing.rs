//! The router stops where events may be missing, and says what it found.

use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::signal::Signal;

/// A router that has sent one event.
struct Setup {
    outbox: Outbox,
    kafka: Kafka,
    router: Router,
}

impl Setup {
    async fn new() -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        outbox.create_witness().await;
        let router = Router::active(&Settings::new(&outbox, &kafka)).await;
        outbox.insert("order", "a", "{\"n\": 1}").await;
        outbox.all_confirmed().await;
        Setup { outbox, kafka, router }
    }

    /// Freezes the router and ends its session, so that slot and catalogue can be changed unseen.
    async fn cut_off(&self) {
        self.router.signal(Signal::Stop);
        let terminate = format!("SELECT pg_terminate_backend({}, 60000)", self.outbox.active_pid().await);
        self.outbox.execute(&terminate).await;
        self.outbox.released().await;
    }

    /// Waits until the router has stopped by itself, and checks that it has sent nothing more.
    async fn stopped(self, parts: &[&str]) -> Outbox {
        let Setup { outbox, kafka, router } = self;
        let ended = router.exits(3).await;
        ended.says(parts);
        assert_eq!(kafka.count(&outbox.name).await, Ok(1), "{}", ended.log);
        outbox
    }
}

const EVENT: &str =
    "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{\"n\": 2}')";

#[tokio::test]
async fn no_guessing_about_a_slot_that_was_dropped_and_created_again() {
    let setup = Setup::new().await;
    setup.cut_off().await;
    setup.outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", setup.outbox.name)).await;
    setup.outbox.execute(EVENT).await;
    setup.outbox.create_slot("pgoutput").await;
    setup.router.signal(Signal::Continue);
    setup.stopped(&["slot", "may be missing"]).await;
}

#[tokio::test]
async fn no_guessing_about_a_slot_that_was_advanced() {
    let setup = Setup::new().await;
    setup.cut_off().await;
    setup.outbox.execute(EVENT).await;
    let advance = "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_insert_lsn()) \
                   FROM pg_replication_slots WHERE plugin = 'pgoutput' AND database = current_database()";
    setup.outbox.execute(advance).await;
    setup.router.signal(Signal::Continue);
    setup.stopped(&["moved by another", "may be missing"]).await;
}

#[tokio::test]
async fn no_guessing_about_a_slot_that_was_dropped() {
    let setup = Setup::new().await;
    setup.cut_off().await;
    setup.outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", setup.outbox.name)).await;
    setup.router.signal(Signal::Continue);
    setup.stopped(&["slot", "does not exist", "may be missing"]).await;
}

/// Changes the publication or the table and commits an event, which the slot must not pass.
async fn altered(sql: &str, event: &str, parts: &[&str]) {
    let setup = Setup::new().await;
    setup.outbox.execute(sql).await;
    let event = setup.outbox.commit(event).await;
    let outbox = setup.stopped(parts).await;
    let confirmed = outbox.confirmed().await;
    assert!(confirmed < event, "confirmed up to {confirmed}, past the event that ends at {event}");
}

#[tokio::test]
async fn no_guessing_about_a_publication_that_was_dropped() {
    altered("DROP PUBLICATION outbox_router", EVENT, &["publication"]).await;
}

#[tokio::test]
async fn no_guessing_about_a_publication_that_was_dropped_and_created_again() {
    let again = format!("DROP PUBLICATION outbox_router; {PUBLICATION}");
    let setup = Setup::new().await;
    setup.outbox.execute(&again).await;
    let outbox = setup.stopped(&["publication", "created again", "may be missing"]).await;
    let kafka = Kafka::shared();
    let settings = Settings::new(&outbox, &kafka);
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["publication", "created again", "--accept-gap"]);
    // a person has checked, and found nothing missing
    outbox.execute(EVENT).await;
    let mut router = Router::with_arguments(&settings, &["--accept-gap", ended.accept_gap_position()]);
    router.ready().await;
    outbox.all_confirmed().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(2));
    router.stop().await;
}

/// Postgres 14 to 17 cannot decode rows that were written while the publication was missing, even after it is created again; 18
/// leaves them out.
#[tokio::test]
async fn no_guessing_about_wal_that_the_server_cannot_decode() {
    let Setup { outbox, kafka, router } = Setup::new().await;
    router.stop().await;
    let version: i32 = outbox.query("SELECT current_setting('server_version_num')::int").await[0].get(0);
    if version >= 180_000 {
        return;
    }
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let event = outbox.commit(EVENT).await;
    outbox.execute(PUBLICATION).await;
    let settings = Settings::new(&outbox, &kafka);
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["publication", "created again", "rescue", "--accept-gap"]);
    Router::with_arguments(&settings, &["--accept-gap", ended.accept_gap_position()])
        .exits(3)
        .await
        .says(&["does not exist"]);
    for _ in 0..2 {
        let ended = Router::start(&settings).exits(3).await;
        ended.says(&["publication", "does not exist", "they stay in the log", "rescue"]);
    }
    let confirmed = outbox.confirmed().await;
    assert!(confirmed < event, "confirmed up to {confirmed}, past the event that ends at {event}");
    assert_eq!(kafka.count(&outbox.name).await, Ok(1));
}

#[tokio::test]
async fn no_guessing_about_a_table_that_is_no_longer_published() {
    altered("ALTER PUBLICATION outbox_router DROP TABLE outbox", EVENT, &["does not publish", "outbox"])
        .await;
}

#[tokio::test]
async fn no_guessing_about_inserts_that_are_no_longer_published() {
    altered("ALTER PUBLICATION outbox_router SET (publish = 'update')", EVENT, &["does not publish inserts"])
        .await;
}

#[tokio::test]
async fn no_guessing_about_a_table_that_was_renamed() {
    altered(
        "ALTER TABLE outbox RENAME TO outbox_old",
        &EVENT.replace("outbox", "outbox_old"),
        &["table", "outbox"],
    )
    .await;
}

#[tokio::test]
async fn no_guessing_about_a_table_that_replaced_the_outbox() {
    let another =
        "ALTER TABLE outbox RENAME TO outbox_old; CREATE TABLE outbox (LIKE outbox_old INCLUDING ALL)";
    altered(another, EVENT, &["table", "outbox"]).await;
}

/// The router examines a slot before it uses it, and refuses this one.
async fn refused(outbox: &Outbox, slot: &str, parts: &[&str]) -> Ended {
    let settings = Settings::new(outbox, &Kafka::shared()).set("postgres.slot", slot);
    let ended = Router::start(&settings).exits(3).await;
    ended.says(parts);
    ended
}

#[tokio::test]
async fn no_guessing_about_a_slot_that_is_not_usable() {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{}; {PUBLICATION}", crate::support::outbox::TABLE)).await;
    refused(&outbox, &outbox.name, &["slot", "does not exist", "outbox-router init"]).await;

    outbox.create_slot("test_decoding").await;
    refused(&outbox, &outbox.name, &["test_decoding"]).await;

    let physical = format!("{}_physical", outbox.name);
    outbox.execute(&format!("SELECT pg_create_physical_replication_slot('{physical}')")).await;
    let ended = refused(&outbox, &physical, &["physical"]).await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{physical}')")).await;
    assert!(!ended.log.contains("events flow"), "{}", ended.log);

    let other = Outbox::new().await;
    refused(&outbox, &other.name, &["belongs to the database", &other.name]).await;
    assert!(other.slot().await.is_some());
}
