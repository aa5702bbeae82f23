//! The router prints how events that are missing from the stream are found and sent. These tests type the commands as printed.

use tokio_postgres::{Client, SimpleQueryMessage};

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::place::succeeded;
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::signal::Signal;

/// Runs the statements in one session and returns one column of the rows.
pub(crate) async fn typed(client: &Client, sql: &str, column: &str) -> Vec<String> {
    let rows = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let text = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.try_get(column).ok().flatten().map(str::to_owned),
        _ => None,
    };
    rows.iter().filter_map(text).collect()
}

/// Stores the missing rows as the router says, and returns the command with which the router goes on.
async fn store(outbox: &Outbox, ended: &Ended) -> String {
    let sql = ended.command("SELECT pg_copy_logical_replication_slot");
    let mut next = typed(&outbox.client().await, sql, "command").await;
    // the server drops the copy a moment after the session has ended
    let copies = "SELECT 1 FROM pg_replication_slots WHERE temporary AND database = current_database()";
    eventually("the copy of the slot is gone", async || outbox.query(copies).await.is_empty().then_some(()))
        .await;
    // typed again, it changes nothing
    let again = outbox.client().await.simple_query(sql).await.unwrap_err();
    assert_eq!(again.code().unwrap().code(), "42P07", "{again:?}");
    assert_eq!(next.len(), 1, "{next:?}");
    next.remove(0)
}

/// Returns the lines of the stored rows.
async fn lines(outbox: &Outbox, ended: &Ended) -> Vec<String> {
    typed(&outbox.client().await, ended.command("SELECT lsn, data FROM"), "data").await
}

/// Types all steps as printed, with the router stopped before and after.
async fn follow(outbox: &Outbox, settings: &Settings, ended: &Ended) {
    succeeded(settings.run_async(&["init"]).await, &[]);
    let next = store(outbox, ended).await;
    let next: Vec<&str> = next.strip_prefix("outbox-router ").unwrap().split(' ').chain(["--yes"]).collect();
    succeeded(settings.run_async(&next).await, &["resumes at"]);
    let router = Router::active(settings).await;
    let client = outbox.client().await;
    client.batch_execute(ended.command("DO ")).await.unwrap();
    // typed again, it sends nothing again
    let again = client.batch_execute(ended.command("DO ")).await.unwrap_err();
    assert_eq!(again.code().unwrap().code(), "42P01", "{again:?}");
    outbox.all_confirmed().await;
    router.stop().await;
}

/// Asserts that these events, and no others, are in Kafka, each once.
async fn are_in_kafka(outbox: &Outbox, ids: impl IntoIterator<Item = String>) {
    let records = Kafka::shared().records(&outbox.name).await;
    let mut sent: Vec<_> = records.iter().map(|record| record.id().to_owned()).collect();
    let mut expected: Vec<_> = ids.into_iter().collect();
    sent.sort();
    expected.sort();
    assert_eq!(sent, expected);
}

/// Commits unpublished events, in another order than they were inserted in, and deletes one of them. Returns their ids in
/// commit order.
async fn gap(outbox: &Outbox) -> Vec<String> {
    const INSERT: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
                          VALUES ('order', 'a', '{\"it''s\": \"table public.outbox: INSERT:\"}') RETURNING id::text";
    let mut client = outbox.client().await;
    let slow = client.transaction().await.unwrap();
    let last = slow.query_one(INSERT, &[]).await.unwrap().get(0);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(outbox.query(INSERT).await[0].get::<_, String>(0));
    }
    outbox.execute(&format!("DELETE FROM outbox WHERE id = '{}'", ids[1])).await;
    // rows of other tables must not be shown
    outbox.execute("CREATE TABLE other (id uuid); INSERT INTO other VALUES (gen_random_uuid())").await;
    slow.commit().await.unwrap();
    ids.push(last);
    ids
}

struct Setup {
    outbox: Outbox,
    settings: Settings,
    router: Router,
    /// The id of the event that the router has sent.
    sent: String,
}

impl Setup {
    async fn new() -> Self {
        Self::of(Outbox::new().await, |settings| settings).await
    }

    async fn of(outbox: Outbox, set: impl FnOnce(Settings) -> Settings) -> Self {
        let kafka = Kafka::shared();
        let settings = set(Settings::new(&outbox, &kafka));
        let router = Router::active(&settings).await;
        let sent = outbox.insert("order", "a", "{\"n\": 1}").await;
        outbox.all_confirmed().await;
        Setup { outbox, settings, router, sent }
    }
}

