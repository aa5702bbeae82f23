//! Rows that go to a file.

use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;

use super::interrupted::{Running, deleted};
use super::*;
use crate::situations::page::keep;
use crate::support::comparison::REPLAY;
use crate::support::eventually::eventually;
use crate::support::kafka::Record;

/// A folder for an archive, and the name of the file.
fn place() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("old.jsonl.zst").to_str().unwrap().to_owned();
    (folder, file)
}

/// The rows of a file, as any program would read them.
fn lines(file: &str) -> Vec<String> {
    let text = zstd::decode_all(std::fs::File::open(file).unwrap()).unwrap();
    String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
}

/// Published rows of aggregates a and b in turn.
async fn published(kafka: &Kafka, rows: u32) -> (Outbox, Settings) {
    let (outbox, settings) = polled(kafka).await;
    outbox.insert_old("a", rows).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED', published_at = now(), aggregate_id = CASE (payload->>'n')::int % 2 WHEN 0 THEN 'a' ELSE 'b' END").await;
    (outbox, settings)
}

/// A record without its time and the header with the time of the replay.
fn content(record: &Record) -> String {
    let headers: Vec<_> = record.headers.iter().filter(|(name, _)| name != REPLAY).collect();
    format!("{} {:?} {headers:?} {:?}", record.topic, record.key(), record.value)
}

#[tokio::test]
async fn the_lines_of_a_file_make_the_same_rows_again() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 20).await;
    outbox
        .execute(
            "CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN document AS jsonb; \
             ALTER TABLE outbox ADD \"odd \"\" name\" text DEFAULT 'line\nfeed \"quoted\" \\ ü', ADD fixed char(5) DEFAULT 'ab', ADD raw bytea DEFAULT '\\x00ff', \
             ADD \"values\" text[] DEFAULT '{a,\"b c\",NULL}', ADD of_json json DEFAULT E'{\"a\":\n\t1 }', ADD span interval DEFAULT '1 day 2 hours', \
             ADD flag bool DEFAULT true, ADD real float8 DEFAULT 0.1, ADD feels mood DEFAULT 'sad', ADD document document DEFAULT '[1, null]', \
             ADD json_null jsonb DEFAULT 'null', ADD no_json jsonb, ADD big text DEFAULT repeat('x', 100000), DROP COLUMN headers; \
             UPDATE outbox SET created_at = '-infinity' WHERE payload->>'n' = '20'; \
             CREATE TABLE before AS SELECT * FROM outbox",
        )
        .await;
    let (_folder, file) = place();
    let pruned = json(&prune(&settings, &["--json", "--archive", &file, "--batch", "7"]).await);
    assert_eq!((&pruned["deleted"], &pruned["archive"]), (&20.into(), &file.as_str().into()), "{pruned}");
    assert_eq!(outbox.aggregates("outbox").await, "");
    outbox.execute("CREATE TABLE restored AS SELECT * FROM before LIMIT 0").await;
    for line in lines(&file) {
        let line = line.replace('\'', "''");
        outbox
            .execute(&format!(
                "INSERT INTO restored SELECT (json_populate_record(NULL::restored, E'{}')).*",
                line.replace('\\', "\\\\")
            ))
            .await;
    }
    let in_text = |table: &str| format!("SELECT to_jsonb(t)::text, of_json::text FROM {table} t");
    let (before, restored) = (
        in_text("before").replace("of_json::text", "translate(of_json::text, E'\\n', ' ')"),
        in_text("restored"),
    );
    let differences = format!(
        "SELECT count(*)::text FROM (({before} EXCEPT ALL {restored}) UNION ALL ({restored} EXCEPT ALL {before})) d"
    );
    assert_eq!(outbox.text(&differences).await, "0");
}

