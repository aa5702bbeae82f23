//! Which rows are sent again: where they are, the times, the filters, and those that the router has delivered.

mod in_file;
mod in_table;

use std::sync::Arc;

use pg_logical::session::Session;

use crate::archive::contents::Contents;
use crate::archive::rows::FileRows;
use crate::cli::replay::{Origin, ReplayArgs};
use crate::commands::times::{moment, now};
use crate::config::{Config, TableName};
use crate::contracts::Contracts;
use crate::error::{Error, ErrorCode};
use crate::outbox::{Cursor, Field};
use crate::postgres::replays::{Request, Selection};
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::page::RowQuery;
use crate::postgres::rows::pages::Pages;
use crate::postgres::rows::reader::Extent;
use crate::replay::Conversion;
use crate::routing::check_topic;
use crate::utc::Utc;

use super::arguments::readable;
use super::open;

/// The rows, and what becomes of them.
pub(super) struct Selected {
    pub(super) conversion: Conversion,
    /// The names of headers and members that only the log can fill.
    pub(super) omitted: Vec<String>,
    pub(super) outbox: TableName,
    /// What has the rows: the outbox, its archive, or a file.
    pub(super) place: String,
    /// The rows that match, and that were delivered before `horizon`.
    rows: Rows,
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

/// The rows of a place.
enum Rows {
    Table(RowQuery),
    File(FileRows),
}

/// What was found out about the place of the rows.
struct Found {
    layout: TableLayout,
    place: String,
    rows: Rows,
    horizon: String,
    not_delivered: u64,
    of_insert: bool,
    until: i64,
}

/// What somebody wants.
struct Wanted<'a> {
    outbox: &'a TableName,
    since: Option<i64>,
    until: Option<i64>,
    selection: Selection,
    topic: Option<String>,
    mark: String,
    asked: Asked<'a>,
}

/// A column that has to have one of these values, and the option that says so.
struct Filter<'a> {
    column: String,
    option: &'static str,
    values: &'a [String],
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
        let (archive, file) = match &args.from {
            Origin::Outbox => (None, None),
            Origin::Archive => (Some(in_table::archive(config)?.in_sql()), None),
            Origin::File(path) => (None, Some(in_file::absolute(path)?)),
        };
        let selection = Selection {
            types: args.types.clone(),
            aggregates: args.aggregates.clone(),
            aggregate_types: args.aggregate_types.clone(),
            ids: args.ids.clone(),
            archive,
            file,
        };
        let contents = in_file::read(selection.file.as_deref()).await?;
        let of_file = contents.as_ref().and_then(|contents| Some(contents.batches().next()?.table.as_str()));
        let of_file =
            of_file.filter(|name| config.outbox.tables.iter().any(|table| table.to_string() == *name));
        let (outbox, topic) = (table(config, args.table.as_deref().or(of_file))?, args.topic.clone());
        let mark = Utc(now).to_string();
        let wanted = Wanted { outbox, since, until, selection, topic, mark, asked: Asked::Now(now) };
        Self::find(session, config, contracts, contents, wanted).await
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
        let contents = in_file::read(selection.file.as_deref()).await?;
        let wanted = Wanted {
            outbox: table,
            since: *since,
            until: Some(*until),
            selection: selection.clone(),
            topic: topic.clone(),
            mark: mark.clone(),
            asked: Asked::Before(request),
        };
        Self::find(session, config, contracts, contents, wanted).await
    }

    async fn find(
        session: &mut Session,
        config: &Config,
        contracts: Option<Arc<Contracts>>,
        contents: Option<Contents>,
        wanted: Wanted<'_>,
    ) -> Result<Self, Error> {
        let topic = wanted.topic.as_deref();
        if let Some(topic) = topic {
            check_topic(config, topic).map_err(|why| {
                Error::usage(
                    ErrorCode::CommandLine,
                    format!("--topic: {why}"),
                    "Name another topic, or add it to `[topics] allow`",
                )
            })?;
        }
        let (for_rows, omitted) = config.for_rows(topic).map_err(|needs| {
            Error::refused(
                ErrorCode::ReplayImpossible,
                format!("`[route]`: `{}` uses a value that only the log has", needs.0),
                "Use `outbox-router slot reset`, or name a topic with --topic if it is only about the topic",
            )
        })?;
        let found = match contents {
            Some(contents) => in_file::find(session, config, &for_rows, contents, &wanted).await?,
            None => in_table::find(session, config, &for_rows, &wanted).await?,
        };
        let Found { layout, place, rows, horizon, not_delivered, of_insert, until } = found;
        let Wanted { outbox, since, selection, topic, mark, .. } = wanted;
        // values that are made of the table's name stay the same
        let layout = layout.named(outbox);
        let columns = Conversion::columns(&for_rows, &layout);
        let conversion = Conversion { config: Arc::new(for_rows), contracts, layout, columns, mark };
        let outbox = outbox.clone();
        Ok(Selected {
            conversion,
            omitted,
            outbox,
            place,
            rows,
            horizon,
            not_delivered,
            of_insert,
            since,
            until,
            selection,
            topic,
        })
    }

    /// What orders rows of the same time.
    pub(super) fn order_by(&self) -> String {
        match &self.rows {
            Rows::Table(query) => query.order_by(),
            Rows::File(rows) => in_file::order_by(&rows.contents),
        }
    }

    /// The rows, after this one if there is one.
    pub(super) async fn pages(&self, config: &Config, after: Option<Cursor>) -> Result<Pages, Error> {
        match &self.rows {
            Rows::Table(query) => {
                let extent = Extent { since: self.since, until: self.until, after };
                Ok(Pages::start(open(config).await?, (query.clone(), extent), None, readable))
            }
            Rows::File(rows) => rows.pages(after.as_ref()),
        }
    }
}

