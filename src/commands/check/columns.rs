//! The columns of an outbox table.

use pg_logical::Oid;
use pg_logical::session::Session;

use crate::commands::init::columns_query;
use crate::config::{Config, TableName};
use crate::error::Error;

/// One column of the table.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) type_id: Oid,
    pub(super) not_null: bool,
    /// Whether its values are published.
    pub(super) sent: bool,
}

/// A column whose values are published.
pub(super) fn find<'c>(columns: &'c [Column], name: &str) -> Option<&'c Column> {
    columns.iter().find(|column| column.name == name && column.sent)
}

pub(super) async fn columns(
    session: &mut Session,
    config: &Config,
    table: &TableName,
) -> Result<Vec<Column>, Error> {
    let rows = session.query(&columns_query(config, table)).await?;
    let column = |row: &pg_logical::session::Row| {
        let type_id = Oid(row.get(1)?.parse().ok()?);
        Some(Column {
            name: row.get(0)?.to_owned(),
            type_id,
            not_null: row.get(2) == Some("t"),
            sent: row.get(4) == Some("t"),
        })
    };
    Ok(rows.iter().filter_map(column).collect())
}