#[tokio::test]
async fn only_the_owner_of_a_file_may_read_it() {
    let kafka = Kafka::shared();
    let (_outbox, settings) = published(&kafka, 1).await;
    let (_folder, file) = place();
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 1 row"]);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}

/// Updates of a polled table move its rows, and one of them was locked during the first prune.
#[tokio::test]
async fn rows_of_one_time_are_replayed_in_the_order_of_their_inserts() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 6).await;
    outbox
        .execute(
            "UPDATE outbox SET created_at = date_trunc('day', created_at), aggregate_id = 'a'; \
             UPDATE outbox SET attempts = 1 WHERE payload->>'n' IN ('1', '3', '5')",
        )
        .await;
    let (_folder, file) = place();
    let mut client = outbox.client().await;
    let open = client.transaction().await.unwrap();
    open.batch_execute("SELECT FROM outbox WHERE payload->>'n' = '2' FOR UPDATE").await.unwrap();
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 5 rows", "1 row stays"]);
    open.commit().await.unwrap();
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 1 row"]);
    succeeded(settings.run_async(&["replay", "--from", &file, "--yes"]).await, &["6 rows done"]);
    let records = kafka.records_when(&outbox.name, 6).await;
    assert_eq!(records.iter().map(Record::number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn large_rows_go_a_few_at_a_time_and_one_that_stays_holds_up_no_others() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 12).await;
    outbox
        .execute(
            "CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN CASE WHEN OLD.payload->>'n' = '3' THEN NULL ELSE OLD END; END $$; \
             CREATE TRIGGER kept BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION kept(); \
             ALTER TABLE outbox ALTER headers SET STORAGE EXTERNAL; \
             UPDATE outbox SET headers = jsonb_build_object('x', repeat('x', CASE payload->>'n' WHEN '3' THEN 9000000 ELSE 3000000 END))",
        )
        .await;
    let (_folder, file) = place();
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 11 rows"]);
    assert_eq!(outbox.aggregates("outbox").await, "b 1");
    let numbers: Vec<u64> = lines(&file)
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["payload"]["n"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
}

/// Rows that are not deleted after all are not in the file.
#[tokio::test]
async fn a_commit_that_fails_leaves_the_file_as_it_was() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 10).await;
    outbox
        .execute(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$; \
             CREATE CONSTRAINT TRIGGER no AFTER DELETE ON outbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.payload->>'n' = '8') \
             EXECUTE FUNCTION no()",
        )
        .await;
    let (_folder, file) = place();
    refused(&prune(&settings, &["--archive", &file, "--batch", "5"]).await, 1, &["not this one"]);
    let left: usize = outbox.text("SELECT count(*)::text FROM outbox").await.parse().unwrap();
    assert!(left >= 3 && lines(&file).len() == 10 - left, "{left} {}", lines(&file).len());
    outbox.execute("DROP TRIGGER no ON outbox").await;
    succeeded(prune(&settings, &["--archive", &file]).await, &[&format!("Moved {left} rows")]);
    succeeded(settings.run_async(&["replay", "--from", &file, "--dry-run"]).await, &["10 events"]);
}

/// The functions themselves refuse a batch that comes too late, or that another prune has taken over.
#[tokio::test]
async fn a_batch_without_its_lease_is_rolled_back() {
    let kafka = Kafka::shared();
    let (outbox, _) = published(&kafka, 10).await;
    let name = "'\"public\".\"outbox\"'";
    let token = outbox.text(&format!("SELECT outbox_router.prune_begin({name})::text")).await;
    let rows =
        format!("SELECT deleted FROM outbox_router.prune_rows({name}, '{token}', NULL, now(), 3, 1000000)");
    let renew = format!("SELECT outbox_router.prune_renew({name}, '{token}', 3)");
    let late = "UPDATE outbox_router.prunes SET lease_until = clock_timestamp() + interval '3 s'";
    let other = "UPDATE outbox_router.prunes SET token = gen_random_uuid()";
    for (statements, message) in [
        (format!("{late}; {rows}"), "takes too long"),
        (format!("{rows}; {late}; {renew}"), "takes too long"),
        (format!("{other}; {rows}"), "another prune of outbox has taken over"),
        (format!("{rows}; {other}; {renew}"), "takes too long"),
    ] {
        let error = outbox.client().await.batch_execute(&statements).await.unwrap_err();
        let found = error.as_db_error().unwrap().message();
        assert!(
            found.contains(message) || found.contains(&message.replace("outbox", "public.outbox")),
            "{statements}: {found}"
        );
        assert_eq!(outbox.aggregates("outbox").await, "a 5, b 5");
    }
    outbox.execute(&format!("BEGIN; {rows}; {renew}; COMMIT")).await;
    assert_eq!(outbox.text("SELECT rows::text FROM outbox_router.prunes").await, "3");
}

