//! The outbox table and its publication.

use std::collections::BTreeSet;

use pg_logical::quoting;
use pg_logical::session::Session;

use super::finding::Findings;
use super::{publication, row_sizes, rows_changed};
use crate::commands::columns::{Column, columns, find};
use crate::commands::init::{OPEN_TO_ALL, lacks_business_key};
use crate::config::template::{Name, SourceValue};
use crate::config::{Config, TableName};
use crate::error::{Error, ErrorCode};
use crate::outbox::{FIELDS, Field, Outbox};
use crate::postgres::catalog::{self, Catalog, Columns, Missing};
use crate::routing::field;

/// How many rows are looked at for aggregate types, and how many types are checked.
const TYPES_OF_ROWS: u32 = 100_000;
const MAX_TYPES: u32 = 1_000;

/// The properties of the outbox that the settings of topics depend on.
#[derive(Debug, Clone, Default)]
pub(super) struct OutboxFacts {
    /// Whether a row may have no aggregate, so that its record has no key.
    pub(super) nullable_aggregate: bool,
    /// The size of the largest sampled row in bytes; `None` if the role may not read rows.
    pub(super) largest_row: Option<u64>,
    /// Aggregate types of rows in the tables; none if the role may not read rows.
    pub(super) aggregate_types: BTreeSet<String>,
}

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    outbox: &Outbox,
    catalog: &Catalog,
    findings: &mut Findings,
) -> Result<OutboxFacts, Error> {
    let published = check_published(config, catalog, findings);
    check_messages(session, config, findings).await?;
    check_template(config, findings);
    if let Some(publication) = catalog.publication.as_ref().filter(|_| published) {
        publication::check(config, publication, catalog, findings);
        for (what, remedy) in catalog::unwatched(config.source(), &catalog.tables) {
            findings.warning("publication_watch", what, remedy);
        }
        if let Some((what, remedy)) = catalog::unnamed_outboxes(session, config.source()).await? {
            findings.warning("unnamed_outbox", what, remedy);
        }
    }
    let mut facts = OutboxFacts::default();
    let mut readable = published;
    let listed = Columns::query(session, config.source(), &catalog.tables).await?;
    for (name, table) in config.outbox.tables.iter().zip(&catalog.tables) {
        let Some(table) = table else { continue };
        let columns = columns(session, config, name).await?;
        let settled = listed.iter().all(|listed| listed.table != *name || listed.settled);
        let rows = match listed.iter().find(|listed| listed.table == *name) {
            Some(listed) if !settled => rows_of_altered(session, table.oid, listed, outbox).await?,
            _ => Rows::Settled,
        };
        let complete = check_columns(config, outbox, name, &columns, rows, findings);
        if !table.partitioned {
            check_business_key(config, name, &columns, findings);
        }
        if let Some(publication) = catalog.publication.as_ref().filter(|_| published) {
            // the publications of shards have row filters, which are checked together
            if config.shard.is_none() {
                publication::check_row_filter(config, publication, catalog, name, table, findings);
            }
            if publication.publishes_more {
                rows_changed::check_replica_identity(session, config, name, table, findings).await?;
            }
        }
        if table.partitioned {
            rows_changed::check_row_movement(session, name, table, findings).await?;
        }
        readable &= complete;
        let aggregate = columns.iter().find(|column| column.name == config.outbox.columns.aggregate_id);
        facts.nullable_aggregate |= aggregate.is_some_and(|column| !column.not_null);
        facts.largest_row = facts
            .largest_row
            .max(row_sizes::check(session, config, name, table.oid, &columns, findings).await?);
        if !config.topics.allow.is_empty() || config.delivery.positions_topic.is_some() {
            facts.aggregate_types.extend(aggregate_types(session, config, name, table.oid).await?);
        }
    }
    if let Some(publication) = catalog.publication.as_ref().filter(|_| readable) {
        publication::check_column_list(config, publication, catalog, outbox, &listed, findings);
    }
    Ok(facts)
}

/// Says how to add the optional column.
fn check_business_key(config: &Config, name: &TableName, columns: &[Column], findings: &mut Findings) {
    let of_outbox = &config.outbox.columns;
    if let Some(wanted) = Field::IdempotencyKey.column(of_outbox)
        && Field::IdempotencyKey.optional(of_outbox)
        && find(columns, wanted).is_none()
    {
        findings.skipped("business_key", lacks_business_key(name, wanted));
    }
}

/// The aggregate types among the first rows of the table.
async fn aggregate_types(
    session: &mut Session,
    config: &Config,
    name: &TableName,
    table: u32,
) -> Result<Vec<String>, Error> {
    if !row_sizes::is_readable(session, table).await? {
        return Ok(Vec::new());
    }
    let column = quoting::identifier(&config.outbox.columns.aggregate_type);
    let sql = format!(
        "SELECT DISTINCT t.{column}::text FROM (SELECT {column} FROM {} LIMIT {TYPES_OF_ROWS}) AS t LIMIT {MAX_TYPES}",
        name.in_sql()
    );
    let rows = row_sizes::query_for_a_while(session, &sql).await?.unwrap_or_default();
    Ok(rows.iter().filter_map(|row| row.get(0).map(str::to_owned)).collect())
}

/// Whether the publication exists and publishes the outbox.
pub(super) fn check_published(config: &Config, catalog: &Catalog, findings: &mut Findings) -> bool {
    // the finding about the slot says that everything is missing
    if catalog.check_prepared(config.source()).is_err() {
        return false;
    }
    let result = catalog.check_publication(config.source(), Missing::AtStart);
    let name = &config.postgres.publication;
    let fine = match config.outbox.tables.as_slice() {
        [] => format!("{name} exists"),
        _ => format!("{name} publishes the inserts of {}", config.outbox.table_names()),
    };
    findings.result("publication", result, fine)
}

