//! The checkpoint is lost while the router is stopped. The router's table in Postgres shows that the router has read the slot.

use super::position_finding;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::place::{Place, succeeded};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use crate::support::shared;

/// A stopped router that has sent events 1 to 3, and then lost its positions topic.
struct Setup {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
}

impl Setup {
    async fn new() -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let topic = format!("positions-{}", outbox.name);
        let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", topic.as_str());
        sends(&outbox, &settings, &[], 1..4).await;
        kafka.delete_topic(&topic).await;
        Setup { outbox, kafka, settings }
    }

    async fn numbers(&self) -> Vec<u64> {
        self.kafka.records(&self.outbox.name).await.iter().map(|record| record.number()).collect()
    }
}

/// Runs a router until events with these numbers are sent.
async fn sends(
    outbox: &Outbox,
    settings: &Settings,
    arguments: &[&str],
    numbers: std::ops::Range<u32>,
) -> Ended {
    let mut router = Router::with_arguments(settings, arguments);
    router.ready().await;
    outbox.insert_numbers("order", "a", numbers).await;
    outbox.all_confirmed().await;
    router.stop().await
}

async fn advance(outbox: &Outbox) {
    let name = &outbox.name;
    outbox
        .execute(&format!("SELECT pg_replication_slot_advance('{name}', pg_current_wal_insert_lsn())"))
        .await;
}

#[tokio::test]
async fn a_lost_checkpoint_is_refused_until_it_is_accepted() {
    let setup = Setup::new().await;
    let Setup { outbox, settings, .. } = &setup;
    outbox.insert_numbers("order", "a", 4..5).await;
    advance(outbox).await;
    // the topic does not exist yet, and then it is empty
    let found = position_finding(settings).await;
    let ended = Router::start(settings).exits(3).await;
    ended.says(&[
        "no checkpoint is stored",
        "this router has read it",
        "missing in Kafka if another client has moved",
    ]);
    found.is_refusal(&ended);
    position_finding(settings).await.is_refusal(&ended);
    assert_eq!(setup.numbers().await, [1, 2, 3]);
    sends(outbox, settings, &["--accept-gap", ended.accept_gap_position()], 5..6).await;
    sends(outbox, settings, &[], 6..7).await;
    assert_eq!(setup.numbers().await, [1, 2, 3, 5, 6]);
    assert_eq!(position_finding(settings).await.level, "ok");
}

