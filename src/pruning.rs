//! Deletes old rows of an outbox table, in batches that leave the server half of its time for others.

use std::time::{Duration, Instant};

use pg_logical::session::Session;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::postgres::prunes::{self, Batch, Lease, Prunable};
use crate::postgres::rows::spans::Spans;

/// How often a batch is tried while somebody has locked the table. Each try waits for a second.
const TRIES: u32 = 20;

/// How long others may use the lock after each try.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause after a batch, so that the lease does not expire.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Which rows are deleted.
#[derive(Debug)]
pub struct Request<'a> {
    /// The outbox table, as in SQL.
    pub outbox: &'a str,
    /// The time before which they were inserted, in microseconds since 1970.
    pub until: i64,
    /// How many are deleted in one transaction.
    pub batch: u32,
}

/// Deletes the rows, of which `found` were counted, until none is left or somebody stops it. `tell` is told after each batch how many are
/// deleted.
///
/// # Errors
/// Another prune or a replay of the outbox is running, the archive cannot take its rows, it is not known which rows the routers have
/// delivered, or Postgres refuses. Rows that were deleted before are gone.
pub async fn prune(
    session: &mut Session,
    request: &Request<'_>,
    found: &Prunable,
    stop: &CancellationToken,
    mut tell: impl FnMut(u64),
) -> Result<(), Error> {
    let lease = prunes::begin(session, request.outbox).await?;
    let done = delete(session, &lease, request, found, stop, &mut tell).await;
    // if the session is gone, the lease expires
    let ended = lease.end(session).await;
    done.and(ended)
}

async fn delete(
    session: &mut Session,
    lease: &Lease,
    request: &Request<'_>,
    found: &Prunable,
    stop: &CancellationToken,
    tell: &mut impl FnMut(u64),
) -> Result<(), Error> {
    let page_rows = usize::try_from(request.batch).unwrap_or(usize::MAX);
    let first = found.times.map_or(request.until.saturating_sub(1), |(first, _)| first);
    let mut spans = Spans::new(first, 0, request.until, page_rows);
    // the first span has no beginning, because a row may have the time -infinity
    let mut since = None;
    let (mut all, mut tries) = (0, 0);
    while let Some((from, to)) = spans.current() {
        let begun = Instant::now();
        let (chosen, deleted, last) = match lease.delete(session, since, to, request.batch).await? {
            Batch::Done { chosen, deleted, last } => (chosen, deleted, last),
            Batch::Locked(error) => {
                tries += 1;
                if tries == TRIES {
                    return Err(error);
                }
                if stop.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                    break;
                }
                continue;
            }
        };
        tries = 0;
        all += deleted;
        tell(all);
        let took = begun.elapsed();
        // a trigger may have kept all of them
        let is_full = chosen >= request.batch.into() && deleted > 0;
        since = if is_full { last.or(since) } else { Some(to) };
        let last = is_full.then(|| last.unwrap_or(from));
        spans.advance(to, usize::try_from(chosen).unwrap_or(page_rows), from, last, took);
        if stop.run_until_cancelled(sleep(took.min(LONGEST_PAUSE))).await.is_none() {
            break;
        }
    }
    Ok(())
}
