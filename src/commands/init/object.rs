//! One object that `init` creates.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use crate::config::{Config, TableName};

/// The statements that create an object, and the SQL conditions for running them.
pub(super) struct Object {
    /// Its kind and name, as printed: `table public.outbox`.
    pub(super) name: String,
    /// What it is for; a comment in the script.
    pub(super) purpose: String,
    /// An SQL expression: does it exist?
    pub(super) there: String,
    /// If it exists: an expression that tells whether it is as `init` would create it, and the message if not.
    pub(super) as_wanted: Option<(String, String)>,
    /// If it does not exist: an expression that tells whether it can be created, and the message if not.
    pub(super) possible: Option<(String, String)>,
    /// Statements, each with its semicolon, that are run in one transaction.
    pub(super) make: String,
    /// The message once it is created.
    pub(super) done: &'static str,
    /// What to do if the server refuses; `None`: what helps in general.
    pub(super) remedy: Option<String>,
}

impl Default for Object {
    fn default() -> Self {
        Object {
            name: String::new(),
            purpose: String::new(),
            there: "true".to_owned(),
            as_wanted: None,
            possible: None,
            make: String::new(),
            done: "created",
            remedy: None,
        }
    }
}

/// The router's schema, for its own objects.
pub(super) fn router_schema() -> Object {
    schema("outbox_router", "The router's own objects")
}

/// The schemas of the outbox tables, except `public`, which every database has unless somebody dropped it.
pub(super) fn outbox_schemas(config: &Config) -> Vec<Object> {
    let mut names: Vec<&str> = Vec::new();
    for table in &config.outbox.tables {
        if table.schema != "public" && !names.contains(&table.schema.as_str()) {
            names.push(&table.schema);
        }
    }
    names.into_iter().map(|name| schema(name, "The schema of an outbox table")).collect()
}

fn schema(name: &str, purpose: &str) -> Object {
    Object {
        name: format!("schema {}", quoting::identifier(name)),
        purpose: purpose.to_owned(),
        there: format!("EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = {})", literal(name)),
        make: format!("CREATE SCHEMA {};", quoting::identifier(name)),
        ..Object::default()
    }
}

/// The FROM and WHERE of a function in the router's schema, as `p` in `pg_proc`.
pub(super) fn router_function(name: &str) -> String {
    format!(
        "FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
         WHERE n.nspname = 'outbox_router' AND p.proname = '{name}'"
    )
}

/// An expression: the role that owns this table.
pub(super) fn owner_of(table: &TableName) -> String {
    format!(
        "(SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass({}))",
        literal(&table.in_sql())
    )
}

/// The FROM and WHERE of the configured outbox tables, as `c` in `pg_class`; `None` if there is none.
pub(super) fn outbox_tables(config: &Config) -> Option<String> {
    let name = |table: &TableName| format!("({}, {})", literal(&table.schema), literal(&table.name));
    let names: Vec<String> = config.outbox.tables.iter().map(name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace\n    \
             WHERE (n.nspname, c.relname) IN ({})",
            names.join(", ")
        )
    })
}

/// Privileges on a table of the router's schema.
pub(super) fn table_privilege(role: &str, table: &str, needed: &[&str], purpose: &str) -> Object {
    privilege(role, "outbox_router", table, needed, purpose)
}

/// Privileges on a table, and on its schema. Both names are as in SQL.
pub(super) fn privilege(role: &str, schema: &str, table: &str, needed: &[&str], purpose: &str) -> Object {
    privilege_and_update(role, (schema, table), needed, &[], purpose)
}

/// The same, and UPDATE on some columns.
pub(super) fn privilege_and_update(
    role: &str,
    (schema, table): (&str, &str),
    needed: &[&str],
    updated: &[&str],
    purpose: &str,
) -> Object {
    let (name, text) = (quoting::identifier(role), literal(role));
    let on_table =
        needed.iter().map(|privilege| format!("pg_catalog.has_table_privilege(r.oid, c.oid, '{privilege}')"));
    let on_columns = updated.iter().map(|column| {
        format!("pg_catalog.has_column_privilege(r.oid, c.oid, {}, 'UPDATE')", literal(column))
    });
    let held: Vec<String> = on_table.chain(on_columns).collect();
    let mut granted: Vec<String> = needed.iter().map(|privilege| (*privilege).to_owned()).collect();
    if !updated.is_empty() {
        let columns: Vec<String> = updated.iter().map(|column| quoting::identifier(column)).collect();
        granted.push(format!("UPDATE ({})", columns.join(", ")));
    }
    Object {
        name: format!("privilege of {name} on {table}"),
        purpose: purpose.to_owned(),
        // the script creates the table earlier, but it does not exist yet when the script is parsed
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r, pg_catalog.pg_class c WHERE r.rolname = {text}\n    \
             AND c.oid = pg_catalog.to_regclass({})\n    \
             AND pg_catalog.has_schema_privilege(r.oid, c.relnamespace, 'USAGE')\n    AND {})",
            literal(table),
            held.join(" AND ")
        ),
        make: format!(
            "GRANT USAGE ON SCHEMA {schema} TO {name};\nGRANT {} ON {table} TO {name};",
            granted.join(", ")
        ),
        done: "granted",
        ..Object::default()
    }
}

/// USAGE on the router's schema, and EXECUTE on some of its functions.
pub(super) fn privilege_to_call(role: &str, verb: &str, purpose: &str, functions: &[&str]) -> Object {
    let (name, text) = (quoting::identifier(role), literal(role));
    // the script creates the role and the functions earlier, but they do not exist yet when the script is parsed
    let may = |function: &&str| {
        format!(
            "pg_catalog.has_function_privilege(r.oid, pg_catalog.to_regprocedure('{function}'), 'EXECUTE')"
        )
    };
    Object {
        name: format!("privilege of {name} to {verb}"),
        purpose: purpose.to_owned(),
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {text}\n    \
             AND pg_catalog.has_schema_privilege(r.oid, pg_catalog.to_regnamespace('outbox_router'), 'USAGE')\n    AND {})",
            functions.iter().map(may).collect::<Vec<_>>().join("\n    AND ")
        ),
        make: format!(
            "GRANT USAGE ON SCHEMA outbox_router TO {name};\nGRANT EXECUTE ON FUNCTION {} TO {name};",
            functions.join(",\n  ")
        ),
        done: "granted",
        ..Object::default()
    }
}
