//! A start without a remembered position: only a new slot is read without a word, for of any other events may have been sent.

use std::fs;

use super::settings;
use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::place::{Place, Ran, psql};
use crate::support::postgres::{PrivatePostgres, Shutdown};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use crate::support::shared;

/// The message that nothing is known of the slot.
const NOT_NEW: &str = "is not known to be new";

/// What every refusal says.
const NO_POSITION: &str = "no checkpoint is stored for the router";

/// The table that `init` makes has no default for it.
const EVENT_TYPE: &str = "ALTER TABLE outbox ALTER event_type SET DEFAULT 'happened'";

/// Runs a router until these are sent.
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

/// The router refuses with these words, sends nothing, and `check` says so too.
async fn refuses(outbox: &Outbox, kafka: &Kafka, settings: &Settings, words: &[&str]) -> Ended {
    let before = kafka.count(&outbox.name).await;
    let ended = Router::start(settings).exits(3).await;
    ended.says(words);
    let ran = settings.run_beside(&["check"]).await;
    assert!(ran.code == 1 && words.iter().all(|word| ran.out.contains(word)), "{words:?}: {ran:?}");
    assert_eq!(kafka.count(&outbox.name).await, before);
    ended
}

async fn never_twice(outbox: &Outbox, kafka: &Kafka) {
    same(outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// A slot that nobody has written anything down of, with three events waiting.
async fn made_by_hand() -> Outbox {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{TABLE}; {PUBLICATION}")).await;
    outbox.create_slot_by_hand().await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox
}

#[tokio::test]
async fn exactly_once_a_router_with_a_changed_name_is_refused_until_that_is_accepted() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka);
    let name = format!("{0}.{0}", outbox.name);
    sends(&outbox, &settings, &[], 1..4).await;
    let renamed = settings.clone().set("name", format!("renamed-{name}"));
    let words = [NO_POSITION, NOT_NEW, &format!("the router {name} has read it"), "set it back"];
    let ended = refuses(&outbox, &kafka, &renamed, &words).await;
    let wrong = ["--accept-gap", "0/1"];
    Router::with_arguments(&renamed, &wrong).exits(3).await.says(&["does not match", ended.goes_on_at()]);
    let accepted = sends(&outbox, &renamed, &["--accept-gap", ended.goes_on_at()], 4..6).await;
    assert!(accepted.log.contains("the gap was accepted"), "{}", accepted.log);
    sends(&outbox, &renamed, &[], 6..8).await;
    never_twice(&outbox, &kafka).await;
}

/// The command that moves the position decides the same.
#[tokio::test]
async fn exactly_once_a_router_with_a_changed_name_goes_on_where_slot_advance_has_put_it() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka);
    sends(&outbox, &settings, &[], 1..4).await;
    let renamed = settings.set("name", format!("renamed-{}", outbox.name));
    refuses(&outbox, &kafka, &renamed, &[NO_POSITION]).await;
    // the end of the log moves, and is flushed
    outbox.execute("SELECT pg_logical_emit_message(true, 'other', '')").await;
    renamed.leave_all_out(&outbox).await;
    sends(&outbox, &renamed, &[], 4..6).await;
    sends(&outbox, &renamed, &[], 6..8).await;
    never_twice(&outbox, &kafka).await;
}

#[tokio::test]
async fn exactly_once_a_router_whose_position_was_deleted_is_refused_until_that_is_accepted() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = format!("positions-{}", outbox.name);
    let settings = settings(&outbox, &kafka).set("delivery.positions_topic", topic.as_str());
    sends(&outbox, &settings, &[], 1..4).await;
    kafka.delete_topic(&topic).await;
    let words = [NO_POSITION, NOT_NEW, "this router has read it", "positions_topic"];
    let ended = refuses(&outbox, &kafka, &settings, &words).await;
    sends(&outbox, &settings, &["--accept-gap", ended.goes_on_at()], 4..6).await;
    never_twice(&outbox, &kafka).await;
}

