//! Policies that hide rows from the router's role: what reads rows fails, and says so before.

use crate::commands::check::Found;
use crate::support::place::{Place, refused, succeeded};

/// A table of each kind that is read: parked events, the record of slots, the outbox. A router that did not see the parked events
/// would send later ones of their aggregates.
#[test]
fn rows_that_a_policy_hides_are_an_error_and_never_no_rows() {
    let mut place = Place::new().with("DEAD_LETTERS__POLICY", "park");
    let role = format!("{}_router", place.name);
    succeeded(place.run(&["init", "--role", &role]), &[]);
    place.psql(&format!(
        "GRANT SELECT ON outbox TO {role}; SELECT outbox_router.emit('order', '1', 'placed', '{{}}')"
    ));
    let administrator = place.url("postgres");
    place.set("POSTGRES__URL", &place.url(&role));
    Found::at(&place).assert_errors(&[]);
    for (table, reading) in [
        ("outbox_router.dead_letters", &["run"][..]),
        ("outbox_router.dead_letters", &["dead-letters", "list"]),
        ("outbox_router.slots", &[]),
    ] {
        place.psql(&format!("ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"));
        let found = Found::at(&place);
        assert_eq!(found.code, 1);
        let what = found.of("row_security");
        assert!(
            what.starts_with(&format!(
                "error: row-level security of {table} hides rows from the role \"{role}\""
            )),
            "{what}"
        );
        if !reading.is_empty() {
            refused(&place.run(reading), 1, &["row-level security policy", "BYPASSRLS"]);
        }
        let init = place.run(&["init", "--url", &administrator, "--role", &role]);
        refused(&init, 1, &["OBR-1107", table, "BYPASSRLS"]);
        place.psql(&format!("ALTER TABLE {table} DISABLE ROW LEVEL SECURITY"));
    }
    place.psql("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY");
    let found = Found::at(&place);
    assert_eq!(found.code, 0, "the stream has all rows");
    assert!(found.of("row_security").starts_with("warning: row-level security of public.outbox"));
    refused(&place.run(&["preview"]), 1, &["OBR-1005", "row-level security", "BYPASSRLS"]);
    place.psql(&format!("ALTER ROLE {role} BYPASSRLS"));
    assert_eq!(Found::at(&place).of("row_security"), "");
    succeeded(place.run(&["preview"]), &["placed"]);
}
