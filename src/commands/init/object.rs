//! One object that `init` creates.

use pg_logical::quoting::literal;

use crate::config::{Config, TableName};

/// The statements that create an object, and the expressions that tell whether to.
pub(super) struct Object {
    /// Its name for a person: `table public.outbox`.
    pub(super) name: String,
    /// Why it exists: a comment in the script.
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
    /// What to do if the server refuses.
    pub(super) remedy: String,
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
