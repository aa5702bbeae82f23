//! A start without a stored checkpoint. Only a new slot needs no confirmation, because events of any other may have been sent.

use std::fs;

use super::settings;
use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::place::{Place, psql, succeeded};
use crate::support::postgres::{PrivatePostgres, Shutdown};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::signal::{Signal, send};

/// Part of the refusal of a slot that the router does not know.
const NOT_NEW: &str = "is not known to be new";

/// Part of every refusal.
const NO_POSITION: &str = "no checkpoint is stored for the router";

/// The table that `init` creates has no default for it.
const EVENT_TYPE: &str = "ALTER TABLE outbox ALTER event_type SET DEFAULT 'happened'";

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

/// Asserts that the router refuses with these words and sends nothing, and that `check` says the same.
async fn refuses(outbox: &Outbox, kafka: &Kafka, settings: &Settings, words: &[&str]) -> Ended {
    let before = kafka.count(&outbox.name).await;
    let ended = Router::start(settings).exits(3).await;
    ended.says(words);
    let ran = settings.run_async(&["check"]).await;
    assert!(ran.code == 1 && words.iter().all(|word| ran.out.contains(word)), "{words:?}: {ran:?}");
    assert_eq!(kafka.count(&outbox.name).await, before);
    ended
}

async fn never_twice(outbox: &Outbox, kafka: &Kafka) {
    same(outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// An outbox with three events, and a slot of which the router's schema has no record.
async fn outbox_with_unknown_slot() -> Outbox {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{TABLE}; {PUBLICATION}")).await;
    outbox.create_slot_by_hand().await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox
}

#[tokio::test]
async fn exactly_once_a_changed_name_is_refused_until_it_is_accepted() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka);
    let name = format!("{0}.{0}", outbox.name);
    sends(&outbox, &settings, &[], 1..4).await;
    let renamed = settings.clone().set("name", format!("renamed-{name}"));
    let former = format!("set name = \"{name}\" as before");
    let words = [NO_POSITION, NOT_NEW, &format!("the router {name} has read it"), &former];
    let ended = refuses(&outbox, &kafka, &renamed, &words).await;
    let wrong = ["--accept-gap", "0/1"];
    Router::with_arguments(&renamed, &wrong)
        .exits(3)
        .await
        .says(&["does not match", ended.accept_gap_position()]);
    let accepted = sends(&outbox, &renamed, &["--accept-gap", ended.accept_gap_position()], 4..6).await;
    assert!(accepted.log.contains("the gap was accepted"), "{}", accepted.log);
    sends(&outbox, &renamed, &[], 6..8).await;
    never_twice(&outbox, &kafka).await;
}

/// `slot advance` accepts the gap too.
#[tokio::test]
async fn exactly_once_a_changed_name_resumes_at_the_position_of_slot_advance() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka);
    sends(&outbox, &settings, &[], 1..4).await;
    let renamed = settings.set("name", format!("renamed-{}", outbox.name));
    refuses(&outbox, &kafka, &renamed, &[NO_POSITION]).await;
    // moves and flushes the end of the WAL
    outbox.execute("SELECT pg_logical_emit_message(true, 'other', '')").await;
    renamed.advance_past_everything(&outbox).await;
    sends(&outbox, &renamed, &[], 4..6).await;
    sends(&outbox, &renamed, &[], 6..8).await;
    never_twice(&outbox, &kafka).await;
}

#[tokio::test]
async fn exactly_once_a_deleted_checkpoint_is_refused_until_it_is_accepted() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = format!("positions-{}", outbox.name);
    let settings = settings(&outbox, &kafka).set("delivery.positions_topic", topic.as_str());
    sends(&outbox, &settings, &[], 1..4).await;
    kafka.delete_topic(&topic).await;
    let words = [NO_POSITION, NOT_NEW, "this router has read it", "positions_topic"];
    let ended = refuses(&outbox, &kafka, &settings, &words).await;
    sends(&outbox, &settings, &["--accept-gap", ended.accept_gap_position()], 4..6).await;
    never_twice(&outbox, &kafka).await;
}

