//! The event of an end-to-end check.
//!
//! The transaction that inserts the row deletes it. The log has the insert, and the row is gone whatever becomes of this process.

use std::time::Duration;

use pg_logical::QueryError;
use pg_logical::connect::{Startup, VALUE_TEXT};
use pg_logical::quoting::{identifier, literal};
use pg_logical::session::Session;
use serde_json::{Map, Value};
use tokio_postgres::error::SqlState;

use crate::advice::OrRemedy;
use crate::cli::{END_TO_END_MARK, PreviewArgs};
use crate::commands::columns::columns;
use crate::commands::route::DryRun;
use crate::commands::route::rows::{of_lines, of_table};
use crate::commands::route::show::Outcome;
use crate::commands::{ANSWER_TIMEOUT, connect};
use crate::config::Config;
use crate::error::{Error, ErrorCode};
use crate::outbox::{FIELDS, Field};
use crate::shards::{Ids, Shard};

/// Its event type. No contract has it, unless somebody writes one.
const EVENT_TYPE: &str = "outbox-router.check";

/// OIDs of `text` and of the types of times (Postgres, `pg_type.dat`).
const TEXT: u32 = 25;
const TIMES: [u32; 2] = [1114, 1184];

/// How many aggregates are tried to find one of a shard.
const AGGREGATES: u32 = 10_000;

/// The class of SQLSTATEs for values that do not fit a column.
const DATA_EXCEPTION: &str = "22";

/// What to do if the table does not keep, show or delete the row.
const TRIGGERS: &str = "Check triggers and row-level security of the table, or give another role with --url";

/// The event, and the session that writes it.
pub(super) struct TestEvent<'a> {
    pub(super) session: Session,
    /// With the connection of the role that writes.
    config: &'a Config,
    /// A random text in the record.
    pub(super) mark: String,
    /// The event's id, once the row was inserted.
    pub(super) id: String,
    /// The table or the prefix of messages.
    pub(super) place: String,
    values: Vec<(Field, String)>,
}

impl<'a> TestEvent<'a> {
    /// Statements wait for a lock for at most `lock_timeout`. Then the error names the session that holds it.
    pub(super) async fn new(
        config: &'a Config,
        aggregate_type: &str,
        lock_timeout: Duration,
    ) -> Result<Self, Error> {
        let lock_timeout = format!("{}ms", lock_timeout.as_millis());
        // the row is written as by an application
        let own = [("lock_timeout", lock_timeout.as_str()), ("row_security", "on")];
        let settings = [&VALUE_TEXT[..], &own].concat();
        let startup = Startup { settings: &settings, ..Startup::default() };
        let mut session = connect(config, "check", startup).await?;
        let mark = session.query_one("SELECT pg_catalog.gen_random_uuid()").await?.unwrap_or_default();
        let (place, columns) = match (config.outbox.tables.first(), &config.outbox.message_prefix) {
            (Some(table), _) => (table.to_string(), Some(columns(&mut session, config, table).await?)),
            (None, prefix) => {
                (format!("messages with the prefix {}", prefix.as_deref().unwrap_or_default()), None)
            }
        };
        // a message can have every member
        let type_of = |name: &str| match &columns {
            Some(columns) => columns.iter().find(|column| column.name == name).map(|column| column.type_id.0),
            None => Some(TEXT),
        };
        let marked = format!("{{\"{END_TO_END_MARK}\": \"{mark}\"}}");
        let value = |field: Field| {
            let of = type_of(field.column(&config.outbox.columns)?)?;
            Some(match (field, Ids::of_type(of)) {
                // numbers have a default
                (Field::Id, Some(Ids::Texts | Ids::Uuids)) | (Field::AggregateId, Some(Ids::Uuids)) => {
                    mark.clone()
                }
                (Field::AggregateId, Some(Ids::Integers)) => "0".to_owned(),
                (Field::AggregateId, _) => END_TO_END_MARK.to_owned(),
                (Field::AggregateType, _) => aggregate_type.to_owned(),
                (Field::EventType, _) => EVENT_TYPE.to_owned(),
                (Field::Payload | Field::Headers, _) => marked.clone(),
                (Field::CreatedAt, _) if TIMES.contains(&of) => "now".to_owned(),
                _ => return None,
            })
        };
        let values = FIELDS.into_iter().filter_map(|field| Some((field, value(field)?))).collect();
        Ok(TestEvent { session, config, id: mark.clone(), mark, place, values })
    }