#[tokio::test]
async fn recovery_steps_send_events_after_publication_is_dropped_under_router() {
    let Setup { outbox, settings, router, sent } = Setup::new().await;
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    let ended = router.exits(3).await;
    // before Postgres 18 the error may come from the stream instead of the catalogue watch
    ended.says(&["publication", "does not exist"]).command("outbox-router init");
    Router::start(&settings).exits(1).await.command("outbox-router init");
    succeeded(settings.run_async(&["init"]).await, &["publication \"outbox_router\": created"]);
    let later = outbox.insert("order", "a", "{\"n\": 2}").await;
    let ended = Router::start(&settings).exits(3).await;
    follow(&outbox, &settings, &ended).await;
    are_in_kafka(&outbox, gap.into_iter().chain([sent, later])).await;
    Router::active(&settings).await.stop().await;
}

/// The saved rows have the columns of their time.
#[tokio::test]
async fn recovery_steps_say_what_to_do_about_a_column_that_the_table_has_lost() {
    let outbox = Outbox::new().await;
    outbox.execute("ALTER TABLE outbox ADD tenant text DEFAULT 'acme'").await;
    let Setup { outbox, settings, router, sent } = Setup::of(outbox, |settings| settings).await;
    router.stop().await;
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    outbox.execute("ALTER TABLE outbox DROP tenant").await;
    succeeded(settings.run_async(&["init"]).await, &["publication \"outbox_router\": created"]);
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["OBR-3109", "lacks one of their columns, add it, and drop it afterwards"]);
    let refused = async || {
        let sql = ended.command("DO ");
        outbox.client().await.batch_execute(sql).await.unwrap_err().code().unwrap().code().to_owned()
    };
    let next = store(&outbox, &ended).await;
    assert_eq!(refused().await, "42703", "undefined column");
    outbox.execute("ALTER TABLE outbox ADD tenant text").await;
    let next: Vec<&str> = next.strip_prefix("outbox-router ").unwrap().split(' ').chain(["--yes"]).collect();
    succeeded(settings.run_async(&next).await, &["resumes at"]);
    let router = Router::active(&settings).await;
    outbox.client().await.batch_execute(ended.command("DO ")).await.unwrap();
    outbox.all_confirmed().await;
    outbox.execute("ALTER TABLE outbox DROP tenant").await;
    outbox.insert("order", "b", "{}").await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = Kafka::shared().records(&outbox.name).await;
    assert_eq!(records.len(), gap.len() + 2);
    assert!(gap.iter().chain([&sent]).all(|id| records.iter().any(|record| record.id() == id)));
}

/// Without checkpoints a start does not notice that the publication was missing, so the running router has to give the steps.
#[tokio::test]
async fn recovery_steps_send_events_without_checkpoints() {
    let without = |settings: Settings| settings.set("delivery.positions_topic", "");
    let Setup { outbox, settings, router, sent } = Setup::of(Outbox::new().await, without).await;
    outbox.watched().await;
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    let ended = router.exits(3).await;
    follow(&outbox, &settings, &ended).await;
    are_in_kafka(&outbox, gap.into_iter().chain([sent])).await;
}

#[tokio::test]
async fn recovery_steps_send_events_after_publication_is_created_again_unseen() {
    let with_messages = |settings: Settings| settings.set("outbox.message_prefix", "outbox");
    let outbox = Outbox::new().await;
    // a generated column takes no value
    outbox
        .execute("ALTER TABLE outbox ADD upper_type text GENERATED ALWAYS AS (upper(aggregate_type)) STORED")
        .await;
    let Setup { outbox, settings, router, sent } = Setup::of(outbox, with_messages).await;
    router.signal(Signal::Stop);
    outbox.execute(&format!("SELECT pg_terminate_backend({}, 60000)", outbox.active_pid().await)).await;
    outbox.released().await;
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    let message = "SELECT pg_logical_emit_message(true, 'outbox', '{\"id\": \"it''s m1\", \"aggregate_type\": \"order\", \
                   \"aggregate_id\": \"a\", \"event_type\": \"made\", \"payload\": {\"n\": 3}}')";
    outbox.execute(message).await;
    outbox.execute(PUBLICATION).await;
    router.signal(Signal::Continue);
    let ended = router.exits(3).await;
    ended.says(&["created again"]);
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["If no rows are missing, or to go on without them"]);
    follow(&outbox, &settings, &ended).await;
    are_in_kafka(&outbox, gap.into_iter().chain([sent, "it's m1".to_owned()])).await;
}

