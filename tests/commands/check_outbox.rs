//! `check` on the outbox table itself: what it is, whether applications can change its rows, and whether that repeats events.

use super::check::Found;
use crate::support::place::{Place, psql};

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
