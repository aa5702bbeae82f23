//! The privileges that the router's role needs on the table of parked events.

use super::object::Object;
use super::role;
use crate::postgres::dead_letters::sql::{REQUIRED_PRIVILEGES, TABLE};

pub(super) fn privilege_object(role: &str) -> Object {
    let purpose = "Events that cannot be sent are put there, because `[dead_letters] policy` is \"park\"";
    role::table_privilege(role, TABLE, &REQUIRED_PRIVILEGES, purpose)
}