/// Its values would be lost, or make an unreadable line.
#[tokio::test]
async fn columns_are_those_of_the_moment_in_which_the_rows_are_deleted() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 10).await;
    let (_folder, file) = place();
    let mut client = outbox.client().await;
    let open = client.transaction().await.unwrap();
    open.batch_execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE; ALTER TABLE outbox ALTER payload TYPE text, ADD tenant text DEFAULT 'acme'")
        .await
        .unwrap();
    let waiting = "SELECT (count(*) > 0)::text FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE NOT l.granted AND d.datname = current_database()";
    let arguments = ["--archive", file.as_str()];
    let (ran, ()) = tokio::join!(prune(&settings, &arguments), async {
        eventually("the prune waits", async || (outbox.text(waiting).await == "true").then_some(())).await;
        open.commit().await.unwrap();
    });
    succeeded(ran, &["Moved 10 rows"]);
    for line in lines(&file) {
        let row: Value = serde_json::from_str(&line).unwrap();
        assert!(row["payload"].is_string() && row["tenant"] == "acme", "{line}");
    }
}

#[tokio::test]
async fn rows_of_a_file_become_the_same_records_as_those_of_the_table() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 50).await;
    let settings = settings.set("route.topic", format!("{}.${{source.table}}", outbox.name));
    outbox.execute("UPDATE outbox SET headers = '{\"trace\": \"x\"}', idempotency_key = payload->>'n'").await;
    succeeded(settings.run_async(&["replay", "--yes"]).await, &["50 rows done"]);
    let (_folder, file) = place();
    succeeded(prune(&settings, &["--archive", &file, "--batch", "20"]).await, &["Moved 50 rows", &file]);
    let ran = settings.run_async(&["replay", "--from", &file, "--yes"]).await;
    succeeded(ran, &[&format!("50 events of {file}"), "50 rows done"]);
    let records = kafka.records_when(&outbox.name, 100).await;
    for aggregate in ["a", "b"] {
        let contents: Vec<_> =
            records.iter().filter(|record| record.key() == Some(aggregate)).map(content).collect();
        assert_eq!(contents[..25], contents[25..]);
    }
    succeeded(settings.run_async(&["replay", "--list"]).await, &[&format!("--from {file}")]);
}

