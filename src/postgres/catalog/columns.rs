//! The columns of the outbox table at a start.

use pg_logical::Oid;
use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::Session;

use super::table::Table;
use crate::config::{OutboxSource, Postgres, TableName};
use crate::error::{Error, ErrorCode};
use crate::outbox::{Outbox, OutboxError};

/// The columns that the table has now, and whether the rows still in the log have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// The table.
    pub table: TableName,
    /// The columns that are not generated.
    pub written: Vec<String>,
    /// The columns that the publication's column list leaves out.
    pub left_out: Vec<String>,
    types: Vec<(String, Oid)>,
    /// Columns that exist but are not in the stream, for another reason than a column list.
    withheld: Vec<String>,
    /// Whether every row that the slot has yet to deliver was written with these columns.
    pub settled: bool,
    /// The transaction that last altered them.
    pub altered_by: Option<String>,
}

impl Columns {
    /// Looks up the columns of the outbox tables that exist. `tables` are those of the catalogues.
    pub async fn query(
        session: &mut Session,
        source: OutboxSource<'_>,
        tables: &[Option<Table>],
    ) -> Result<Vec<Self>, QueryError> {
        let mut all = Vec::new();
        for (name, table) in source.outbox.tables.iter().zip(tables) {
            let Some(table) = table else { continue };
            all.push(Self::of_table(session, name, table.oid, source.postgres).await?);
        }
        Ok(all)
    }

    async fn of_table(
        session: &mut Session,
        name: &TableName,
        table: u32,
        postgres: &Postgres,
    ) -> Result<Self, QueryError> {
        let rows = session.query(&query(table, postgres)).await?;
        let names_where = |index| -> Vec<String> {
            let rows = rows.iter().filter(|row| row.get(index) == Some("t"));
            rows.filter_map(|row| row.get(0).map(str::to_owned)).collect()
        };
        let (written, left_out) = (names_where(4), names_where(5));
        let column =
            |row: &pg_logical::session::Row| Some((row.get(0)?.to_owned(), Oid(row.get(1)?.parse().ok()?)));
        let (sent, withheld): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.get(3) == Some("t"));
        Ok(Columns {
            table: name.clone(),
            written,
            left_out,
            types: sent.into_iter().filter_map(column).collect(),
            withheld: withheld.into_iter().filter_map(column).map(|(name, _)| name).collect(),
            settled: rows.first().is_some_and(|row| row.get(2) == Some("t")),
            altered_by: rows.first().and_then(|row| row.get(6)).map(str::to_owned),
        })
    }

    /// The columns that the router needs, and that the publication's column list leaves out.
    pub fn needed_of_left_out(&self, outbox: &Outbox) -> Vec<&str> {
        let left_out =
            |name: &str| self.left_out.iter().find(|left_out| *left_out == name).map(String::as_str);
        let faults = outbox.faults(&self.table, |name| {
            self.types.iter().find(|(known, _)| known == name && left_out(name).is_none()).map(|(_, id)| *id)
        });
        let missing = faults.iter().filter_map(|fault| match fault {
            OutboxError::MissingColumn { column, .. } => left_out(column),
            _ => None,
        });
        missing.collect()
    }

    /// The first column that is missing, or of a wrong type.
    pub fn fault(&self, outbox: &Outbox) -> Option<OutboxError> {
        let type_of = |name: &str| self.types.iter().find(|(known, _)| known == name).map(|(_, id)| *id);
        outbox.faults(&self.table, type_of).into_iter().next()
    }

    /// Refuses a missing column, or one of a wrong type, only if no row can have a usable one: each row is read with the
    /// columns it was written with.
    ///
    /// # Errors
    /// No row can be read; the exit code is 1.
    pub fn check(&self, outbox: &Outbox) -> Result<(), Error> {
        let Some(fault) = self.fault(outbox) else { return Ok(()) };
        if !self.settled {
            tracing::warn!(peer = "postgres", reason = %fault, "{ALTERED}");
            return Ok(());
        }
        let names: Vec<&str> = self.types.iter().map(|(name, _)| name.as_str()).collect();
        let mut remedy =
            format!("Correct `[outbox] columns` or `[route]`: the table's columns are {}", names.join(", "));
        if !self.withheld.is_empty() {
            remedy.push_str(&format!(", and {}: {WITHHELD}", self.withheld.join(", ")));
        }
        Err(Error::refused(ErrorCode::ColumnUnusable, fault.to_string(), remedy))
    }
}

/// What `run` and `check` say if earlier rows can be sent.
pub const ALTERED: &str = "the table was altered; rows written since then will stop the router";

/// Why an existing column is not in the stream.
pub const WITHHELD: &str =
    "generated, so not published (Postgres 18 can: publish_generated_columns = stored)";

/// An expression over `pg_attribute a`: are the column's values published? Those of a generated column are from Postgres 18
/// on, if the publication says so (Postgres manual, "Generated Column Replication"). The rows are read as JSON, because older
/// catalogues lack these columns.
pub fn sent(publication: &str) -> String {
    format!(
        "(a.attgenerated = '' OR a.attgenerated = 's' AND EXISTS (SELECT FROM pg_catalog.pg_publication p \
         WHERE p.pubname = {} AND (pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's' OR EXISTS \
         (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = a.attrelid \
         AND pg_catalog.to_jsonb(r) -> 'prattrs' @> pg_catalog.to_jsonb(a.attnum)))))",
        literal(publication)
    )
}

/// An expression: the OID of the type of the column `pg_attribute a`, or of the base type if that is a domain, perhaps over domains.
pub const BASE_TYPE: &str = "(WITH RECURSIVE d AS (SELECT t.oid, t.typbasetype FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid \
                             UNION ALL SELECT t.oid, t.typbasetype FROM d JOIN pg_catalog.pg_type t ON t.oid = d.typbasetype) \
                             SELECT d.oid FROM d WHERE d.typbasetype = 0)";

/// A table is settled if it was never altered, so that the same transaction wrote all its columns, or not since the slot's
/// `catalog_xmin`: the slot is past all earlier changes to the catalogues (Postgres manual, `pg_replication_slots`).
fn query(table: u32, postgres: &Postgres) -> String {
    let (slot, sent) = (literal(&postgres.slot), sent(&postgres.publication));
    // 14 has no column lists
    let left_out = format!(
        "EXISTS (SELECT FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid \
         WHERE p.pubname = {} AND r.prrelid = a.attrelid \
         AND pg_catalog.jsonb_typeof(pg_catalog.to_jsonb(r) -> 'prattrs') = 'array' \
         AND NOT pg_catalog.to_jsonb(r) -> 'prattrs' @> pg_catalog.to_jsonb(a.attnum))",
        literal(&postgres.publication)
    );
    format!(
        "WITH x AS (SELECT xmin FROM pg_catalog.pg_attribute WHERE attrelid = {table} AND attnum > 0) \
         SELECT a.attname, {BASE_TYPE}, (SELECT count(DISTINCT x.xmin::text) = 1 FROM x) OR NOT EXISTS \
         (SELECT FROM x, pg_catalog.pg_replication_slots s WHERE s.slot_name = {slot} \
         AND pg_catalog.age(x.xmin) <= pg_catalog.age(s.catalog_xmin)), {sent}, a.attgenerated = '', {left_out}, \
         (SELECT x.xmin::text FROM x ORDER BY pg_catalog.age(x.xmin) LIMIT 1) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = {table} AND a.attnum > 0 AND NOT a.attisdropped \
         ORDER BY a.attnum"
    )
}
