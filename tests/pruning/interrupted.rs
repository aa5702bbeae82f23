//! Prunes that are killed or stopped, or run beside others.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use super::*;
use crate::invariants::feedback_never_starves::PG_HBA;
use crate::situations::page::keep;
use crate::support::eventually::eventually;
use crate::support::postgres::{PrivatePostgres, Shutdown};
use crate::support::process;
use crate::support::table_lock::TableLock;

/// A command that runs.
pub(super) struct Running {
    child: Child,
    _folder: TempDir,
}

const ROWS: u32 = 3_000;

/// How many rows the last prune has deleted.
const DELETED: &str = "SELECT coalesce(max(rows), 0)::text FROM outbox_router.prunes";

async fn many(kafka: &Kafka) -> (Outbox, Settings) {
    let (outbox, settings) = polled(kafka).await;
    let settings = settings.set("retention.archive", "kept");
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    outbox.insert_old("a", ROWS).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'").await;
    (outbox, settings)
}

/// Deletes of the outbox that take so long that a prune of one row at a time takes a minute.
const SLOW: &str = "CREATE FUNCTION delay() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_catalog.pg_sleep(0.01); RETURN OLD; END'; \
                    CREATE TRIGGER delay BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION delay()";

impl Outbox {
    /// Lets a prune take longer than it takes to interrupt it.
    pub(super) async fn deletes_slowly(&self) {
        self.execute(SLOW).await;
    }

    pub(super) async fn deletes_fast(&self) {
        self.execute("DROP TRIGGER delay ON outbox").await;
    }
}

impl Running {
    /// A prune of one row at a time.
    pub(super) fn start(settings: &Settings, more: &[&str]) -> Self {
        Self::of(settings, tempfile::tempdir().unwrap(), &[&OLD, more, &["--batch", "1"]].concat())
    }

