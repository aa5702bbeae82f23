//! `check` on the outbox table itself: what it is, whether applications can change its rows, and whether that repeats events.

use super::check::Found;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::{Place, psql};
use crate::support::router::Router;
use crate::support::settings::Settings;

/// The table of the README, partitioned.
const PARTITIONED: &str = "CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id \
     text NOT NULL, event_type text NOT NULL, payload jsonb, headers jsonb, created_at timestamptz NOT NULL DEFAULT now(), \
     state text, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at); \
     CREATE TABLE outbox_old PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2000-01-01'); \
     CREATE TABLE outbox_new PARTITION OF outbox FOR VALUES FROM ('2000-01-01') TO (MAXVALUE)";

/// An event, as an application writes it.
const INSERT: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'placed', '{}')";

fn ready(table: &str) -> Place {
    let place = Place::new();
    place.psql(table);
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    place
}

/// Types the statements of a remedy, each of which begins with `begin` and ends before a semicolon or at the end.
fn typed(place: &Place, finding: &str, begin: &str) {
    let remedy = finding.split_once("\n-> ").unwrap().1;
    let statements: Vec<_> =
        remedy.trim_end().split(begin).skip(1).map(|rest| rest.split(';').next().unwrap()).collect();
    assert!(!statements.is_empty(), "{finding}");
    for rest in statements {
        place.psql(&format!("{begin}{rest}"));
    }
}

#[test]
fn a_view_is_not_called_missing() {
    let place = Place::new();
    place.psql("CREATE VIEW outbox AS SELECT 1 AS id");
    let found = Found::at(&place).of("publication");
    assert!(found.contains("public.outbox is not a table"), "{found}");
}

/// A warning once at the start of `run`, and in `check`, since nothing else says that rows are dropped.
#[tokio::test]
async fn an_outbox_table_that_the_configuration_does_not_name_is_warned_of() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let warning = "\"outbox_router\" also publishes billing.outbox, with the columns of an outbox table";
    outbox
        .execute(
            "CREATE SCHEMA billing; CREATE TABLE billing.outbox (LIKE outbox INCLUDING ALL); \
             CREATE TABLE customers (id int PRIMARY KEY, payload jsonb); \
             CREATE TABLE outbox_router.outbox (LIKE outbox INCLUDING ALL); \
             ALTER PUBLICATION outbox_router ADD TABLE customers, outbox_router.outbox",
        )
        .await;
    assert_eq!(Found::with(&settings).await.of("unnamed_outbox"), "");
    outbox.execute("ALTER PUBLICATION outbox_router ADD TABLE billing.outbox").await;
    let found = Found::with(&settings).await.of("unnamed_outbox");
    assert!(found.starts_with("warning: ") && found.contains(warning), "{found}");
    let router = Router::active(&settings).await;
    outbox.insert("order", "a", "{}").await;
    outbox.execute(&format!("SELECT pg_terminate_backend({}, 60000)", outbox.active_pid().await)).await;
    outbox.insert("order", "a", "{}").await;
    kafka.holds(&outbox.name, 2).await;
    let ended = router.stop().await;
    assert_eq!(ended.log.matches(warning).count(), 1, "{}", ended.log);
    let both = toml::Value::from(vec!["public.outbox", "billing.outbox"]);
    assert_eq!(Found::with(&settings.set("outbox.table", both)).await.of("unnamed_outbox"), "");
}

#[test]
fn partitions_of_the_outbox_are_not_outboxes_of_their_own() {
    let place = ready(PARTITIONED);
    place.psql(&format!("ALTER PUBLICATION {} ADD TABLE outbox_old", place.name));
    assert_eq!(Found::at(&place).of("unnamed_outbox"), "");
}

#[test]
fn an_outbox_without_replica_identity_whose_deletes_are_published() {
    for partitioned in [false, true] {
        let place = match partitioned {
            false => ready("SELECT"),
            true => ready(PARTITIONED),
        };
        place.psql(&format!("ALTER PUBLICATION {} SET (publish = 'insert, delete')", place.name));
        place.psql(INSERT);
        assert_eq!(Found::at(&place).of("replica_identity"), "", "the primary key is the identity");
        place.psql("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey");
        let deleted = psql(&place.url("postgres"), &["-c", "DELETE FROM outbox"]);
        assert!(deleted.err.contains("does not have a replica identity"), "{deleted:?}");
        let found = Found::at(&place);
        let finding = found.of("replica_identity");
        assert!(finding.starts_with("warning"), "{finding}");
        typed(&place, &finding, "ALTER TABLE");
        assert_eq!(Found::at(&place).of("replica_identity"), "");
        place.psql("DELETE FROM outbox");
        // an INSERT needs no identity
        place.psql(&format!(
            "ALTER TABLE outbox REPLICA IDENTITY DEFAULT; ALTER PUBLICATION {} SET (publish = 'insert')",
            place.name
        ));
        assert_eq!(Found::at(&place).of("replica_identity"), "");
    }
}

#[test]
fn a_role_that_may_move_rows_to_another_partition() {
    let place = ready(PARTITIONED);
    assert_eq!(Found::at(&place).of("row_movement"), "");
    let shop = format!("{}_shop", place.name);
    place.psql(&format!("CREATE ROLE {shop} LOGIN; GRANT ALL ON outbox TO {shop}"));
    place.psql(INSERT);
    let move_rows = "UPDATE outbox SET created_at = '1999-01-01'";
    let finding = Found::at(&place).of("row_movement");
    assert!(finding.starts_with("warning") && finding.contains(&shop), "{finding}");
    let statements = finding.split_once("\n-> ").unwrap().1;
    let (_, statements) = statements.split_once(": ").unwrap();
    place.psql(statements);
    assert_eq!(Found::at(&place).of("row_movement"), "");
    let url = place.url(&shop);
    let refused = psql(&url, &["-c", move_rows]);
    assert!(refused.err.contains("permission denied"), "{refused:?}");
    for sql in ["UPDATE outbox SET state = 'seen'", INSERT, "DELETE FROM outbox"] {
        let ran = psql(&url, &["-c", sql]);
        assert_eq!(ran.code, 0, "{sql}: {ran:?}");
    }
    place.psql(&format!("DROP OWNED BY {shop}"));
}