#[tokio::test]
async fn a_lost_checkpoint_is_replaced_by_a_reset_to_the_bookmark_that_the_refusal_names() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = format!("positions-{}", outbox.name);
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", topic.as_str());
    succeeded(settings.run(&["slot", "bookmark", "before"]), &[]);
    sends(&outbox, &settings, &[], 1..4).await;
    kafka.delete_topic(&topic).await;
    let setup = Setup { outbox, kafka, settings };
    setup.outbox.insert_numbers("order", "a", 4..5).await;
    advance(&setup.outbox).await;
    let ended = Router::start(&setup.settings).exits(3).await;
    setup.settings.run_command(&ended, "slot reset");
    sends(&setup.outbox, &setup.settings, &[], 5..6).await;
    assert_eq!(setup.numbers().await, [1, 2, 3, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_lost_checkpoint_is_replaced_by_slot_advance() {
    let setup = Setup::new().await;
    // moves and flushes the end of the WAL
    setup.outbox.execute("SELECT pg_logical_emit_message(true, 'other', '')").await;
    setup.settings.advance_past_everything(&setup.outbox).await;
    sends(&setup.outbox, &setup.settings, &[], 4..5).await;
    assert_eq!(setup.numbers().await, [1, 2, 3, 4]);
}

/// A router that ran without checkpoints gets a positions topic.
#[tokio::test]
async fn switching_checkpoints_on_needs_one_confirmation_and_loses_nothing() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let with = Settings::new(&outbox, &kafka);
    let without = with.clone().set("delivery.positions_topic", "");
    let setup = Setup { outbox, kafka, settings: with };
    sends(&setup.outbox, &without, &[], 1..4).await;
    sends(&setup.outbox, &without, &[], 4..5).await;
    let ended = Router::start(&setup.settings).exits(3).await;
    ended.says(&["Nothing is missing if the router ran without checkpoints until now"]);
    let position = ended.accept_gap_position();
    sends(&setup.outbox, &setup.settings, &["--accept-gap", position], 5..6).await;
    sends(&setup.outbox, &setup.settings, &[], 6..7).await;
    assert_eq!(setup.numbers().await, [1, 2, 3, 4, 5, 6]);
}

/// Another program may have read it, such as Debezium before a takeover.
#[tokio::test]
async fn a_slot_that_is_not_known_to_be_new_is_read_with_a_warning() {
    let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
    outbox.execute(&format!("{TABLE}; {PUBLICATION}")).await;
    outbox.create_slot_by_hand().await;
    let settings = Settings::new(&outbox, &kafka);
    let words = "is not known to be new";
    let found = position_finding(&settings).await;
    assert!(found.level == "warning" && found.what.contains(words), "{found:?}");
    let log = sends(&outbox, &settings, &[], 1..4).await.log;
    assert!(log.contains(&found.what) && log.contains("WARN"), "{log}");
    let log = sends(&outbox, &settings, &[], 4..5).await.log;
    assert!(!log.contains(words), "{log}");
}

/// Unless it is set, the router's name follows the slot's, and so the checkpoint of the former slot is not found.
#[tokio::test]
async fn a_slot_beside_one_that_was_read_is_refused_unless_a_router_reads_that_one() {
    let setup = Setup::new().await;
    let Setup { outbox, settings, .. } = &setup;
    outbox.insert_numbers("order", "a", 4..5).await;
    let other = settings.clone().set("postgres.slot", format!("{}_other", outbox.name));
    succeeded(other.run_async(&["init"]).await, &[]);
    let ended = Router::start(&other).exits(3).await;
    ended.says(&[&format!("{} (read by {0}.{0})", outbox.name)]);
    position_finding(&other).await.is_refusal(&ended);
    // its events are sent by the router that reads it
    let accepted = Router::start(settings).exits(3).await;
    let mut first = Router::with_arguments(settings, &["--accept-gap", accepted.accept_gap_position()]);
    first.ready().await;
    assert_eq!(position_finding(&other).await.level, "ok");
    Router::active(&other).await.stop().await;
    first.stop().await;
    // by now it has a checkpoint
    Router::active(&other).await.stop().await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}_other')", outbox.name)).await;
}

#[tokio::test]
async fn a_new_slot_is_read_without_a_warning() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    assert_eq!(position_finding(&settings).await.level, "ok");
    let log = sends(&outbox, &settings, &[], 1..4).await.log;
    assert!(!log.contains("known to be new"), "{log}");
}

/// Without the privilege the router cannot tell, and says so. `init --role` grants it.
#[tokio::test]
async fn a_lost_checkpoint_is_noticed_once_the_role_may_read_the_table() {
    let place = Place::new();
    let role = format!("{}_router", place.name);
    let init = || succeeded(place.run(&["init", "--role", &role]), &[]);
    init();
    place.psql(&format!("REVOKE ALL ON outbox_router.slots FROM {role}"));
    let settings = |topic: &str| {
        Settings::default()
            .set("postgres.url", place.url(&role))
            .set("postgres.slot", place.name.as_str())
            .set("postgres.publication", place.name.as_str())
            .set("kafka.'bootstrap.servers'", Kafka::shared().bootstrap.as_str())
            .set("delivery.positions_topic", format!("positions_{}_{topic}", place.name))
    };
    for topic in ["first", "second"] {
        let log = Router::active(&settings(topic)).await.stop().await.log;
        assert!(log.contains("is not known to be new") && log.contains(&format!("--role {role}")), "{log}");
    }
    init();
    Router::active(&settings("second")).await.stop().await;
    Router::start(&settings("third")).exits(3).await.says(&["this router has read it", "--accept-gap"]);
}
