//! The sizes of events, from a bounded sample of the table.

use pg_logical::QueryError;
use pg_logical::quoting;
use pg_logical::session::{Row, Session};

use super::finding::Findings;
use crate::commands::columns::Column;
use crate::config::{Config, TableName};
use crate::error::Error;
use crate::outbox::FIELDS;
use crate::quantity::bytes;

const BYTEA: u32 = 17;

/// The largest sample of the table.
const SAMPLE_BYTES: u64 = 8 << 20;
const SAMPLE_ROWS: u32 = 2_000;

/// How long the sample may take.
const SAMPLE_TIMEOUT: &str = "3s";

/// Returns the size of the largest event in the sample, in bytes of its record's key, value and headers.
pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    name: &TableName,
    table: u32,
    columns: &[Column],
    findings: &mut Findings,
) -> Result<Option<u64>, Error> {
    if !is_readable(session, table).await? {
        let what = "the sizes of events are unknown, because the role may not read the table; the router does not need to";
        findings.skipped("row_sizes", what);
        return Ok(None);
    }
    let size = format!(
        "SELECT coalesce(sum(pg_catalog.pg_relation_size(t.relid)), pg_catalog.pg_relation_size({table})) \
         FROM pg_catalog.pg_partition_tree({table}) t"
    );
    let size: u64 = session.query_one(&size).await?.and_then(|text| text.parse().ok()).unwrap_or_default();
    let rows = match query_for_a_while(session, &sample(config, name, columns, size)).await? {
        Ok(rows) => rows,
        Err(error) => {
            findings.skipped("row_sizes", format!("the table could not be sampled: {error}"));
            return Ok(None);
        }
    };
    let number = |index| rows.first().and_then(|row| row.get(index)?.parse().ok()).unwrap_or(0u64);
    let (count, average, largest) = (number(0), number(1), number(2));
    if count == 0 {
        findings.skipped("row_sizes", "the table, or the sample of it, has no rows to measure");
        return Ok(None);
    }
    findings.ok(
        "row_sizes",
        format!("{} on average, {} at most; rows sampled: {count}", bytes(average), bytes(largest)),
    );
    Ok(Some(largest))
}

/// Whether the role may read rows of the table with this OID.
pub(super) async fn is_readable(session: &mut Session, table: u32) -> Result<bool, Error> {
    let readable = format!(
        "SELECT pg_catalog.has_table_privilege(c.oid, 'SELECT') AND \
         pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') FROM pg_catalog.pg_class c WHERE c.oid = {table}"
    );
    Ok(session.query_one(&readable).await?.as_deref() == Some("t"))
}

/// Runs a query that reads rows and may not take long; the inner error is the server's message.
pub(super) async fn query_for_a_while(
    session: &mut Session,
    sql: &str,
) -> Result<Result<Vec<Row>, String>, Error> {
    session.query(&format!("SET statement_timeout = '{SAMPLE_TIMEOUT}'")).await?;
    let found = session.query(sql).await;
    session.query("RESET statement_timeout").await?;
    match found {
        Ok(rows) => Ok(Ok(rows)),
        Err(QueryError::Connection(error)) => Err(error.into()),
        Err(QueryError::Server { error, .. }) => Ok(Err(error.to_string())),
    }
}

fn sample(config: &Config, table: &TableName, columns: &[Column], size: u64) -> String {
    let lengths: Vec<String> = FIELDS
        .into_iter()
        .filter_map(|field| field.column(&config.outbox.columns))
        .filter_map(|name| columns.iter().find(|column| column.name == name))
        .map(|column| {
            let name = quoting::identifier(&column.name);
            let value = if column.type_id.0 == BYTEA { name } else { format!("{name}::text") };
            format!("coalesce(octet_length({value}), 0)")
        })
        .collect();
    // at least one page, whatever the size
    let percent = (100.0 * SAMPLE_BYTES as f64 / size.max(1) as f64).min(100.0);
    format!(
        "SELECT count(*), avg(n)::bigint, max(n) FROM (SELECT {}::bigint AS n FROM {} \
         TABLESAMPLE SYSTEM ({percent}) LIMIT {SAMPLE_ROWS}) AS sample",
        if lengths.is_empty() { "0".to_owned() } else { format!("({})", lengths.join(" + ")) },
        table.in_sql()
    )
}
