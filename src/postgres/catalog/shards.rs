//! Whether the publications of the shards assign every aggregate to exactly one shard.

use std::fmt::Display;

use pg_logical::QueryError;
use pg_logical::quoting;
use pg_logical::quoting::literal;
use pg_logical::session::Session;

use super::first_slot;
use super::own_publication::own_publication_remedy;
use super::recovery_steps::resume_after_alteration;
use super::{Catalog, Missing, Table, server_version};
use crate::config::{OutboxSource, TableName};
use crate::error::{Error, ErrorCode, Peer, Remedy, Step};
use crate::postgres::row_filter::{is_that_of, with_filtered_tables};
use crate::shards::{self, Ids, Shard};

/// The first version with row filters.
pub const ROW_FILTERS: u32 = 150_000;

/// The first OID of user-defined objects.
const FIRST_OF_USERS: u32 = 16_384;

/// The error for a server of this version, which has no row filters; `besides` is added to it.
pub fn no_row_filters(version: impl Display, besides: &str) -> Error {
    Error::refused(
        ErrorCode::ShardsUnsupported,
        format!("the server is Postgres {version}, and shards need the row filters of 15{besides}"),
        "Upgrade the server, or remove `[shards] count`",
    )
}

/// Judges the publications of `shards`: what each shard reads, all with the same tables, and what the catalogues say about
/// it. Returns the type of the aggregate ids.
///
/// # Errors
/// The server has no row filters, the ids cannot be filtered, or a publication filters them differently. Missing tables and
/// publications are not reported here.
pub async fn check_shards(
    session: &mut Session,
    shards: &[(OutboxSource<'_>, &Catalog)],
    missing: Missing,
) -> Result<Ids, Error> {
    let version = server_version(session).await?;
    if version < ROW_FILTERS {
        return Err(no_row_filters(version / 10_000, ""));
    }
    let Some((source, _)) = shards.first() else { return Ok(Ids::Texts) };
    if source.outbox.message_prefix.is_some() {
        let encoding = session.query_one("SELECT pg_catalog.current_setting('server_encoding')").await?;
        if encoding.as_deref() != Some("UTF8") {
            let encoding = encoding.unwrap_or_default();
            return Err(Error::refused(
                ErrorCode::ShardsUnsupported,
                format!(
                    "the database is in {encoding}: the router distributes messages by their bytes in UTF-8, but Postgres distributes rows by those"
                ),
                "Remove `[outbox] message_prefix` or `[shards] count`, or use a database in UTF-8",
            ));
        }
    }
    let aggregate_id = &source.outbox.columns.aggregate_id;
    let mut found: Option<(Ids, &TableName)> = None;
    for (number, table) in source.outbox.tables.iter().enumerate() {
        let Some(column) = Column::query(session, aggregate_id, table).await? else { continue };
        let ids = column.ids(aggregate_id, table)?;
        match found {
            Some((before, first)) if before != ids => return Err(mixed_types((before, first), (ids, table))),
            _ => found = found.or(Some((ids, table))),
        }
        for (of_one, catalog) in shards {
            let found = catalog.tables.get(number).and_then(Option::as_ref);
            let Some((shard, found)) = of_one.shard.zip(found) else { continue };
            if let Some(fault) = fault(*of_one, table, found, ids, shard) {
                return Err(error_of_fault(fault, *of_one, catalog, shard, missing));
            }
        }
    }
    Ok(found.map_or(Ids::Texts, |(ids, _)| ids))
}

/// The column of the aggregate ids.
struct Column {
    type_id: u32,
    sql_type: String,
    /// Its collation, if a user created it.
    collation: Option<String>,
}

impl Column {
    async fn query(session: &mut Session, name: &str, table: &TableName) -> Result<Option<Self>, Error> {
        let sql = format!(
            "SELECT a.atttypid, pg_catalog.format_type(a.atttypid, a.atttypmod), \
             (SELECT o.collname FROM pg_catalog.pg_collation o WHERE o.oid = a.attcollation AND o.oid >= {FIRST_OF_USERS}) \
             FROM pg_catalog.pg_attribute a \
             JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = {} AND c.relname = {} AND a.attname = {} AND NOT a.attisdropped",
            literal(&table.schema),
            literal(&table.name),
            literal(name)
        );
        let rows = session.query(&sql).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let read = row.get(0).and_then(|text| text.parse().ok()).zip(row.get(1));
        let (type_id, sql_type) = read.ok_or_else(|| {
            Error::transient(Peer::Postgres, "the catalogues returned a row that cannot be read")
        })?;
        let collation = row.get(2).map(str::to_owned);
        Ok(Some(Column { type_id, sql_type: sql_type.to_owned(), collation }))
    }

    fn ids(&self, column: &str, table: &TableName) -> Result<Ids, Error> {
        if let Some(collation) = &self.collation {
            return Err(Error::refused(
                ErrorCode::ShardsUnsupported,
                format!(
                    "aggregates of {table} cannot be distributed over shards: its column {column} has the collation {collation}, and row \
                     filters accept only built-in ones"
                ),
                format!(
                    "Run ALTER TABLE {} ALTER {} TYPE {} COLLATE \"default\"",
                    table.in_sql(),
                    quoting::identifier(column),
                    self.sql_type
                ),
            ));
        }
        Ids::of_type(self.type_id).ok_or_else(|| {
            let sql_type = &self.sql_type;
            Error::refused(ErrorCode::ShardsUnsupported,
                format!("aggregates of {table} cannot be distributed over shards: its column {column} is of type {sql_type}"),
                "Make it text, varchar, uuid or an integer, for which Postgres has a hash function that filters may use",
            )
        })
    }
}

fn mixed_types((ids, table): (Ids, &TableName), (others, other): (Ids, &TableName)) -> Error {
    Error::refused(
        ErrorCode::ShardsUnsupported,
        format!(
            "the aggregates of {table} have {} for ids and those of {other} {}: an aggregate in both would be in two shards",
            ids.name(),
            others.name()
        ),
        "Give the columns one type, or read the tables by two routers of different names",
    )
}

/// What is wrong with the rows that one publication takes from a table.
fn fault(
    source: OutboxSource<'_>,
    name: &TableName,
    table: &Table,
    ids: Ids,
    shard: Shard,
) -> Option<String> {
    let publication = &source.postgres.publication;
    if !table.published {
        return None;
    }
    let Some(filter) = &table.row_filter else {
        return Some(format!(
            "the publication {publication} has no row filter on {name}: {shard} would send all of it"
        ));
    };
    let fits = is_that_of(filter, ids, &source.outbox.columns.aggregate_id, shard);
    (!fits).then(|| {
        format!(
            "the row filter of the publication {publication} on {name} is not that of {shard}: WHERE {filter}"
        )
    })
}

fn error_of_fault(
    fault: String,
    source: OutboxSource<'_>,
    catalog: &Catalog,
    shard: Shard,
    missing: Missing,
) -> Error {
    if catalog.is_shared() {
        return missing.refusal(ErrorCode::ShardFilter, fault, own_publication_remedy(catalog, source));
    }
    let outbox = source.outbox;
    let begins =
        format!("ALTER PUBLICATION {} SET TABLE ", quoting::identifier(&source.postgres.publication));
    let filters = with_filtered_tables(&begins, &outbox.tables, &outbox.columns.aggregate_id, shard, "", " ");
    let fix = Remedy::steps([Step::new("Stop all routers, and correct the row filters").sql(filters)]);
    let remedy = if catalog.slot.is_none() {
        first_slot::create(catalog, source, "Correct the row filters, and create the slots", &fix)
    } else if source.checkpoints {
        let start = Step::new(
            "Start the router: if it has delivered before, it stops with OBR-3109, and prints the steps that send what was left out",
        );
        fix.then(start.typing(format!("outbox-router run{}", shards::argument(Some(shard)))))
    } else {
        resume_after_alteration(catalog, source, fix)
    };
    missing.refusal(ErrorCode::ShardFilter, fault, remedy)
}

/// The slots for another number of shards: those with the name of the router's slot without shards, `base`, or of a shard,
/// that are not in `ours`.
///
/// # Errors
/// The server refuses, or the session is lost.
pub async fn slots_of_other_shards(
    session: &mut Session,
    base: &str,
    ours: &[String],
) -> Result<Vec<String>, QueryError> {
    // slot names contain no special characters of regular expressions
    let sql = format!(
        "SELECT s.slot_name FROM pg_catalog.pg_replication_slots s WHERE s.database = pg_catalog.current_database() \
         AND s.plugin = 'pgoutput' AND NOT s.temporary \
         AND (s.slot_name = {} OR s.slot_name ~ {}) ORDER BY s.slot_name",
        literal(base),
        literal(&format!("^{base}_[0-9]+_of_[0-9]+$"))
    );
    let rows = session.query(&sql).await?;
    let names = rows.iter().filter_map(|row| row.get(0)).map(str::to_owned);
    Ok(names.filter(|slot| !ours.contains(slot)).collect())
}
