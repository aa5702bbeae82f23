//! `tail` shows the records that `run` sends, and changes nothing.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use toml::toml;

use crate::support::eventually::eventually;
use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::place::{Place, psql};
use crate::support::postgres::PrivatePostgres;
use crate::support::process::{self, peak_memory};
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::signal::{Signal, send};

const SLOTS: &str = "SELECT 1 FROM pg_replication_slots WHERE slot_name LIKE 'outbox_router_tail_%' \
                     AND database = current_database() AND temporary";

/// Finds a walsender that waits because tail does not read.
const HELD_BACK: &str = "SELECT 1 FROM pg_stat_activity JOIN pg_replication_slots ON pid = active_pid \
                         WHERE temporary AND database = current_database() AND wait_event = 'WalSenderWriteData'";

/// A running `tail`.
struct Tail {
    child: Child,
    folder: TempDir,
}

impl Tail {
    /// Starts `tail` and waits until it streams.
    async fn start(settings: &Settings, outbox: &Outbox, arguments: &[&str]) -> Self {
        let tail = Self::begin(settings, arguments);
        tail.streams(outbox).await;
        tail
    }

    /// The same, with a pipe for its standard output.
    async fn piped(
        settings: &Settings,
        outbox: &Outbox,
        arguments: &[&str],
    ) -> (Self, Lines<BufReader<ChildStdout>>) {
        let mut tail = Self::with_output(settings, arguments, Some(Stdio::piped()));
        tail.streams(outbox).await;
        let pipe = tail.child.stdout.take().unwrap();
        (tail, BufReader::new(pipe).lines())
    }

    async fn streams(&self, outbox: &Outbox) {
        eventually("a temporary slot is active", async || {
            outbox.query(&format!("{SLOTS} AND active")).await.first().map(drop)
        })
        .await;
        self.reports("reading what is committed").await;
    }

    fn begin(settings: &Settings, arguments: &[&str]) -> Self {
        Self::with_output(settings, arguments, None)
    }

