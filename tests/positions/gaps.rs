//! Where slot, server and remembered position do not fit together, the router says so and goes on only when told to.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use pg_logical::Lsn;

use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::{PrivatePostgres, Shutdown};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;

/// A stopped router that has sent events 1 to 3, of a slot that is confirmed past them.
struct Setting {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
}

impl Setting {
    async fn on(outbox: Outbox) -> Self {
        let kafka = Kafka::shared();
        let settings = Settings::new(&outbox, &kafka);
        let setting = Setting { outbox, kafka, settings };
        setting.sends(1..4).await;
        setting
    }

    /// Runs a router until these are sent.
    async fn sends(&self, numbers: std::ops::Range<u32>) {
        let router = Router::active(&self.settings).await;
        self.outbox.insert_numbers("order", "a", numbers).await;
        self.outbox.all_confirmed().await;
        router.stop().await;
    }

    /// The router refuses with these words, refuses again, and goes on with what it says.
    async fn refuses(&self, words: &[&str]) -> Ended {
        let before = self.kafka.count(&self.outbox.name).await;
        let ended = Router::start(&self.settings).exits(3).await;
        ended.says(words);
        let again = Router::start(&self.settings).exits(3).await;
        again.says(words);
        // the end of the log may have moved on
        assert_eq!(again.goes_on_at(), ended.goes_on_at());
        assert_eq!(self.kafka.count(&self.outbox.name).await, before);
        ended
    }

    async fn goes_on(&self, ended: &Ended, number: u32, more: RangeInclusive<usize>) {
        let position = ended.goes_on_at();
        let before = self.kafka.count(&self.outbox.name).await.unwrap();
        let wrong = Lsn(position.parse::<Lsn>().unwrap().0 + 1).to_string();
        let refused = Router::with_arguments(&self.settings, &["--accept-gap", &wrong]).exits(3).await;
        refused.says(&["does not match", position]);
        let router = Router::with_arguments(&self.settings, &["--accept-gap", position]);
        self.outbox.insert("order", "a", &format!("{{\"n\": {number}}}")).await;
        self.outbox.all_confirmed().await;
        let ended = router.stop().await;
        assert!(ended.log.contains("the gap was accepted"), "{}", ended.log);
        let sent = self.kafka.count(&self.outbox.name).await.unwrap() - before;
        assert!(more.contains(&sent), "{sent} events");
        // it is forgotten with the next start, which needs no word
        let router = Router::active(&self.settings).await;
        router.stop().await;
    }
}

const EVENT: &str =
    "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{\"n\": 4}')";

#[tokio::test]
async fn gaps_are_refused_where_the_slot_was_advanced_while_the_router_was_away() {
    let setting = Setting::on(Outbox::new().await).await;
    let outbox = &setting.outbox;
    outbox.execute(EVENT).await;
    let ours = outbox.confirmed().await;
    let advance =
        format!("SELECT pg_replication_slot_advance('{}', pg_current_wal_insert_lsn())", outbox.name);
    outbox.execute(&advance).await;
    let theirs = outbox.confirmed().await;
    let words = ["moved by another", &ours.to_string(), &theirs.to_string(), "may be missing"];
    let ended = setting.refuses(&words).await;
    setting.goes_on(&ended, 5, 1..=1).await;
}

#[tokio::test]
async fn gaps_are_refused_where_the_slot_was_dropped_and_made_again_while_the_router_was_away() {
    let setting = Setting::on(Outbox::new().await).await;
    let outbox = &setting.outbox;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    let ended = Router::start(&setting.settings).exits(3).await;
    ended.says(&["does not exist", "is in Kafka or parked"]);
    outbox.execute(EVENT).await;
    outbox.create_slot("pgoutput").await;
    let ended = setting.refuses(&["created again", "may be missing"]).await;
    setting.goes_on(&ended, 5, 1..=1).await;
}