#[tokio::test]
async fn filters_select_rows_of_a_file_as_they_do_those_of_the_table() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 30).await;
    outbox.execute("UPDATE outbox SET event_type = 'OrderPlaced' WHERE payload->>'n' < '2'").await;
    let id = outbox.text("SELECT upper(id::text) FROM outbox WHERE payload->>'n' = '7'").await;
    let at = outbox.text("SELECT created_at::text FROM outbox WHERE payload->>'n' = '7'").await;
    let cases: [&[&str]; 8] = [
        &["--aggregate", "b"],
        &["--aggregate-type", "order,invoice", "--aggregate", "a,x"],
        &["--type", "OrderPlaced"],
        &["--id", &id],
        &["--since", &at],
        &["--until", &at],
        &["--since", &at, "--type", "OrderPlaced"],
        &["--since", "1h"],
    ];
    let count = async |from: &str, arguments: &[&str]| {
        let ran = settings
            .run_async(&[&["replay", "--from", from, "--dry-run", "--json"], arguments].concat())
            .await;
        let shown: Value =
            serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.err));
        ["events", "bytes", "topics", "oldest", "newest"].map(|key| shown[key].clone())
    };
    // somebody has discarded one of 15
    outbox
        .execute("UPDATE outbox SET published_at = NULL, last_error = 'unwanted' WHERE payload->>'n' = '9'")
        .await;
    let mut of_table = Vec::new();
    for arguments in cases {
        of_table.push(count("outbox", arguments).await);
    }
    assert_eq!(of_table[0][0], 14);
    let (_folder, file) = place();
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 30 rows"]);
    for (arguments, of_table) in cases.iter().zip(of_table) {
        assert_eq!(count(&file, arguments).await, of_table, "{arguments:?}");
    }
    let ran = settings.run_async(&["replay", "--from", &file, "--id", "x", "--dry-run"]).await;
    refused(&ran, 2, &["--id has a value that the column \"id\" cannot have"]);
}

/// The order within an aggregate is that of the inserts, whenever a row was archived.
#[tokio::test]
async fn a_row_that_was_locked_during_a_prune_is_replayed_in_its_turn() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 40).await;
    let (_folder, file) = place();
    let mut client = outbox.client().await;
    for left in ["n % 3 = 0", "n % 6 = 0"] {
        let open = client.transaction().await.unwrap();
        open.batch_execute(&format!(
            "SELECT FROM (SELECT id, (payload->>'n')::int AS n FROM outbox) n JOIN outbox o USING (id) WHERE {left} FOR UPDATE OF o"
        ))
        .await
        .unwrap();
        succeeded(prune(&settings, &["--archive", &file, "--batch", "5"]).await, &["Moved "]);
        open.commit().await.unwrap();
    }
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 6 rows"]);
    assert!(!lines(&file)[2].contains("\"n\": 3}"), "the third row was locked: {}", lines(&file)[2]);
    succeeded(settings.run_async(&["replay", "--from", &file, "--yes"]).await, &["40 rows done"]);
    let records = kafka.records_when(&outbox.name, 40).await;
    for (aggregate, first) in [("a", 2), ("b", 1)] {
        let of = records.iter().filter(|record| record.key() == Some(aggregate));
        let numbers: Vec<u64> = of.map(Record::number).collect();
        assert_eq!(numbers, (first..41).step_by(2).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn no_row_is_lost_however_often_a_prune_to_a_file_is_killed() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 3_000).await;
    let (_folder, file) = place();
    outbox.deletes_slowly().await;
    for at_least in [1, 20, 40] {
        let running = Running::start(&settings, &["--archive", &file]);
        deleted(&outbox, at_least).await;
        running.signal(Signal::KILL);
        running.ended().await;
        let left: usize = outbox.text("SELECT count(*)::text FROM outbox").await.parse().unwrap();
        // the last batch may be in both
        assert!(
            (3_000 - left..=3_000 - left + 3).contains(&lines(&file).len()),
            "{left} {}",
            lines(&file).len()
        );
        let ran = settings.run_async(&["replay", "--from", &file, "--dry-run"]).await;
        refused(&ran, 1, &["OBR-8208: the archive ", "its end is missing"]);
        keep(&ran.err, &[(&file, "FILE")]);
        outbox.execute("UPDATE outbox_router.prunes SET lease_until = now(), rows = 0").await;
    }
    outbox.deletes_fast().await;
    // killed after its last batch, and before it could write the end
    let copy = outbox.text("SELECT count(*)::text FROM outbox").await;
    outbox.execute("CREATE TABLE others AS TABLE outbox; DELETE FROM outbox").await;
    succeeded(prune(&settings, &["--archive", &file]).await, &["No row"]);
    succeeded(settings.run_async(&["replay", "--from", &file, "--dry-run"]).await, &[" events of "]);
    outbox.execute("INSERT INTO outbox SELECT * FROM others").await;
    let ran = prune(&settings, &["--archive", &file]).await;
    succeeded(ran, &[&format!("Moved {copy} rows")]);
    assert_eq!(outbox.aggregates("outbox").await, "");
    let mut numbers: Vec<u64> = Vec::new();
    for line in lines(&file) {
        let row: Value = serde_json::from_str(&line).unwrap();
        numbers.push(row["payload"]["n"].as_u64().unwrap());
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (1..3_001).collect::<Vec<_>>());
    succeeded(settings.run_async(&["replay", "--from", &file, "--dry-run"]).await, &[" events of "]);
}

