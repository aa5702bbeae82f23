//! The columns of the outbox table at a start.

use pg_logical::Oid;
use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::Session;

use crate::config::{Postgres, TableName};
use crate::error::Error;
use crate::outbox::Outbox;

/// The columns that the table has now, and whether the rows still in the log have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    types: Vec<(String, Oid)>,
    /// Columns that exist but are not in the stream.
    withheld: Vec<String>,
    /// Whether every row that the slot has yet to deliver was written with these columns.
    settled: bool,
}

impl Columns {
    /// Looks up the columns of the table with this OID, which `slot` delivers.
    pub async fn query(session: &mut Session, table: u32, postgres: &Postgres) -> Result<Self, QueryError> {
        let rows = session.query(&query(table, postgres)).await?;
        let column =
            |row: &pg_logical::session::Row| Some((row.get(0)?.to_owned(), Oid(row.get(1)?.parse().ok()?)));
        let (sent, withheld): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.get(3) == Some("t"));
        Ok(Columns {
            types: sent.into_iter().filter_map(column).collect(),
            withheld: withheld.into_iter().filter_map(column).map(|(name, _)| name).collect(),
            settled: rows.first().is_some_and(|row| row.get(2) == Some("t")),
        })
    }

    /// Refuses a missing column, or one of a wrong type, only if no row can have a usable one: each row is read with the
    /// columns it was written with.
    ///
    /// # Errors
    /// No row can be read; the exit code is 1.
    pub fn check(&self, outbox: &Outbox, table: &TableName) -> Result<(), Error> {
        let type_of = |name: &str| self.types.iter().find(|(known, _)| known == name).map(|(_, id)| *id);
        let Some(fault) = outbox.faults(table, type_of).into_iter().next() else { return Ok(()) };
        if !self.settled {
            tracing::warn!(
                peer = "postgres",
                reason = %fault,
                "the table was altered; rows written since then will stop the router"
            );
            return Ok(());
        }
        let names: Vec<&str> = self.types.iter().map(|(name, _)| name.as_str()).collect();
        let mut remedy =
            format!("Correct `[outbox] columns` or `[route]`: the table's columns are {}", names.join(", "));
        if !self.withheld.is_empty() {
            remedy.push_str(&format!(", and {}: {WITHHELD}", self.withheld.join(", ")));
        }
        Err(Error::refused(fault.to_string(), remedy))
    }
}

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

/// A table is settled if it was never altered, so that the same transaction wrote all its columns, or not since the slot's
/// `catalog_xmin`: the slot is past all earlier changes to the catalogues (Postgres manual, `pg_replication_slots`).
fn query(table: u32, postgres: &Postgres) -> String {
    let (slot, sent) = (literal(&postgres.slot), sent(&postgres.publication));
    format!(
        "WITH x AS (SELECT xmin FROM pg_catalog.pg_attribute WHERE attrelid = {table} AND attnum > 0) \
         SELECT a.attname, a.atttypid, (SELECT count(DISTINCT x.xmin::text) = 1 FROM x) OR NOT EXISTS \
         (SELECT FROM x, pg_catalog.pg_replication_slots s WHERE s.slot_name = {slot} \
         AND pg_catalog.age(x.xmin) <= pg_catalog.age(s.catalog_xmin)), {sent} \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = {table} AND a.attnum > 0 AND NOT a.attisdropped \
         ORDER BY a.attnum"
    )
}
