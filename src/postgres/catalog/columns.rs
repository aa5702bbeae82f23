//! The outbox table's columns at a start.

use crate::error::Error;
use crate::outbox::Outbox;
use crate::postgres::pgoutput::Oid;
use crate::postgres::quoting::literal;
use crate::postgres::server_error::QueryError;
use crate::postgres::session::Session;

/// What the table has now, and whether that says something of the rows that are still in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    types: Vec<(String, Oid)>,
    /// Every row that the slot has yet to deliver was written to these columns.
    settled: bool,
}

impl Columns {
    /// Asks for the columns of the table with this OID, which `slot` is to deliver.
    pub async fn look(session: &mut Session, table: u32, slot: &str) -> Result<Self, QueryError> {
        let rows = session.query(&query(table, slot)).await?;
        let column = |row: &crate::postgres::session::Row| {
            Some((row.get(0)?.to_owned(), Oid(row.get(1)?.parse().ok()?)))
        };
        Ok(Columns {
            types: rows.iter().filter_map(column).collect(),
            settled: rows.first().is_some_and(|row| row.get(2) == Some("t")),
        })
    }

    /// A column that is missing, or of a type that will not do, is a definite answer only if no row can have it. A row
    /// is read as the table was when it was written.
    ///
    /// # Errors
    /// No row can be read, with exit code 1.
    pub fn verdict(&self, outbox: &Outbox) -> Result<(), Error> {
        let type_of = |name: &str| self.types.iter().find(|(known, _)| known == name).map(|(_, id)| *id);
        let Some(fault) = outbox.faults(type_of).into_iter().next() else { return Ok(()) };
        if !self.settled {
            tracing::warn!(
                peer = "postgres",
                reason = %fault,
                "the table was altered; rows written since then will stop the router"
            );
            return Ok(());
        }
        let names: Vec<&str> = self.types.iter().map(|(name, _)| name.as_str()).collect();
        Err(Error::refused(
            fault.to_string(),
            format!("Correct `[outbox] columns` or `[route]`: the table's columns are {}", names.join(", ")),
        ))
    }
}

/// A table is settled if it was never altered, for then each of its columns was written by the same transaction, or not
/// since the slot's `catalog_xmin`: whatever was done to the catalogues before, the slot is past (Postgres manual,
/// `pg_replication_slots`).
fn query(table: u32, slot: &str) -> String {
    let slot = literal(slot);
    format!(
        "WITH x AS (SELECT xmin FROM pg_catalog.pg_attribute WHERE attrelid = {table} AND attnum > 0) \
         SELECT a.attname, a.atttypid, (SELECT count(DISTINCT x.xmin::text) = 1 FROM x) OR NOT EXISTS \
         (SELECT FROM x, pg_catalog.pg_replication_slots s WHERE s.slot_name = {slot} \
         AND pg_catalog.age(x.xmin) <= pg_catalog.age(s.catalog_xmin)) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = {table} AND a.attnum > 0 AND NOT a.attisdropped \
         ORDER BY a.attnum"
    )
}
