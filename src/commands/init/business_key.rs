//! Business keys of events: the column `idempotency_key`, which is unique among the events that have one.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::{Object, owner_of, router_function};
use crate::config::{Outbox as OutboxConfig, TableName};
use crate::outbox::Field;

/// The function that `emit` asks for the first event with a key.
pub(super) const FIRST_EVENT: &str = "event_with_key";

/// An index takes no more.
fn limit(column: &str) -> String {
    format!("CONSTRAINT idempotency_key_length CHECK (octet_length({column}) BETWEEN 1 AND 1000)")
}

/// The type of the column in a table that is created.
pub(super) fn definition(column: &str) -> String {
    format!("text {}", limit(&quoting::identifier(column)))
}

/// Partial, so that events without a key cost nothing.
pub(super) fn index(table: &str, column: &str) -> String {
    let column = quoting::identifier(column);
    format!("CREATE UNIQUE INDEX ON {table} ({column}) WHERE {column} IS NOT NULL;")
}

/// The statements for an existing table. Neither keeps writers waiting.
fn to_add(table: &TableName, column: &str) -> String {
    let (table, quoted) = (table.in_sql(), quoting::identifier(column));
    format!(
        "ALTER TABLE {table} ADD COLUMN {quoted} text, ADD {} NOT VALID; {}",
        limit(&quoted),
        index(&table, column).replace("UNIQUE INDEX ON", "UNIQUE INDEX CONCURRENTLY ON")
    )
}

/// What is missing from an existing table, and how to add it.
pub(crate) fn lacks(table: &TableName, column: &str) -> String {
    format!(
        "{table} has no column {column} for business keys, which is optional. To add it, run: {}",
        to_add(table, column)
    )
}

/// An expression: is the table partitioned? A unique index over its key alone is impossible then.
pub(super) fn is_partitioned(table: &TableName) -> String {
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relname = {} AND c.relkind = 'p')",
        literal(&table.schema),
        literal(&table.name)
    )
}

/// The function that finds the first event with a key. It reads the table with the rights of the table's owner: an application only needs
/// INSERT, and code of the table, such as a view in its place, gains no other rights. `None`: there is no such column, or more than one table.
pub(super) fn object(outbox: &OutboxConfig) -> Option<Object> {
    let [table] = outbox.tables.as_slice() else { return None };
    let column = Field::IdempotencyKey.column(&outbox.columns)?;
    let id = Field::Id.column(&outbox.columns)?;
    let body = format!(
        "SELECT {}::text::uuid FROM {} WHERE {} = $1",
        quoting::identifier(id),
        table.in_sql(),
        quoting::identifier(column)
    );
    let to_owner = format!(
        "DECLARE\n  owner CONSTANT regrole := {};\nBEGIN\n  \
         IF pg_catalog.current_setting('is_superuser') = 'on' THEN\n    \
         EXECUTE 'ALTER FUNCTION outbox_router.{FIRST_EVENT} OWNER TO ' || owner;\n  END IF;\nEND",
        owner_of(table)
    );
    let function = router_function(FIRST_EVENT);
    Some(Object {
        name: format!("function outbox_router.{FIRST_EVENT}"),
        purpose: "Finds the event that has a business key, for emit(..., on_duplicate => 'skip')".to_owned(),
        there: format!("EXISTS (SELECT {function})"),
        as_wanted: Some((
            format!("EXISTS (SELECT {function} AND p.prosrc = {})", literal(&body)),
            format!(
                "it was created for another table or other columns. To replace it, DROP FUNCTION outbox_router.{FIRST_EVENT} and run init \
                 again"
            ),
        )),
        possible: Some((
            format!(
                "EXISTS (SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid\n  \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace\n  \
                 WHERE n.nspname = {} AND c.relname = {} AND a.attname = {} AND NOT a.attisdropped)",
                literal(&table.schema),
                literal(&table.name),
                literal(column)
            ),
            lacks(table, column),
        )),
        make: format!(
            "CREATE FUNCTION outbox_router.{FIRST_EVENT}(key text) RETURNS uuid\nLANGUAGE sql STABLE STRICT SECURITY DEFINER\n\
             SET search_path = pg_catalog, pg_temp\nAS {};\nDO {};",
            quoting::dollar_quoted(&body),
            quoting::dollar_quoted(&to_owner)
        ),
        ..Object::default()
    })
}
