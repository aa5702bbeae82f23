//! The outbox table and its publication.

use super::finding::Findings;
use super::row_sizes::{self, RowSizes};
use super::server::Server;
use crate::commands::init::columns_query;
use crate::config::Config;
use crate::config::template::{Name, SourceValue};
use crate::error::Error;
use crate::outbox::{FIELDS, Field, Outbox};
use crate::postgres::catalog::{self, Catalog, Missing, Publication};
use crate::postgres::pgoutput::Oid;
use crate::postgres::quoting::{self, literal};
use crate::postgres::session::Session;
use crate::routing::field;

/// What the topics are judged by.
#[derive(Debug, Clone, Default)]
pub(super) struct OutboxLook {
    /// Whether a row may have no aggregate, and so its record no key.
    pub(super) nullable_aggregate: bool,
    /// How large the rows are, if they may be read.
    pub(super) sizes: Option<RowSizes>,
}

/// One column of the table.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) type_id: Oid,
    not_null: bool,
    /// Its values are in the stream.
    sent: bool,
}

pub(super) async fn judge(
    session: &mut Session,
    config: &Config,
    outbox: &Outbox,
    server: &Server,
    catalog: &Catalog,
    findings: &mut Findings,
) -> Result<OutboxLook, Error> {
    let verdict = catalog.publication_verdict(&config.postgres, &config.outbox, Missing::AtStart);
    let name = &config.postgres.publication;
    let fine = format!("{name} publishes the inserts of {}", config.outbox.table);
    let published = findings.verdict("publication", verdict, fine);
    let Some(table) = &catalog.table else { return Ok(OutboxLook::default()) };
    let columns = columns(session, config).await?;
    let type_of = |name: &str| find(&columns, name).map(|column| column.type_id);
    let complete = judge_columns(config, outbox, &columns, findings);
    judge_template(config, findings);
    if let Some(publication) = catalog.publication.as_ref().filter(|_| published) {
        judge_publication(config, publication, findings);
        if complete && server.number >= 150_000 {
            let listed = published_columns(session, config).await?;
            let of_listed = |name: &str| type_of(name).filter(|_| listed.iter().any(|listed| listed == name));
            judge_column_list(config, outbox, &columns, of_listed, findings);
        }
    }
    let aggregate = columns.iter().find(|column| column.name == config.outbox.columns.aggregate_id);
    Ok(OutboxLook {
        nullable_aggregate: aggregate.is_some_and(|column| !column.not_null),
        sizes: row_sizes::look(session, config, table.oid, &columns, findings).await?,
    })
}

/// A column whose values arrive.
fn find<'c>(columns: &'c [Column], name: &str) -> Option<&'c Column> {
    columns.iter().find(|column| column.name == name && column.sent)
}

async fn columns(session: &mut Session, config: &Config) -> Result<Vec<Column>, Error> {
    let rows = session.query(&columns_query(config)).await?;
    let column = |row: &crate::postgres::session::Row| {
        let type_id = Oid(row.get(1)?.parse().ok()?);
        Some(Column {
            name: row.get(0)?.to_owned(),
            type_id,
            not_null: row.get(2) == Some("t"),
            sent: row.get(4) == Some("t"),
        })
    };
    Ok(rows.iter().filter_map(column).collect())
}

