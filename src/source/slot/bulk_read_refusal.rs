//! What happens if the server refuses bulk reads.

use pg_logical::replication::NotStarted;
use pg_logical::server_error::ServerError;
use pg_logical::stream::Transport;

use super::SlotSource;
use super::bulk_reads::Step;
use crate::advice;
use crate::error::{Error, Peer, with_config_file};

impl<S: Transport> SlotSource<S> {
    /// Handles a refusal by falling back to the stream, which reports a real problem better.
    pub(super) fn refused(&mut self, refused: ServerError) -> Result<(), Error> {
        let slot = &self.config.postgres.slot;
        if self.bulk_reads.step == Step::StartingStream {
            return Err(advice::not_started(NotStarted::Server(refused), slot));
        }
        let logged = self.bulk_reads.bound.is_none();
        if refused.severity != "ERROR" || logged && self.bulk_reads.step != Step::Draining {
            return Err(Error::transient(
                Peer::Postgres,
                format!("Postgres has ended the session: {refused}"),
            ));
        }
        // the server refuses the requests after it too
        if logged {
            return Ok(());
        }
        tracing::warn!(
            reason = %refused,
            remedy = with_config_file(remedy(&refused)),
            "Postgres refuses bulk reads of the slot {slot}; this session streams it, which is slower"
        );
        // the server drops temporary slots on any error
        (self.bulk_reads.bound, self.bulk_reads.copy) = (None, None);
        self.bulk_reads.step = Step::Draining;
        Ok(())
    }
}

/// What to do about a refusal of bulk reads.
fn remedy(refused: &ServerError) -> &'static str {
    match refused.code.code() {
        // insufficient_privilege
        "42501" => {
            "Run the GRANTs on functions that `outbox-router init --print-sql` prints, or set `catch_up = \"stream\"` under [postgres]"
        }
        // configuration_limit_exceeded
        "53400" => {
            "Bulk reads need one more replication slot (max_replication_slots) and temporary files (temp_file_limit); set \
             `catch_up = \"stream\"` under [postgres] to do without bulk reads"
        }
        // disk_full
        "53100" => {
            "Free space where Postgres puts temporary files (temp_tablespaces), or set `catch_up = \"stream\"` under [postgres] to do \
             without bulk reads"
        }
        _ => {
            "The next session tries again; set `catch_up = \"stream\"` under [postgres] to do without bulk reads"
        }
    }
}
