//! The heartbeat: a logical message that the router writes with SQL and receives in its own stream.
//!
//! It is transactional, so it takes the same path as an event: it is flushed and decoded with its commit. Otherwise it would
//! be flushed whenever the WAL writer gets to it, and would measure that. In the stream it is a transaction without changes,
//! so positions within transactions are not affected.

use std::time::Duration;

use pg_logical::PgTimestamp;
use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use tokio::time::Instant;

use crate::error::with_config_file;
use crate::reserved::HEARTBEAT_PREFIX;

/// The prefix of one router's heartbeats.
pub fn prefix(router: &str) -> String {
    format!("{HEARTBEAT_PREFIX}{router}")
}

/// When a heartbeat was written, by the clock of the router that wrote it; `None` if this is not a heartbeat.
pub fn written_at(content: &[u8]) -> Option<PgTimestamp> {
    std::str::from_utf8(content).ok()?.parse().ok().map(PgTimestamp)
}

/// The state of the writer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// When the last one was written.
    pub last: Option<PgTimestamp>,
    /// Why none can be written; `None` if they can.
    pub refused: Option<String>,
}

/// Writes a heartbeat whenever it is due.
#[derive(Debug)]
pub(super) struct Writer {
    prefix: String,
    every: Duration,
    due: Instant,
    written: Written,
}

impl Writer {
    pub(super) fn new(router: &str, every: Duration) -> Self {
        Writer { prefix: prefix(router), every, due: Instant::now(), written: Written::default() }
    }

    pub(super) fn written(&self) -> &Written {
        &self.written
    }

    /// The time until the next one.
    pub(super) fn due_in(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Writes a heartbeat if it is due. A refusal is logged once and retried, because the privilege may be granted.
    ///
    /// # Errors
    /// The session is lost.
    pub(super) async fn write(&mut self, session: &mut Session) -> Result<(), QueryError> {
        if !self.due_in().is_zero() {
            return Ok(());
        }
        self.due = Instant::now() + self.every;
        let refused = if session.parameters().get("in_hot_standby").is_some_and(|standby| standby == "on") {
            "the server is a standby, where nothing can be written: connect the router to the primary, or switch the \
             heartbeat off"
                .to_owned()
        } else {
            let now = PgTimestamp::now();
            match session.query(&emit(&self.prefix, now)).await {
                Ok(_) => {
                    self.written.last = Some(now);
                    if self.written.refused.take().is_some() {
                        tracing::info!(peer = "postgres", "the heartbeat can be written again");
                    }
                    return Ok(());
                }
                Err(error) if error.code().is_some_and(|code| code.code() == "42501") => {
                    let init = with_config_file("outbox-router init --print-sql");
                    format!("{error}: grant EXECUTE on pg_logical_emit_message, as `{init}` shows")
                }
                // the server is shutting down or ending the session
                Err(error) if error.code().is_none_or(|code| code.code().starts_with("57P")) => {
                    return Err(error);
                }
                Err(error) => error.to_string(),
            }
        };
        if self.written.refused.as_ref() != Some(&refused) {
            tracing::warn!(
                peer = "postgres",
                reason = refused,
                "the heartbeat cannot be written; events flow"
            );
            self.written.refused = Some(refused);
        }
        Ok(())
    }
}

fn emit(prefix: &str, at: PgTimestamp) -> String {
    format!("SELECT pg_catalog.pg_logical_emit_message(true, {}, '{}')", literal(prefix), at.0)
}

/// A query for the function as this server has it (17 added an argument), and for whether the role `role`, an SQL expression,
/// may call it.
pub fn privilege(role: &str) -> String {
    format!(
        "SELECT p.oid::pg_catalog.regprocedure, pg_catalog.has_function_privilege({role}, p.oid, 'EXECUTE') \
         FROM pg_catalog.pg_proc p WHERE p.proname = 'pg_logical_emit_message' \
         AND p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace \
         AND p.proargtypes[2] = 'pg_catalog.text'::pg_catalog.regtype"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read_back_and_a_name_is_quoted() {
        let at = PgTimestamp(721_692_800_000_000);
        let sql = emit(&prefix("shop's.outbox"), at);
        assert_eq!(
            sql,
            "SELECT pg_catalog.pg_logical_emit_message(true, 'outbox-router.heartbeat/shop''s.outbox', '721692800000000')"
        );
        assert_eq!(written_at(b"721692800000000"), Some(at));
        assert_eq!(written_at(b"s3cret"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_time_or_none(content in prop::collection::vec(any::<u8>(), 0..30)) {
            written_at(&content);
        }
    }
}