/// Whether the table has what is needed.
fn judge_columns(config: &Config, outbox: &Outbox, columns: &[Column], findings: &mut Findings) -> bool {
    let find = |name: &str| find(columns, name);
    let faults = outbox.faults(|name| find(name).map(|column| column.type_id));
    let withheld: Vec<&str> =
        columns.iter().filter(|column| !column.sent).map(|column| column.name.as_str()).collect();
    for fault in &faults {
        let mut remedy =
            "Correct `[outbox] columns`, `[route] topic` or the table: the router stops at the first row"
                .to_owned();
        if !withheld.is_empty() {
            remedy.push_str(&format!(" ({} is {})", withheld.join(", "), catalog::WITHHELD));
        }
        findings.error("columns", fault.to_string(), remedy);
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
    findings.ok("columns", format!("{} has what is needed{without}", config.outbox.table));
    if find(&names.aggregate_id).is_some_and(|column| !column.not_null) {
        let (table, column) = (quoting::table(&config.outbox.table), quoting::name(&names.aggregate_id));
        findings.warning(
            "aggregate_id",
            format!("{column} may be NULL; such an event has no key, and no order among others"),
            format!(
                "If every event has an aggregate: ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL"
            ),
        );
    }
    true
}

/// A column with a value of its own in every row makes a topic of its own for every event.
fn judge_template(config: &Config, findings: &mut Findings) {
    let of_each_event = |name: &Name| match name {
        Name::Column(name) => !matches!(
            field(name, &config.outbox.columns),
            None | Some(Field::AggregateType | Field::EventType)
        ),
        Name::Source(value) => !matches!(value, SourceValue::Schema | SourceValue::Table),
        Name::Header(_) => false,
    };
    let values = config.route.topic.values().map(|value| &value.name);
    let mut named: Vec<String> = values.filter(|name| of_each_event(name)).map(ToString::to_string).collect();
    named.dedup();
    if !named.is_empty() {
        findings.warning(
            "topic_template",
            format!(
                "`[route] topic` is {:?}: {} differs from event to event, and so would the topics",
                config.route.topic.to_string(),
                named.join(" and ")
            ),
            "Name a column with few values, such as aggregate_type; order holds within one topic only",
        );
    }
}

fn judge_publication(config: &Config, publication: &Publication, findings: &mut Findings) {
    let name = quoting::name(&config.postgres.publication);
    if let Some(filter) = &publication.row_filter {
        findings.warning(
            "publication_row_filter",
            format!("{name} publishes only the rows with {filter}; others are never sent"),
            format!(
                "If all are meant: ALTER PUBLICATION {name} SET TABLE {}",
                quoting::table(&config.outbox.table)
            ),
        );
    }
    if publication.publishes_more {
        findings.warning(
            "publication_content",
            format!("{name} publishes updates or deletes too, which the router reads and drops"),
            format!("ALTER PUBLICATION {name} SET (publish = 'insert')"),
        );
    }
}

async fn published_columns(session: &mut Session, config: &Config) -> Result<Vec<String>, Error> {
    let table = &config.outbox.table;
    let sql = format!(
        "SELECT unnest(t.attnames) FROM pg_catalog.pg_publication_tables t WHERE t.pubname = {} AND t.schemaname = {} \
         AND t.tablename = {}",
        literal(&config.postgres.publication),
        literal(&table.schema),
        literal(&table.name)
    );
    let rows = session.query(&sql).await?;
    Ok(rows.iter().filter_map(|row| row.get(0).map(str::to_owned)).collect())
}

/// A publication may have a column list; what is not in it does not arrive.
fn judge_column_list(
    config: &Config,
    outbox: &Outbox,
    columns: &[Column],
    of_listed: impl Fn(&str) -> Option<Oid>,
    findings: &mut Findings,
) {
    let name = quoting::name(&config.postgres.publication);
    let is_there = |name: &str| columns.iter().any(|column| column.name == name);
    let remedy = || format!("ALTER PUBLICATION {name} SET TABLE {}", quoting::table(&config.outbox.table));
    if !outbox.faults(&of_listed).is_empty() {
        let what = format!("the column list of {name} leaves out columns that the router needs");
        return findings.error("publication_columns", what, remedy());
    }
    let left_out: Vec<&str> = FIELDS
        .into_iter()
        .filter_map(|field| field.column(&config.outbox.columns))
        .filter(|column| is_there(column) && of_listed(column).is_none())
        .collect();
    if !left_out.is_empty() {
        let what =
            format!("the column list of {name} leaves out {}, which is sent without", left_out.join(", "));
        findings.warning("publication_columns", what, remedy());
    }
}
