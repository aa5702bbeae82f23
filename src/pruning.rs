//! Deletes old rows of an outbox table: whole partitions, and rows in batches that leave the server half of its time for others.

use std::time::{Duration, Instant};

use pg_logical::session::Session;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::archive::writer::Writer;
use crate::error::{Error, ErrorCode};
use crate::postgres::partitions::Examined;
use crate::postgres::prunes::{self, Batch, Lease, Prunable};
use crate::postgres::rows::spans::Spans;

/// How often a batch is tried while somebody has locked the table. Each try waits for a second.
const TRIES: u32 = 20;

/// How often the first partition that is locked is tried. Each try takes more than a second.
const DROP_TRIES: u32 = 3;

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
    /// Whether there are partitions that have ended by then.
    pub partitions: bool,
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

/// Deletes the rows, of which `found` were counted, until none is left or somebody stops it. `tell` is told after each batch how many rows are
/// deleted, and how many partitions are dropped.
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
    mut tell: impl FnMut(u64, u64),
) -> Result<(), Error> {
    let lease = prunes::begin(session, request.outbox).await?;
    let mut prune = Prune { session, lease: &lease, request, stop, deleted: 0, dropped: 0, tell: &mut tell };
    let done = prune.perform(found, target).await;
    // if the session is gone, the lease expires
    let ended = lease.end(session).await;
    done.and(ended)
}

/// Why a partition cannot be dropped.
struct Undropped {
    problem: String,
    /// Whether one is locked.
    locked: bool,
}

impl From<Undropped> for Error {
    fn from(undropped: Undropped) -> Self {
        let remedy = match undropped.locked {
            true => {
                "Let the transaction end, or end it with pg_terminate_backend; the next prune tries again"
            }
            false => {
                "Correct what the message names, and prune again; until then, its rows are deleted one by one"
            }
        };
        let what = format!("an old partition is not dropped: {}", undropped.problem);
        Error::refused(ErrorCode::PartitionsImpossible, what, remedy)
    }
}

struct Prune<'a, T> {
    session: &'a mut Session,
    lease: &'a Lease,
    request: &'a Request<'a>,
    stop: &'a CancellationToken,
    /// Rows that are deleted, and partitions that are dropped.
    deleted: u64,
    dropped: u64,
    tell: &'a mut T,
}

impl<T: FnMut(u64, u64)> Prune<'_, T> {
    async fn perform(&mut self, found: &Prunable, target: Target<'_>) -> Result<(), Error> {
        if !self.request.partitions {
            return self.delete(found, target).await;
        }
        let moves_rows = found.archive.is_some() || matches!(target, Target::File(_));
        if moves_rows {
            self.delete(found, target).await?;
            return self.drop_partitions(true).await?.map_or(Ok(()), |kept| Err(kept.into()));
        }
        let kept = self.drop_partitions(false).await?;
        // those of a partition that is locked do not have to be deleted one by one
        if !self.stop.is_cancelled() && !kept.as_ref().is_some_and(|kept| kept.locked) {
            self.delete(found, target).await?;
        }
        kept.map_or(Ok(()), |kept| Err(kept.into()))
    }

    /// Drops partitions that nobody needs. Returns why the first one that cannot be dropped is kept.
    async fn drop_partitions(&mut self, only_empty: bool) -> Result<Option<Undropped>, Error> {
        let (mut since, mut tries, mut kept) = (None, DROP_TRIES, None);
        while !self.stop.is_cancelled() {
            let dropping = self.lease.drop_partition(self.session, since, self.request.until, only_empty);
            let Some(Examined { end, rows, problem, locked }) = dropping.await? else { break };
            if locked && tries > 1 {
                tries -= 1;
                self.stop.run_until_cancelled(sleep(PAUSE)).await;
                continue;
            }
            since = Some(end);
            if let Some(rows) = rows {
                tries = DROP_TRIES;
                self.deleted += rows;
                self.dropped += 1;
                (self.tell)(self.deleted, self.dropped);
            }
            if let Some(problem) = problem {
                kept.get_or_insert(Undropped { problem, locked }).locked |= locked;
            }
        }
        Ok(kept)
    }

    async fn delete(&mut self, found: &Prunable, mut target: Target<'_>) -> Result<(), Error> {
        let Prune { session, lease, request, stop, deleted: all, dropped, tell } = self;
        let page_rows = usize::try_from(request.batch).unwrap_or(usize::MAX);
        let first = found.times.map_or(request.until.saturating_sub(1), |(first, _)| first);
        let mut spans = Spans::new(first, 0, request.until, page_rows);
        // the first span has no beginning, because a row may have the time -infinity
        let mut since = None;
        let mut tries = 0;
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
            *all += deleted;
            tell(*all, *dropped);
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
}
