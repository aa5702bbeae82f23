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
    /// Of a domain, that of its base type.
    pub(super) type_id: Oid,
    pub(super) not_null: bool,
    /// Whether its values are published.
    pub(super) sent: bool,
    /// How its values are read as text.
    pub(super) read_as: ColumnType,
}

impl Column {
    fn of(row: &Row) -> Option<Self> {
        let base = Oid(row.get(1)?.parse().ok()?);
        Some(Column {
            name: row.get(0)?.to_owned(),
            type_id: base,
            not_null: row.get(2) == Some("t"),
            sent: row.get(3) == Some("t"),
            read_as: match (row.get(5), row.get(6)) {
                (Some(name), _) => ColumnType::own(base, name),
                (None, Some(name)) => ColumnType::domain(base, name),
                (None, None) => ColumnType::built_in(base, row.get(4)?.parse().ok()?),
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
    // the last two are the type's name unless it is built in, and its name if the column is of a domain over it
    let sql = format!(
        "SELECT a.attname, b.oid, a.attnotnull, {}, a.atttypmod, \
         CASE WHEN b.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace THEN b.typname END, \
         CASE WHEN b.oid <> a.atttypid THEN b.typname END \
         FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_type b ON b.oid = {} \
         WHERE n.nspname = {} AND c.relname = {} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        catalog::sent(&config.postgres.publication),
        catalog::BASE_TYPE,
        literal(&table.schema),
        literal(&table.name)
    );
    Ok(session.query(&sql).await?.iter().filter_map(Column::of).collect())
}
