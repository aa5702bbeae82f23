//! If slot, server and checkpoint contradict each other, the router explains it, and starts only after the user accepts the gap.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use pg_logical::Lsn;

use crate::invariants::feedback_never_starves::PG_HBA;
use crate::situations::page::keep;
use crate::situations::slot::FROM_TABLE;
use crate::situations::typist::Typist;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::{PrivatePostgres, Shutdown};
use crate::support::router::{Ended, Router};
use crate::support::settings::{Settings, positions_topic};

use super::position_finding;

/// A stopped router that has sent events 1 to 3, and a slot that is confirmed past them.
struct Setup {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
}

impl Setup {
    async fn on(outbox: Outbox) -> Self {
        let kafka = Kafka::shared();
        let settings = Settings::new(&outbox, &kafka);
        let setup = Setup { outbox, kafka, settings };
        setup.sends(1..4).await;
        setup
    }

    /// Runs a router until events with these numbers are sent.
    async fn sends(&self, numbers: std::ops::Range<u32>) {
        let router = Router::active(&self.settings).await;
        self.outbox.insert_numbers("order", "a", numbers).await;
        self.outbox.all_confirmed().await;
        router.stop().await;
    }

    /// Asserts that the router refuses with these words, and a second time with the same position to accept.
    async fn refuses(&self, words: &[&str]) -> Ended {
        let before = self.kafka.count(&self.outbox.name).await;
        let ended = Router::start(&self.settings).exits(3).await;
        ended.says(words);
        let again = Router::start(&self.settings).exits(3).await;
        again.says(words);
        // although the end of the WAL may have moved
        assert_eq!(again.accept_gap_position(), ended.accept_gap_position());
        assert_eq!(self.kafka.count(&self.outbox.name).await, before);
        ended
    }

    /// Asserts that `check` reports the router's refusal with the same sentences.
    async fn check_agrees(&self, ended: &Ended) {
        position_finding(&self.settings).await.is_refusal(ended);
    }

    /// Asserts that the router starts with the position to accept and with no other, and that it then sends this many events with
    /// the new one.
    async fn resumes(&self, ended: &Ended, number: u32, count: RangeInclusive<usize>) {
        let position = ended.accept_gap_position();
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
        assert!(count.contains(&sent), "{sent} events");
        // the next start needs no confirmation
        let router = Router::active(&self.settings).await;
        router.stop().await;
    }
}

const EVENT: &str =
    "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{\"n\": 4}')";

#[tokio::test]
async fn resume_conflict_if_the_slot_was_advanced_while_the_router_was_away() {
    let setup = Setup::on(Outbox::new().await).await;
    let outbox = &setup.outbox;
    outbox.execute(EVENT).await;
    let ours = outbox.confirmed().await;
    let advance =
        format!("SELECT pg_replication_slot_advance('{}', pg_current_wal_insert_lsn())", outbox.name);
    outbox.execute(&advance).await;
    let theirs = outbox.confirmed().await;
    let words = ["moved by another", &ours.to_string(), &theirs.to_string(), "may be missing"];
    let ended = setup.refuses(&words).await;
    setup.check_agrees(&ended).await;
    setup.resumes(&ended, 5, 1..=1).await;
}

#[tokio::test]
async fn resume_conflict_if_the_slot_was_recreated_while_the_router_was_away() {
    let setup = Setup::on(Outbox::new().await).await;
    let outbox = &setup.outbox;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    let ended = Router::start(&setup.settings).exits(3).await;
    ended.says(&["does not exist", "is in Kafka or parked"]);
    outbox.execute(EVENT).await;
    outbox.create_slot("pgoutput").await;
    let ended = setup.refuses(&["created again", "may be missing"]).await;
    setup.check_agrees(&ended).await;
    setup.resumes(&ended, 5, 1..=1).await;
}

/// The checkpoint is older than the run without the topic.
#[tokio::test]
async fn resume_conflict_if_the_router_ran_without_the_topic() {
    let mut setup = Setup::on(Outbox::new().await).await;
    let with = setup.settings.clone();
    setup.settings = with.clone().set("delivery.positions_topic", "");
    setup.sends(4..6).await;
    setup.settings = with;
    let ended = setup
        .refuses(&["this router ran with another `[delivery] positions_topic` or none, nothing is missing"])
        .await;
    setup.resumes(&ended, 6, 1..=1).await;
}

/// On Postgres 18, rows written meanwhile are not in the stream. Earlier versions cannot decode that part of the WAL at all.
#[tokio::test]
async fn resume_conflict_if_the_publication_was_recreated_while_the_router_was_away() {
    let setup = Setup::on(Outbox::new().await).await;
    let recreate = format!("DROP PUBLICATION outbox_router; {}", crate::support::outbox::PUBLICATION);
    setup.outbox.execute(&recreate).await;
    let ended = setup.refuses(&["publication", "created again", "rescue"]).await;
    setup.check_agrees(&ended).await;
    setup.resumes(&ended, 4, 1..=1).await;
}

