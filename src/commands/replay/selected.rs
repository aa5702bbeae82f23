//! Which rows are sent again: the table, the times, the filters, and those that the router has delivered.

use std::sync::Arc;

use pg_logical::session::Session;

use super::arguments::{readable, verify};
use super::delivered::{delivered, horizon};
use crate::cli::replay::{Origin, ReplayArgs};
use crate::commands::times::{moment, now};
use crate::config::{Config, TableName};
use crate::contracts::Contracts;
use crate::error::{Error, ErrorCode};
use crate::outbox::Cursor;
use crate::outbox::Field;
use crate::postgres::replays::{Request, Selection};
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::order::{order, warn_without_index};
use crate::postgres::rows::page::{RowQuery, is_one_of};
use crate::postgres::rows::reader::Extent;
use crate::replay::Conversion;
use crate::routing::check_topic;
use crate::utc::Utc;

/// The rows, and what becomes of them.
pub(super) struct Selected {
    pub(super) conversion: Conversion,
    /// The names of headers and members that only the log can fill.
    pub(super) omitted: Vec<String>,
    pub(super) outbox: TableName,
    /// The table that has the rows: the outbox or its archive.
    pub(super) table: TableName,
    /// The rows that match, and that were delivered before `horizon`.
    query: RowQuery,
    pub(super) horizon: String,
    /// How many rows match that may not be delivered yet, at most [`MANY`].
    pub(super) not_delivered: u64,
    /// Whether the time is that of the insert, and not of the transaction's start or anything else.
    pub(super) of_insert: bool,
    pub(super) since: Option<i64>,
    pub(super) until: i64,
    pub(super) selection: Selection,
    pub(super) topic: Option<String>,
}

/// So many rows are not counted exactly.
pub(super) const MANY: u64 = 10_000;

/// In microseconds, how far a clock of local time may be ahead of one in UTC.
const FURTHEST_ZONE: i64 = 14 * 3_600_000_000;

/// What the rows are read from.
struct Wanted<'a> {
    outbox: &'a TableName,
    since: Option<i64>,
    until: Option<i64>,
    selection: Selection,
    topic: Option<String>,
    mark: String,
    asked: Asked<'a>,
}

/// When the rows were asked for.
enum Asked<'a> {
    /// Now, in microseconds since 1970.
    Now(i64),
    /// Earlier.
    Before(&'a Request),
}

impl Selected {
    /// What the arguments select.
    pub(super) async fn of(
        session: &mut Session,
        config: &Config,
        contracts: Option<Arc<Contracts>>,
        args: &ReplayArgs,
    ) -> Result<Self, Error> {
        let now = now(session).await?;
        let since = match &args.since {
            Some(text) => Some(moment(session, "--since", text, now).await?),
            None => None,
        };
        let until = match &args.until {
            Some(text) => Some(moment(session, "--until", text, now).await?),
            None => None,
        };
        let ends = until.unwrap_or(now);
        if since.is_some_and(|since| since >= ends) {
            return Err(Error::usage(
                ErrorCode::CommandLine,
                format!("--since, {}, is not before --until, {}", Utc(since.unwrap_or_default()), Utc(ends)),
                "Swap or correct them",
            ));
        }
        let selection = Selection {
            types: args.types.clone(),
            aggregates: args.aggregates.clone(),
            aggregate_types: args.aggregate_types.clone(),
            ids: args.ids.clone(),
            archive: match args.from {
                Origin::Outbox => None,
                Origin::Archive => Some(archive(config)?.in_sql()),
            },
        };
        let (outbox, topic) = (table(config, args.table.as_deref())?, args.topic.clone());
        let mark = Utc(now).to_string();
        let wanted = Wanted { outbox, since, until, selection, topic, mark, asked: Asked::Now(now) };
        Self::find(session, config, contracts, wanted).await
    }

    /// The same rows as in an earlier request.
    pub(super) async fn again(
        session: &mut Session,
        config: &Config,
        contracts: Option<Arc<Contracts>>,
        request: &Request,
    ) -> Result<Self, Error> {
        let Request { outbox, since, until, selection, topic, mark, .. } = request;
        let table = config.outbox.tables.iter().find(|table| table.in_sql() == *outbox);
        let table = table.ok_or_else(|| {
            Error::refused(
                ErrorCode::ReplayImpossible,
                format!("the replay is of {outbox}, which is not the outbox table of this configuration"),
                "Continue it with the configuration with which it was begun",
            )
        })?;
        let wanted = Wanted {
            outbox: table,
            since: *since,
            until: Some(*until),
            selection: selection.clone(),
            topic: topic.clone(),
            mark: mark.clone(),
            asked: Asked::Before(request),
        };
        Self::find(session, config, contracts, wanted).await
    }

