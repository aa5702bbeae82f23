//! What the catalogues say about the slot, the publication and the tables, and whether the router can work with it.
//!
//! The same query serves the start of a session, the watch beside it, and `check`. It runs in replication sessions as well as
//! in ordinary ones, so all values are read as text.

mod columns;
mod first_slot;
mod own_publication;
mod publication;
mod recovery_steps;
mod shards;
mod slot;
#[cfg(test)]
pub(crate) use slot::tests;
pub mod recovery_sql;
mod rows_elsewhere;
mod table;
mod unnamed_outboxes;

pub use columns::{ALTERED, BASE_TYPE, Columns, WITHHELD, sent};
pub use own_publication::check_column_lists;
pub use publication::{Publication, guard, not_a_table, unwatched};
pub use recovery_sql::send_from_table;
pub use recovery_steps::{log_table, unlogged};
pub use shards::{ROW_FILTERS, check_shards, no_row_filters, slots_of_other_shards};
pub use slot::{FLUSH_LSN, Slot, holder};
pub use table::{Named, PARTITION_TRIGGERS, Table, is_published, partition_triggers_fire};
pub use unnamed_outboxes::unnamed_outboxes;

use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};
use pg_logical::{Lsn, QueryError};

use crate::checkpoint::StreamDefinition;
use crate::config::{Outbox, OutboxSource, Postgres};
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::postgres::administrator::init_command;
use crate::postgres::open_transaction::OpenTransaction;
use crate::postgres::slot_record;

/// The state of the catalogues at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// Whether the server is a standby.
    pub standby: bool,
    /// The slot, if it exists.
    pub slot: Option<Slot>,
    /// The publication, if it exists.
    pub publication: Option<Publication>,
    /// The outbox tables in the order of the configuration; `None` for a missing one.
    pub tables: Vec<Option<Table>>,
    /// What is known of their names, even if only the slot was queried.
    pub named: Vec<Named>,
    /// Whether a router may have read a slot of this name, if there is none.
    pub slot_was_read: bool,
    /// Whether the session has the router's own role, and that is a superuser, which may create and grant everything.
    pub superuser: bool,
    /// If the slot is lost: the open transaction that may be the cause.
    pub held_by: Option<OpenTransaction>,
}

impl Catalog {
    /// Queries the catalogues, in a session of either kind.
    pub async fn query(
        session: &mut Session,
        postgres: &Postgres,
        outbox: &Outbox,
    ) -> Result<Self, QueryError> {
        Self::query_all(session, postgres, outbox, true).await
    }

    /// Queries everything but how the publication publishes the tables, because they may be locked.
    pub async fn query_slot(
        session: &mut Session,
        postgres: &Postgres,
        outbox: &Outbox,
    ) -> Result<Self, QueryError> {
        Self::query_all(session, postgres, outbox, false).await
    }

    async fn query_all(
        session: &mut Session,
        postgres: &Postgres,
        outbox: &Outbox,
        tables: bool,
    ) -> Result<Self, QueryError> {
        let version = server_version(session).await?;
        let rows = session.query(&query(postgres, outbox, tables, version)).await?;
        let mut catalog = read(&rows, outbox.tables.len(), tables).map_err(|Unreadable| {
            pg_logical::Error::transient("the catalogues returned a row that cannot be read")
        })?;
        catalog.read_notes(session).await?;
        if let Some(xmin) = catalog.slot.as_ref().and_then(lost_since) {
            catalog.held_by = OpenTransaction::since(session, xmin).await?;
        }
        if catalog.slot.is_none() {
            catalog.slot_was_read = slot_record::may_have_been_read(session, &postgres.slot).await?;
        }
        Ok(catalog)
    }

    /// Looks at new partitions, and reads what was noted last of those that brought rows.
    async fn read_notes(&mut self, session: &mut Session) -> Result<(), QueryError> {
        for table in self.tables.iter_mut().flatten().filter(|table| table.notes_readable) {
            if table.attachments_noted && !self.standby {
                let sql = format!("SELECT outbox_router.note_attached({})", table.oid);
                table.attachments_noted = session.query_one(&sql).await?.is_none();
            }
            let sql = format!(
                "SELECT r.id || ' ' || r.partition FROM outbox_router.rows_not_in_log r WHERE r.outbox = {} ORDER BY r.id DESC LIMIT 1",
                table.oid
            );
            table.traces.not_in_log = session.query_one(&sql).await?;
        }
        Ok(())
    }

    /// Whether the stream certainly contains every event: the publication publishes inserts into the tables, and the router
    /// may read the slot.
    pub fn check(&self, source: OutboxSource<'_>, missing: Missing) -> Result<(), Error> {
        if missing == Missing::AtStart {
            self.check_prepared(source)?;
        }
        self.check_slot(source)?;
        self.check_publication(source, missing)
    }

    /// Before `init` there is nothing that could be lost, so one command is all the advice.
    pub fn check_prepared(&self, source: OutboxSource<'_>) -> Result<(), Error> {
        let nothing =
            self.slot.is_none() && self.publication.is_none() && self.tables.iter().all(Option::is_none);
        if self.standby || !nothing || self.named.iter().any(|named| named.not_a_table) {
            return Ok(());
        }
        let Postgres { conninfo, slot, publication, .. } = source.postgres;
        let tables: String =
            source.outbox.tables.iter().map(|table| format!(" nor the table {table}")).collect();
        Err(Error::refused(
            ErrorCode::NotPrepared,
            format!(
                "the database {} has neither the slot {slot} nor the publication {publication}{tables}",
                conninfo.dbname
            ),
            Remedy::steps([Step::new(
                "Prepare it, unless it is the wrong database: then correct `[postgres] url` instead",
            )
            .typing(self.init(source))]),
        ))
    }