    /// Writes standard output to `output`, by default to a file.
    fn with_output(settings: &Settings, arguments: &[&str], output: Option<Stdio>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = settings.write_to(&folder);
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-router"));
        command.arg("-c").arg(&file).arg("tail").args(arguments).current_dir(folder.path());
        let out = output.unwrap_or_else(|| File::create(folder.path().join("out")).unwrap().into());
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

    fn stderr(&self) -> String {
        std::fs::read_to_string(self.file("err")).unwrap()
    }

    async fn reports(&self, text: &str) {
        eventually(&format!("standard error has {text:?}"), async || {
            self.stderr().contains(text).then_some(())
        })
        .await;
    }

    async fn prints(&self, lines: usize) -> String {
        eventually(&format!("{lines} lines are printed"), async || {
            Some(self.printed()).filter(|printed| printed.matches('\n').count() >= lines)
        })
        .await
    }

    /// Interrupts it like Ctrl-C.
    async fn interrupt(&mut self) {
        assert!(send(Signal::Interrupt, self.child.id()));
        self.ends().await;
    }

    /// Waits for exit code 0.
    async fn ends(&mut self) {
        let status = eventually("tail exits", async || self.child.try_wait().unwrap()).await;
        assert_eq!(status.code(), Some(0), "{}", self.stderr());
    }

    /// Interrupts it, waits until its slot is gone, and returns its standard error.
    async fn stop(mut self, outbox: &Outbox) -> String {
        self.interrupt().await;
        gone(outbox).await;
        self.stderr()
    }
}

async fn gone(outbox: &Outbox) {
    eventually("the slot is gone", async || outbox.query(SLOTS).await.is_empty().then_some(())).await;
}

/// The object that `--json --payload` prints for a record.
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

/// Everything that a router would have changed: the slot, its row in the router's schema, the lock.
async fn slot_state(outbox: &Outbox) -> String {
    let slot = "SELECT row_to_json(s)::text FROM \
                (SELECT confirmed_flush_lsn, restart_lsn, active FROM pg_replication_slots \
                 WHERE slot_name = current_database()) s";
    let record = "SELECT row_to_json(s)::text FROM outbox_router.slots s";
    let rows = [outbox.query(slot).await, outbox.query(record).await].concat();
    let rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    format!("{rows:?} {:?}", outbox.lock_holder().await)
}

#[tokio::test]
async fn tail_prints_what_run_sends_and_moves_nothing() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let rules = toml! {
        rules = [
            { match = { aggregate_type = "order", "headers.kind" = "large" }, partition = "0", headers = { size = "large" } },
            { match = { aggregate_type = "test" }, drop = true },
            { match = { aggregate_type = "invoice" }, value = "cloudevents-structured" },
        ]
    };
    let settings = Settings::new(&outbox, &kafka)
        .set("route.headers.region", "${aggregate_type | lower}")
        .set("route.value", "cloudevents-binary")
        .set("route.cloudevents.source", "/shop")
        .set("route.rules", rules["rules"].clone());
    let before = slot_state(&outbox).await;
    let without_brokers = settings.clone().without("kafka.'bootstrap.servers'");
    let tail = Tail::start(&without_brokers, &outbox, &["--json", "--payload"]).await;
    for number in 0..10 {
        let kind = ["large", "small"][number % 2];
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, payload, headers) VALUES \
                 ('order', '{}', '{{\"number\": {number}}}', '{{\"kind\": \"{kind}\", \"none\": null}}'), \
                 ('test', 'x', '1', '{{}}'), ('invoice', NULL, NULL, '{{\"größe\": 1.50}}')",
                number % 3
            ))
            .await;
    }
    let impossible = outbox.insert("no topic", "1", "{}").await;
    let printed = tail.prints(21).await;
    assert_eq!(slot_state(&outbox).await, before);
    assert_eq!(kafka.partitions(&outbox.topic("order")).await, 0, "a topic was created");
    let err = tail.stop(&outbox).await;
    assert!(err.contains("stopped; 21 events were shown"), "{err}");

    let ended = Router::start(&settings).exits(3).await;
    assert!(ended.message().contains(&impossible), "{}", ended.log);
    let records = kafka.records_when(&outbox.name, 20).await;
    let mut shown: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let refused = shown.pop().unwrap();
    assert_eq!((&refused["id"], &refused["reason"]), (&json!(impossible), &json!("unroutable")));
    assert!(ended.message().contains(refused["refused"].as_str().unwrap().split(". ").next().unwrap()));
    let mut sent: Vec<_> = records.iter().map(|record| as_printed(record).to_string()).collect();
    let mut shown: Vec<_> = shown
        .into_iter()
        .map(|mut object| {
            let members = object.as_object_mut().unwrap();
            assert!(members.remove("position").unwrap().is_string());
            assert!(members.remove("violation").unwrap().is_null());
            let is_large = members["headers"].to_string().contains("size");
            assert_eq!(members.remove("partition").unwrap(), if is_large { json!(0) } else { Value::Null });
            object.to_string()
        })
        .collect();
    // the records from Kafka are grouped by partition
    sent.sort();
    shown.sort();
    assert_eq!(shown, sent);
}