#[tokio::test]
async fn a_signal_stops_it_and_the_file_can_be_replayed_and_continued() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 3_000).await;
    let (_folder, file) = place();
    outbox.deletes_slowly().await;
    let running = Running::start(&settings, &["--archive", &file]);
    deleted(&outbox, 5).await;
    running.signal(Signal::INT);
    let ran = running.ended().await;
    assert!(ran.code == 1 && ran.out.contains("Interrupted: moved "), "{} {}", ran.out, ran.err);
    outbox.deletes_fast().await;
    let first = lines(&file).len();
    let ran = settings.run_async(&["replay", "--from", &file, "--yes", "--rate", "10000000"]).await;
    succeeded(ran, &[&format!("{first} rows done")]);
    succeeded(prune(&settings, &["--archive", &file]).await, &[&format!("Moved {} rows", 3_000 - first)]);
    assert_eq!(lines(&file).len(), 3_000);
}

#[tokio::test]
async fn an_interrupted_replay_of_a_file_goes_on_though_the_file_has_grown() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 400).await;
    let (_folder, file) = place();
    succeeded(prune(&settings, &["--archive", &file, "--batch", "50"]).await, &["Moved 400 rows"]);
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["replay", "--from", file.as_str(), "--rate", "10/s", "--yes"];
    let running = Running::of(&settings, folder, &arguments);
    let done = "SELECT coalesce(max(done), 0)::text FROM outbox_router.replays";
    eventually("some rows are sent", async || {
        (outbox.text(done).await.parse::<u64>().unwrap() > 5).then_some(())
    })
    .await;
    running.signal(Signal::INT);
    assert_eq!(running.ended().await.code, 1);
    outbox.execute(&format!("INSERT INTO outbox (aggregate_type, aggregate_id, payload, created_at) SELECT 'order', 'a', '{{}}', {LONG_AGO} + interval '1 h' FROM generate_series(1, 30)")).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED', published_at = now()").await;
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 30 rows"]);
    let copy = format!("{file}.copy");
    std::fs::rename(&file, &copy).unwrap();
    let resumed = ["replay", "--resume", "1", "--rate", "100000"];
    refused(&settings.run_async(&resumed).await, 1, &["OBR-8208", "cannot be read"]);
    std::fs::copy(&copy, &file).unwrap();
    succeeded(settings.run_async(&resumed).await, &["400 rows done"]);
    let records = kafka.records_when(&outbox.name, 400).await;
    assert_eq!(records.len(), 400);
    for aggregate in ["a", "b"] {
        let of = records.iter().filter(|record| record.key() == Some(aggregate));
        let numbers: Vec<u64> = of.map(Record::number).collect();
        assert!(numbers.is_sorted() && numbers.len() == 200, "{numbers:?}");
    }
}

