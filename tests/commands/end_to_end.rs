//! `check --end-to-end` sends one event through table, slot and topic, or says where it stays.

use super::check::Found;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::{MODES, Settings};
use crate::support::shared;
use crate::support::signal::Signal;

/// The header, the aggregate type and the member of the payload that mark the event.
const MARK: &str = "outbox-router-check";

async fn check(settings: &Settings, arguments: &[&str]) -> Found {
    let arguments = [&["check", "--end-to-end", "--json"], arguments].concat();
    Found::in_output(settings.run_async(&arguments).await)
}

/// Repeats a check that ends with an error, until it ends where this is said: on a busy machine, time may be up earlier.
async fn check_that_says(settings: &Settings, seconds: &str, part: &str) -> Found {
    eventually(&format!("check says {part:?}"), async || {
        let found = check(settings, &["--timeout", seconds]).await;
        assert_eq!(found.code, 1);
        found.of("end_to_end").contains(part).then_some(found)
    })
    .await
}

/// Asserts that the event arrived.
#[track_caller]
fn assert_sent(found: &Found) {
    assert_eq!(found.code, 0, "{}", found.errors());
    let sent = found.of("end_to_end");
    for leg in ["ok: ", "an event was written to ", ", was in the topic ", "was confirmed after "] {
        assert!(sent.contains(leg), "{sent}");
    }
}

async fn rows(outbox: &Outbox) -> i64 {
    outbox.query("SELECT count(*) FROM outbox").await[0].get(0)
}

#[tokio::test]
async fn end_to_end_one_marked_event_arrives_and_no_row_is_left() {
    for mode in MODES {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let settings = Settings::new(&outbox, &kafka).set("delivery.mode", mode);
        let router = Router::active(&settings).await;
        outbox.insert("order", "a", "{}").await;
        outbox.all_confirmed().await;
        assert_sent(&check(&settings, &[]).await);
        assert_sent(&check(&settings, &["--aggregate-type", "order"]).await);
        router.stop().await;
        assert_eq!(rows(&outbox).await, 1, "{mode}");
        let records = kafka.committed(&outbox.name).await.unwrap();
        let topics: Vec<&str> = records.iter().map(|record| record.topic.as_str()).collect();
        assert_eq!(topics, [outbox.topic("order"), outbox.topic("order"), outbox.topic(MARK)], "{mode}");
        for record in &records[1..] {
            assert_eq!(record.header(MARK), Some(record.id()), "{mode}");
            assert_eq!(record.header("type"), Some("outbox-router.check"), "{mode}");
            assert_eq!(record.text(), format!("{{\"{MARK}\": \"{}\"}}", record.id()), "{mode}");
        }
    }
}

