//! What the role that runs needs of the table of parked events.

use super::general_remedy;
use super::objects::Object;
use crate::postgres::dead_letters::sql::{NEEDED, TABLE};
use crate::postgres::quoting;
use crate::postgres::quoting::literal;

pub(super) fn privilege_object(role: &str) -> Object {
    let (name, text) = (quoting::name(role), literal(role));
    Object {
        name: format!("privilege of {name} on {TABLE}"),
        purpose: "Events that cannot be sent are put there, because `[dead_letters] policy` is \"park\""
            .to_owned(),
        // the table is made before, but not by the time that the script is read
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r, pg_catalog.pg_class c WHERE r.rolname = {text}\n    \
             AND c.oid = pg_catalog.to_regclass({})\n    \
             AND pg_catalog.has_schema_privilege(r.oid, c.relnamespace, 'USAGE')\n    AND {})",
            literal(TABLE),
            NEEDED
                .map(|privilege| format!("pg_catalog.has_table_privilege(r.oid, c.oid, '{privilege}')"))
                .join(" AND ")
        ),
        as_wanted: None,
        possible: None,
        make: format!(
            "GRANT USAGE ON SCHEMA outbox_router TO {name};\nGRANT {} ON {TABLE} TO {name};",
            NEEDED.join(", ")
        ),
        done: "granted",
        remedy: general_remedy(),
    }
}
