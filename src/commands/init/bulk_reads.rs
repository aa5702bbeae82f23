//! The privilege to read a lagging slot in bulk. Every role has it until somebody revokes it.

use pg_logical::bulk_read::FUNCTIONS;
use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::Object;

pub(super) fn privilege_object(role: &str) -> Object {
    let name = quoting::name(role);
    let may = |whose: &str, what: &str| {
        let may =
            |function: &&str| format!("pg_catalog.has_function_privilege({whose}, '{function}', '{what}')");
        FUNCTIONS.iter().map(may).collect::<Vec<_>>().join("\n    AND ")
    };
    Object {
        name: format!("privilege of {name} to read the slot in bulk"),
        purpose: "To catch up fast. PUBLIC may call these unless somebody revoked it".to_owned(),
        // the script creates the role earlier, but it does not exist yet when the script is parsed
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {}\n    AND {})",
            literal(role),
            may("r.oid", "EXECUTE")
        ),
        as_wanted: None,
        possible: Some((
            may("current_user", "EXECUTE WITH GRANT OPTION"),
            "it takes a superuser to grant it; until then the slot is streamed, which is slower where it lags"
                .to_owned(),
        )),
        make: format!("GRANT EXECUTE ON FUNCTION {} TO {name};", FUNCTIONS.join(",\n  ")),
        done: "granted",
        remedy: "Connect with --url as a superuser, or set `catch_up = \"stream\"` under [postgres]".to_owned(),
    }
}