#[tokio::test]
async fn end_to_end_of_a_table_with_other_columns() {
    let table = "CREATE TABLE outbox (no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text NOT NULL, \
                 about bigint NOT NULL, body bytea NOT NULL, at timestamp NOT NULL, tenant text NOT NULL DEFAULT 'acme')";
    let (outbox, kafka) = (Outbox::with_table(shared::postgres(), table).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("outbox.columns.id", "no")
        .set("outbox.columns.aggregate_type", "kind")
        .set("outbox.columns.aggregate_id", "about")
        .set("outbox.columns.event_type", false)
        .set("outbox.columns.payload", "body")
        .set("outbox.columns.headers", false)
        .set("outbox.columns.created_at", "at")
        .set("route.topic", outbox.topic("${tenant}"));
    let router = Router::active(&settings).await;
    let found = check(&settings, &[]).await;
    assert_sent(&found);
    assert!(found.of("end_to_end").contains(&outbox.topic("acme")), "{}", found.of("end_to_end"));
    router.stop().await;
    assert_eq!(rows(&outbox).await, 0);
}

#[tokio::test]
async fn end_to_end_of_messages() {
    let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
    outbox.execute("CREATE PUBLICATION outbox_router").await;
    outbox.create_slot("pgoutput").await;
    let settings = Settings::new(&outbox, &kafka)
        .set("outbox.table", toml::Value::Array(Vec::new()))
        .set("outbox.message_prefix", "outbox");
    let router = Router::active(&settings).await;
    assert_sent(&check(&settings, &[]).await);
    router.stop().await;
    assert_eq!(kafka.records(&outbox.name).await.len(), 1);
}

#[tokio::test]
async fn end_to_end_without_a_privilege_nothing_is_written() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let poor = format!("{}_poor", outbox.name);
    outbox.execute(&format!("CREATE ROLE {poor} LOGIN REPLICATION")).await;
    let router = Router::active(&settings).await;
    let of_role =
        settings.clone().set("postgres.url", outbox.url().replace("//postgres@", &format!("//{poor}@")));
    let found = check(&of_role, &[]).await;
    assert_eq!(found.code, 1);
    found.shown("end_to_end", &[(outbox.address(), "HOST"), (&outbox.name, "NAME")]);
    let arguments = ["--url", &outbox.url()];
    assert_sent(&check(&of_role, &arguments).await);
    router.stop().await;
    outbox.execute(&format!("DROP ROLE {poor}")).await;
    assert_eq!(kafka.records(&outbox.name).await.len(), 1);
}

/// It would stop the router.
#[tokio::test]
async fn end_to_end_an_event_that_cannot_be_sent_is_not_written() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    let settings = settings.set("topics.create", false);
    let before = outbox.lsn().await;
    let dropped: toml::Table =
        toml::from_str(&format!("rules = [{{ match = {{ aggregate_type = \"{MARK}\" }}, drop = true }}]"))
            .unwrap();
    let with_rule = settings.clone().set("route.rules", dropped["rules"].clone());
    for (settings, arguments, reason) in [
        (&settings, &[][..], "`[topics] create` is false"),
        (&settings, &["--aggregate-type", "no topic"], "it could not be sent: the topic name"),
        (&with_rule, &[], "a rule would drop it"),
    ] {
        let found = check(settings, arguments).await;
        assert!(found.errors().contains("OBR-8001") && found.errors().contains(reason), "{}", found.errors());
        let said = found.of("end_to_end");
        assert!(said.contains("--aggregate-type") && !said.contains("in the log already"), "{said}");
    }
    outbox.confirmed_past(before).await;
    router.stop().await;
    assert_eq!(rows(&outbox).await, 0);
}

#[tokio::test]
async fn end_to_end_a_row_that_cannot_be_deleted_is_not_written() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    outbox
        .execute("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        .await;
    outbox.execute("CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()").await;
    let router = Router::active(&settings).await;
    let found = check(&settings, &[]).await;
    assert!(found.errors().contains("the row could not be deleted from "), "{}", found.errors());
    router.stop().await;
    assert_eq!(rows(&outbox).await, 0);
}

#[tokio::test]
async fn end_to_end_names_the_session_that_has_locked_the_table() {
    let (outbox, kafka) = (Outbox::with_long_transactions().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    let migration = outbox.client().await;
    // reads go on, so the other checks do not wait
    migration.batch_execute("BEGIN; LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE").await.unwrap();
    let pid: i32 = migration.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let errors = check_that_says(&settings, "8", &format!("server process {pid}")).await.errors();
    assert!(errors.contains("pg_terminate_backend"), "{errors}");
    migration.batch_execute("COMMIT").await.unwrap();
    assert_sent(&check(&settings, &[]).await);
    router.stop().await;
}

#[tokio::test]
async fn end_to_end_without_a_running_router_says_so() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    // Postgres keeps the session of a router that is stopped
    let settings = Settings::new(&outbox, &kafka).set("postgres.wal_sender_timeout", "10m");
    let found = check(&settings, &[]).await;
    assert!(found.errors().contains("OBR-8002"), "{}", found.errors());
    assert!(found.of("end_to_end").contains("so no event was written"), "{}", found.of("end_to_end"));
    let router = Router::active(&settings).await;
    router.signal(Signal::Stop);
    let found = check_that_says(&settings, "1", "has not confirmed it").await;
    found.shown("end_to_end", &[(&outbox.name, "NAME")]);
    router.signal(Signal::Continue);
    // it is sent after all
    kafka.holds(&outbox.name, 1).await;
    router.stop().await;
    let found = Found::in_output(
        settings.set("postgres.slot", "missing").run_async(&["check", "--end-to-end", "--json"]).await,
    );
    assert!(found.of("end_to_end").starts_with("skipped"), "{}", found.of("end_to_end"));
}

