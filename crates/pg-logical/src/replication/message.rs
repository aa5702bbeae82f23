//! The contents of CopyData in both directions.

use std::fmt;

use super::lost;
use crate::error::Error;
use crate::lsn::Lsn;
use crate::redacted::Redacted;
use crate::timestamp::PgTimestamp;

/// What the server sends in CopyData.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReplicationMessage<'a> {
    /// A part of the stream.
    XLogData {
        /// The position of the change in the log. A logical walsender sends it in both position fields
        /// (`WalSndPrepareWrite`).
        wal_end: Lsn,
        /// One message of the plugin.
        data: &'a [u8],
    },
    /// A keepalive. Every published change before `wal_end` has been sent.
    PrimaryKeepAlive {
        /// The end of the log that the walsender has processed.
        wal_end: Lsn,
        /// When it was sent, by the server's clock.
        sent: PgTimestamp,
        /// Whether the server requests an immediate reply.
        reply_requested: bool,
    },
}

impl fmt::Debug for ReplicationMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::XLogData { wal_end, data } => {
                f.debug_struct("XLogData").field("wal_end", wal_end).field("data", &Redacted(data)).finish()
            }
            Self::PrimaryKeepAlive { wal_end, sent, reply_requested } => f
                .debug_struct("PrimaryKeepAlive")
                .field("wal_end", wal_end)
                .field("sent", sent)
                .field("reply_requested", reply_requested)
                .finish(),
        }
    }
}

/// The contents of a standby status update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyStatus {
    /// Received up to here.
    pub written: Lsn,
    /// Acknowledged up to here, so the server may remove what lies before it.
    pub flushed: Lsn,
}

#[inline]
pub(super) fn decode(body: &[u8]) -> Result<ReplicationMessage<'_>, Error> {
    let malformed = || lost("a replication message cannot be read");
    let (kind, rest) = body.split_first().ok_or_else(malformed)?;
    let lsn = |bytes: &[u8; 8]| Lsn(u64::from_be_bytes(*bytes));
    match kind {
        b'w' => {
            let (_start, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let (wal_end, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let (_clock, data) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            Ok(ReplicationMessage::XLogData { wal_end: lsn(wal_end), data })
        }
        b'k' => {
            let (wal_end, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let (clock, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let [reply] = rest else { return Err(malformed()) };
            let sent = PgTimestamp(i64::from_be_bytes(*clock));
            Ok(ReplicationMessage::PrimaryKeepAlive {
                wal_end: lsn(wal_end),
                sent,
                reply_requested: *reply == 1,
            })
        }
        other => Err(lost(&format!("unknown replication message of type {:?}", char::from(*other)))),
    }
}