#[tokio::test]
async fn tail_shows_an_event_that_cannot_be_sent_and_continues() {
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
async fn tail_since_starts_at_an_earlier_position() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    outbox.insert("order", "before", "{}").await;
    let since = outbox.lsn().await.to_string();
    outbox.insert("order", "after", "{}").await;
    let tail = Tail::start(&settings, &outbox, &["--json", "--since", &since]).await;
    outbox.insert("order", "later", "{}").await;
    let printed = tail.prints(2).await;
    let keys = |printed: &str| -> Vec<String> {
        let objects = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        objects.map(|object| object["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&printed), ["after", "later"]);
    tail.stop(&outbox).await;
    // the printed position of an event can be passed to --since
    let later: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    let (since, _) = later["position"].as_str().unwrap().split_once(':').unwrap();
    let tail = Tail::start(&settings, &outbox, &["--json", "--since", since]).await;
    assert_eq!(keys(&tail.prints(1).await), ["later"]);
    tail.stop(&outbox).await;
    let earliest = outbox.confirmed().await;
    let earliest = format!("The earliest position is {earliest}: outbox-router tail --since {earliest}");
    for (position, reason) in [("0/1", earliest.as_str()), ("FFFF/0", "is past the end of the server's log")]
    {
        let ran = settings.run_async(&["tail", "--since", position]).await;
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
    let mut again = Tail::start(&settings, &outbox, &["--json", "--since", &confirmed]).await;
    outbox.insert("order", "2", "{}").await;
    assert!(again.prints(1).await.contains("\"key\":\"2\""), "{}", again.printed());
    tail.prints(2).await;
    again.interrupt().await;
    tail.child.kill().unwrap();
    tail.child.wait().unwrap();
    gone(&outbox).await;
    outbox.insert("order", "3", "{}").await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(kafka.records(&outbox.name).await.len(), 3);
}

#[tokio::test]
async fn tail_exits_quietly_when_its_output_is_closed() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (mut tail, mut lines) = Tail::piped(&Settings::new(&outbox, &kafka), &outbox, &["--json"]).await;
    outbox.insert("order", "1", "{}").await;
    assert!(lines.next().unwrap().unwrap().contains("\"key\":\"1\""));
    // tail exits although nothing is committed that it could fail to write
    drop(lines);
    tail.ends().await;
    let err = tail.stderr();
    // the slot may have had to wait for a transaction of another test
    let lines = err.lines().filter(|line| !line.contains("waiting for the end of a transaction"));
    assert!(err.contains("reading what is committed") && lines.count() == 1, "{err}");
    gone(&outbox).await;
}

/// Commits 100 MB, and waits until the server waits for tail to read.
async fn flood(outbox: &Outbox) {
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order', n::text, to_jsonb(repeat('x', 10000)) FROM generate_series(1, 10000) n",
        )
        .await;
    // a walsender waits for moments even if its peer reads everything
    let mut in_a_row = 0;
    eventually("the server waits for a while", async || {
        in_a_row = if outbox.query(HELD_BACK).await.is_empty() { 0 } else { in_a_row + 1 };
        (in_a_row == 10).then_some(())
    })
    .await;
}

#[tokio::test]
async fn tail_pauses_the_stream_while_its_output_is_read_slowly() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let arguments = ["--json", "--payload"];
    let (mut tail, mut lines) = Tail::piped(&Settings::new(&outbox, &kafka), &outbox, &arguments).await;
    flood(&outbox).await;
    for number in 1..=10_000 {
        let Some(line) = lines.next() else { panic!("no event {number}: {}", tail.stderr()) };
        let object: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(object["key"], json!(number.to_string()));
    }
    let peak = peak_memory(tail.child.id());
    assert!(peak < 80 << 20, "{peak} bytes");
    tail.interrupt().await;
    assert!(tail.stderr().contains("stopped; 10000 events were shown"), "{}", tail.stderr());
}

#[tokio::test]
async fn tail_can_be_interrupted_while_nobody_reads_its_output() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (tail, _lines) = Tail::piped(&Settings::new(&outbox, &kafka), &outbox, &["--payload"]).await;
    flood(&outbox).await;
    let err = tail.stop(&outbox).await;
    assert!(err.contains("stopped; "), "{err}");
}

