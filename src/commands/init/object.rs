//! One thing to make.

use pg_logical::quoting::literal;

use crate::config::{Config, TableName};

/// One thing to make.
pub(super) struct Object {
    /// What it is, for a person: `table public.outbox`.
    pub(super) name: String,
    /// Why it is made: a comment in the script.
    pub(super) purpose: String,
    /// An SQL expression: is it there?
    pub(super) there: String,
    /// If it is there, an expression: is it as it would be made? And what to say if not.
    pub(super) as_wanted: Option<(String, String)>,
    /// If it is not there, an expression: can it be made? And what to say if not.
    pub(super) possible: Option<(String, String)>,
    /// Statements, each with its semicolon. They are run in one transaction.
    pub(super) make: String,
    /// What to say once it is made.
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
