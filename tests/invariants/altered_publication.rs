//! The publication or the table is altered and altered back. The router compares its log with the stream: it stops if a row is missing,
//! and says how many are, and goes on otherwise.

use super::temporarily_unpublished::{EVENT, SCHEMA_PUBLICATION, Setup};
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::Router;
use crate::support::shared;

/// Statements after which no row is missing from the stream. `THE_ROLE` is another superuser.
const WITHOUT_LOSS: [&str; 13] = [
    "ALTER PUBLICATION outbox_router OWNER TO THE_ROLE",
    "REASSIGN OWNED BY THE_ROLE TO postgres",
    "ALTER PUBLICATION outbox_router SET (publish = 'insert')",
    "ALTER PUBLICATION outbox_router SET (publish_via_partition_root = true)",
    "ALTER PUBLICATION outbox_router SET TABLE outbox",
    "ALTER PUBLICATION outbox_router RENAME TO renamed; ALTER PUBLICATION renamed RENAME TO outbox_router",
    "CREATE TABLE more (LIKE outbox); ALTER PUBLICATION outbox_router ADD TABLE more",
    "INSERT INTO more (id, aggregate_type, aggregate_id, event_type, headers, created_at) VALUES (gen_random_uuid(), 'order', 'a', 'b', '{}', now())",
    "ALTER PUBLICATION outbox_router DROP TABLE more",
    "ALTER PUBLICATION outbox_router DROP TABLE outbox; ALTER PUBLICATION outbox_router ADD TABLE outbox",
    "GRANT USAGE ON SCHEMA public TO THE_ROLE; ALTER TABLE outbox OWNER TO THE_ROLE",
    "ALTER TABLE outbox RENAME TO o1; ALTER TABLE o1 RENAME TO outbox",
    "REASSIGN OWNED BY THE_ROLE TO postgres; DROP OWNED BY THE_ROLE; DROP ROLE THE_ROLE",
];

async fn without_loss(running: bool) {
    let setup = Setup::new(TABLE, PUBLICATION).await;
    let (client, role) = (setup.outbox.client().await, format!("{}_role", setup.outbox.name));
    client.batch_execute(&format!("CREATE ROLE {role} SUPERUSER")).await.unwrap();
    let statements = WITHOUT_LOSS.map(|sql| sql.replace("THE_ROLE", &role));
    let statements: Vec<&str> = statements.iter().flat_map(|sql| [sql.as_str(), EVENT]).collect();
    setup.assert_unaffected(running, &statements, WITHOUT_LOSS.len()).await;
}

#[tokio::test]
async fn altered_publication_that_lost_no_row_is_no_alarm_for_running_router() {
    without_loss(true).await;
}

#[tokio::test]
async fn altered_publication_that_lost_no_row_is_no_alarm_at_start() {
    without_loss(false).await;
}

/// What leaves rows out, the publication for it, and how many rows it is.
fn losses() -> [(&'static str, Vec<String>, &'static str); 5] {
    let event = |table: &str| EVENT.replace("INTO outbox", &format!("INTO {table}"));
    let sql = |statements: &[&str]| statements.iter().map(|sql| (*sql).to_owned()).collect::<Vec<_>>();
    let publish = |operation: &str| format!("ALTER PUBLICATION outbox_router SET (publish = '{operation}')");
    [
        (
            PUBLICATION,
            vec![publish("delete"), event("outbox"), publish("insert")],
            "one row that was committed",
        ),
        (
            PUBLICATION,
            sql(&[
                "ALTER PUBLICATION outbox_router DROP TABLE outbox",
                EVENT,
                EVENT,
                "ALTER PUBLICATION outbox_router ADD TABLE outbox",
            ]),
            "2 rows that were committed",
        ),
        (
            PUBLICATION,
            [
                sql(&["ALTER TABLE outbox RENAME TO o1", "CREATE TABLE outbox (LIKE o1 INCLUDING ALL)"]),
                vec![event("outbox"); 5],
                sql(&["ALTER TABLE outbox RENAME TO stand_in", "ALTER TABLE o1 RENAME TO outbox", EVENT]),
            ]
            .concat(),
            "5 rows that were committed",
        ),
        (
            PUBLICATION,
            [
                sql(&["ALTER SCHEMA public RENAME TO former", "CREATE SCHEMA public"]),
                sql(&[
                    "CREATE TABLE outbox (LIKE former.outbox INCLUDING ALL)",
                    EVENT,
                    "DROP SCHEMA public CASCADE",
                ]),
                sql(&["ALTER SCHEMA former RENAME TO public"]),
            ]
            .concat(),
            "one row that was committed",
        ),
        (
            SCHEMA_PUBLICATION,
            [
                sql(&["CREATE SCHEMA elsewhere", "ALTER TABLE outbox SET SCHEMA elsewhere"]),
                sql(&["ALTER TABLE elsewhere.outbox RENAME TO events"]),
                vec![event("elsewhere.events"); 3],
                sql(&[
                    "ALTER TABLE elsewhere.events RENAME TO outbox",
                    "ALTER TABLE elsewhere.outbox SET SCHEMA public",
                ]),
            ]
            .concat(),
            "3 rows that were committed",
        ),
    ]
}

async fn with_loss(running: bool) {
    let version = Outbox::bare(shared::postgres()).await.server_version().await;
    for (publication, statements, rows) in losses() {
        if publication == SCHEMA_PUBLICATION && version < 150_000 {
            continue;
        }
        let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
        Setup::new(TABLE, publication).await.assert_stops(running, &statements, &["altered", rows]).await;
    }
}

#[tokio::test]
async fn altered_publication_that_lost_rows_stops_running_router_with_their_number() {
    with_loss(true).await;
}

#[tokio::test]
async fn altered_publication_that_lost_rows_stops_the_start_with_their_number() {
    with_loss(false).await;
}

/// Its row was written while the table was not published, and is decoded as of then.
#[tokio::test]
async fn altered_publication_is_judged_after_the_end_of_transactions_that_had_written() {
    let Setup { outbox, settings, router, .. } = Setup::new(TABLE, PUBLICATION).await;
    router.stop().await;
    outbox.execute("ALTER PUBLICATION outbox_router DROP TABLE outbox").await;
    let writer = outbox.client().await;
    writer.batch_execute(&format!("BEGIN; {EVENT}")).await.unwrap();
    outbox.execute("ALTER PUBLICATION outbox_router ADD TABLE outbox").await;
    let check = settings.run_async(&["check"]).await;
    assert!(check.out.contains("has written to the table, and is still open"), "{check:?}");
    let mut router = Router::start(&settings);
    router.logs("has written to the outbox and is open").await;
    writer.batch_execute("COMMIT").await.unwrap();
    router.exits(3).await.says(&["one row that was committed since is not in the stream"]);
}

/// A row filter leaves rows out on purpose.
#[tokio::test]
async fn altered_publication_stops_the_router_if_nobody_can_tell_what_it_lost() {
    let Setup { outbox, settings, router, .. } = Setup::new(TABLE, PUBLICATION).await;
    router.stop().await;
    if outbox.server_version().await < 150_000 {
        eprintln!("skipped: row filters need Postgres 15");
        return;
    }
    outbox.execute("ALTER PUBLICATION outbox_router SET TABLE outbox WHERE (aggregate_type <> 'x')").await;
    Router::start(&settings).exits(3).await.says(&["is not known", "row filter"]);
}