/// The lines of a partition have its name.
#[tokio::test]
async fn recovery_steps_send_events_of_partitions_and_leave_other_tables_alone() {
    let outbox = Outbox::bare(shared::postgres()).await;
    let partitioned = TABLE.replace("id uuid PRIMARY KEY DEFAULT", "id uuid DEFAULT");
    outbox
        .execute(&format!(
            "{partitioned} PARTITION BY LIST (aggregate_id); CREATE TABLE \"Part a\" PARTITION OF outbox FOR VALUES IN ('a'); \
             {PUBLICATION}"
        ))
        .await;
    outbox.create_slot("pgoutput").await;
    let Setup { outbox, settings, router, sent } = Setup::of(outbox, |settings| settings).await;
    router.stop().await;
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    outbox.execute(PUBLICATION).await;
    let ended = Router::start(&settings).exits(3).await;
    follow(&outbox, &settings, &ended).await;
    are_in_kafka(&outbox, gap.into_iter().chain([sent])).await;
    assert_eq!(outbox.query("SELECT count(*) FROM other").await[0].get::<_, i64>(0), 1);
}

/// Up to Postgres 17 the slot cannot get past WAL without its publication, even after it is created again; 18 leaves the rows
/// out.
#[tokio::test]
async fn recovery_steps_send_events_that_the_server_cannot_decode() {
    let Setup { outbox, settings, router, sent } = Setup::new().await;
    router.stop().await;
    if outbox.server_version().await >= 180_000 {
        return;
    }
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    outbox.execute(PUBLICATION).await;
    let ended = Router::start(&settings).exits(3).await;
    outbox.released().await;
    // typed although the message advises against it: nothing is lost, and the steps are the same
    let ended =
        Router::with_arguments(&settings, &["--accept-gap", ended.accept_gap_position()]).exits(3).await;
    ended.says(&["OBR-3112", "they stay in the log"]).shown(&outbox);
    outbox.released().await;
    let later = outbox.insert("order", "a", "{\"n\": 2}").await;
    follow(&outbox, &settings, &ended).await;
    are_in_kafka(&outbox, gap.into_iter().chain([sent, later])).await;
}

/// Shows a row that was written while the table was in another schema, which was not published.
async fn shows_event_of_moved_table(publication: &str, away: &str, back: &str) {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{TABLE}; {publication}; CREATE SCHEMA elsewhere")).await;
    outbox.create_slot("pgoutput").await;
    let Setup { outbox, settings, router, .. } = Setup::of(outbox, |settings| settings).await;
    router.stop().await;
    outbox.execute(&format!("ALTER TABLE outbox SET SCHEMA elsewhere; {away}")).await;
    let insert = "INSERT INTO elsewhere.outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{}') \
                  RETURNING id::text";
    let missing: String = outbox.query(insert).await[0].get(0);
    outbox.execute(&format!("ALTER TABLE elsewhere.outbox SET SCHEMA public; {back}")).await;
    let ended = Router::start(&settings).exits(3).await;
    outbox.released().await;
    store(&outbox, &ended).await;
    let lines = lines(&outbox, &ended).await;
    assert!(lines.iter().any(|line| line.contains(&missing)), "{missing}: {lines:?} {}", ended.log);
    ended.says(&["are not among them: they are only in the table"]);
}

#[tokio::test]
async fn recovery_sql_shows_events_of_table_that_left_published_schema() {
    if Outbox::bare(shared::postgres()).await.server_version().await < 150_000 {
        return;
    }
    let publication =
        "CREATE PUBLICATION outbox_router FOR TABLES IN SCHEMA public WITH (publish = 'insert')";
    shows_event_of_moved_table(publication, "", "").await;
}

#[tokio::test]
async fn recovery_sql_shows_events_of_table_moved_while_publication_was_missing() {
    let publication = "CREATE PUBLICATION outbox_router FOR ALL TABLES WITH (publish = 'insert')";
    shows_event_of_moved_table(publication, "DROP PUBLICATION outbox_router", publication).await;
}
