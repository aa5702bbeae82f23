//! In which order rows are read, and whether an index helps.

use pg_logical::quoting::{identifier, literal};
use pg_logical::session::{Row, Session};

use super::arguments::readable;
use crate::config::{Config, TableName};
use crate::error::Error;
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::read_only;

/// The order of rows.
pub(super) struct Order {
    /// What tells it within the same time, as expressions on `q`.
    pub(super) ties: Vec<String>,
    /// Whether the time is that of the insert, and not of the transaction's start or anything else.
    pub(super) of_insert: bool,
}

/// The time is often that of the transaction, so all rows of a transaction may have the same. A polled table numbers its rows. Otherwise
/// the statements of a transaction are numbered, and the rows of one statement have ids that ascend, or lie behind each other.
pub(super) async fn order(
    session: &mut Session,
    config: &Config,
    layout: &TableLayout,
    table: &TableName,
    created_at: &str,
) -> Result<Order, Error> {
    let id = &config.outbox.columns.id;
    let default = |column: &str| {
        format!(
            "(SELECT CASE WHEN a.attnotnull THEN pg_get_expr(d.adbin, d.adrelid) END FROM pg_attribute a \
             JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attrelid = {}::regclass AND a.attname = {})",
            literal(&table.in_sql()),
            literal(column)
        )
    };
    let found = session.query(&read_only(&format!("SELECT {}, {}", default(created_at), default(id)))).await;
    let found = found.map_err(readable)?;
    let default = |column| found.first().and_then(|row: &Row| row.get(column)).unwrap_or_default();
    let mut ties = Vec::new();
    match &config.polling {
        // rows from before polling have no position
        Some(polling) => ties.push(format!("coalesce(q.{}, 0)", identifier(&polling.columns.position))),
        None => {
            ties.push("q.cmin::text::bigint".to_owned());
            let ascends = ["uuid_v7(", "uuidv7(", "nextval("].iter().any(|made| default(1).contains(made));
            ties.extend(ascends.then(|| format!("q.{}", identifier(id))));
        }
    }
    ties.extend(layout.is_partitioned().then(|| "q.tableoid".to_owned()));
    ties.push("q.ctid".to_owned());
    Ok(Order { ties, of_insert: default(0).contains("clock_timestamp()") })
}

/// Without an index, each page reads the whole table.
pub(super) async fn warn_without_index(
    session: &mut Session,
    table: &TableName,
    created_at: &str,
) -> Result<(), Error> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
         WHERE i.indrelid = {}::regclass AND i.indisvalid AND i.indpred IS NULL AND a.attname = {})",
        literal(&table.in_sql()),
        literal(created_at)
    );
    let there = session.query_one(&read_only(&sql)).await.map_err(readable)?;
    if there.as_deref() != Some("t") {
        tracing::warn!(
            remedy = format!(
                "CREATE INDEX CONCURRENTLY ON {} USING brin ({})",
                table.in_sql(),
                identifier(created_at)
            ),
            "no index of {table} begins with {created_at}: each page of 2,000 rows reads the whole table"
        );
    }
    Ok(())
}
