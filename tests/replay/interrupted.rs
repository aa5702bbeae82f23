//! Replays that are killed, stopped, or lose a server.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::*;
use crate::situations::page::keep;
use crate::support::mock::Mock;
use crate::support::place::refused;
use crate::support::process;

/// A replay of 2,000 events, at a rate with which it takes longer than any test.
struct Running {
    child: Child,
    _folder: TempDir,
}

const ROWS: u64 = 2_000;

/// How the replay is started that is interrupted. It has all rows to send for 100 seconds.
const SLOWLY: [&str; 3] = ["--rate", "20/s", "--yes"];

/// How the rest is sent.
const THE_REST: [&str; 4] = ["--resume", "1", "--rate", "100000/s"];

async fn many(kafka: &Kafka) -> (Outbox, Settings) {
    let (outbox, settings) = polled(kafka).await;
    outbox
        .execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, status) \
             SELECT 'order', 'a' || n % 4, jsonb_build_object('n', n / 4 + 1), 'PUBLISHED' FROM generate_series(0, {} - 1) n",
            ROWS
        ))
        .await;
    (outbox, settings)
}

impl Running {
    fn start(settings: &Settings, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = settings.write_to(&folder);
        let mut command = Command::new(settings.program());
        command.arg("-c").arg(&file).arg("replay").args(arguments).current_dir(folder.path());
        command.env_clear().env("HOME", folder.path());
        let child =
            process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        Running { child, _folder: folder }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    async fn ended(self) -> (i32, String) {
        let ended = tokio::task::spawn_blocking(|| self.child.wait_with_output().unwrap()).await.unwrap();
        (ended.status.code().unwrap_or(-1), String::from_utf8(ended.stdout).unwrap())
    }
}

/// How many rows are known to be acknowledged.
async fn done(outbox: &Outbox) -> u64 {
    let done = outbox.text("SELECT coalesce(max(done), 0)::text FROM outbox_router.replays").await;
    done.parse().unwrap()
}

/// Waits until so many more rows are known to be acknowledged.
async fn sends(outbox: &Outbox, more: u64) {
    let goal = done(outbox).await + more;
    eventually(&format!("{goal} rows are done"), async || (done(outbox).await >= goal).then_some(())).await;
}

/// The records of each aggregate are complete and in order; each restart may step back.
fn complete(records: &[Record], restarts: usize) {
    let again = again(records);
    for aggregate in ["a0", "a1", "a2", "a3"] {
        let numbers: Vec<u64> = again.iter().filter(|(of, _)| of == aggregate).map(|(_, n)| *n).collect();
        let steps_back = numbers.windows(2).filter(|pair| pair[1] <= pair[0]).count();
        assert!(steps_back <= restarts, "{aggregate}: {numbers:?}");
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted, (1..=ROWS / 4).collect::<Vec<_>>(), "{aggregate}");
    }
}

/// The place of a record's row among all rows.
fn place(record: &Record) -> u64 {
    let aggregate: u64 = record.key().unwrap().strip_prefix('a').unwrap().parse().unwrap();
    (record.number() - 1) * 4 + aggregate
}

#[tokio::test]
async fn a_replay_that_is_killed_goes_on_behind_the_last_row_that_it_knows_to_be_acknowledged() {
    let kafka = Kafka::shared();
    let (outbox, settings) = many(&kafka).await;
    let mut running = Running::start(&settings, &SLOWLY);
    sends(&outbox, 20).await;
    // two at once could send events out of order
    let second = replay(&settings, &["--yes"]).await;
    refused(&second, 1, &["OBR-8202", "is running: 1, requested by"]);
    let (by, at) = second.err.split_once("requested by ").unwrap().1.split_once(" at ").unwrap();
    keep(&second.err, &[(by, "NAME"), (&at[..24], "TIME")]);
    running.child.kill().unwrap();
    running.ended().await;
    let stored = done(&outbox).await;
    assert!((20..ROWS).contains(&stored), "{stored}");
    succeeded(replay(&settings, &["--list"]).await, &["running"]);
    succeeded(replay(&settings, &THE_REST).await, &["Replay 1: 2000 rows done"]);
    let records = kafka.records(&outbox.name).await;
    complete(&records, 1);
    let known = records.iter().filter(|record| place(record) < stored).count();
    assert_eq!(known as u64, stored, "a row that is known to be acknowledged is sent once");
    refused(&replay(&settings, &["--resume", "1"]).await, 1, &["replay 1 is complete: 2000 rows are done"]);
}

#[tokio::test]
async fn a_replay_that_is_stopped_says_how_to_continue_and_repeats_nothing() {
    let kafka = Kafka::shared();
    let (outbox, settings) = many(&kafka).await;
    let running = Running::start(&settings, &SLOWLY);
    sends(&outbox, 20).await;
    running.signal(rustix::process::Signal::INT);
    let (code, out) = running.ended().await;
    assert!(
        code == 1 && out.contains("Replay 1 was interrupted") && out.contains("replay --resume 1"),
        "{code} {out}"
    );
    succeeded(replay(&settings, &THE_REST).await, &["2000 rows done"]);
    let records = kafka.records(&outbox.name).await;
    complete(&records, 0);
    assert_eq!(records.len() as u64, ROWS);
}

#[tokio::test]
async fn a_replay_outlives_its_servers() {
    let mock = Mock::start(1);
    let kafka = mock.client();
    let (outbox, settings) = many(&kafka).await;
    mock.create_topic(&outbox.topic("order"), 1, 1);
    let running = Running::start(&settings, &SLOWLY);
    sends(&outbox, 10).await;
    mock.down(1);
    mock.up(1);
    sends(&outbox, 10).await;
    // one session stores progress, the other one reads
    for of in ["min", "max"] {
        let kill = format!(
            "SELECT coalesce(pg_terminate_backend({of}(pid)), false)::text FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name LIKE '% replay'"
        );
        // it may just be connecting again
        eventually("a session is terminated", async || (outbox.text(&kill).await == "true").then_some(()))
            .await;
        sends(&outbox, 10).await;
    }
    running.signal(rustix::process::Signal::INT);
    let (code, out) = running.ended().await;
    assert_eq!(code, 1, "{out}");
    succeeded(replay(&settings, &THE_REST).await, &["2000 rows done"]);
    complete(&kafka.records(&outbox.name).await, 3);
}

#[tokio::test]
async fn events_that_were_left_out_before_an_interruption_are_reported_after_it() {
    let kafka = Kafka::shared();
    let (outbox, settings) = many(&kafka).await;
    outbox.execute("UPDATE outbox SET aggregate_type = 'forbidden' WHERE payload ->> 'n' = '3'").await;
    let settings = settings.set("topics.allow", vec![outbox.topic("order")]);
    let running = Running::start(&settings, &SLOWLY);
    sends(&outbox, 20).await;
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.ended().await.0, 1);
    let ran = replay(&settings, &THE_REST).await;
    assert!(ran.code == 1 && ran.out.contains("4 events could not be sent"), "{}{}", ran.out, ran.err);
    assert_eq!(kafka.records(&outbox.name).await.len() as u64, ROWS - 4);
}
