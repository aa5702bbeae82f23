//! Ids and business keys of events: what the table that `init` creates and `emit` do with them.

use crate::support::outbox::connect;
use crate::support::place::{Place, Ran, psql, refused, succeeded};

const FIRST: &str =
    "SELECT outbox_router.emit('invoice', '4711', 'invoice.paid', '{}', idempotency_key => 'paid:4711')";

fn skipping() -> String {
    FIRST.replace("4711')", "4711', on_duplicate => 'skip')")
}

/// An outbox made by `init`, and the URL of a role with the rights of an application.
fn outbox() -> (Place, String) {
    let place = Place::new();
    succeeded(place.run(&["init"]), &[]);
    let app = format!("{}_app", place.name);
    place.psql(&format!(
        "CREATE ROLE {app} LOGIN; GRANT USAGE ON SCHEMA outbox_router TO {app}; GRANT INSERT ON outbox TO {app}"
    ));
    let url = place.url(&app);
    (place, url)
}

fn in_sql(url: &str, sql: &str) -> Ran {
    psql(url, &["-At", "-c", sql])
}

#[test]
fn a_second_event_with_a_business_key_is_refused_or_skipped() {
    let (place, app) = outbox();
    let first = succeeded(in_sql(&app, FIRST), &[]).out;
    refused(
        &in_sql(&app, FIRST),
        1,
        &["duplicate key value violates unique constraint \"outbox_idempotency_key_idx\""],
    );
    assert_eq!(succeeded(in_sql(&app, &skipping()), &[]).out, first);
    // the transaction goes on
    let rest = format!("BEGIN; {}; SELECT outbox_router.emit('a', 'b', 'c', NULL); COMMIT", skipping());
    succeeded(in_sql(&app, &rest), &[]);
    succeeded(in_sql(&app, &skipping().replace("paid:4711'", "paid:4712'")), &[]);
    assert_eq!(place.psql("SELECT count(*), count(idempotency_key) FROM outbox"), "3|2\n");
}

#[test]
fn a_business_key_that_no_index_takes_is_refused() {
    let (place, app) = outbox();
    for key in ["repeat('x', 10000)", "''", "repeat('ü', 501)"] {
        for duplicate in ["error", "skip"] {
            let emit =
                format!("SELECT outbox_router.emit('a', 'b', 'c', NULL, '{{}}', {key}, '{duplicate}')");
            refused(&in_sql(&app, &emit), 1, &["idempotency_key_length"]);
        }
    }
    let other = FIRST.replace("4711')", "4711', on_duplicate => 'ignore')");
    refused(&in_sql(&app, &other), 1, &["on_duplicate is neither error nor skip"]);
    assert_eq!(place.psql("SELECT count(*) FROM outbox"), "0\n");
}

/// The first event's transaction has not ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_waits_for_the_first_event() {
    let (place, app) = outbox();
    for (end, skipped) in [("ROLLBACK", false), ("COMMIT", true)] {
        let (first, second) = (connect(&app).await.unwrap(), connect(&app).await.unwrap());
        first.batch_execute("BEGIN").await.unwrap();
        let id: String = first.query_one(&format!("{FIRST}::text"), &[]).await.unwrap().get(0);
        let pid: i32 = second.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let sql = format!("{}::text", skipping());
        let waiting = tokio::spawn(async move { second.query_one(&sql, &[]).await.unwrap().get(0) });
        let blocked = format!("SELECT cardinality(pg_blocking_pids({pid})) > 0");
        while !first.query_one(&blocked, &[]).await.unwrap().get::<_, bool>(0) {
            assert!(!waiting.is_finished(), "it does not wait");
        }
        first.batch_execute(end).await.unwrap();
        let found: String = waiting.await.unwrap();
        assert_eq!(found == id, skipped, "{end}");
        if !skipped {
            place.psql("DELETE FROM outbox");
        }
    }
}

#[test]
fn an_existing_table_gets_the_statements_that_add_the_column() {
    let place = Place::new();
    place.psql("CREATE TABLE outbox (id text PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb)");
    let added = |command: &str| {
        let ran = succeeded(
            place.run(&[command]),
            &["public.outbox has no column idempotency_key for business keys"],
        );
        let (_, statements) = ran.out.split_once("To add it, run: ").unwrap();
        statements.lines().next().unwrap().to_owned()
    };
    let statements = added("init");
    assert_eq!(added("check").replace('\n', " "), statements);
    refused(&in_sql(&place.url("postgres"), FIRST), 1, &["column \"idempotency_key\""]);
    succeeded(in_sql(&place.url("postgres"), "SELECT outbox_router.emit('a', 'b', 'c', NULL)"), &[]);
    for statement in statements.split_inclusive(';') {
        place.psql(statement);
    }
    succeeded(place.run(&["init"]), &["function outbox_router.event_with_key: created"]);
    let first = succeeded(in_sql(&place.url("postgres"), FIRST), &[]).out;
    assert_eq!(succeeded(in_sql(&place.url("postgres"), &skipping()), &[]).out, first);
    assert!(!place.run(&["check"]).out.contains("business keys"));
}

/// It may put a view in the table's place, whose functions would otherwise run with the rights of whoever ran init.
#[test]
fn the_function_that_finds_a_key_belongs_to_the_owner_of_the_table() {
    let place = Place::new();
    let owner = format!("{}_owner", place.name);
    place.psql(&format!(
        "CREATE ROLE {owner}; CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text, aggregate_id text, \
         event_type text, payload jsonb, headers jsonb, idempotency_key text UNIQUE); ALTER TABLE outbox OWNER TO {owner}"
    ));
    succeeded(place.run(&["init"]), &["function outbox_router.event_with_key: created"]);
    let of = "SELECT proowner::regrole FROM pg_proc WHERE proname = 'event_with_key'";
    assert_eq!(place.psql(of), format!("{owner}\n"));
    let first = succeeded(in_sql(&place.url("postgres"), FIRST), &[]).out;
    assert_eq!(succeeded(in_sql(&place.url("postgres"), &skipping()), &[]).out, first);
    place.psql(&format!("DROP OWNED BY {owner}; DROP ROLE {owner}"));
}

/// Also in one microsecond, and after the clock was set back; by a role that may only insert.
#[test]
fn ids_of_a_session_increase() {
    let (place, app) = outbox();
    place.psql(&format!("REVOKE USAGE ON SCHEMA outbox_router FROM {}_app", place.name));
    let insert = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) SELECT 'a', n::text, 'c' FROM generate_series(1, 2000) n";
    let set_back = "SELECT set_config('outbox_router.uuid_v7', (extract(epoch FROM now() + interval '1 day') * 1000000)::bigint::text, false)";
    let start = place.psql("SELECT clock_timestamp()");
    succeeded(psql(&app, &["-c", insert, "-c", set_back, "-c", insert]), &[]);
    let ordered = "SELECT count(*) FILTER (WHERE id > before), count(*), count(DISTINCT substr(id::text, 15, 1)), min(substr(id::text, 15, 1)) \
                   FROM (SELECT id, lag(id) OVER (ORDER BY ctid) AS before FROM outbox) AS rows";
    assert_eq!(place.psql(ordered), "3999|4000|1|7\n");
    let first = "SELECT to_timestamp(('x' || substr(replace(min(id::text), '-', ''), 1, 12))::bit(48)::bigint / 1000.0) FROM outbox";
    let recent = format!(
        "SELECT ({first}) BETWEEN date_trunc('milliseconds', '{}'::timestamptz) AND clock_timestamp()",
        start.trim()
    );
    assert_eq!(place.psql(&recent), "t\n");
}