/// What is remembered is from before the router ran without the topic.
#[tokio::test]
async fn gaps_are_refused_and_explained_where_the_router_ran_without_the_topic() {
    let mut setting = Setting::on(Outbox::new().await).await;
    let with = setting.settings.clone();
    setting.settings = with.clone().set("delivery.positions_topic", "");
    setting.sends(4..6).await;
    setting.settings = with;
    let ended = setting.refuses(&["Nothing is missing if this router itself ran", "positions_topic"]).await;
    setting.goes_on(&ended, 6, 1..=1).await;
}

/// On 18 rows that were written meanwhile are just not in the stream; before, the server cannot read that stretch.
#[tokio::test]
async fn gaps_are_refused_where_the_publication_was_made_again_while_the_router_was_away() {
    let setting = Setting::on(Outbox::new().await).await;
    let again = format!("DROP PUBLICATION outbox_router; {}", crate::support::outbox::PUBLICATION);
    setting.outbox.execute(&again).await;
    let ended = setting.refuses(&["publication", "created again", "rescue"]).await;
    setting.goes_on(&ended, 4, 1..=1).await;
}

/// Another cluster, with slots of the same names.
#[tokio::test]
async fn gaps_are_refused_where_another_cluster_answers() {
    let setting = Setting::on(Outbox::new().await).await;
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let other = Outbox::on(&server.url()).await;
    let slot = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", setting.outbox.name);
    other.execute(&slot).await;
    let name = format!("{0}.{0}", setting.outbox.name);
    let settings = setting.settings.clone().set("postgres.url", other.url()).set("name", name);
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["another database cluster", "two routers share one name", "--accept-gap"]);
    other.execute(&format!("SELECT pg_drop_replication_slot('{}')", setting.outbox.name)).await;
}

/// The position of one slot means nothing for another.
#[tokio::test]
async fn gaps_are_refused_where_two_routers_have_one_name() {
    let one = Setting::on(Outbox::new().await).await;
    let other = Outbox::new().await;
    other.insert("order", "b", "{\"n\": 1}").await;
    let name = format!("{0}.{0}", one.outbox.name);
    let settings = Settings::new(&other, &one.kafka).set("name", name);
    Router::start(&settings).exits(3).await.says(&[
        "two routers share one name",
        &one.outbox.name,
        &other.name,
    ]);
    assert_eq!(one.kafka.count(&other.name).await, Ok(0));
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Puts a copy of the data directory back that was made before the router sent events 4 to 99, and returns the position that
/// it had reached.
async fn put_back(server: &PrivatePostgres, setting: &Setting) -> Lsn {
    put_back_after(server, setting, setting.sends(4..100)).await
}

async fn put_back_after(
    server: &PrivatePostgres,
    setting: &Setting,
    meanwhile: impl Future<Output = ()>,
) -> Lsn {
    server.stop(Shutdown::Fast);
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    copy(server.data(), &backup);
    server.start_again();
    meanwhile.await;
    let ours = setting.outbox.confirmed().await;
    server.stop(Shutdown::Fast);
    fs::remove_dir_all(server.data()).unwrap();
    copy(&backup, server.data());
    server.start_again();
    assert!(setting.outbox.confirmed().await < ours);
    ours
}

/// A transaction without events, as another application writes it.
const NOISE: &str = "SELECT pg_logical_emit_message(true, 'noise', repeat('x', 5000))";

async fn grows_past(outbox: &Outbox, ours: Lsn) {
    while outbox.lsn().await <= ours {
        outbox.execute(NOISE).await;
    }
}

/// A copy of the data directory from before is put back: the slot is as it was, and the events since then never were.
#[tokio::test]
async fn gaps_are_refused_where_the_server_was_restored_from_a_backup() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setting = Setting::on(Outbox::on(&server.url()).await).await;
    let ours = put_back(&server, &setting).await;
    let theirs = setting.outbox.confirmed().await;
    let words =
        ["restored from a backup", "no longer exist in Postgres", &ours.to_string(), &theirs.to_string()];
    let ended = setting.refuses(&words).await;
    // before 17 a server that stops does not save where a slot is
    setting.goes_on(&ended, 4, 1..=4).await;
}

