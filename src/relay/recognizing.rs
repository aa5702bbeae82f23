//! Nothing is confirmed to a server, or remembered of it, whose log is not yet known to be the one that was read.

use crate::lsn::Lsn;
use crate::positions::{OtherLog, Recognition, Verdict};
use crate::progress::{Landmark, Progress};
use crate::routing::Origin;

/// The look at the beginning of the stream; afterwards nothing.
pub(super) struct Recognizing {
    look: Option<Recognition>,
    /// Whether a person has accepted a gap. It is for this one, if there is one; else that is said.
    gap_accepted: bool,
}

impl Recognizing {
    pub(super) fn new(look: Option<Recognition>, gap_accepted: bool) -> Self {
        Recognizing { look, gap_accepted }
    }

    /// Whether the log is still to be recognized.
    pub(super) fn is_under_way(&self) -> bool {
        self.look.is_some()
    }

    /// Whether what comes was judged by an earlier session, or has to be recognized before anything else is said of it.
    pub(super) fn passes_over(&self, progress: &Progress) -> bool {
        progress.repeats() || self.is_under_way()
    }

    /// A row has come.
    pub(super) fn row(&mut self, origin: &Origin) -> Result<(), OtherLog> {
        let Some(look) = &mut self.look else { return Ok(()) };
        let Origin { final_lsn, xid, commit_time, .. } = *origin;
        let verdict = look.change(Landmark { final_lsn, xid, commit_time })?;
        self.heard(verdict);
        Ok(())
    }

    /// A transactional message has come.
    pub(super) fn message(&mut self, prefix: &str, origin: &Origin) -> Result<(), OtherLog> {
        match &self.look {
            Some(look) if look.message_prefix() == Some(prefix) => self.row(origin),
            _ => Ok(()),
        }
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
