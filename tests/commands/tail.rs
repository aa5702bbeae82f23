//! `tail` shows what `run` sends, and touches nothing.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::eventually::eventually;
use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::process;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::signal::{Signal, send};

const SLOTS: &str = "SELECT 1 FROM pg_replication_slots WHERE slot_name LIKE 'outbox_router_tail_%' \
                     AND database = current_database() AND temporary";

/// One that runs.
struct Tail {
    child: Child,
    folder: TempDir,
}

impl Tail {
    /// Starts it, and waits until it streams.
    async fn start(settings: &Settings, outbox: &Outbox, arguments: &[&str]) -> Self {
        let tail = Self::begin(settings, arguments);
        eventually("a temporary slot", async || {
            outbox.query(&format!("{SLOTS} AND active")).await.first().map(drop)
        })
        .await;
        eventually("it says that it shows what comes", async || {
            tail.said().contains("showing what is committed").then_some(())
        })
        .await;
        tail
    }

    fn begin(settings: &Settings, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = settings.write_to(&folder);
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-router"));
        command.arg("-c").arg(&file).arg("tail").args(arguments).current_dir(folder.path());
        let out = File::create(folder.path().join("out")).unwrap();
        let err = File::create(folder.path().join("err")).unwrap();
        command.env_clear().env("HOME", folder.path()).stdin(Stdio::null()).stdout(out).stderr(err);
        let child = process::start(&mut command);
        Tail { child, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn printed(&self) -> String {
        std::fs::read_to_string(self.file("out")).unwrap()
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.file("err")).unwrap()
    }

    async fn prints(&self, lines: usize) -> String {
        eventually(&format!("{lines} lines"), async || {
            Some(self.printed()).filter(|printed| printed.matches('\n').count() >= lines)
        })
        .await
    }

    /// Ends it as Ctrl-C does.
    async fn interrupt(&mut self) {
        assert!(send(Signal::Interrupt, self.child.id()));
        let status = eventually("it ends", async || self.child.try_wait().unwrap()).await;
        assert_eq!(status.code(), Some(0), "{}", self.said());
    }

    /// The same, after which its slot is gone.
    async fn stop(mut self, outbox: &Outbox) -> String {
        self.interrupt().await;
        gone(outbox).await;
        self.said()
    }
}

async fn gone(outbox: &Outbox) {
    eventually("the slot is gone", async || outbox.query(SLOTS).await.is_empty().then_some(())).await;
}

/// As `--json --payload` prints it.
fn as_printed(record: &Record) -> Value {
    let text =
        |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| String::from_utf8(bytes.clone()).unwrap());
    let headers: Vec<_> =
        record.headers.iter().map(|(name, value)| json!({ "name": name, "value": text(value) })).collect();
    json!({
        "topic": record.topic, "key": text(&record.key), "headers": headers, "value": text(&record.value),
        "timestamp": record.timestamp, "value_bytes": record.value.as_ref().map(Vec::len),
    })
}

#[tokio::test]
async fn tail_prints_what_run_sends_and_moves_nothing() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("route.headers.region", "${aggregate_type | lower}")
        .set("route.value", "cloudevents-binary")
        .set("route.cloudevents.source", "/shop");
    let slot = outbox.confirmed().await;
    // no broker is asked
    let away = settings.clone().set("kafka.'bootstrap.servers'", "127.0.0.1:1");
    let tail = Tail::start(&away, &outbox, &["--json", "--payload"]).await;
    for number in 0..20 {
        outbox.insert("order", &(number % 3).to_string(), &format!(r#"{{"number": {number}}}"#)).await;
    }
    let printed = tail.prints(20).await;
    assert_eq!(outbox.confirmed().await, slot, "the router's slot was moved");
    let router = Router::active(&settings).await;
    let records = kafka.records_when(&outbox.name, 20).await;
    router.stop().await;
    let mut sent: Vec<_> = records.iter().map(|record| as_printed(record).to_string()).collect();
    let shown = printed.lines().map(|line| {
        let mut object: Value = serde_json::from_str(line).unwrap();
        let members = object.as_object_mut().unwrap();
        assert!(members.remove("position").unwrap().is_string());
        assert!(members.remove("partition").unwrap().is_null());
        object.to_string()
    });
    let mut shown: Vec<_> = shown.collect();
    // Kafka's are by partition
    sent.sort();
    shown.sort();
    assert_eq!(shown, sent);
    let said = tail.stop(&outbox).await;
    assert!(said.contains("stopped events=20"), "{said}");
}

#[tokio::test]
async fn tail_shows_an_event_that_cannot_be_sent_and_goes_on() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let tail = Tail::start(&Settings::new(&outbox, &kafka), &outbox, &[]).await;
    let id = outbox.insert("no topic", "1", "{}").await;
    outbox.insert("order", "2", "{}").await;
    let printed = tail.prints(5).await;
    let first = printed.lines().next().unwrap();
    assert!(first.contains("cannot be sent") && first.contains(&id), "{printed}");
    assert!(printed.contains(&format!("{}  key 2  2 bytes", outbox.topic("order"))), "{printed}");
    assert!(!printed.contains('\u{1b}'), "colours in a file: {printed}");
    tail.stop(&outbox).await;
}

#[tokio::test]
async fn tail_since_begins_where_the_slot_still_holds_the_log() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    outbox.insert("order", "before", "{}").await;
    let since = outbox.lsn().await.to_string();
    outbox.insert("order", "after", "{}").await;
    let tail = Tail::start(&settings, &outbox, &["--json", "--since", &since]).await;
    let printed = tail.prints(1).await;
    assert!(printed.contains("\"key\":\"after\"") && !printed.contains("\"before\""), "{printed}");
    tail.stop(&outbox).await;
    for (position, reason) in [("0/1", "lies before what the slot"), ("FFFF/0", "lies behind the end")] {
        let ran = settings.run_beside(&["tail", "--since", position]).await;
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.err.contains(reason) && ran.out.is_empty(), "{}", ran.err);
    }
    gone(&outbox).await;
}

#[tokio::test]
async fn tail_runs_beside_a_router_and_leaves_nothing_when_it_is_killed() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    let mut tail = Tail::start(&settings, &outbox, &["--json"]).await;
    outbox.insert("order", "1", "{}").await;
    tail.prints(1).await;
    outbox.all_confirmed().await;
    let confirmed = outbox.confirmed().await.to_string();
    let mut again = Tail::start(&settings, &outbox, &["--since", &confirmed]).await;
    again.interrupt().await;
    tail.child.kill().unwrap();
    tail.child.wait().unwrap();
    gone(&outbox).await;
    outbox.insert("order", "2", "{}").await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(kafka.records(&outbox.name).await.len(), 2);
}
