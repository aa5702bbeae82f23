//! In which order rows are read, and whether an index helps.

use pg_logical::QueryError;
use pg_logical::quoting::{identifier, literal};
use pg_logical::session::{Row, Session};

use super::layout::TableLayout;
use super::read_only;
use crate::config::{Outbox, Polling, TableName};

/// The order of rows of the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ties {
    /// Expressions on `q` whose values never change.
    pub keys: Vec<String>,
    /// Before these, the numbers of the statements of a transaction. Postgres overwrites the number when somebody tries to delete the
    /// row, so rows are not found again by it.
    pub by_statement: bool,
}

/// The order of rows.
#[derive(Debug)]
pub struct Order {
    /// What tells it within the same time.
    pub ties: Ties,
    /// Whether the time is that of the insert, and not of the transaction's start, in a local time zone or anything else.
    pub of_insert: bool,
    /// The column that tells it within the same time, if there is one.
    pub tie: Option<String>,
}

/// The time is often that of the transaction, so all rows of a transaction may have the same. A polled table numbers its rows. Otherwise
/// the statements of a transaction are numbered, and the rows of one statement have ids that ascend, or lie behind each other.
///
/// # Errors
/// Those of the query.
pub async fn order(
    session: &mut Session,
    outbox: &Outbox,
    polling: Option<&Polling>,
    layout: &TableLayout,
    table: &TableName,
    created_at: &str,
) -> Result<Order, QueryError> {
    let id = &outbox.columns.id;
    let default = |column: &str| {
        format!(
            "(SELECT CASE WHEN a.attidentity <> '' THEN 'nextval()' WHEN a.attnotnull THEN pg_get_expr(d.adbin, d.adrelid) END \
             FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attrelid = {}::regclass AND a.attname = {})",
            literal(&table.in_sql()),
            literal(column)
        )
    };
    let found =
        session.query(&read_only(&format!("SELECT {}, {}", default(created_at), default(id)))).await?;
    let default = |column| found.first().and_then(|row: &Row| row.get(column)).unwrap_or_default();
    let ascends = || ["uuid_v7(", "uuidv7(", "nextval("].iter().any(|made| default(1).contains(made));
    let filled = default(0).contains("clock_timestamp()");
    let (mut keys, mut by_statement) = (Vec::new(), false);
    let tie = match polling {
        Some(polling) => {
            // rows from before polling have no position
            keys.push(format!("coalesce(q.{}, 0)", identifier(&polling.columns.position)));
            Some(polling.columns.position.clone())
        }
        None => {
            // applications may give ids of their own
            by_statement = !filled;
            let tie = ascends().then(|| id.clone());
            keys.extend(tie.as_ref().map(|id| format!("q.{}", identifier(id))));
            tie
        }
    };
    keys.extend(layout.is_partitioned().then(|| "q.tableoid".to_owned()));
    keys.push("q.ctid".to_owned());
    let of_insert = filled && !layout.has_local_timestamp(created_at);
    Ok(Order { ties: Ties { keys, by_statement }, of_insert, tie })
}

/// Without an index, each page reads the whole table.
///
/// # Errors
/// Those of the query.
pub async fn warn_without_index(
    session: &mut Session,
    table: &TableName,
    created_at: &str,
) -> Result<(), QueryError> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
         WHERE i.indrelid = {}::regclass AND i.indisvalid AND i.indpred IS NULL AND a.attname = {})",
        literal(&table.in_sql()),
        literal(created_at)
    );
    let there = session.query_one(&read_only(&sql)).await?;
    if there.as_deref() != Some("t") {
        tracing::warn!(
            remedy = format!(
                "CREATE INDEX CONCURRENTLY ON {} USING brin ({})",
                table.in_sql(),
                identifier(created_at)
            ),
            "no index of {table} begins with {created_at}: each page of rows is found by reading the whole table"
        );
    }
    Ok(())
}
