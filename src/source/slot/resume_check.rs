//! Runs the resume check: until the server's log is verified, nothing is confirmed and no checkpoint is written.

use pg_logical::Lsn;
use pg_logical::pgoutput::Message;

use crate::checkpoint::{LogMismatch, ResumeCheck, Verdict};
use crate::progress::Landmark;

/// The running check; nothing once it has passed.
pub(super) struct ResumeState {
    check: Option<ResumeCheck>,
    /// Whether `--accept-gap` names a gap that was not found so far. If the check passes there was none, which is logged.
    gap_accepted: bool,
}

impl ResumeState {
    pub(super) fn new(check: Option<ResumeCheck>, gap_accepted: bool) -> Self {
        ResumeState { check, gap_accepted }
    }

    /// Whether the check is still running.
    pub(super) fn is_under_way(&self) -> bool {
        self.check.is_some()
    }

    /// Checks a message before anything is made of it. `transaction` is the current one, unless the message begins another.
    pub(super) fn observe(
        &mut self,
        message: &Message<'_>,
        transaction: Landmark,
    ) -> Result<(), LogMismatch> {
        let Some(check) = &mut self.check else { return Ok(()) };
        let verdict = match message {
            // commits arrive in order, so everything before this one has arrived
            Message::Begin(begin) => check.reached(begin.final_lsn)?,
            Message::Insert(_) => check.change(transaction)?,
            Message::Logical(message)
                if message.transactional && check.message_prefix() == Some(message.prefix) =>
            {
                check.change(transaction)?
            }
            Message::Commit(commit) => check.reached(commit.end_lsn)?,
            _ => return Ok(()),
        };
        self.apply(verdict);
        Ok(())
    }

    /// Everything up to `lsn` has arrived, and no transaction is open.
    pub(super) fn reached(&mut self, lsn: Lsn) -> Result<(), LogMismatch> {
        let Some(check) = &self.check else { return Ok(()) };
        let verdict = check.reached(lsn)?;
        self.apply(verdict);
        Ok(())
    }

    fn apply(&mut self, verdict: Verdict) {
        if verdict == Verdict::Verified {
            self.check = None;
            if std::mem::take(&mut self.gap_accepted) {
                no_gap_to_accept();
            }
        }
    }
}

/// Warns that `--accept-gap` was not needed.
pub fn no_gap_to_accept() {
    tracing::warn!("there is no gap to accept: remove --accept-gap, which might hide the next one");
}
