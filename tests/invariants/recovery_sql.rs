//! The router prints SQL that shows events missing from the stream. These tests run it as printed and expect all of them.

use tokio_postgres::{Client, SimpleQueryMessage};

use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::signal::Signal;

/// Returns the SQL at the end of the last line, after the words that introduce it.
pub(crate) fn printed<'a>(ended: &'a Ended, words: &str) -> &'a str {
    let (_, sql) = ended.last_line().rsplit_once(words).unwrap_or_else(|| panic!("no SQL in {}", ended.log));
    assert!(sql.starts_with("SELECT "), "{sql}");
    sql
}

/// Runs the statements in one session and returns one column of the rows.
pub(crate) async fn typed(client: &Client, sql: &str, column: &str) -> Vec<String> {
    let rows = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let text = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.try_get(column).ok().flatten().map(str::to_owned),
        _ => None,
    };
    rows.iter().filter_map(text).collect()
}

/// Returns the ids of the inserts that the printed SQL shows through `test_decoding`.
async fn shown(outbox: &Outbox, ended: &Ended) -> Vec<String> {
    let lines = typed(&outbox.client().await, printed(ended, "In one session: "), "data").await;
    let id = |line: &String| line.split_once("id[uuid]:'").unwrap().1.split('\'').next().unwrap().to_owned();
    lines.iter().map(id).collect()
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
}

impl Setup {
    async fn new() -> Self {
        Self::of(Outbox::new().await).await
    }

    async fn of(outbox: Outbox) -> Self {
        let kafka = Kafka::shared();
        let settings = Settings::new(&outbox, &kafka);
        let router = Router::active(&settings).await;
        outbox.insert("order", "a", "{\"n\": 1}").await;
        outbox.all_confirmed().await;
        Setup { outbox, settings, router }
    }
}

#[tokio::test]
async fn recovery_sql_shows_events_after_publication_is_dropped_under_router() {
    let Setup { outbox, router, .. } = Setup::new().await;
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    let ended = router.exits(3).await;
    // before Postgres 18 the error may come from the stream instead of the catalogue watch
    ended.says(&["publication", "does not exist"]);
    outbox.execute(PUBLICATION).await;
    assert_eq!(shown(&outbox, &ended).await, gap);
}

#[tokio::test]
async fn recovery_sql_shows_events_after_publication_is_created_again_unseen() {
    let Setup { outbox, router, .. } = Setup::new().await;
    router.signal(Signal::Stop);
    outbox.execute(&format!("SELECT pg_terminate_backend({}, 60000)", outbox.active_pid().await)).await;
    outbox.released().await;
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    outbox.execute(PUBLICATION).await;
    router.signal(Signal::Continue);
    let ended = router.exits(3).await;
    ended.says(&["created again"]);
    assert_eq!(shown(&outbox, &ended).await, gap);
}

/// Up to Postgres 17 the slot cannot get past WAL without its publication, even after it is created again; 18 leaves the rows
/// out.
#[tokio::test]
async fn recovery_sql_shows_events_that_the_server_cannot_decode() {
    let Setup { outbox, settings, router } = Setup::new().await;
    router.stop().await;
    if outbox.server_version().await >= 180_000 {
        return;
    }
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    outbox.execute(PUBLICATION).await;
    let ended = Router::start(&settings).exits(3).await;
    outbox.released().await;
    assert_eq!(shown(&outbox, &ended).await, gap);

    // following the printed advice: these events are skipped, and the later one arrives
    let ended =
        Router::with_arguments(&settings, &["--accept-gap", ended.accept_gap_position()]).exits(3).await;
    assert_eq!(shown(&outbox, &ended).await, gap);
    ended.says(&["outbox-router slot advance --to LSN"]);
    let (end, last) = (outbox.lsn().await, outbox.insert("order", "a", "{\"n\": 2}").await);
    let moved = settings.run(&["slot", "advance", "--to", &end.to_string(), "--yes"]);
    assert_eq!(moved.code, 0, "{}{}", moved.out, moved.err);
    assert!(moved.out.contains("Not counted:"), "{}", moved.out);
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = Kafka::shared().records(&outbox.name).await;
    assert_eq!(records.len(), 2);
    assert_eq!(records[1].id(), last);
}

/// Shows a row that was written while the table was in another schema, which was not published.
async fn shows_event_of_moved_table(publication: &str, away: &str, back: &str) {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{TABLE}; {publication}; CREATE SCHEMA elsewhere")).await;
    outbox.create_slot("pgoutput").await;
    let Setup { outbox, settings, router } = Setup::of(outbox).await;
    router.stop().await;
    outbox.execute(&format!("ALTER TABLE outbox SET SCHEMA elsewhere; {away}")).await;
    let insert = "INSERT INTO elsewhere.outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{}') \
                  RETURNING id::text";
    let missing: String = outbox.query(insert).await[0].get(0);
    outbox.execute(&format!("ALTER TABLE elsewhere.outbox SET SCHEMA public; {back}")).await;
    let ended = Router::start(&settings).exits(3).await;
    outbox.released().await;
    let lines = typed(&outbox.client().await, printed(&ended, "In one session: "), "data").await;
    assert!(lines.iter().any(|line| line.contains(&missing)), "{missing}: {lines:?} {}", ended.log);
    ended.says(&[
        "may also show rows that are in Kafka",
        "while the table was unlogged are only in the table",
    ]);
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
