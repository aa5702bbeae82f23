//! What `init` prepares for polling, and what `check` and `run` say if something is missing.

use crate::polling::polled;
use crate::support::comparison::{Repeats, in_order, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::{refused, succeeded};
use crate::support::pooler::pooler;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::table_lock::TableLock;

/// The role neither replicates nor owns anything.
#[tokio::test]
async fn a_role_with_the_privileges_that_init_grants_is_enough() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let role = format!("{}_router", outbox.name);
    succeeded(settings.run_async(&["init", "--role", &role]).await, &["role", "may log in now", "granted"]);
    let may =
        format!("SELECT concat_ws(' ', rolreplication, rolsuper) FROM pg_roles WHERE rolname = '{role}'");
    assert_eq!(outbox.text(&may).await, "f f");
    let settings = settings.set("postgres.url", outbox.url().replace("postgres@", &format!("{role}@")));
    succeeded(settings.run_async(&["check"]).await, &["public.outbox can be polled"]);
    outbox.insert_numbers("order", "a", 1..20).await;
    let router = Router::active(&settings).await;
    outbox.all_published().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
    outbox.execute(&format!("REVOKE UPDATE (status) ON outbox FROM {role}")).await;
    let found = settings.run_async(&["check"]).await;
    assert!(found.code == 1 && found.out.contains("OBR-1107: the role"), "{}", found.out);
    Router::start(&settings).exits(1).await.says(&["may not claim and mark rows"]);
    outbox.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// A table that was there before the router, with these columns besides the usual ones.
async fn existing(columns: &str) -> Outbox {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox
        .execute(&format!(
            "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text, \
             event_type text NOT NULL DEFAULT 'happened', payload jsonb, headers jsonb NOT NULL DEFAULT '{{}}', {columns})"
        ))
        .await;
    outbox
}

#[tokio::test]
async fn an_existing_table_is_polled_once_it_has_the_columns() {
    let kafka = Kafka::shared();
    let outbox = existing("state text").await;
    outbox.insert("order", "old", "{\"n\": 1}").await;
    let settings = Settings::polling(&outbox, &kafka)
        .set("outbox.columns.status", "state_of_row")
        .set("outbox.status.new", "pending")
        .set("outbox.status.published", "delivered");
    let found = settings.run_async(&["check"]).await;
    assert!(
        found.code == 1 && found.out.contains("lacks columns that polling needs: position, state_of_row"),
        "{}",
        found.out
    );
    let role = format!("{}_router", outbox.name);
    let missing = settings.run_async(&["init", "--role", &role]).await;
    refused(
        &missing,
        1,
        &["OBR-4103: public.outbox lacks columns that polling needs: position, state_of_row"],
    );
    let statements =
        missing.err.lines().filter(|line| line.contains("ALTER TABLE") || line.contains("CREATE "));
    for statement in statements.map(str::trim).map(str::to_owned).collect::<Vec<_>>() {
        for one in statement.split("; ") {
            outbox.execute(one).await;
        }
    }
    succeeded(settings.run_async(&["init", "--role", &role]).await, &["may log in now", "granted"]);
    outbox.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    succeeded(settings.run_async(&["check"]).await, &["public.outbox can be polled"]);
    assert_eq!(outbox.text("SELECT state_of_row FROM outbox").await, "delivered");
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..20).await;
    kafka.holds(&outbox.name, 19).await;
    router.stop().await;
    outbox.execute("DELETE FROM outbox WHERE aggregate_id = 'old'").await;
    assert_eq!(outbox.text("SELECT string_agg(DISTINCT state_of_row, ',') FROM outbox").await, "delivered");
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// Columns with the names of variables, a status of its own type, an aggregate that is no text, a time that is none, and a database
/// whose transactions are serializable.
#[tokio::test]
async fn a_table_with_unusual_columns_is_polled() {
    let kafka = Kafka::shared();
    let outbox = Outbox::bare(shared::postgres()).await;
    let settings = Settings::polling(&outbox, &kafka)
        .set("outbox.columns.aggregate_id", "claimed")
        .set("outbox.columns.position", "Seq")
        .set("outbox.columns.status", "blocked")
        .set("outbox.columns.next_attempt_at", "due")
        .set("topics.allow", vec![outbox.topic("order")]);
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"outbox\": created"]);
    outbox
        .execute(&format!(
            "CREATE TYPE state AS ENUM ('NEW', 'PUBLISHED', 'FAILED'); DROP TABLE outbox; CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT \
             gen_random_uuid(), aggregate_type text, claimed bigint, event_type text DEFAULT 'happened', payload jsonb, created_at bigint DEFAULT 7, \
             \"Seq\" bigint DEFAULT outbox_router.next_position(), blocked state NOT NULL DEFAULT 'NEW', attempts int, refusals int, \
             due timestamptz, published_at timestamptz, last_error text, moment int, me int, lowest int); \
             ALTER DATABASE {} SET default_transaction_isolation = 'serializable'; ALTER DATABASE {} SET default_transaction_read_only = on",
            outbox.name, outbox.name
        ))
        .await;
    let missing = settings.run_async(&["check"]).await;
    for statement in missing.out.lines().filter(|line| line.contains("CREATE ")).map(str::trim) {
        outbox.execute(statement).await;
    }
    succeeded(settings.run_async(&["check"]).await, &["public.outbox can be polled"]);
    let router = Router::active(&settings).await;
    let insert = "INSERT INTO outbox (aggregate_type, claimed, payload) SELECT 'order', n % 3, jsonb_build_object('n', n / 3 + 1) \
                  FROM generate_series(0, 29) n; INSERT INTO outbox (aggregate_type, claimed) VALUES ('forbidden', 1)";
    outbox.execute(insert).await;
    kafka.holds(&outbox.name, 30).await;
    let refused = "SELECT concat_ws(' ', blocked, refusals, attempts) FROM outbox WHERE refusals > 0";
    eventually("a row is refused", async || (!outbox.query(refused).await.is_empty()).then_some(())).await;
    assert_eq!(outbox.text(refused).await, "NEW 1 1");
    succeeded(
        settings.run_async(&["dead-letters", "discard", "--all", "--yes"]).await,
        &["1 event will not be sent"],
    );
    router.stop().await;
    assert_eq!(outbox.text("SELECT string_agg(DISTINCT blocked::text, ',') FROM outbox").await, "PUBLISHED");
    in_order(&kafka.records(&outbox.name).await, Repeats::Never);
}

