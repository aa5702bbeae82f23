//! The rows that were refused, and those behind them, for operators.

use pg_logical::quoting::{identifier, literal};

use super::sql::PolledTable;
use crate::config::polling::{StatusColumns, StatusValues};
use crate::config::{Outbox, Polling};
use crate::dead_letters::Decision;
use crate::outbox::{FIELDS, Field};
use crate::unsendable::Reason;

/// The statements on these rows.
#[derive(Debug)]
pub struct RefusedRows {
    statements: PolledTable,
    table: String,
    columns: StatusColumns,
    status: StatusValues,
    fields: Vec<(Field, String)>,
}

impl RefusedRows {
    /// Those of a router that polls.
    pub fn of(outbox: &Outbox, polling: &Polling) -> Option<Self> {
        let quoted = |name: &str| identifier(name);
        let StatusColumns { position, status, attempts, refusals, next_attempt_at, published_at, last_error } =
            &polling.columns;
        let fields =
            FIELDS.into_iter().filter_map(|field| Some((field, identifier(field.column(&outbox.columns)?))));
        Some(RefusedRows {
            statements: PolledTable::of(outbox, polling)?,
            table: outbox.tables.first()?.in_sql(),
            columns: StatusColumns {
                position: quoted(position),
                status: quoted(status),
                attempts: quoted(attempts),
                refusals: quoted(refusals),
                next_attempt_at: quoted(next_attempt_at),
                published_at: quoted(published_at),
                last_error: quoted(last_error),
            },
            status: polling.status.clone(),
            fields: fields.collect(),
        })
    }

    fn field(&self, wanted: Field) -> Option<&str> {
        self.fields.iter().find(|(field, _)| *field == wanted).map(|(_, name)| name.as_str())
    }

    /// A condition on `q`.
    pub fn condition(&self, id: Option<&str>, aggregate: Option<&str>, reason: Option<Reason>) -> String {
        let equals = |field, value: Option<&str>| {
            Some(format!("q.{}::text = {}", self.field(field)?, literal(value?)))
        };
        let reason = reason.map(|reason| match reason {
            Reason::Behind => format!("NOT ({})", self.was_refused()),
            reason => format!(
                "{} AND pg_catalog.starts_with(q.{}, {})",
                self.was_refused(),
                self.columns.last_error,
                literal(&format!("{}: ", reason.name()))
            ),
        });
        let parts = [equals(Field::Id, id), equals(Field::AggregateId, aggregate), reason];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { "true".to_owned() } else { parts.join(" AND ") }
    }

    /// A condition on `q`: it was refused itself.
    pub fn was_refused(&self) -> String {
        let StatusColumns { status, next_attempt_at, .. } = &self.columns;
        format!("(q.{status} = {} OR q.{next_attempt_at} < 'infinity')", literal(&self.status.failed))
    }

    /// Rows in the order of their positions. The last column is the whole row as JSON if `in_full`.
    pub fn select(&self, condition: &str, limit: Option<u32>, in_full: bool) -> String {
        let StatusColumns { position, status, attempts, refusals, next_attempt_at, last_error, .. } =
            &self.columns;
        let field = |field| self.field(field).map_or_else(|| "NULL".to_owned(), |name| format!("q.{name}"));
        let event = if in_full { "row_to_json(q)" } else { "NULL" };
        let limit = limit.map_or_else(String::new, |limit| format!(" LIMIT {limit}"));
        format!(
            "SELECT q.{position}, {}, {}, {}, {}, CASE WHEN q.{status} = {} THEN 'failed' WHEN q.{next_attempt_at} = 'infinity' THEN 'behind' \
             ELSE 'waiting' END, q.{refusals}, q.{attempts}, to_char(nullif(q.{next_attempt_at}, 'infinity') AT TIME ZONE 'UTC', \
             'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), q.{last_error}, {event} FROM {} q WHERE {} AND ({condition}) ORDER BY q.{position}{limit}",
            field(Field::Id),
            field(Field::AggregateType),
            field(Field::AggregateId),
            field(Field::EventType),
            literal(&self.status.failed),
            self.table,
            self.statements.holds_back("q.")
        )
    }

    /// The number of rows, and of their aggregates.
    pub fn count(&self, condition: &str) -> String {
        let aggregate = self.field(Field::AggregateId).unwrap_or("NULL");
        format!(
            "SELECT count(*), count(DISTINCT q.{aggregate}) FROM {} q WHERE {} AND ({condition})",
            self.table,
            self.statements.holds_back("q.")
        )
    }

    /// Retries or discards the rows at these positions. A discarded row counts as published, without a time.
    pub fn decide(&self, positions: &[&str], decision: Decision) -> String {
        let StatusColumns { position, status, refusals, next_attempt_at, published_at, last_error, .. } =
            &self.columns;
        let set = match decision {
            Decision::Retry => format!(
                "{status} = {}, {refusals} = 0, {next_attempt_at} = clock_timestamp()",
                literal(&self.status.new)
            ),
            Decision::Discard => format!(
                "{status} = {}, {next_attempt_at} = NULL, {published_at} = NULL, {last_error} = 'discarded by ' || session_user || ' at ' \
                 || now() || coalesce('; ' || q.{last_error}, '')",
                literal(&self.status.published)
            ),
        };
        format!(
            // the lock comes first, as in the transactions of routers
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {}; UPDATE {} q SET {set} WHERE {} AND q.{position} = ANY ('{{{}}}'); {}; COMMIT",
            self.statements.lock(),
            self.table,
            self.statements.holds_back("q."),
            positions.join(","),
            self.statements.release_all()
        )
    }
}