#[tokio::test]
async fn end_to_end_an_event_in_another_topic_is_not_found() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    let other = settings.set("route.topic", outbox.topic("other"));
    let found = check_that_says(&other, "3", "was not found in the topic").await;
    let said = found.of("end_to_end");
    let time = said.split("confirmed the event ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    // the page shows the default limit
    let known = [(time, "after TIME"), ("within 3 s", "within 30 s"), (&outbox.name, "NAME")];
    found.shown("end_to_end", &known);
    router.stop().await;
}

/// The role cannot delete a row that it may not see.
#[tokio::test]
async fn end_to_end_under_row_level_security_nothing_is_left() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let writer = format!("{}_writer", outbox.name);
    outbox.execute(&format!("CREATE ROLE {writer} LOGIN REPLICATION")).await;
    outbox.execute(&format!("GRANT INSERT, SELECT, DELETE ON outbox TO {writer}")).await;
    outbox.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY").await;
    outbox.execute("CREATE POLICY writes ON outbox FOR INSERT WITH CHECK (true)").await;
    let router = Router::active(&settings).await;
    let url = outbox.url().replace("//postgres@", &format!("//{writer}@"));
    let found = check(&settings, &["--url", &url]).await;
    assert!(found.errors().contains("OBR-8001"), "{}", found.errors());
    assert!(found.of("end_to_end").contains("policies of row-level security"), "{}", found.of("end_to_end"));
    assert_eq!(rows(&outbox).await, 0);
    outbox.execute("CREATE POLICY reads ON outbox FOR SELECT USING (true)").await;
    outbox.execute("CREATE POLICY deletes ON outbox FOR DELETE USING (true)").await;
    assert_sent(&check(&settings, &["--url", &url]).await);
    router.stop().await;
    outbox.execute(&format!("DROP OWNED BY {writer}")).await;
    outbox.execute(&format!("DROP ROLE {writer}")).await;
}

/// Each shard sends an event of its own.
#[tokio::test]
async fn end_to_end_of_shards() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    if outbox.server_version().await < 150_000 {
        return;
    }
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let settings = Settings::new(&outbox, &kafka).set("shards.count", 2);
    let ran = settings.run_async(&["init"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    let router = Router::active(&settings).await;
    let found = check(&settings, &[]).await;
    assert_sent(&found);
    let said = found.of("end_to_end");
    for number in 0..2 {
        let slot = format!("the slot {}_{number}_of_2 was confirmed", outbox.name);
        assert!(
            said.contains(&format!("shard {number} of 2: an event was written")) && said.contains(&slot),
            "{said}"
        );
    }
    router.stop().await;
    assert_eq!(kafka.records(&outbox.name).await.len(), 2);
    // one shard runs
    let one = Router::with_arguments(&settings, &["--shard", "1"]);
    eventually("it is ready", async || one.get("/readyz").filter(|(status, _)| *status == 200)).await;
    let found = check(&settings, &[]).await;
    let said = found.of("end_to_end");
    assert!(said.contains("error: shard 0 of 2: no router reads the slot"), "{said}");
    assert!(said.contains("ok: shard 1 of 2: an event was written"), "{said}");
    one.stop().await;
}