/// The other cluster has a slot of the same name.
#[tokio::test]
async fn resume_conflict_if_another_cluster_answers() {
    let setup = Setup::on(Outbox::new().await).await;
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let other = Outbox::on(&server.url()).await;
    // the former cluster had not sent one of these, and the slot has none
    other.insert_numbers("order", "a", 3..5).await;
    let slot = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", setup.outbox.name);
    other.execute(&slot).await;
    let name = format!("{0}.{0}", setup.outbox.name);
    let settings = setup.settings.clone().set("postgres.url", other.url()).set("name", name);
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["another database cluster", "two routers share one name", "--accept-gap"]);
    let system = "SELECT system_identifier::text FROM pg_control_system()";
    let (new, old): (String, String) =
        (other.query(system).await[0].get(0), setup.outbox.query(system).await[0].get(0));
    keep(ended.message(), &[(&new, "NUMBER"), (&old, "NUMBER"), (&setup.outbox.name, "NAME")]);
    position_finding(&settings).await.is_refusal(&ended);
    let mut typist = Typist::new(&other, &settings);
    typist.types(&ended, FROM_TABLE).await;
    let (router, _) = typist.done();
    setup.kafka.holds(&setup.outbox.name, 5).await;
    router.stop().await;
    let mut numbers: Vec<u64> =
        setup.kafka.records(&setup.outbox.name).await.iter().map(|record| record.number()).collect();
    numbers.dedup();
    assert_eq!(numbers, [1, 2, 3, 4]);
    other.execute(&format!("SELECT pg_drop_replication_slot('{}')", setup.outbox.name)).await;
}

/// The position in one slot means nothing for another one.
#[tokio::test]
async fn resume_conflict_if_two_routers_have_one_name() {
    let one = Setup::on(Outbox::new().await).await;
    let other = Outbox::new().await;
    other.insert("order", "b", "{\"n\": 1}").await;
    let name = format!("{0}.{0}", one.outbox.name);
    let settings = Settings::new(&other, &one.kafka)
        .set("name", name)
        .set("delivery.positions_topic", positions_topic(&one.outbox));
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["two routers share one name", &one.outbox.name, &other.name]);
    position_finding(&settings).await.is_refusal(&ended);
    assert_eq!(one.kafka.count(&other.name).await, Ok(0));
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Restores a copy of the data directory from before the router sent events 4 to 99, and returns the position that it had
/// reached.
async fn restore_backup(server: &PrivatePostgres, setup: &Setup) -> Lsn {
    restore_backup_after(server, setup, setup.sends(4..100)).await
}

/// The same from before `meanwhile`.
async fn restore_backup_after(
    server: &PrivatePostgres,
    setup: &Setup,
    meanwhile: impl Future<Output = ()>,
) -> Lsn {
    server.stop(Shutdown::Fast);
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    copy(server.data(), &backup);
    server.start_again();
    meanwhile.await;
    let ours = setup.outbox.confirmed().await;
    server.stop(Shutdown::Fast);
    fs::remove_dir_all(server.data()).unwrap();
    copy(&backup, server.data());
    server.start_again();
    assert!(setup.outbox.confirmed().await < ours);
    ours
}

/// A transaction of another application, without events.
const NOISE: &str = "SELECT pg_logical_emit_message(true, 'noise', repeat('x', 5000))";

async fn write_wal_past(outbox: &Outbox, ours: Lsn) {
    while outbox.lsn().await <= ours {
        outbox.execute(NOISE).await;
    }
}

/// The restored slot is at its old position, and later events no longer exist.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn resume_conflict_if_the_server_was_restored_from_a_backup() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setup = Setup::on(Outbox::on(&server.url()).await).await;
    let ours = restore_backup(&server, &setup).await;
    let theirs = setup.outbox.confirmed().await;
    let words =
        ["restored from a backup", "no longer exist in Postgres", &ours.to_string(), &theirs.to_string()];
    let ended = setup.refuses(&words).await;
    ended.shown(&setup.outbox);
    // the end of the log that both name may have moved
    let found = position_finding(&setup.settings).await;
    assert!(found.level == "error" && found.what.contains("restored from a backup"), "{found:?}");
    assert!(
        found
            .remedy
            .iter()
            .any(|step| step.ends_with(&format!("--accept-gap {}", ended.accept_gap_position()))),
        "{found:?}"
    );
    // before Postgres 17, a server that stops does not save the slot's position
    setup.resumes(&ended, 4, 1..=4).await;
}