impl Wanted<'_> {
    /// The columns that are filtered, each with its option and the values.
    fn filters(&self, config: &Config) -> Result<Vec<Filter<'_>>, Error> {
        let Selection { types, aggregates, aggregate_types, ids, .. } = &self.selection;
        let filters = [
            (Field::EventType, "--type", types),
            (Field::AggregateId, "--aggregate", aggregates),
            (Field::AggregateType, "--aggregate-type", aggregate_types),
            (Field::Id, "--id", ids),
        ];
        let given = filters.into_iter().filter(|(_, _, values)| !values.is_empty());
        let columns = given.map(|(field, option, values)| {
            let column = field.column(&config.outbox.columns).ok_or_else(|| {
                Error::usage(
                    ErrorCode::CommandLine,
                    format!("{option}: `[outbox.columns]` names no such column"),
                    "Leave it out",
                )
            })?;
            Ok(Filter { column: column.to_owned(), option, values })
        });
        columns.collect()
    }

    /// The time before which the rows were inserted.
    fn until(&self, layout: &TableLayout, created_at: &str) -> i64 {
        match (self.until, &self.asked) {
            (Some(until), _) => until,
            // their clock may be ahead; rows that are not delivered are not sent in any case
            (None, Asked::Now(now)) if layout.has_local_timestamp(created_at) => {
                now.saturating_add(FURTHEST_ZONE)
            }
            (None, Asked::Now(now)) => *now,
            (None, Asked::Before(request)) => request.until,
        }
    }

    /// Refuses to continue a replay if rows of the same time have another order than before.
    fn check_order(&self, order_by: &str) -> Result<(), Error> {
        match self.asked {
            Asked::Before(request) if request.order_by != order_by => Err(Error::refused(
                ErrorCode::ReplayImpossible,
                format!(
                    "rows of the same time had another order when the replay was begun: {}",
                    request.order_by
                ),
                "Begin another replay of the rows that are left",
            )),
            _ => Ok(()),
        }
    }
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
