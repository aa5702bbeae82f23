//! Nothing is confirmed to a server whose log is not yet known to be the one that was read.

use crate::lsn::Lsn;
use crate::positions::{OtherLog, Recognition};
use crate::progress::Landmark;
use crate::routing::Origin;

/// The look at the beginning of the stream; afterwards nothing.
pub(super) struct Recognizing {
    look: Option<Recognition>,
    /// A gap that was accepted on the command line, in case that it is this one.
    accepted_gap: Option<Lsn>,
}

impl Recognizing {
    pub(super) fn new(look: Option<Recognition>, accepted_gap: Option<Lsn>) -> Self {
        Recognizing { look, accepted_gap }
    }

    /// Whether the log is still to be recognized.
    pub(super) fn is_under_way(&self) -> bool {
        self.look.is_some()
    }

    /// A change has come.
    pub(super) fn change(&mut self, origin: &Origin) -> Result<(), OtherLog> {
        let Some(look) = &mut self.look else { return Ok(()) };
        let Origin { final_lsn, xid, commit_time, .. } = *origin;
        if look.change(Landmark { final_lsn, xid, commit_time })? {
            self.recognized();
        }
        Ok(())
    }

    /// Everything up to there has come.
    pub(super) fn reached(&mut self, lsn: Lsn, inside_transaction: bool) -> Result<(), OtherLog> {
        let Some(look) = self.look.as_ref().filter(|_| !inside_transaction) else { return Ok(()) };
        if look.reached(lsn)? {
            self.recognized();
        }
        Ok(())
    }

    fn recognized(&mut self) {
        self.look = None;
        if self.accepted_gap.take().is_some() {
            no_gap_to_accept();
        }
    }
}

/// Where a person expected one.
pub fn no_gap_to_accept() {
    tracing::warn!("there is no gap to accept: leave --accept-gap away, or it may hide the next one");
}