    /// Gives the event an aggregate that belongs to this shard.
    pub(super) async fn belong_to(&mut self, shard: Shard, ids: Ids) -> Result<(), Error> {
        for number in 0..AGGREGATES {
            let aggregate = match ids {
                Ids::Texts => format!("{END_TO_END_MARK}-{number}"),
                Ids::Integers => number.to_string(),
                Ids::Uuids => {
                    let random = self.session.query_one("SELECT pg_catalog.gen_random_uuid()").await?;
                    random.unwrap_or_default()
                }
            };
            if shard.holds(ids, Some(aggregate.as_bytes())) {
                let own = self.values.iter_mut().find(|(field, _)| *field == Field::AggregateId);
                own.into_iter().for_each(|(_, value)| value.clone_from(&aggregate));
                return Ok(());
            }
        }
        Err(unsuitable("no aggregate of this shard was found", "Run check again"))
    }

    /// Inserts the row in a transaction that is rolled back, and returns the topic of the record that it would become. An event
    /// that cannot be sent would stop the router.
    pub(super) async fn rehearse(&mut self) -> Result<String, Error> {
        let mut dry = DryRun::new(self.config)?;
        match &self.config.outbox.message_prefix {
            Some(_) if self.config.outbox.tables.is_empty() => {
                of_lines(self.message().to_string().as_bytes(), self.config, None, &mut dry)?;
            }
            _ => self.transaction(Some(&mut dry)).await?,
        }
        let outcome = dry.shown.pop().map(|shown| shown.outcome);
        let recognised = outcome.as_ref().is_some_and(|outcome| outcome.has(&self.mark));
        let sent = "Choose an aggregate type that the routes send with --aggregate-type";
        Err(match outcome {
            Some(Outcome::Record { topic, .. }) if recognised => return Ok(topic),
            Some(Outcome::Record { .. }) => unsuitable(
                "its record would contain neither the payload nor the headers, and could not be recognised",
                sent,
            ),
            Some(Outcome::Dropped) => unsuitable("a rule would drop it", sent),
            // the remedy for an event of an application does not apply
            Some(Outcome::Refused { what, .. }) => unsuitable(
                &format!("it could not be sent: {what}"),
                "Choose another aggregate type with --aggregate-type, or correct routing",
            ),
            None => self.does_not_stay(),
        })
    }

    fn does_not_stay(&self) -> Error {
        unsuitable(&format!("the row does not stay in {}, or cannot be seen", self.place), TRIGGERS)
    }

    /// Writes the event.
    pub(super) async fn write(&mut self) -> Result<(), Error> {
        match &self.config.outbox.message_prefix {
            Some(prefix) if self.config.outbox.tables.is_empty() => {
                let (prefix, content) = (literal(prefix), literal(&self.message().to_string()));
                self.query(&format!("SELECT pg_catalog.pg_logical_emit_message(true, {prefix}, {content})"))
                    .await
                    .map(drop)
            }
            _ => self.transaction(None).await,
        }
    }