    pub(super) fn of(settings: &Settings, folder: TempDir, arguments: &[&str]) -> Self {
        let file = settings.write_to(&folder);
        let mut command = Command::new(settings.program());
        command.arg("-c").arg(&file).args(arguments).current_dir(folder.path());
        command.env_clear().env("HOME", folder.path());
        let child =
            process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        Running { child, _folder: folder }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(super) async fn ended(self) -> Ran {
        Ran::of(tokio::task::spawn_blocking(|| self.child.wait_with_output().unwrap()).await.unwrap())
    }
}

/// Waits until the running prune has deleted so many rows.
pub(super) async fn deleted(outbox: &Outbox, at_least: u32) {
    eventually(&format!("{at_least} rows are deleted"), async || {
        (outbox.text(DELETED).await.parse::<u32>().unwrap() >= at_least).then_some(())
    })
    .await;
}

/// Every row is either in the outbox or in the archive.
async fn nothing_is_lost(outbox: &Outbox) {
    let numbers = "SELECT concat(count(*), ' ', count(DISTINCT n), ' ', min(n), ' ', max(n)) FROM (SELECT (payload->>'n')::int AS n FROM outbox \
                   UNION ALL SELECT (payload->>'n')::int FROM kept) u";
    assert_eq!(outbox.text(numbers).await, format!("{ROWS} {ROWS} 1 {ROWS}"));
}

#[tokio::test]
async fn rows_are_in_the_outbox_or_in_the_archive_however_often_it_is_killed() {
    let kafka = Kafka::shared();
    let (outbox, settings) = many(&kafka).await;
    outbox.deletes_slowly().await;
    for at_least in [1, 20, 40] {
        let running = Running::start(&settings, &[]);
        deleted(&outbox, at_least).await;
        running.signal(Signal::KILL);
        running.ended().await;
        nothing_is_lost(&outbox).await;
        let ran = prune(&settings, &[]).await;
        refused(&ran, 1, &["OBR-8207: another prune of public.outbox is running"]);
        keep(&ran.err, &[]);
        outbox.execute("UPDATE outbox_router.prunes SET lease_until = now(), rows = 0").await;
    }
    outbox.deletes_fast().await;
    succeeded(prune(&settings, &[]).await, &["Moved "]);
    nothing_is_lost(&outbox).await;
    assert_eq!(outbox.aggregates("outbox").await, "");
}

#[tokio::test]
async fn a_signal_stops_it_and_it_says_how_far_it_came() {
    let kafka = Kafka::shared();
    let (outbox, settings) = many(&kafka).await;
    outbox.deletes_slowly().await;
    let running = Running::start(&settings, &[]);
    deleted(&outbox, 5).await;
    running.signal(Signal::INT);
    let ran = running.ended().await;
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let moved = outbox.text(DELETED).await;
    assert!(
        ran.out.contains(&format!("Interrupted: moved {moved} of {ROWS} rows of public.outbox")),
        "{}",
        ran.out
    );
    nothing_is_lost(&outbox).await;
    outbox.deletes_fast().await;
    succeeded(prune(&settings, &[]).await, &["Moved "]);
}

#[tokio::test]
async fn a_replay_and_a_prune_do_not_run_beside_each_other() {
    let kafka = Kafka::shared();
    let (outbox, settings) = many(&kafka).await;
    outbox.deletes_slowly().await;
    let running = Running::start(&settings, &[]);
    deleted(&outbox, 1).await;
    let replay = settings.run_async(&["replay", "--until", "35d", "--yes"]).await;
    refused(&replay, 1, &["OBR-8202: another replay or a prune of", "is running"]);
    running.signal(Signal::TERM);
    running.ended().await;
    outbox
        .execute(
            "INSERT INTO outbox_router.replays (router, requested_by, outbox, until, selection, mark, horizon, order_by, rows, events, bytes, \
             token, lease_until) VALUES ('r', 'me', '\"public\".\"outbox\"', now(), '{}', 'm', '1', 'ctid', 1, 1, 1, gen_random_uuid(), now() + interval '1 h')",
        )
        .await;
    refused(&prune(&settings, &[]).await, 1, &["OBR-8207: replay 1 of", "is running", "replay --list"]);
    nothing_is_lost(&outbox).await;
}

/// Somebody may continue it.
#[tokio::test]
async fn rows_of_a_replay_that_was_interrupted_stay_for_a_week() {
    let kafka = Kafka::shared();
    let (outbox, settings) = many(&kafka).await;
    outbox
        .execute(
            "INSERT INTO outbox_router.replays (router, requested_by, outbox, until, selection, mark, horizon, order_by, rows, events, bytes, \
             token, lease_until, last_inserted_at) SELECT 'r', 'me', '\"public\".\"outbox\"', max(created_at), '{}', 'm', '1', 'ctid', 1, 1, 1, \
             gen_random_uuid(), now(), min(created_at) + interval '1000 s' FROM outbox",
        )
        .await;
    succeeded(prune(&settings, &[]).await, &["Moved 1001 rows", "1999 rows are as old and stay"]);
    outbox.execute("UPDATE outbox_router.replays SET requested_at = now() - interval '8 days'").await;
    succeeded(prune(&settings, &[]).await, &["Moved 1999 rows"]);
}

#[tokio::test]
async fn a_locked_table_is_waited_for() {
    let kafka = Kafka::shared();
    let (outbox, settings) = many(&kafka).await;
    outbox.deletes_slowly().await;
    let running = Running::start(&settings, &[]);
    deleted(&outbox, 3).await;
    let lock = TableLock::take(&outbox, "public.outbox").await;
    let waits = "SELECT count(*)::text FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database() AND a.query LIKE '%outbox_router.prune(%'";
    eventually("the prune waits for the lock", async || (outbox.text(waits).await != "0").then_some(()))
        .await;
    let before = outbox.text(DELETED).await;
    // the wait ends after a second, and then it begins again
    eventually("the prune has ended its wait", async || (outbox.text(waits).await == "0").then_some(()))
        .await;
    assert_eq!(outbox.text(DELETED).await, before);
    lock.release().await;
    deleted(&outbox, before.parse::<u32>().unwrap() + 3).await;
    running.signal(Signal::INT);
    running.ended().await;
    nothing_is_lost(&outbox).await;
}

/// A replay may have begun meanwhile, and would miss the rows.
#[tokio::test]
async fn a_batch_that_outlives_its_lease_is_rolled_back() {
    let kafka = Kafka::shared();
    let (outbox, _) = many(&kafka).await;
    let token = outbox.text("SELECT outbox_router.prune_begin('\"public\".\"outbox\"')::text").await;
    outbox.execute("UPDATE outbox_router.prunes SET lease_until = now() + interval '4 s'").await;
    let client = outbox.client().await;
    let batch = format!("SELECT outbox_router.prune('\"public\".\"outbox\"', '{token}', NULL, now(), 100)");
    let error = client.batch_execute(&batch).await.unwrap_err();
    let message = error.as_db_error().unwrap().message();
    assert_eq!(message, "a batch of 100 rows of public.outbox takes too long");
    outbox.execute("UPDATE outbox_router.prunes SET token = gen_random_uuid()").await;
    let error = client.batch_execute(&batch).await.unwrap_err();
    let message = error.as_db_error().unwrap().message();
    assert_eq!(message, "another prune of public.outbox has taken over");
    assert_eq!(outbox.aggregates("outbox").await, format!("a {ROWS}"));
}

/// The last transactions may be gone, because the server does not wait for its disk.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn rows_are_in_the_outbox_or_in_the_archive_after_crashes_of_the_server() {
    let server = PrivatePostgres::start(PG_HBA, &["fsync=on"]).await;
    let (outbox, kafka) = (Outbox::bare(&server.url()).await, Kafka::shared());
    let settings = Settings::polling(&outbox, &kafka).set("retention.archive", "kept");
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    outbox.execute("ALTER TABLE outbox ALTER event_type SET DEFAULT 'happened'").await;
    outbox.insert_old("a", ROWS).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'").await;
    for _ in 0..3 {
        outbox.execute("UPDATE outbox_router.prunes SET lease_until = now(), rows = 0").await;
        let running = Running::start(&settings, &[]);
        deleted(&outbox, 20).await;
        server.stop(Shutdown::Immediate);
        refused(&running.ended().await, 1, &["OBR-"]);
        server.start_again();
        // the connection of this test has ended too
        let _ = outbox.slot().await;
        nothing_is_lost(&outbox).await;
    }
    outbox.execute("UPDATE outbox_router.prunes SET lease_until = now()").await;
    succeeded(prune(&settings, &[]).await, &["Moved "]);
    nothing_is_lost(&outbox).await;
}

#[tokio::test]
async fn a_signal_ends_it_while_it_waits_for_a_lock() {
    let kafka = Kafka::shared();
    let (outbox, settings) = many(&kafka).await;
    let lock = TableLock::take(&outbox, "public.outbox").await;
    let running = Running::start(&settings, &[]);
    let waits = "SELECT count(*)::text FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database() AND a.query LIKE '%count_prunable%'";
    eventually("the prune waits for the lock", async || (outbox.text(waits).await != "0").then_some(()))
        .await;
    running.signal(Signal::TERM);
    let ran = running.ended().await;
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (1, "Interrupted before any row of public.outbox was moved.\n"),
        "{}",
        ran.err
    );
    lock.release().await;
    assert_eq!(outbox.aggregates("outbox").await, format!("a {ROWS}"));
}