#[tokio::test]
async fn tail_names_the_session_that_it_waits_for() {
    let (outbox, kafka) = (Outbox::with_long_transactions().await, Kafka::shared());
    let open = outbox.client().await;
    open.batch_execute("BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id) VALUES ('order', 'open')")
        .await
        .unwrap();
    let pid: i32 = open.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let waits = format!("blocked by server process {pid}");
    let settings = Settings::new(&outbox, &kafka);
    let tail = Tail::begin(&settings, &["--json"]);
    tail.reports(&waits).await;
    // the server creates no slot until the transaction ends
    let err = tail.stop(&outbox).await;
    assert!(err.contains("stopped; 0 events were shown"), "{err}");
    let tail = Tail::begin(&settings, &["--json"]);
    tail.reports(&waits).await;
    open.batch_execute("COMMIT").await.unwrap();
    tail.streams(&outbox).await;
    outbox.insert("order", "next", "{}").await;
    assert!(tail.prints(1).await.contains("\"key\":\"next\""), "{}", tail.printed());
    tail.stop(&outbox).await;
}

#[tokio::test]
async fn tail_needs_no_more_than_the_role_of_init() {
    let place = Place::new();
    let role = format!("{}_router", place.name);
    let ran = place.run(&["init", "--role", &role]);
    assert_eq!(ran.code, 0, "{ran:?}");
    place.psql(&format!("REVOKE ALL ON DATABASE {} FROM PUBLIC", place.name));
    let emit = "SELECT outbox_router.emit('order', '1', 'placed', '{}')";
    place.psql(emit);
    let earliest = place
        .psql("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = current_database()");
    let url = place.url(&role);
    let place = place.with("POSTGRES__URL", &url);
    let mut child = process::start(&mut place.command(&["tail", "--since", earliest.trim()]));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("key 1"));
    place.psql(emit);
    let more: Vec<String> = lines.by_ref().take(3).map(Result::unwrap).collect();
    assert!(more[2].contains("key 1"), "{more:?}");
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_ne!(psql(&url, &["-c", "TABLE outbox"]).code, 0, "the role may read the table");
}

#[tokio::test]
async fn tail_reports_errors_before_it_prints_anything() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let renamed = |key: &str| settings.clone().set(key, "nowhere");
    for (settings, arguments, code, reason) in [
        (&settings, &["--since", "soon"][..], 2, "\"soon\" is not a log position"),
        (&settings, &["--shard", "1"], 2, "there are no shards"),
        (&settings.clone().set("shards.count", 2), &[], 2, "tail reads one shard at a time\n  Add --shard"),
        (&renamed("postgres.publication"), &[], 1, "the publication nowhere does not exist"),
        (&renamed("outbox.table"), &[], 1, "nowhere does not exist"),
        (&renamed("postgres.slot"), &["--since", "0/1"], 3, "slot nowhere does not exist"),
    ] {
        let ran = settings.run(&[&["tail"], arguments].concat());
        assert_eq!(ran.code, code, "{arguments:?}: {ran:?}");
        assert!(ran.err.contains(reason) && ran.out.is_empty(), "{arguments:?}: {ran:?}");
    }
    gone(&outbox).await;
}

#[tokio::test]
async fn tail_that_loses_its_session_advises_to_start_it_again() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let mut tail = Tail::start(&Settings::new(&outbox, &kafka), &outbox, &[]).await;
    outbox
        .query(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
             WHERE temporary AND database = current_database()",
        )
        .await;
    let status = eventually("tail exits", async || tail.child.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(1), "{}", tail.stderr());
    tail.reports("Start the command again").await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn tail_reports_that_all_slots_are_in_use() {
    let server =
        PrivatePostgres::start("host all all 127.0.0.1/32 trust\n", &["max_replication_slots=1"]).await;
    let outbox = Outbox::on(&server.url()).await;
    let ran = Settings::new(&outbox, &Kafka::shared()).run_async(&["tail"]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        ran.err.contains("all replication slots are in use") && ran.err.contains("Raise max_"),
        "{}",
        ran.err
    );
}