/// After a crash of Postgres the slot is as it was created, and only the router's schema tells who has read it.
#[tokio::test]
async fn exactly_once_what_another_name_has_sent_is_not_sent_again_after_a_crash_of_postgres() {
    let server = PrivatePostgres::start(PG_HBA, &["checkpoint_timeout=1h"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    outbox.execute("CHECKPOINT").await;
    let settings = settings(&outbox, &kafka);
    let at_least_once = Settings::new(&outbox, &kafka).set("name", format!("other-{}", outbox.name));
    let third = settings.clone().set("name", format!("third-{}", outbox.name));
    sends(&outbox, &settings, &[], 1..4).await;
    // in this mode a changed name is none to stop for
    sends(&outbox, &at_least_once, &[], 4..100).await;
    server.stop(Shutdown::Immediate);
    server.start_again();
    let other = format!("the router other-{}", outbox.name);
    refuses(&outbox, &kafka, &third, &[NO_POSITION, &other]).await;
    // its own position is there, and of before
    let before = kafka.count(&outbox.name).await;
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&[&other, "--accept-gap"]);
    assert_eq!(kafka.count(&outbox.name).await, before);
}

#[tokio::test]
async fn exactly_once_a_slot_that_was_made_by_hand_is_refused_until_it_is_accepted() {
    let (outbox, kafka) = (made_by_hand().await, Kafka::shared());
    let settings = settings(&outbox, &kafka);
    let ended = refuses(&outbox, &kafka, &settings, &[NO_POSITION, NOT_NEW, "outbox-router init"]).await;
    sends(&outbox, &settings, &["--accept-gap", ended.goes_on_at()], 4..6).await;
    sends(&outbox, &settings, &[], 6..8).await;
    never_twice(&outbox, &kafka).await;
}

#[tokio::test]
async fn exactly_once_is_not_what_a_router_that_delivers_at_least_once_is_judged_by() {
    let (outbox, kafka) = (made_by_hand().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    sends(&outbox, &settings, &[], 4..6).await;
    sends(&outbox, &settings.set("name", format!("renamed-{}", outbox.name)), &[], 6..8).await;
    never_twice(&outbox, &kafka).await;
}

/// Nobody need say anything, though events wait.
#[tokio::test]
async fn exactly_once_the_first_start_after_init_needs_no_word() {
    let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
    let settings = settings(&outbox, &kafka).set("outbox.table", "outbox");
    let ran = settings.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    outbox.execute(EVENT_TYPE).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    sends(&outbox, &settings, &[], 4..6).await;
    sends(&outbox, &settings, &[], 6..8).await;
    never_twice(&outbox, &kafka).await;
}

/// A slot that was lost and is made again holds nothing that was sent.
#[tokio::test]
async fn exactly_once_a_slot_that_init_has_made_again_is_new_for_another_name() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka);
    sends(&outbox, &settings, &[], 1..4).await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    let ran = settings.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    sends(&outbox, &settings.set("name", format!("renamed-{}", outbox.name)), &[], 4..6).await;
    never_twice(&outbox, &kafka).await;
}

#[tokio::test]
async fn exactly_once_the_first_start_after_the_printed_script_needs_no_word() {
    let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
    let settings = settings(&outbox, &kafka).set("outbox.table", "outbox");
    let script = settings.run(&["init", "--print-sql"]);
    assert_eq!(script.code, 0, "{script:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("init.sql");
    fs::write(&file, &script.out).unwrap();
    // run again it leaves the slot as it is
    for _ in 0..2 {
        let ran = psql(&outbox.url(), &["-f", file.to_str().unwrap()]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    outbox.execute(EVENT_TYPE).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    sends(&outbox, &settings, &[], 4..6).await;
    never_twice(&outbox, &kafka).await;
}

/// A role that cannot write down that it reads the slot would find it new for ever.
#[tokio::test]
async fn exactly_once_a_role_without_rights_on_the_schema_is_told_what_to_grant() {
    let mut place = Place::new();
    let role = format!("{}_router", place.name);
    let granted = |ran: &Ran| ran.out.contains("on outbox_router.slots: granted");
    let ran = place.run(&["init", "--role", &role]);
    assert!(ran.code == 0 && !granted(&ran), "{ran:?}");
    let settings = Settings::default()
        .set("postgres.url", place.url(&role))
        .set("postgres.slot", place.name.as_str())
        .set("postgres.publication", place.name.as_str())
        .set("kafka.'bootstrap.servers'", Kafka::shared().bootstrap.as_str())
        .set("delivery.mode", "exactly-once")
        .set("admin.listen", "127.0.0.1:0");
    Router::start(&settings).exits(3).await.says(&[NO_POSITION, NOT_NEW, "init --role", "--accept-gap"]);
    place.set("DELIVERY__MODE", "exactly-once");
    let ran = place.run(&["init", "--role", &role]);
    assert!(ran.code == 0 && granted(&ran), "{ran:?}");
    Router::active(&settings).await.stop().await;
    assert_eq!(place.psql("SELECT router FROM outbox_router.slots").trim(), format!("{0}.{0}", place.name));
}