/// After a crash of Postgres the slot is back at its creation, and only the router's schema shows which routers have read it.
#[tokio::test]
async fn exactly_once_does_not_repeat_events_sent_under_another_name_after_a_crash_of_postgres() {
    let server = PrivatePostgres::start(PG_HBA, &["checkpoint_timeout=1h"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    outbox.execute("CHECKPOINT").await;
    let background_writer = server.background_writer().await;
    assert!(send(Signal::Stop, background_writer));
    let settings = settings(&outbox, &kafka);
    let at_least_once = Settings::new(&outbox, &kafka).set("name", format!("other-{}", outbox.name));
    let third = settings.clone().set("name", format!("third-{}", outbox.name));
    sends(&outbox, &settings, &[], 1..4).await;
    let ended = Router::start(&at_least_once).exits(3).await;
    sends(&outbox, &at_least_once, &["--accept-gap", ended.accept_gap_position()], 4..100).await;
    assert!(send(Signal::Continue, background_writer));
    server.stop(Shutdown::Immediate);
    server.start_again();
    let other = format!("the router other-{}", outbox.name);
    refuses(&outbox, &kafka, &third, &[NO_POSITION, &other]).await;
    // the router has a checkpoint of its own, but an older one
    let before = kafka.count(&outbox.name).await;
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&[&other, "--accept-gap"]).shown(&outbox);
    assert_eq!(kafka.count(&outbox.name).await, before);
}

#[tokio::test]
async fn exactly_once_a_slot_created_by_hand_is_refused_until_it_is_accepted() {
    let (outbox, kafka) = (outbox_with_unknown_slot().await, Kafka::shared());
    let settings = settings(&outbox, &kafka);
    let ended = refuses(&outbox, &kafka, &settings, &[NO_POSITION, NOT_NEW, "outbox-router init"]).await;
    sends(&outbox, &settings, &["--accept-gap", ended.accept_gap_position()], 4..6).await;
    sends(&outbox, &settings, &[], 6..8).await;
    never_twice(&outbox, &kafka).await;
}

#[tokio::test]
async fn exactly_once_checks_do_not_apply_to_at_least_once() {
    let (outbox, kafka) = (outbox_with_unknown_slot().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    sends(&outbox, &settings, &[], 4..6).await;
    never_twice(&outbox, &kafka).await;
}

/// Events are already waiting then.
#[tokio::test]
async fn exactly_once_the_first_start_after_init_needs_no_confirmation() {
    let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
    let settings = settings(&outbox, &kafka).set("outbox.table", "outbox");
    succeeded(settings.run(&["init"]), &[]);
    outbox.execute(EVENT_TYPE).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    sends(&outbox, &settings, &[], 4..6).await;
    sends(&outbox, &settings, &[], 6..8).await;
    never_twice(&outbox, &kafka).await;
}

/// A slot that was lost and recreated has no events that were sent before.
#[tokio::test]
async fn exactly_once_a_slot_recreated_by_init_is_new_for_another_name() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka);
    sends(&outbox, &settings, &[], 1..4).await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    succeeded(settings.run(&["init"]), &[]);
    sends(&outbox, &settings.set("name", format!("renamed-{}", outbox.name)), &[], 4..6).await;
    never_twice(&outbox, &kafka).await;
}

#[tokio::test]
async fn exactly_once_the_first_start_after_the_printed_script_needs_no_confirmation() {
    let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
    let settings = settings(&outbox, &kafka).set("outbox.table", "outbox");
    let script = succeeded(settings.run(&["init", "--print-sql"]), &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("init.sql");
    fs::write(&file, &script.out).unwrap();
    // the second run leaves the slot as it is
    for _ in 0..2 {
        succeeded(psql(&outbox.url(), &["-f", file.to_str().unwrap()]), &[]);
    }
    outbox.execute(EVENT_TYPE).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    sends(&outbox, &settings, &[], 4..6).await;
    never_twice(&outbox, &kafka).await;
}

/// If the role cannot record that it reads the slot, the slot would look new for ever.
#[tokio::test]
async fn exactly_once_a_role_without_privileges_on_the_schema_is_refused_with_what_to_grant() {
    let mut place = Place::new();
    let role = format!("{}_router", place.name);
    place.set("DELIVERY__MODE", "exactly-once");
    let granted = || {
        let ran = place.run(&["init", "--role", &role]);
        assert!(ran.code == 0 && ran.out.contains("on outbox_router.slots: granted"), "{ran:?}");
    };
    granted();
    place.psql(&format!("REVOKE ALL ON outbox_router.slots FROM {role}"));
    let settings = Settings::default()
        .set("postgres.url", place.url(&role))
        .set("postgres.slot", place.name.as_str())
        .set("postgres.publication", place.name.as_str())
        .set("kafka.'bootstrap.servers'", Kafka::shared().bootstrap.as_str())
        .set("delivery.mode", "exactly-once");
    let grant = format!("outbox-router init --url ... --role {role}");
    Router::start(&settings).exits(3).await.says(&[NO_POSITION, NOT_NEW, &grant, "--accept-gap"]);
    granted();
    Router::active(&settings).await.stop().await;
    assert_eq!(place.psql("SELECT router FROM outbox_router.slots").trim(), format!("{0}.{0}", place.name));
}