/// Warns if every role may write messages, and so forge events.
async fn check_messages(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(), Error> {
    let Some(prefix) = &config.outbox.message_prefix else { return Ok(()) };
    let rows = session.query(OPEN_TO_ALL).await?;
    let open: Vec<&str> = rows.iter().filter_map(|row| row.get(0)).collect();
    if open.is_empty() {
        findings
            .ok("messages", format!("only roles with a grant can write messages with the prefix {prefix:?}"));
        return Ok(());
    }
    let revokes: Vec<String> = open
        .iter()
        .map(|function| format!("REVOKE EXECUTE ON FUNCTION pg_catalog.{function} FROM PUBLIC"))
        .collect();
    findings.warning(
        "messages",
        format!(
            "every role in this database can write messages with the prefix {prefix:?}, and so forge events"
        ),
        format!(
            "As a superuser run {}, and grant outbox_router.emit_message to the applications",
            revokes.join("; ")
        ),
    );
    Ok(())
}

/// Which columns the rows have that the router has yet to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// Those of the table.
    Settled,
    /// The table was altered, and the columns may be those of before: no row was written since.
    Earlier,
    /// The table was altered, and rows were or may have been written since.
    Altered,
}

/// Whether rows of a table that was altered and lacks columns were written since.
async fn rows_of_altered(
    session: &mut Session,
    table: u32,
    columns: &Columns,
    outbox: &Outbox,
) -> Result<Rows, Error> {
    let Some(altered_by) = columns.altered_by.as_ref().filter(|_| columns.fault(outbox).is_some()) else {
        return Ok(Rows::Altered);
    };
    if !row_sizes::is_readable(session, table).await? {
        return Ok(Rows::Altered);
    }
    let sql = format!(
        "SELECT EXISTS (SELECT FROM {} t WHERE pg_catalog.age(t.xmin) < pg_catalog.age('{altered_by}'::pg_catalog.xid))",
        columns.table.in_sql()
    );
    let found = row_sizes::query_for_a_while(session, &sql).await?.unwrap_or_default();
    let none = found.first().is_some_and(|row| row.get(0) == Some("f"));
    Ok(if none { Rows::Earlier } else { Rows::Altered })
}

/// Whether the table has the required columns with usable types.
fn check_columns(
    config: &Config,
    outbox: &Outbox,
    table: &TableName,
    columns: &[Column],
    rows: Rows,
    findings: &mut Findings,
) -> bool {
    let find = |name: &str| find(columns, name);
    let faults = outbox.faults(table, |name| find(name).map(|column| column.type_id));
    let withheld: Vec<&str> =
        columns.iter().filter(|column| !column.sent).map(|column| column.name.as_str()).collect();
    for fault in &faults {
        let mut remedy =
            "Correct `[outbox] columns`, `[route]` or the table: the router stops at the first row"
                .to_owned();
        if !withheld.is_empty() {
            remedy.push_str(&format!(" ({} is {})", withheld.join(", "), catalog::WITHHELD));
        }
        // earlier rows are read with the columns that they were written with
        match rows {
            Rows::Settled => {
                findings.error("columns", ErrorCode::ColumnUnusable, fault.to_string(), remedy);
            }
            Rows::Altered => {
                findings.error("columns", ErrorCode::RowUndecodable, fault.to_string(), remedy);
            }
            Rows::Earlier => {
                findings.warning("columns", format!("{fault}: {}", catalog::ALTERED), remedy);
            }
        }
    }
    if !faults.is_empty() {
        return false;
    }
    let names = &config.outbox.columns;
    let absent: Vec<&str> = FIELDS
        .into_iter()
        .filter(|field| field.column(names).is_some_and(|name| find(name).is_none()))
        .map(Field::key)
        .collect();
    let without =
        if absent.is_empty() { String::new() } else { format!(", without {}", absent.join(" and ")) };
    findings.ok("columns", format!("{table} has the required columns{without}"));
    if find(&names.aggregate_id).is_some_and(|column| !column.not_null) {
        let (table, column) = (table.in_sql(), quoting::identifier(&names.aggregate_id));
        findings.warning(
            "aggregate_id",
            format!("{column} may be NULL; such an event has no key, and is not ordered with others"),
            format!(
                "If every event has an aggregate: ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL"
            ),
        );
    }
    true
}

/// Warns about a column that differs in every row, because it would lead to one topic for each event.
fn check_template(config: &Config, findings: &mut Findings) {
    let of_each_event = |name: &Name| match name {
        Name::Column(name) => !matches!(
            field(name, &config.outbox.columns),
            None | Some(Field::AggregateType | Field::EventType)
        ),
        Name::Source(value) => !matches!(value, SourceValue::Schema | SourceValue::Table),
        Name::OwnColumn(_) | Name::Header(_) | Name::Match(_) => false,
    };
    for template in config.route.topics() {
        let values = template.values().map(|value| &value.name);
        let mut named: Vec<String> =
            values.filter(|name| of_each_event(name)).map(ToString::to_string).collect();
        named.dedup();
        if !named.is_empty() {
            findings.warning(
                "topic_template",
                format!(
                    "`[route] topic` is {:?}: {} differs from event to event, and so would the topics",
                    template.to_string(),
                    named.join(" and ")
                ),
                "Use a column with few values, such as aggregate_type; events are ordered only within a topic",
            );
        }
    }
}
