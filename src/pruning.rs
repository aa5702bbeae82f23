//! Deletes old rows of an outbox table, in batches that leave the server half of its time for others.

use std::time::{Duration, Instant};

use pg_logical::session::Session;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::archive::writer::Writer;
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

/// Where the rows go.
#[derive(Debug)]
pub enum Target<'a> {
    /// To the table that init has stored as the archive, or nowhere.
    Server,
    /// To a file.
    File(&'a mut Writer),
    /// Nowhere: they are those of the archive.
    Archived,
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
    target: Target<'_>,
    stop: &CancellationToken,
    mut tell: impl FnMut(u64),
) -> Result<(), Error> {
    let lease = prunes::begin(session, request.outbox).await?;
    let done = delete(session, &lease, request, found, target, stop, &mut tell).await;
    // if the session is gone, the lease expires
    let ended = lease.end(session).await;
    done.and(ended)
}

async fn delete(
    session: &mut Session,
    lease: &Lease,
    request: &Request<'_>,
    found: &Prunable,
    mut target: Target<'_>,
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
        let batch = match &mut target {
            Target::Server => lease.delete(session, since, to, request.batch).await?,
            Target::Archived => lease.delete_archived(session, since, to, request.batch).await?,
            Target::File(file) => lease.delete_stored(session, since, to, request.batch, *file).await?,
        };
        let (chosen, more, deleted, last) = match batch {
            Batch::Done { chosen, more, deleted, last } => (chosen, more, deleted, last),
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
        // a trigger may have kept all of them; the next ones are not of the same time then
        let next = last.map(|last| if deleted > 0 { last } else { last.saturating_add(1) });
        let more = more && (deleted > 0 || next.is_some_and(|next| next < to));
        since = if more { next.or(since) } else { Some(to) };
        let last = more.then(|| next.unwrap_or(from));
        spans.advance(to, usize::try_from(chosen).unwrap_or(page_rows), from, last, took);
        if stop.run_until_cancelled(sleep(took.min(LONGEST_PAUSE))).await.is_none() {
            break;
        }
    }
    Ok(())
}