    /// Inserts and deletes the row. With `dry`, routes it and rolls back.
    async fn transaction(&mut self, dry: Option<&mut DryRun>) -> Result<(), Error> {
        let Some(table) = self.config.outbox.tables.first() else { return Ok(()) };
        let columns = &self.config.outbox.columns;
        let named =
            |(field, value): &(Field, String)| Some((identifier(field.column(columns)?), literal(value)));
        let (names, values): (Vec<_>, Vec<_>) = self.values.iter().filter_map(named).unzip();
        let (place, id) = (table.in_sql(), identifier(&columns.id));
        let insert = format!(
            "INSERT INTO {place} ({}) VALUES ({}) RETURNING {id}::text",
            names.join(", "),
            values.join(", ")
        );
        self.query("BEGIN").await?;
        let Some(inserted) = self.query(&insert).await? else {
            self.query("ROLLBACK").await?;
            return Err(self.does_not_stay());
        };
        self.id = inserted;
        let end = match dry {
            Some(dry) => {
                let args = PreviewArgs {
                    url: None,
                    limit: None,
                    id: Some(self.id.clone()),
                    stdin: false,
                    json: false,
                };
                of_table(&mut self.session, self.config, &args, table, dry).await?;
                self.session.set_answer_timeout(Some(ANSWER_TIMEOUT));
                "ROLLBACK"
            }
            None => "COMMIT",
        };
        let delete = format!("DELETE FROM {place} WHERE {id} = {} RETURNING 1", literal(&self.id));
        if self.query(&delete).await?.is_none() {
            self.query("ROLLBACK").await?;
            let what = format!("the row could not be deleted from {} again", self.place);
            return Err(unsuitable(&what, TRIGGERS));
        }
        self.query(end).await.map(drop)
    }

    async fn query(&mut self, sql: &str) -> Result<Option<String>, Error> {
        self.session.query_one(sql).await.map_err(|error| self.not_written(error))
    }

    fn not_written(&self, error: QueryError) -> Error {
        let remedy = remedy_for(error.code());
        match error.or_remedy(remedy).with_code(ErrorCode::EndToEndNotWritten) {
            Error::Definite(mut definite) => {
                definite.what = format!("the event cannot be written to {}: {}", self.place, definite.what);
                definite.into()
            }
            transient => transient,
        }
    }

    /// The content of a message with these values.
    fn message(&self) -> Value {
        let columns = &self.config.outbox.columns;
        let member = |(field, value): &(Field, String)| {
            let json = matches!(field, Field::Payload | Field::Headers)
                .then(|| serde_json::from_str(value).ok())
                .flatten();
            Some((field.column(columns)?.to_owned(), json.unwrap_or_else(|| Value::from(value.clone()))))
        };
        Value::Object(self.values.iter().filter_map(member).collect::<Map<_, _>>())
    }
}

/// The error before anything is written.
pub(super) fn unsuitable(why: &str, remedy: &'static str) -> Error {
    Error::refused(ErrorCode::EndToEndNotWritten, format!("no event was written, because {why}"), remedy)
}

/// What to do if the server refuses a statement with this SQLSTATE.
fn remedy_for(code: Option<&SqlState>) -> &'static str {
    match code {
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            "Give the connection of a role that may insert, select and delete there, also by the policies of row-level security, with --url"
        }
        Some(code) if *code == SqlState::NOT_NULL_VIOLATION => {
            "Give columns that the router does not read a default, or let them be NULL"
        }
        Some(code)
            if *code == SqlState::CHECK_VIOLATION
                || *code == SqlState::FOREIGN_KEY_VIOLATION
                || code.code().starts_with(DATA_EXCEPTION) =>
        {
            "Choose a value that the table accepts with --aggregate-type, or relax the column"
        }
        _ => "Correct what the server says",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sqlstate_decides_on_the_remedy() {
        for (code, says) in [
            ("42501", "Give the connection of a role"),
            ("23502", "Give columns that the router does not read a default"),
            ("22001", "Choose a value that the table accepts"),
            ("23514", "Choose a value that the table accepts"),
            ("23503", "Choose a value that the table accepts"),
            ("P0001", "Correct what the server says"),
        ] {
            let remedy = remedy_for(Some(&SqlState::from_code(code)));
            assert!(remedy.starts_with(says), "{code}: {remedy}");
        }
    }
}
