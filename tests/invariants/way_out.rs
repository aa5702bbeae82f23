//! What the router prints to get at events that the stream does not hold is typed as it stands, and shows them all.

use tokio_postgres::{Client, SimpleQueryMessage};

use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::signal::Signal;

/// The SQL at the end of the last line, behind the words that introduce it.
pub(crate) fn printed<'a>(ended: &'a Ended, words: &str) -> &'a str {
    let (_, sql) = ended.last_line().rsplit_once(words).unwrap_or_else(|| panic!("no SQL in {}", ended.log));
    assert!(sql.starts_with("SELECT "), "{sql}");
    sql
}

/// Runs statements in one session, and returns one column of the rows.
pub(crate) async fn typed(client: &Client, sql: &str, column: &str) -> Vec<String> {
    let rows = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let text = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.try_get(column).ok().flatten().map(str::to_owned),
        _ => None,
    };
    rows.iter().filter_map(text).collect()
}

/// The ids of the inserts that `test_decoding` shows.
async fn shown(outbox: &Outbox, ended: &Ended) -> Vec<String> {
    let lines = typed(&outbox.client().await, printed(ended, "In one session: "), "data").await;
    let id = |line: &String| line.split_once("id[uuid]:'").unwrap().1.split('\'').next().unwrap().to_owned();
    lines.iter().map(id).collect()
}

/// Commits events while nothing publishes them, in another order than they were written in, and deletes one again.
/// Returns their ids in the order of commits.
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
    // what is no event of the outbox is not shown
    outbox.execute("CREATE TABLE other (id uuid); INSERT INTO other VALUES (gen_random_uuid())").await;
    slow.commit().await.unwrap();
    ids.push(last);
    ids
}

struct Setting {
    outbox: Outbox,
    settings: Settings,
    router: Router,
}

impl Setting {
    async fn new() -> Self {
        Self::of(Outbox::new().await).await
    }

    async fn of(outbox: Outbox) -> Self {
        let kafka = Kafka::shared();
        let settings = Settings::new(&outbox, &kafka);
        let router = Router::active(&settings).await;
        outbox.insert("order", "a", "{\"n\": 1}").await;
        outbox.all_confirmed().await;
        Setting { outbox, settings, router }
    }
}

#[tokio::test]
async fn way_out_of_a_publication_that_was_dropped_under_the_router() {
    let Setting { outbox, router, .. } = Setting::new().await;
    outbox.execute("DROP PUBLICATION outbox_router").await;
    let gap = gap(&outbox).await;
    let ended = router.exits(3).await;
    // before 18 the stream may be the first to say so
    ended.says(&["publication", "does not exist"]);
    outbox.execute(PUBLICATION).await;
    assert_eq!(shown(&outbox, &ended).await, gap);
}

#[tokio::test]
async fn way_out_of_a_publication_that_was_made_again_while_the_router_was_cut_off() {
    let Setting { outbox, router, .. } = Setting::new().await;
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

/// Until 17 the slot cannot get past a stretch without its publication, also when that is back; 18 leaves the rows out.
#[tokio::test]
async fn way_out_of_a_stretch_that_the_server_cannot_read() {
    let Setting { outbox, settings, router } = Setting::new().await;
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

    // as it is told: what is seen to is left out, and what comes behind it arrives
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

/// A row that was written while the table was in another schema, which the publication did not publish.
async fn moved_away(publication: &str, away: &str, back: &str) {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{TABLE}; {publication}; CREATE SCHEMA elsewhere")).await;
    outbox.create_slot("pgoutput").await;
    let Setting { outbox, settings, router } = Setting::of(outbox).await;
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
async fn way_out_of_a_table_that_left_the_schema_of_the_publication_and_came_back() {
    if Outbox::bare(shared::postgres()).await.server_version().await < 150_000 {
        return;
    }
    let publication =
        "CREATE PUBLICATION outbox_router FOR TABLES IN SCHEMA public WITH (publish = 'insert')";
    moved_away(publication, "", "").await;
}

#[tokio::test]
async fn way_out_of_a_table_that_was_elsewhere_while_a_publication_of_all_tables_was_missing() {
    let publication = "CREATE PUBLICATION outbox_router FOR ALL TABLES WITH (publish = 'insert')";
    moved_away(publication, "DROP PUBLICATION outbox_router", publication).await;
}