#[tokio::test]
async fn files_that_cannot_take_the_rows_are_refused_and_all_rows_stay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 10).await;
    let (folder, file) = place();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(at("folder.jsonl.zst")).unwrap();
    std::fs::write(at("other.jsonl.zst"), "{}\n").unwrap();
    std::fs::write(at("zstd.jsonl.zst"), zstd::bulk::compress(b"{}\n", 3).unwrap()).unwrap();
    let locked = std::fs::File::create(at("locked.jsonl.zst")).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for (file, code, message) in [
        (at("rows.zst"), 2, "its name has to end with .jsonl.zst"),
        ("kept".to_owned(), 2, "the table of an archive is configured under [retention]"),
        (at("no/such.jsonl.zst"), 1, "No such file or directory"),
        (at("folder.jsonl.zst"), 1, "it is not a regular file"),
        (at("other.jsonl.zst"), 1, "prune has not written it"),
        (at("zstd.jsonl.zst"), 1, "prune has not written it"),
        (at("locked.jsonl.zst"), 1, "another process is writing it"),
    ] {
        refused(&prune(&settings, &["--archive", &file]).await, code, &[message]);
        if Path::new(&file).is_file() && !file.contains("locked") {
            refused(&settings.run_async(&["replay", "--from", &file]).await, 1, &["OBR-8208", message]);
        }
    }
    let with_table = settings.clone().set("retention.archive", "kept");
    refused(
        &prune(&with_table, &["--archive", &file]).await,
        2,
        &["`[retention] archive` names the table public.kept"],
    );
    // another router has stored a table
    outbox.execute("UPDATE outbox_router.retention SET archive = 'public.kept'; CREATE TABLE kept (LIKE outbox); GRANT INSERT ON kept TO outbox_router_pruner").await;
    let ran = prune(&settings, &["--archive", &file]).await;
    refused(&ran, 1, &["OBR-8206"]);
    outbox.execute("UPDATE outbox_router.retention SET archive = NULL").await;
    assert_eq!(outbox.aggregates("outbox").await, "a 5, b 5");
    succeeded(prune(&settings, &["--archive", &file, "--dry-run"]).await, &["Would move 10 rows", &file]);
    assert!(!Path::new(&file).exists());
    let other = at("other.jsonl.zst");
    refused(&prune(&settings, &["--archive", &other, "--dry-run"]).await, 1, &["prune has not written it"]);
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 10 rows"]);
    // rows of another table
    outbox.execute("ALTER TABLE outbox RENAME TO orders; CREATE TABLE outbox (LIKE orders)").await;
    let other = settings.clone().set("outbox.table", "orders");
    succeeded(other.run_async(&["init"]).await, &[]);
    let ran = other.run_async(&["replay", "--from", &file, "--dry-run"]).await;
    refused(&ran, 1, &["has rows of public.outbox, and not of public.orders"]);
}

/// After a change of the table.
#[tokio::test]
async fn rows_with_other_columns_than_the_table_are_replayed_only_if_they_fit() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka, 10).await;
    let settings = settings.set("route.headers.tenant", "${tenant}");
    outbox.execute("ALTER TABLE outbox ADD gone int").await;
    let (_folder, file) = place();
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 10 rows"]);
    outbox.execute("ALTER TABLE outbox DROP gone, ADD tenant text").await;
    outbox.insert_old("c", 2).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED', published_at = now(), tenant = 'acme'").await;
    succeeded(prune(&settings, &["--archive", &file]).await, &["Moved 2 rows"]);
    let arguments = ["replay", "--from", &file, "--dry-run"];
    succeeded(settings.run_async(&arguments).await, &["12 events"]);
    outbox.execute("ALTER TABLE outbox ALTER payload TYPE json").await;
    let ran = settings.run_async(&arguments).await;
    refused(&ran, 1, &["the column payload of public.outbox had the type jsonb and has json now"]);
    outbox
        .execute("ALTER TABLE outbox ALTER payload TYPE jsonb, DROP aggregate_id, ADD aggregate_id2 text")
        .await;
    let renamed = settings.set("outbox.columns.aggregate_id", "aggregate_id2");
    let ran = renamed.run_async(&arguments).await;
    refused(&ran, 1, &["the column aggregate_id2 of public.outbox was not there"]);
}
