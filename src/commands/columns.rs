//! The columns of an outbox table.

use pg_logical::Oid;
use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};

use crate::config::{Config, TableName};
use crate::error::Error;
use crate::outbox::ColumnType;
use crate::postgres::catalog;

/// One column of the table.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) type_id: Oid,
    pub(super) not_null: bool,
    /// Whether its values are published.
    pub(super) sent: bool,
    /// How its values are read as text.
    pub(super) read_as: ColumnType,
}

impl Column {
    fn of(row: &Row) -> Option<Self> {
        let base = Oid(row.get(5)?.parse().ok()?);
        Some(Column {
            name: row.get(0)?.to_owned(),
            type_id: Oid(row.get(1)?.parse().ok()?),
            not_null: row.get(2) == Some("t"),
            sent: row.get(3) == Some("t"),
            read_as: match row.get(6) {
                Some(name) => ColumnType::own(base, name),
                None => ColumnType::built_in(base, row.get(4)?.parse().ok()?),
            },
        })
    }
}

/// A column whose values are published.
pub(super) fn find<'c>(columns: &'c [Column], name: &str) -> Option<&'c Column> {
    columns.iter().find(|column| column.name == name && column.sent)
}

/// The columns of a table, in their order; none if the table does not exist.
pub(super) async fn columns(
    session: &mut Session,
    config: &Config,
    table: &TableName,
) -> Result<Vec<Column>, Error> {
    // the last two are the type (of a domain, its base type), and the type's name unless it is built in
    let sql = format!(
        "SELECT a.attname, a.atttypid::pg_catalog.oid, a.attnotnull, {}, a.atttypmod, \
         b.oid, CASE WHEN b.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace THEN b.typname END \
         FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
         JOIN pg_catalog.pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid) WHERE n.nspname = {} AND c.relname = {} \
         AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        catalog::sent(&config.postgres.publication),
        literal(&table.schema),
        literal(&table.name)
    );
    Ok(session.query(&sql).await?.iter().filter_map(Column::of).collect())
}
