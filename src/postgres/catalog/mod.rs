//! What the catalogues say about the slot, the publication and the tables, and whether the router can work with it.
//!
//! The same query serves the start of a session, the watch beside it, and `check`. It runs in replication sessions as well as
//! in ordinary ones, so all values are read as text.

mod columns;
mod own_publication;
mod publication;
mod shards;
mod slot;
#[cfg(test)]
pub(crate) use slot::tests;
pub mod recovery_sql;
mod table;

pub use columns::{Columns, WITHHELD, sent};
pub use own_publication::{check_column_lists, own_publication, rewrite_rows};
pub use publication::{Publication, guard, table_missing, unwatched};
pub use recovery_sql::send_from_table;
pub use shards::{ROW_FILTERS, check_shards, no_row_filters, slots_of_other_shards};
pub use slot::{FLUSH_LSN, Slot, holder};
pub use table::{PARTITION_TRIGGERS, Table, partition_triggers_fire};

use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};
use pg_logical::{Lsn, QueryError};

use crate::checkpoint::StreamDefinition;
use crate::config::{Outbox, OutboxSource, Postgres, TableName};
use crate::error::{Error, Remedy};

/// The state of the catalogues at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    /// Whether the server is a standby.
    pub standby: bool,
    /// The slot, if it exists.
    pub slot: Option<Slot>,
    /// The publication, if it exists.
    pub publication: Option<Publication>,
    /// The outbox tables in the order of the configuration; `None` for a missing one.
    pub tables: Vec<Option<Table>>,
}

impl Catalog {
    /// Queries the catalogues, in a session of either kind.
    pub async fn query(
        session: &mut Session,
        postgres: &Postgres,
        outbox: &Outbox,
    ) -> Result<Self, QueryError> {
        Self::query_tables(session, postgres, &outbox.tables).await
    }

    /// Queries only the slot and the publication, because the tables may be locked.
    pub async fn query_slot(session: &mut Session, postgres: &Postgres) -> Result<Self, QueryError> {
        Self::query_tables(session, postgres, &[]).await
    }

    async fn query_tables(
        session: &mut Session,
        postgres: &Postgres,
        tables: &[TableName],
    ) -> Result<Self, QueryError> {
        let version = session.query_one("SHOW server_version_num").await?;
        let version = version.and_then(|text| text.parse().ok()).unwrap_or_default();
        let rows = session.query(&query(postgres, tables, version)).await?;
        read(&rows, tables.len()).map_err(|Unreadable| {
            pg_logical::Error::transient("the catalogues returned a row that cannot be read").into()
        })
    }

    /// Whether the stream certainly contains every event: the publication publishes inserts into the tables, and the router
    /// may read the slot.
    pub fn check(&self, source: OutboxSource<'_>, missing: Missing) -> Result<(), Error> {
        self.check_slot(source)?;
        self.check_publication(source, missing)
    }

    /// The part of the check about the slot.
    pub fn check_slot(&self, source: OutboxSource<'_>) -> Result<(), Error> {
        if self.standby {
            slot::check_on_standby(self.slot.as_ref(), source.postgres)?;
        }
        slot::check(self.slot.as_ref(), source)
    }

    /// The part of the check about tables and publication.
    pub fn check_publication(&self, source: OutboxSource<'_>, missing: Missing) -> Result<(), Error> {
        publication::check(self.publication.as_ref(), &self.tables, source, missing, self.confirmed())
    }

    /// What determines the changes in the stream.
    pub fn stream_definition(&self, outbox: &Outbox) -> StreamDefinition {
        let identity = |table: &Table| format!("{} {}", table.oid, table.membership);
        let tables = outbox.tables.iter().zip(&self.tables);
        StreamDefinition {
            publication: self.publication.as_ref().map(|publication| publication.fingerprint.clone()),
            tables: tables
                .filter_map(|(name, table)| Some((name.to_string(), table.as_ref().map(identity)?)))
                .collect(),
            message_prefix: outbox.message_prefix.clone(),
            traces: outbox
                .tables
                .iter()
                .zip(&self.tables)
                .filter_map(|(name, table)| Some((name.to_string(), table.as_ref()?.traces.clone())))
                .collect(),
        }
    }

    /// What an operator can do about rows that were written while no publication published them. The router has delivered up
    /// to `position`.
    pub fn recovery_steps(&self, source: OutboxSource<'_>, position: Lsn) -> Remedy {
        // the position may be past rows that the stream skipped, but the slot is not past the last check that found
        // the publication unchanged
        publication::recovery_steps(&self.tables, source, position.min(self.confirmed()))
    }

    /// The same while the router runs. The catalogues do not have its position.
    pub fn resume_after_alteration(&self, source: OutboxSource<'_>) -> Remedy {
        publication::resume_after_alteration(&self.tables, source, self.confirmed())
    }

    fn confirmed(&self) -> Lsn {
        self.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or(Lsn::INVALID)
    }
}

/// The query for a server of `version` (`server_version_num`). It returns a row for each table.
fn query(postgres: &Postgres, tables: &[TableName], version: u32) -> String {
    let mut names: Vec<String> = tables
        .iter()
        .enumerate()
        .map(|(number, table)| format!("({number}, {}, {})", literal(&table.schema), literal(&table.name)))
        .collect();
    if names.is_empty() {
        // slot and publication are needed even without tables
        names.push("(0, NULL::text, NULL::text)".to_owned());
    }
    format!(
        "SELECT pg_catalog.pg_is_in_recovery(), {slot}, {publication}, {table} FROM (VALUES {names}) AS o(number, schema, name) \
         LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = {slot_name} \
         LEFT JOIN pg_catalog.pg_publication p ON p.pubname = {publication_name} \
         LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace) \
         ON n.nspname = o.schema AND c.relname = o.name AND c.relkind IN ('r', 'p') ORDER BY o.number",
        slot = slot::columns(version),
        publication = publication::columns(tables, version),
        table = table::columns(version),
        names = names.join(", "),
        slot_name = literal(&postgres.slot),
        publication_name = literal(&postgres.publication),
    )
}

fn read(rows: &[Row], tables: usize) -> Result<Catalog, Unreadable> {
    let mut catalog = Catalog { standby: false, slot: None, publication: None, tables: Vec::new() };
    for row in rows {
        let mut column = 0..row.len();
        let mut next = || row.get(column.next()?).map(str::to_owned);
        catalog.standby = flag(next());
        catalog.slot = Slot::read(&mut next)?;
        catalog.publication = Publication::read(&mut next)?;
        catalog.tables.push(Table::read(&mut next)?);
    }
    catalog.tables.truncate(tables);
    if rows.is_empty() { Err(Unreadable) } else { Ok(catalog) }
}

/// What a missing publication or table means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// At a start: it was never created. Exit code 1.
    AtStart,
    /// It existed before, so rows written since are not in the stream. Exit code 3.
    WhileRunning,
}

/// A row without the columns that the query asked for.
#[derive(Debug)]
struct Unreadable;

type Values<'a> = dyn FnMut() -> Option<String> + 'a;

fn parsed<T: std::str::FromStr>(value: Option<String>) -> Result<Option<T>, Unreadable> {
    value.map(|text| text.parse().map_err(|_| Unreadable)).transpose()
}

fn flag(value: Option<String>) -> bool {
    value.as_deref() == Some("t")
}