/// After the restore of a virtual machine's snapshot, for example, cluster, timeline and slot are the same. Before the router
/// starts, the WAL has grown past its position again.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn resume_conflict_if_a_restored_log_has_grown_past_the_position() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setup = Setup::on(Outbox::on(&server.url()).await).await;
    let outbox = &setup.outbox;
    let ours = restore_backup(&server, &setup).await;
    let theirs = outbox.confirmed().await;
    // events of other sizes than the lost ones; a commit flushes the WAL
    for number in 4..54 {
        outbox
            .insert("order", "a", &format!("{{\"n\": {number}, \"text\": \"{}\"}}", "x".repeat(number)))
            .await;
    }
    write_wal_past(outbox, ours).await;
    outbox.insert("order", "a", "{\"n\": 54}").await;
    // only the log shows what happened
    let found = position_finding(&setup.settings).await;
    assert!(found.level == "ok" && found.what.contains("only a start can tell"), "{found:?}");
    let words = ["is not the one", "snapshot", &ours.to_string(), &theirs.to_string()];
    let ended = setup.refuses(&words).await;
    ended.shown(outbox);
    assert_eq!(outbox.confirmed().await, theirs);
    setup.resumes(&ended, 55, 52..=55).await;
}

/// The restored server was promoted, so the timeline shows what happened although its log has grown past the position.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn resume_conflict_if_a_restored_and_promoted_server_has_grown_past_the_position() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setup = Setup::on(Outbox::on(&server.url()).await).await;
    let outbox = &setup.outbox;
    let ours = restore_backup(&server, &setup).await;
    server.stop(Shutdown::Fast);
    server.install("standby.signal", "");
    server.start_again();
    server.execute(&["SELECT pg_promote()"]).await;
    write_wal_past(outbox, ours).await;
    let ended = setup.refuses(&["switched from timeline 1", "no longer exist in Postgres"]).await;
    setup.check_agrees(&ended).await;
    // somebody moves the slot past the position too
    outbox
        .execute(&format!(
            "SELECT pg_replication_slot_advance('{}', pg_current_wal_insert_lsn())",
            outbox.name
        ))
        .await;
    let ended = setup.refuses(&["switched from timeline 1"]).await;
    setup.check_agrees(&ended).await;
    setup.resumes(&ended, 4, 1..=1).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn resume_conflict_if_a_restored_log_has_grown_past_the_position_without_events() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setup = Setup::on(Outbox::on(&server.url()).await).await;
    let outbox = &setup.outbox;
    let ours = restore_backup(&server, &setup).await;
    write_wal_past(outbox, ours).await;
    let ended = setup.refuses(&["is not the one", "does not contain it"]).await;
    setup.resumes(&ended, 4, 1..=4).await;
}

/// The checkpoint says only that the log had nothing to send.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn resume_conflict_if_a_restored_log_has_events_where_there_were_none() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let setup = Setup { outbox, kafka, settings };
    let outbox = &setup.outbox;
    Router::active(&setup.settings).await.stop().await;
    let idle = async {
        let router = Router::active(&setup.settings).await;
        for _ in 0..20 {
            outbox.execute(NOISE).await;
        }
        outbox.all_confirmed().await;
        router.stop().await;
    };
    let ours = restore_backup_after(&server, &setup, idle).await;
    outbox.insert("order", "a", "{\"n\": 1}").await;
    write_wal_past(outbox, ours).await;
    let ended =
        setup.refuses(&["is not the one", "there was nothing to deliver from", &ours.to_string()]).await;
    setup.resumes(&ended, 2, 2..=2).await;
}

/// The router must not store a checkpoint for the restored log either.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn resume_conflict_reports_the_position_in_the_original_log() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setup = Setup::on(Outbox::on(&server.url()).await).await;
    let outbox = &setup.outbox;
    outbox.execute("ALTER PUBLICATION outbox_router SET (publish = 'insert, delete')").await;
    let altered = Router::start(&setup.settings).exits(3).await;
    setup.resumes(&altered, 100, 1..=1).await;
    let ours = restore_backup(&server, &setup).await;
    write_wal_past(outbox, ours).await;
    outbox.execute("DELETE FROM outbox WHERE payload->>'n' = '1'").await;
    setup.refuses(&["is not the one", "delivered up to", &ours.to_string()]).await;
}

/// With another prefix other changes count, but the router still recognizes another log, even at the second start.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn resume_conflict_if_the_message_prefix_changes_with_a_restored_log() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let setup = Setup::on(Outbox::on(&server.url()).await).await;
    let ours = restore_backup(&server, &setup).await;
    write_wal_past(&setup.outbox, ours).await;
    let settings = setup.settings.set("outbox.message_prefix", "noise");
    let setup = Setup { settings, ..setup };
    let words = ["is not the one", "delivered up to", &ours.to_string()];
    setup.refuses(&words).await;
}
