//! What a router that polls needs: columns and indexes of the outbox table, and privileges.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::{Object, privilege_and_update, router_function, table_privilege};
use crate::config::{Config, Outbox, Polling, TableName};
use crate::postgres::polling::sql::PolledTable;
use crate::postgres::polling::table::{
    WAKE_CHANNEL, WAKE_FUNCTION, definitions, wake_trigger, wakes as has_trigger,
};

/// The columns of a table that is created, one line each.
pub(super) fn columns(polling: &Polling) -> Vec<String> {
    let line = |(name, definition): (&str, String)| format!("  {} {definition}", quoting::identifier(name));
    definitions(polling).into_iter().map(line).collect()
}

/// The indexes of a table that is created.
pub(super) fn indexes(outbox: &Outbox, polling: &Polling) -> Vec<String> {
    PolledTable::of(outbox, polling).map_or_else(Vec::new, |table| table.indexes(false).into())
}

/// Whether inserts are to wake routers.
pub(super) fn wakes(config: &Config) -> bool {
    config.polling.as_ref().is_some_and(|polling| polling.notify)
}

/// The function of the trigger that wakes routers.
pub(super) fn wake_function() -> Object {
    Object {
        name: format!("function outbox_router.{WAKE_FUNCTION}"),
        purpose: "Wakes routers that poll when rows are inserted".to_owned(),
        there: format!("EXISTS (SELECT {})", router_function(WAKE_FUNCTION)),
        make: format!(
            "CREATE FUNCTION outbox_router.{WAKE_FUNCTION}() RETURNS trigger\nLANGUAGE plpgsql SET search_path = pg_catalog, pg_temp\n\
             AS $$ BEGIN NOTIFY {WAKE_CHANNEL}; RETURN NULL; END $$;"
        ),
        ..Object::default()
    }
}

/// The trigger that wakes routers. A new table has it; an existing one does not get it.
pub(super) fn trigger(table: &TableName) -> Object {
    let name = table.in_sql();
    Object {
        name: format!("trigger on {name}"),
        there: has_trigger(&format!("pg_catalog.to_regclass({})", literal(&name))),
        possible: Some((
            "false".to_owned(),
            format!("existing tables are not changed. To wake routers, run: {}", wake_trigger(table)),
        )),
        ..Object::default()
    }
}

/// The privileges of the router's role, which needs no other than these.
pub(super) fn privileges(outbox: &Outbox, polling: &Polling, role: &str) -> Vec<Object> {
    let mut objects = vec![
        login_role(role),
        table_privilege(
            role,
            "outbox_router.poll_claims",
            &["SELECT", "INSERT", "UPDATE", "DELETE"],
            "The rows that routers have claimed",
        ),
        sequence_privilege(role),
    ];
    objects.extend(outbox.tables.first().map(|table| outbox_privilege(role, table, polling)));
    objects
}

fn login_role(role: &str) -> Object {
    let (name, text) = (quoting::identifier(role), literal(role));
    let block = format!(
        "\nBEGIN\n  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {text}) THEN\n    \
         CREATE ROLE {name} LOGIN;\n  ELSE\n    ALTER ROLE {name} LOGIN;\n  END IF;\nEND\n"
    );
    Object {
        name: format!("role {name}"),
        purpose: "The role that the router runs as".to_owned(),
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {text} AND (r.rolcanlogin OR r.rolsuper))"
        ),
        make: format!("DO {};", quoting::dollar_quoted(&block)),
        done: "may log in now",
        ..Object::default()
    }
}

/// SELECT on the sequence tells which position was drawn last.
fn sequence_privilege(role: &str) -> Object {
    let (name, text) = (quoting::identifier(role), literal(role));
    Object {
        name: format!("privilege of {name} on outbox_router.outbox_position"),
        purpose: "Where to begin to look for rows, when there are none".to_owned(),
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r, pg_catalog.pg_class c WHERE r.rolname = {text}\n    \
             AND c.oid = pg_catalog.to_regclass('outbox_router.outbox_position')\n    \
             AND pg_catalog.has_sequence_privilege(r.oid, c.oid, 'SELECT'))"
        ),
        make: format!("GRANT SELECT ON SEQUENCE outbox_router.outbox_position TO {name};"),
        done: "granted",
        ..Object::default()
    }
}

/// SELECT on the outbox, and UPDATE on the columns for the state of a row.
fn outbox_privilege(role: &str, table: &TableName, polling: &Polling) -> Object {
    let updated: Vec<&str> =
        polling.columns.by_key().filter(|(key, _)| *key != "position").map(|(_, name)| name).collect();
    let schema = quoting::identifier(&table.schema);
    let purpose = "The router reads rows, and changes nothing but their status";
    Object {
        remedy: Some("Connect with --url as the owner of the table".to_owned()),
        ..privilege_and_update(role, (&schema, &table.in_sql()), &["SELECT"], &updated, purpose)
    }
}