    /// The part of the check about the slot.
    pub fn check_slot(&self, source: OutboxSource<'_>) -> Result<(), Error> {
        if self.standby {
            slot::check_on_standby(self.slot.as_ref(), source.postgres)?;
        }
        slot::check(self, source)
    }

    /// The part of the check about tables and publication.
    pub fn check_publication(&self, source: OutboxSource<'_>, missing: Missing) -> Result<(), Error> {
        publication::check(self, source, missing)
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
        recovery_steps::recovery_steps(self, source, position.min(self.confirmed()))
    }

    /// The same while the router runs. The catalogues do not have its position.
    pub fn resume_after_alteration(&self, source: OutboxSource<'_>) -> Remedy {
        recovery_steps::resume_after_alteration(self, source, Remedy::default())
    }

    /// How the router gets a publication of its own while the present one still delivers events.
    pub fn own_publication(&self, source: OutboxSource<'_>) -> Vec<Step> {
        own_publication::own_publication(self, source)
    }

    /// What an operator can do about rows of which the publication's column list left out columns that the router needs.
    pub fn own_publication_with_rows(&self, source: OutboxSource<'_>) -> Vec<Step> {
        own_publication::own_publication_with_rows(self, source)
    }

    /// `outbox-router init`, as an administrator unless the session's role can create everything.
    fn init(&self, source: OutboxSource<'_>) -> String {
        match self.superuser {
            true => "outbox-router init".to_owned(),
            false => init_command(&source.postgres.conninfo),
        }
    }

    /// Whether others read the publication too, so that it must stay as it is.
    fn is_shared(&self) -> bool {
        self.publication.as_ref().is_some_and(|publication| publication.shared)
    }

    fn confirmed(&self) -> Lsn {
        self.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or(Lsn::INVALID)
    }
}

/// `server_version_num`, on which it depends what the catalogues have.
pub async fn server_version(session: &mut Session) -> Result<u32, QueryError> {
    let version = session.query_one("SHOW server_version_num").await?;
    Ok(version.and_then(|text| text.parse().ok()).unwrap_or_default())
}

/// The `catalog_xmin` of a slot whose log Postgres has removed.
fn lost_since(slot: &Slot) -> Option<u32> {
    let removed = slot.invalidation_reason.as_deref().is_none_or(|reason| reason == "wal_removed");
    slot.catalog_xmin.filter(|_| slot.wal_status.as_deref() == Some("lost") && removed)
}

/// The query for a server of `version` (`server_version_num`). It returns a row for each table, with its columns if `tables`.
fn query(postgres: &Postgres, outbox: &Outbox, tables: bool, version: u32) -> String {
    let mut names: Vec<String> = outbox
        .tables
        .iter()
        .enumerate()
        .map(|(number, table)| format!("({number}, {}, {})", literal(&table.schema), literal(&table.name)))
        .collect();
    if names.is_empty() {
        // slot and publication are needed even without tables
        names.push("(0, NULL::text, NULL::text)".to_owned());
    }
    let (table, joined) = match tables {
        true => (
            format!(", {}", table::columns(version)),
            "LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace) \
             ON n.nspname = o.schema AND c.relname = o.name AND c.relkind IN ('r', 'p')",
        ),
        false => (String::new(), ""),
    };
    format!(
        "SELECT pg_catalog.pg_is_in_recovery(), (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user AND r.rolname = {user}), \
         {slot}, {publication}, {named}{table} FROM (VALUES {names}) AS o(number, schema, name) \
         LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = {slot_name} \
         LEFT JOIN pg_catalog.pg_publication p ON p.pubname = {publication_name} {joined} ORDER BY o.number",
        slot = slot::columns(version),
        publication = publication::columns(&outbox.tables, version),
        named = Named::columns(outbox.columns.created_at.as_deref()),
        user = literal(&postgres.conninfo.user),
        names = names.join(", "),
        slot_name = literal(&postgres.slot),
        publication_name = literal(&postgres.publication),
    )
}

fn read(rows: &[Row], names: usize, tables: bool) -> Result<Catalog, Unreadable> {
    let mut catalog = Catalog::default();
    for row in rows {
        let mut column = 0..row.len();
        let mut next = || row.get(column.next()?).map(str::to_owned);
        (catalog.standby, catalog.superuser) = (flag(next()), flag(next()));
        catalog.slot = Slot::read(&mut next)?;
        catalog.publication = Publication::read(&mut next)?;
        catalog.named.push(Named::read(&mut next));
        if tables {
            catalog.tables.push(Table::read(&mut next)?);
        }
    }
    catalog.tables.truncate(names);
    catalog.named.truncate(names);
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

impl Missing {
    /// The error that ends the start or the session.
    fn refusal(self, code: ErrorCode, what: String, remedy: Remedy) -> Error {
        match self {
            Missing::AtStart => Error::refused(code, what, remedy),
            Missing::WhileRunning => Error::not_safe(code, what, remedy),
        }
    }
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