/// A snapshot of a virtual machine, say: the same cluster, timeline and slot, and by the time that the router comes its log
/// goes past the position again.
#[tokio::test]
async fn gaps_are_refused_where_a_restored_log_has_grown_past_the_position() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setting = Setting::on(Outbox::on(&server.url()).await).await;
    let outbox = &setting.outbox;
    let ours = put_back(&server, &setting).await;
    let theirs = outbox.confirmed().await;
    // of other sizes than those that were there before; a commit flushes the log
    for number in 4..54 {
        outbox
            .insert("order", "a", &format!("{{\"n\": {number}, \"text\": \"{}\"}}", "x".repeat(number)))
            .await;
    }
    grows_past(outbox, ours).await;
    outbox.insert("order", "a", "{\"n\": 54}").await;
    let words = ["is not the one", "snapshot", &ours.to_string(), &theirs.to_string()];
    let ended = setting.refuses(&words).await;
    assert_eq!(outbox.confirmed().await, theirs);
    setting.goes_on(&ended, 55, 52..=55).await;
}

#[tokio::test]
async fn gaps_are_refused_where_a_restored_log_has_grown_past_the_position_without_events() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setting = Setting::on(Outbox::on(&server.url()).await).await;
    let outbox = &setting.outbox;
    let ours = put_back(&server, &setting).await;
    grows_past(outbox, ours).await;
    let ended = setting.refuses(&["is not the one", "does not contain it"]).await;
    setting.goes_on(&ended, 4, 1..=4).await;
}

/// Nothing is known of a log but that nothing of it was to be sent.
#[tokio::test]
async fn gaps_are_refused_where_a_restored_log_has_events_where_there_were_none() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let setting = Setting { outbox, kafka, settings };
    let outbox = &setting.outbox;
    Router::active(&setting.settings).await.stop().await;
    let idle = async {
        let router = Router::active(&setting.settings).await;
        for _ in 0..20 {
            outbox.execute(NOISE).await;
        }
        outbox.all_confirmed().await;
        router.stop().await;
    };
    let ours = put_back_after(&server, &setting, idle).await;
    outbox.insert("order", "a", "{\"n\": 1}").await;
    grows_past(outbox, ours).await;
    let ended =
        setting.refuses(&["is not the one", "there was nothing to deliver from", &ours.to_string()]).await;
    setting.goes_on(&ended, 2, 2..=2).await;
}

/// What the router finds there is not remembered either.
#[tokio::test]
async fn gaps_are_refused_with_the_position_of_the_log_that_was_read() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setting = Setting::on(Outbox::on(&server.url()).await).await;
    let outbox = &setting.outbox;
    outbox.execute("ALTER PUBLICATION outbox_router SET (publish = 'insert, delete')").await;
    let altered = Router::start(&setting.settings).exits(3).await;
    setting.goes_on(&altered, 100, 1..=1).await;
    let ours = put_back(&server, &setting).await;
    grows_past(outbox, ours).await;
    outbox.execute("DELETE FROM outbox WHERE payload->>'n' = '1'").await;
    setting.refuses(&["is not the one", "delivered up to", &ours.to_string()]).await;
}

/// Other changes count after that, but another log is still another log, at the second attempt too.
#[tokio::test]
async fn gaps_are_refused_where_a_restored_log_comes_with_another_message_prefix() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setting = Setting::on(Outbox::on(&server.url()).await).await;
    let ours = put_back(&server, &setting).await;
    grows_past(&setting.outbox, ours).await;
    let settings = setting.settings.set("outbox.message_prefix", "noise");
    let setting = Setting { settings, ..setting };
    let words = ["is not the one", "delivered up to", &ours.to_string()];
    setting.refuses(&words).await;
}
