//! Nothing is confirmed to a server, or remembered of it, whose log is not yet known to be the one that was read.

use pg_logical::Lsn;
use pg_logical::pgoutput::Message;

use crate::checkpoint::{OtherLog, ResumeCheck, Verdict};
use crate::progress::Landmark;

/// The look at the beginning of the stream; afterwards nothing.
pub(super) struct Resume {
    look: Option<ResumeCheck>,
    /// Whether a person has accepted a gap. It is for this one, if there is one; else that is said.
    gap_accepted: bool,
}

impl Resume {
    pub(super) fn new(look: Option<ResumeCheck>, gap_accepted: bool) -> Self {
        Resume { look, gap_accepted }
    }

    /// Whether the log is still to be recognized.
    pub(super) fn is_under_way(&self) -> bool {
        self.look.is_some()
    }

    /// A message of the stream has come, of `transaction` unless it begins one. Nothing was made of it yet.
    pub(super) fn look(&mut self, message: &Message<'_>, transaction: Landmark) -> Result<(), OtherLog> {
        let Some(look) = &mut self.look else { return Ok(()) };
        let verdict = match message {
            // commits come in order, so all that lies before it has come
            Message::Begin(begin) => look.reached(begin.final_lsn)?,
            Message::Insert(_) => look.change(transaction)?,
            Message::Logical(message)
                if message.transactional && look.message_prefix() == Some(message.prefix) =>
            {
                look.change(transaction)?
            }
            Message::Commit(commit) => look.reached(commit.end_lsn)?,
            _ => return Ok(()),
        };
        self.heard(verdict);
        Ok(())
    }

    /// Everything up to there has come, outside of a transaction.
    pub(super) fn reached(&mut self, lsn: Lsn) -> Result<(), OtherLog> {
        let Some(look) = &self.look else { return Ok(()) };
        let verdict = look.reached(lsn)?;
        self.heard(verdict);
        Ok(())
    }

    fn heard(&mut self, verdict: Verdict) {
        if verdict == Verdict::Recognized {
            self.look = None;
            if std::mem::take(&mut self.gap_accepted) {
                no_gap_to_accept();
            }
        }
    }
}

/// Where a person expected one.
pub fn no_gap_to_accept() {
    tracing::warn!("there is no gap to accept: leave --accept-gap away, or it may hide the next one");
}