    async fn find(
        session: &mut Session,
        config: &Config,
        contracts: Option<Arc<Contracts>>,
        wanted: Wanted<'_>,
    ) -> Result<Self, Error> {
        let Wanted { outbox, since, until, selection, topic, mark, asked } = wanted;
        let table = match &selection.archive {
            None => outbox,
            Some(name) => {
                archive(config).ok().filter(|archive| archive.in_sql() == *name).ok_or_else(|| {
                    Error::refused(
                        ErrorCode::ReplayImpossible,
                        format!("the rows are in {name}, which is not the archive of this configuration"),
                        "Continue it with the configuration with which it was begun",
                    )
                })?
            }
        };
        if let Some(topic) = &topic {
            check_topic(config, topic).map_err(|why| {
                Error::usage(
                    ErrorCode::CommandLine,
                    format!("--topic: {why}"),
                    "Name another topic, or add it to `[topics] allow`",
                )
            })?;
        }
        let (for_rows, omitted) = config.for_rows(topic.as_deref()).map_err(|needs| {
            Error::refused(
                ErrorCode::ReplayImpossible,
                format!("`[route]`: `{}` uses a value that only the log has", needs.0),
                "Use `outbox-router slot reset`, or name a topic with --topic if it is only about the topic",
            )
        })?;
        let layout = TableLayout::existing(session, table).await?;
        let created_at = layout.time_column(&config.outbox).map_err(|why| {
            let remedy = "Name one, or use `outbox-router slot reset`";
            Error::refused(ErrorCode::ReplayImpossible, why, remedy)
        })?;
        let until = match (until, &asked) {
            (Some(until), _) => until,
            // their clock may be ahead; rows that are not delivered are not sent in any case
            (None, Asked::Now(now)) if layout.has_local_timestamp(created_at) => {
                now.saturating_add(FURTHEST_ZONE)
            }
            (None, Asked::Now(now)) => *now,
            (None, Asked::Before(request)) => request.until,
        };
        let columns = Conversion::columns(&for_rows, &layout);
        let order =
            order(session, &config.outbox, config.polling.as_ref(), &layout, outbox, created_at).await;
        let mut order = order.map_err(readable)?;
        // the statements of a prune say nothing about the order of the inserts
        order.ties.by_statement &= selection.archive.is_none();
        let mut query = RowQuery::new(layout.in_from(), created_at, order.ties, columns.clone());
        if let Asked::Before(Request { order_by, .. }) = asked
            && *order_by != query.order_by()
        {
            return Err(Error::refused(
                ErrorCode::ReplayImpossible,
                format!("rows of the same time had another order when the replay was begun: {order_by}"),
                "Begin another replay of the rows that are left",
            ));
        }
        let columns_of = &config.outbox.columns;
        let filters = [
            (Field::EventType, "--type", &selection.types),
            (Field::AggregateId, "--aggregate", &selection.aggregates),
            (Field::AggregateType, "--aggregate-type", &selection.aggregate_types),
            (Field::Id, "--id", &selection.ids),
        ];
        for (field, option, values) in filters {
            if values.is_empty() {
                continue;
            }
            let Some(column) = field.column(columns_of) else {
                return Err(Error::usage(
                    ErrorCode::CommandLine,
                    format!("{option}: `[outbox.columns]` names no such column"),
                    "Leave it out",
                ));
            };
            verify(session, table, column, option, values).await?;
            query = query.only(is_one_of(column, values));
        }
        warn_without_index(session, table, created_at).await.map_err(readable)?;
        // only delivered rows get into the archive, but polled ones may have been discarded
        let all_delivered = selection.archive.is_some() && config.polling.is_none();
        let horizon = match asked {
            _ if all_delivered => String::new(),
            Asked::Now(now) => horizon(session, config, now).await?,
            Asked::Before(request) => request.horizon.clone(),
        };
        let delivered = if all_delivered { Vec::new() } else { delivered(session, config, &horizon).await? };
        let not_delivered = match asked {
            Asked::Now(_) if !all_delivered => {
                let sql = query.count_others(since, until, &delivered, MANY);
                let others = session.query_one(&sql).await.map_err(readable)?;
                others.and_then(|others| others.parse().ok()).unwrap_or_default()
            }
            _ => 0,
        };
        for condition in delivered {
            query = query.only(condition);
        }
        // values that are made of the table's name stay the same
        let layout = layout.named(outbox);
        let conversion = Conversion { config: Arc::new(for_rows), contracts, layout, columns, mark };
        let (outbox, table) = (outbox.clone(), table.clone());
        Ok(Selected {
            conversion,
            omitted,
            outbox,
            table,
            query,
            horizon,
            not_delivered,
            of_insert: order.of_insert,
            since,
            until,
            selection,
            topic,
        })
    }

    /// What orders rows of the same time.
    pub(super) fn order_by(&self) -> String {
        self.query.order_by()
    }

    /// How they are read, after this row if there is one.
    pub(super) fn rows(&self, after: Option<Cursor>) -> (RowQuery, Extent) {
        (self.query.clone(), Extent { since: self.since, until: self.until, after })
    }
}

fn archive(config: &Config) -> Result<&TableName, Error> {
    config.retention.archive.as_ref().ok_or_else(|| {
        Error::usage(
            ErrorCode::CommandLine,
            "--from archive: the configuration names no archive",
            "Name the table as `[retention] archive`, or leave out --from",
        )
    })
}

fn table<'a>(config: &'a Config, named: Option<&str>) -> Result<&'a TableName, Error> {
    let tables = &config.outbox.tables;
    let found = match (named, tables.as_slice()) {
        (None, [table]) => Some(table),
        (None, _) => None,
        (Some(name), tables) => {
            tables.iter().find(|table| table.to_string() == name || table.in_sql() == name)
        }
    };
    found.ok_or_else(|| {
        let names = config.outbox.table_names();
        let (what, remedy) = match (tables.is_empty(), named) {
            (true, _) => (
                "no outbox table is configured, so nothing can be read from one".to_owned(),
                "Use `outbox-router slot reset`".to_owned(),
            ),
            (false, None) => {
                ("there are several outbox tables".to_owned(), format!("Name one with --table: {names}"))
            }
            (false, Some(name)) => {
                (format!("--table {name}: it is not an outbox table"), format!("Name one of {names}"))
            }
        };
        Error::usage(ErrorCode::CommandLine, what, remedy)
    })
}
