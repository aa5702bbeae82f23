//! Compares the log with the stream: which rows of the outbox are in the log after the slot's position, and not in the stream.
//!
//! Two temporary copies of the slot read the same part of the log. One has the plugin `test_decoding`, which shows every row, and the
//! other one `pgoutput` with the present publication, which shows what the router would receive. Both show a row at the same LSN (tried
//! on 14, 15 and 18 with COPY, subtransactions and partitions).

use std::time::Duration;

use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, Host};
use pg_logical::quoting::{identifier, literal, with_suffix};
use pg_logical::session::Session;
use pg_logical::{Lsn, QueryError};
use tokio::time::{Instant, sleep};

use super::catalog::recovery_sql::FIELD;
use super::catalog::{FLUSH_LSN, Table, server_version};
use crate::checkpoint::LeftOut;
use crate::config::OutboxSource;
use crate::error::Error;

/// How often it looks whether writers have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// After which time it names the writer that it waits for.
const NAME_AFTER: Duration = Duration::from_secs(5);

/// Compares them from the slot's position to the present end of the log, on one of `hosts`. `tables` are the outbox tables as they are now.
///
/// Postgres decodes a row as the catalogues were when its transaction wrote to the table. So transactions that have written before now
/// have to end first; after `patience`, one that has not is the answer.
///
/// # Errors
/// The session cannot be opened, or is lost.
pub async fn compare(
    source: OutboxSource<'_>,
    tables: &[Option<Table>],
    hosts: Vec<Host>,
    patience: Option<Duration>,
) -> Result<LeftOut, Error> {
    let tables: Vec<&Table> = tables.iter().flatten().collect();
    if source.shard.is_none() && tables.iter().any(|table| table.row_filter.is_some()) {
        return Ok(LeftOut::Unknown("the publication has a row filter".to_owned()));
    }
    if tables.iter().any(|table| table.former_triggers) {
        let why = "the event triggers of an earlier version alter the publication if rows of a partition are missing; \
                   `outbox-router init`, run as a superuser, replaces them";
        return Ok(LeftOut::Unknown(why.to_owned()));
    }
    let conninfo = ConnInfo { hosts, ..source.postgres.conninfo.clone() };
    let name = format!("{} comparison", source.router);
    let startup = Startup { application_name: &name, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await?;
    let found = compare_in(&mut session, source, &tables, patience).await;
    session.close().await;
    match found {
        Err(QueryError::Server { error, .. }) => Ok(LeftOut::Unknown(error.to_string())),
        found => Ok(found?),
    }
}

async fn compare_in(
    session: &mut Session,
    source: OutboxSource<'_>,
    tables: &[&Table],
    patience: Option<Duration>,
) -> Result<LeftOut, QueryError> {
    if let Some(writer) = open_writer(session, tables, patience).await? {
        return Ok(LeftOut::Unknown(format!("{writer} has written to the table, and is still open")));
    }
    let end = session.query_one(&format!("SELECT ({FLUSH_LSN})")).await?;
    let unreadable = |what: &str| pg_logical::Error::transient(format!("{what} cannot be read"));
    let end: Lsn = end.and_then(|end| end.parse().ok()).ok_or_else(|| unreadable("the flush LSN"))?;
    // slot names are unique on the server, and several sessions may compare at once
    let process = session.backend_pid();
    let copy = |suffix: &str| literal(&with_suffix(&source.postgres.slot, &format!("_{process}_{suffix}")));
    let (rows, sent) = (copy("rows"), copy("sent"));
    let slot = literal(&source.postgres.slot);
    for (copy, plugin) in [(&rows, "test_decoding"), (&sent, "pgoutput")] {
        let sql =
            format!("SELECT pg_catalog.pg_copy_logical_replication_slot({slot}, {copy}, true, '{plugin}')");
        session.query(&sql).await?;
    }
    let version = server_version(session).await?;
    let found = session.query(&left_out(source, tables, version, [&rows, &sent], end)).await?;
    let count = |index| found.first().and_then(|row| row.get(index)?.parse().ok());
    let (missing, incomplete) =
        count(0).zip(count(1)).ok_or_else(|| unreadable("the number of missing rows"))?;
    Ok(match (missing, incomplete) {
        (0, 0) => LeftOut::None,
        (missing, incomplete) => LeftOut::Rows { missing, incomplete },
    })
}

/// The tables and their partitions, as a list of OIDs.
fn relations(tables: &[&Table]) -> String {
    let of: Vec<String> = tables
        .iter()
        .map(|Table { oid, .. }| {
            format!(
                "SELECT {oid}::oid AS oid UNION SELECT t.relid FROM pg_catalog.pg_partition_tree({oid}) t"
            )
        })
        .collect();
    of.join(" UNION ")
}

/// A transaction that had written to the tables when this began, if one is open for longer than `patience`.
async fn open_writer(
    session: &mut Session,
    tables: &[&Table],
    patience: Option<Duration>,
) -> Result<Option<String>, QueryError> {
    let began = Instant::now();
    let mut named = false;
    let mut known = String::new();
    loop {
        let sql = format!(
            "SELECT pg_catalog.string_agg(pg_catalog.quote_literal(l.virtualtransaction), ', '), pg_catalog.min(l.pid) \
             FROM pg_catalog.pg_locks l WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'RowExclusiveLock' \
             AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) \
             AND l.relation IN ({}){known}",
            relations(tables)
        );
        let rows = session.query(&sql).await?;
        let value = |index| rows.first().and_then(|row| row.get(index));
        let Some(transactions) = value(0) else { return Ok(None) };
        known = format!(" AND l.virtualtransaction IN ({transactions})");
        let writer = match value(1) {
            Some(pid) => format!("the transaction of server process {pid}"),
            None => "a prepared transaction".to_owned(),
        };
        if patience.is_some_and(|patience| began.elapsed() >= patience) {
            return Ok(Some(writer));
        }
        if began.elapsed() >= NAME_AFTER && !named {
            named = true;
            tracing::warn!(
                peer = "postgres",
                "{writer} has written to the outbox and is open: whether rows are missing from the stream is known once it has ended"
            );
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// The query that counts the rows that are missing, and those that lack columns. `rows` and `sent` are the copies of the slot.
///
/// A column may have been added since, and the publication may leave some out for good. So a row lacks columns if it has fewer than the
/// table had then, and fewer than are published now.
fn left_out(
    source: OutboxSource<'_>,
    tables: &[&Table],
    version: u32,
    [rows, sent]: [&str; 2],
    end: Lsn,
) -> String {
    let columns = &source.outbox.columns;
    // a table that had the name of the outbox for a time, or the outbox under another name, has its columns
    let has_columns: Vec<String> = [&columns.id, &columns.aggregate_type, &columns.aggregate_id]
        .into_iter()
        .map(|column| format!("strpos(r.data, ' ' || quote_ident({}) || '[') > 0", literal(column)))
        .collect();
    let names = "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace";
    let publications = source.publications();
    let quoted: Vec<String> = publications.iter().map(|name| identifier(name)).collect();
    format!(
        "WITH rows AS (SELECT r.lsn, count(*) AS rows, sum((SELECT count(*) FROM \
         regexp_matches(substr(r.data, strpos(r.data, ': INSERT:') + 9), {FIELD_SQL}, 'g'))) AS columns \
         FROM pg_catalog.pg_logical_slot_peek_changes({rows}, '{end}', NULL, 'include-xids', '0', 'skip-empty-xacts', '1') r \
         CROSS JOIN LATERAL (SELECT substr(left(r.data, strpos(r.data, ': INSERT:') - 1), 7)) t (name) \
         WHERE r.data LIKE 'table %: INSERT:%' AND (t.name IN ({names} WHERE c.oid IN ({ours})) OR {has_columns} AND t.name NOT IN ({names})) \
         GROUP BY r.lsn), \
         now (oid, published, generated) AS ({now}), \
         sent AS (SELECT s.lsn, count(*) AS rows, sum(get_byte(s.data, 6) * 256 + get_byte(s.data, 7)) AS columns, \
         sum(now.published) AS published, sum(now.generated) AS generated \
         FROM pg_catalog.pg_logical_slot_peek_binary_changes({sent}, '{end}', NULL, 'proto_version', '1', 'publication_names', {publications}) s \
         JOIN now ON now.oid = substr(s.data, 2, 4) WHERE get_byte(s.data, 0) = {insert} GROUP BY s.lsn) \
         SELECT coalesce(sum(greatest(r.rows - coalesce(s.rows, 0), 0)), 0), \
         coalesce(sum(s.rows) FILTER (WHERE s.columns < least(s.published, r.columns - s.generated)), 0) \
         FROM rows r LEFT JOIN sent s ON s.lsn = r.lsn",
        FIELD_SQL = literal(FIELD),
        ours = relations(tables),
        has_columns = has_columns.join(" AND "),
        now = published_columns(tables, &publications, version),
        publications = literal(&quoted.join(",")),
        insert = b'I',
    )
}

/// A query: for each table, its OID as in a message of `pgoutput`, how many of its columns are published now, and how many are generated.
fn published_columns(tables: &[&Table], publications: &[String], version: u32) -> String {
    let publications: Vec<String> = publications.iter().map(|name| literal(name)).collect();
    let of = |Table { oid, .. }: &&Table| {
        let columns = format!(
            "pg_catalog.pg_attribute a WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped"
        );
        let all = format!("(SELECT count(*) FROM {columns} AND a.attgenerated = '')");
        let published = match version {
            // 14 has no column lists
            ..150_000 => all,
            _ => format!(
                "coalesce((SELECT max(cardinality(x.prattrs::int2[])) FROM pg_catalog.pg_publication_rel x \
                 JOIN pg_catalog.pg_publication p ON p.oid = x.prpubid WHERE x.prrelid = {oid} AND p.pubname IN ({})), {all})",
                publications.join(", ")
            ),
        };
        format!(
            "SELECT '\\x{oid:08x}'::bytea, {published}, (SELECT count(*) FROM {columns} AND a.attgenerated <> '')"
        )
    };
    tables.iter().map(of).collect::<Vec<_>>().join(" UNION ALL ")
}
