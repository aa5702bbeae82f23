//! The privilege to write the heartbeat. Every role has it until somebody revokes it.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::Object;
use crate::postgres::heartbeat::privilege;

pub(super) fn privilege_object(role: &str) -> Object {
    let name = quoting::name(role);
    // the script creates the role earlier, but it does not exist yet when the script is parsed
    let holds = format!(
        "EXISTS (SELECT FROM pg_catalog.pg_roles r, LATERAL ({}) f (function, granted)\n    \
         WHERE r.rolname = {} AND f.granted)",
        privilege("r.oid"),
        literal(role)
    );
    let block = format!(
        "\nDECLARE\n  function regprocedure;\nBEGIN\n  \
         FOR function IN SELECT f.function FROM ({}) f (function, granted) LOOP\n    \
         EXECUTE 'GRANT EXECUTE ON FUNCTION ' || function || {};\n  \
         END LOOP;\nEND\n",
        privilege("current_user"),
        literal(&format!(" TO {name}"))
    );
    Object {
        name: format!("privilege of {name} to write heartbeats"),
        purpose: "PUBLIC may call pg_logical_emit_message unless somebody revoked it".to_owned(),
        there: holds,
        as_wanted: None,
        possible: None,
        make: format!("DO {};", quoting::dollar_quoted(&block)),
        done: "granted",
        remedy: "It takes a superuser, who owns pg_logical_emit_message: connect as one with --url, or leave `[heartbeat] \
                 interval` out"
            .to_owned(),
    }
}