#[tokio::test]
async fn commands_that_need_the_log_are_refused() {
    let (_, settings) = polled(&Kafka::shared()).await;
    for command in [&["slot", "advance", "--to", "0/1"][..], &["tail"], &["shards", "change", "--from", "2"]]
    {
        refused(&settings.run_async(command).await, 2, &["`[source] mode` is \"poll\""]);
    }
    refused(
        &settings.run_async(&["run", "--accept-gap", "0/1"]).await,
        2,
        &["--accept-gap is about a position in the log"],
    );
}

#[tokio::test]
async fn no_session_needs_settings_that_a_pooler_refuses() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let port = pooler(outbox.address().to_owned(), "options");
    let settings = settings
        .reached_at(&outbox, &format!("127.0.0.1:{port}"))
        .set("postgres.url", format!("postgres://postgres@127.0.0.1:{port}/{}?sslmode=disable", outbox.name));
    outbox.insert_numbers("order", "a", 1..20).await;
    succeeded(settings.run_async(&["check"]).await, &["public.outbox can be polled"]);
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    succeeded(settings.run_async(&["dead-letters", "list"]).await, &["No row was refused"]);
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// The table of a relay that had its own status, with rows that it has not sent.
#[tokio::test]
async fn rows_that_wait_when_the_columns_are_added_are_sent_before_newer_ones() {
    let kafka = Kafka::shared();
    let outbox =
        existing("created_at timestamptz DEFAULT clock_timestamp(), status text NOT NULL DEFAULT 'NEW'")
            .await;
    outbox.insert("order", "sent", "{\"n\": 1}").await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'").await;
    outbox.insert_numbers("order", "a", 1..20).await;
    // the first rows are elsewhere in the table
    outbox.execute("UPDATE outbox SET event_type = 'happened too' WHERE (payload ->> 'n')::int < 5").await;
    outbox.insert_numbers("order", "b", 1..4).await;
    outbox
        .execute("UPDATE outbox SET status = 'FAILED' WHERE aggregate_id = 'b' AND payload ->> 'n' = '1'")
        .await;
    let settings = Settings::polling(&outbox, &kafka);
    let missing = settings.run_async(&["init"]).await;
    refused(&missing, 1, &["OBR-4103", "give positions to the rows that wait to be sent"]);
    let statements = missing.err.lines().map(str::trim);
    for statement in statements.filter(|line| line.starts_with("BEGIN") || line.starts_with("CREATE ")) {
        outbox.execute(statement).await;
    }
    succeeded(settings.run_async(&["check"]).await, &["public.outbox can be polled", "1 row failed"]);
    outbox.insert_numbers("order", "a", 20..30).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    // the relay's failed row keeps its aggregate waiting
    assert_eq!(kafka.count(&outbox.name).await.unwrap(), 29);
    succeeded(
        settings.run_async(&["dead-letters", "list"]).await,
        &["failed", "behind", "3 events of 1 aggregate"],
    );
    let retry = settings.run_async(&["dead-letters", "retry", "--aggregate", "b"]).await;
    succeeded(retry, &["1 event will be tried again"]);
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    outbox.execute("DELETE FROM outbox WHERE aggregate_id = 'sent'").await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// An outbox with nine events, whose applications may leave a position empty.
async fn without_required_positions(kafka: &Kafka) -> (Outbox, Settings) {
    let (outbox, settings) = polled(kafka).await;
    outbox.execute("ALTER TABLE outbox ALTER position DROP NOT NULL").await;
    outbox.insert_numbers("order", "a", 1..10).await;
    (outbox, settings)
}

/// A row without a position, and a later one of its aggregate, in one transaction.
const UNPLACED_AND_LATER: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, payload, position) \
     VALUES ('order', 'a', '{\"n\": 10}', NULL); \
     INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{\"n\": 11}')";

/// No claim would find such a row, and later ones of its aggregate would overtake it.
#[tokio::test]
async fn a_row_without_a_position_keeps_the_router_waiting_until_it_has_one() {
    let kafka = Kafka::shared();
    let (outbox, settings) = without_required_positions(&kafka).await;
    let mut router = Router::active(&settings).await;
    outbox.all_published().await;
    outbox.execute(UNPLACED_AND_LATER).await;
    router.logs("rows of public.outbox wait to be sent and have no position").await;
    let found = settings.run_async(&["check"]).await;
    assert!(found.code == 1 && found.out.contains("OBR-1107"), "{}", found.out);
    let statement = found.out.lines().map(str::trim).find(|line| line.starts_with("UPDATE ")).unwrap();
    outbox.execute(statement).await;
    outbox.insert_numbers("order", "a", 12..20).await;
    outbox.all_published().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// The rows are committed while a claim has begun, but has not yet read the table.
#[tokio::test]
async fn a_row_without_a_position_is_noticed_during_a_claim() {
    let kafka = Kafka::shared();
    let (outbox, settings) = without_required_positions(&kafka).await;
    let mut router = Router::active(&settings).await;
    outbox.all_published().await;
    let lock = TableLock::take(&outbox, "outbox_router.poll_claims").await;
    eventually("a claim waits for the lock", async || {
        let waiting = "SELECT count(*)::text FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted \
             AND l.relation = 'outbox_router.poll_claims'::regclass AND a.query LIKE '%DO $%'";
        (outbox.text(waiting).await != "0").then_some(())
    })
    .await;
    outbox.execute(UNPLACED_AND_LATER).await;
    lock.release().await;
    router.logs("rows of public.outbox wait to be sent and have no position").await;
    router.stop().await;
    assert_eq!(kafka.count(&outbox.name).await.unwrap(), 9);
}

#[tokio::test]
async fn a_role_that_row_level_security_applies_to_is_refused() {
    let (outbox, settings) = polled(&Kafka::shared()).await;
    let role = format!("{}_router", outbox.name);
    succeeded(settings.run_async(&["init", "--role", &role]).await, &["granted"]);
    outbox
        .execute(&format!(
            "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY visible ON outbox TO {role} USING (aggregate_id <> 'hidden')"
        ))
        .await;
    let settings = settings.set("postgres.url", outbox.url().replace("postgres@", &format!("{role}@")));
    let ended = Router::start(&settings).exits(1).await;
    ended.says(&["OBR-1107", "row-level security of public.outbox may hide rows"]);
    outbox.execute(ended.command("ALTER ROLE ")).await;
    outbox.insert_numbers("order", "hidden", 1..5).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    outbox.all_published().await;
    outbox.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// Otherwise each session would send the same rows again.
#[tokio::test]
async fn a_table_that_refuses_to_be_marked_stops_the_router() {
    let function = "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ";
    let trigger = "END $$; CREATE TRIGGER keep BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()";
    for (refusal, message) in [
        (
            "ALTER TABLE outbox ADD CONSTRAINT c CHECK (status <> 'PUBLISHED')".to_owned(),
            "violates check constraint",
        ),
        (format!("{function} RETURN NULL; {trigger}"), "a trigger keeps its rows from being marked"),
        (
            format!(
                "{function} IF NEW.aggregate_id = 'a' THEN NEW.status := OLD.status; END IF; RETURN NEW; {trigger}"
            ),
            "a trigger keeps its rows from being marked",
        ),
    ] {
        let (outbox, settings) = polled(&Kafka::shared()).await;
        outbox.execute(&refusal).await;
        let router = Router::active(&settings).await;
        outbox.insert_numbers("order", "b", 1..5).await;
        outbox.insert_numbers("order", "a", 1..5).await;
        let parts = [
            "OBR-1005: rows cannot be marked",
            message,
            "some may be sent twice",
            "Change the column, constraint or trigger",
        ];
        router.exits(3).await.says(&parts);
        // another router need not wait until the lease expires
        assert_eq!(
            outbox.text("SELECT count(*)::text FROM outbox_router.poll_claims WHERE NOT ended").await,
            "0"
        );
    }
}

/// That is no lost connection.
#[tokio::test]
async fn a_column_that_is_too_small_is_named() {
    let (outbox, settings) = polled(&Kafka::shared()).await;
    let settings = settings.set("topics.allow", vec![outbox.topic("order")]);
    outbox.execute("ALTER TABLE outbox ALTER last_error TYPE varchar(5)").await;
    let mut router = Router::active(&settings).await;
    outbox.insert("forbidden", "a", "{}").await;
    router.logs("value too long for type character varying(5)").await;
    assert!(router.log().contains("OBR-1005") && !router.log().contains("OBR-1007"), "{}", router.log());
    outbox.execute("ALTER TABLE outbox ALTER last_error TYPE text").await;
    outbox.insert_numbers("order", "b", 1..5).await;
    let what = "the row is refused, and others are published";
    crate::support::eventually::eventually(what, async || {
        let done = "SELECT concat(count(*) FILTER (WHERE refusals = 1), ' ', count(*) FILTER (WHERE status = 'PUBLISHED')) FROM outbox";
        (outbox.text(done).await == "1 4").then_some(())
    })
    .await;
    router.stop().await;
}

#[tokio::test]
async fn status_without_a_router_counts_rows() {
    let (outbox, settings) = polled(&Kafka::shared()).await;
    let settings = settings.set("admin.listen", "127.0.0.1:1");
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.insert("order", "b", "{}").await;
    outbox.execute("UPDATE outbox SET status = 'FAILED' WHERE aggregate_id = 'b'").await;
    let ran = settings.run_async(&["status"]).await;
    assert!(ran.code == 1 && ran.out.contains("table public.outbox: 3 rows due"), "{ran:?}");
    assert!(ran.out.contains("1 row failed") && !ran.out.contains("slot"), "{ran:?}");
    let json: serde_json::Value =
        serde_json::from_str(&settings.run_async(&["status", "--json"]).await.out).unwrap();
    assert_eq!(
        (&json["postgres"]["rows_due"], &json["postgres"]["rows_failed"]),
        (&3.into(), &1.into()),
        "{json}"
    );
}
