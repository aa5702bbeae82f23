//! Stores how far a backfill has come, in the session that holds the slot's lock. A router that has lost the lock stores nothing.

use std::time::Duration;

use pg_logical::session::Session;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::store;
use crate::checkpoint::BackfillDone;
use crate::error::{Error, ErrorCode, Peer};

/// How often progress is stored. Without a positions topic, a crash repeats what was acknowledged since.
const STORE_EVERY: Duration = Duration::from_millis(50);

/// How often the server is asked without progress: it ends idle sessions.
const PING_EVERY: Duration = Duration::from_millis(500);

/// What the source tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// How far the rows are acknowledged and committed.
    pub done: BackfillDone,
    /// There are no more rows.
    pub complete: bool,
    /// The session is over.
    pub stop: bool,
}

/// What the server has answered.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    /// The session existed, and with it the lock, at this time; `None`: there was no answer yet.
    pub alive_at: Option<Instant>,
    /// How many rows are stored as done.
    pub stored: u64,
    /// The end is stored.
    pub finished: bool,
}

/// A running worker; it ends when this is dropped.
#[derive(Debug)]
pub struct Worker {
    tell: watch::Sender<Told>,
    answered: watch::Receiver<Answered>,
    /// `None`: it has ended.
    task: Option<JoinHandle<Result<Session, Error>>>,
}

impl Worker {
    /// Starts to store the progress of a backfill that has come so far. `session` holds the slot's lock.
    pub fn start(session: Session, done: BackfillDone) -> Self {
        let (tell, told) = watch::channel(Told { done: done.clone(), complete: false, stop: false });
        let answer = Answered { alive_at: None, stored: done.rows, finished: false };
        let (answer, answered) = watch::channel(answer);
        Worker { tell, answered, task: Some(tokio::spawn(run(session, done, told, answer))) }
    }

    /// Tells how far it has come.
    pub fn progressed(&self, done: BackfillDone, complete: bool) {
        self.tell.send_if_modified(|told| {
            let next = Told { done, complete, stop: told.stop };
            let changed = *told != next;
            *told = next;
            changed
        });
    }

    /// What the server has answered so far.
    pub fn answered(&self) -> Answered {
        *self.answered.borrow()
    }

    /// Waits for another answer. Cancel-safe.
    ///
    /// # Errors
    /// The session is lost.
    pub async fn changed(&mut self) -> Result<(), Error> {
        if self.answered.changed().await.is_ok() {
            return Ok(());
        }
        let Some(task) = &mut self.task else { return std::future::pending().await };
        let ended = task.await;
        self.task = None;
        match ended {
            Ok(Err(error)) => Err(error),
            _ => Err(Error::transient(
                Peer::Postgres,
                "the session that stores the progress of the backfill has ended",
            )),
        }
    }

    /// Stores the last progress, and returns the session.
    pub async fn end(mut self, within: Duration) -> Option<Session> {
        self.tell.send_modify(|told| told.stop = true);
        let ended = timeout(within, self.task.as_mut()?).await.ok()?;
        self.task = None;
        ended.ok()?.ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn run(
    mut session: Session,
    mut stored: BackfillDone,
    mut told: watch::Receiver<Told>,
    answer: watch::Sender<Answered>,
) -> Result<Session, Error> {
    let mut finished = false;
    loop {
        let asked = Instant::now();
        let Told { done, complete, stop } = told.borrow_and_update().clone();
        if done != stored || complete && !finished {
            let rows = session.query(&store(&done, complete)).await?;
            if rows.is_empty() && !finished {
                return Err(gone(&stored));
            }
            (stored, finished) = (done, finished || complete);
        } else {
            session.query("SELECT 1").await?;
        }
        // nobody listens any more if the source has ended
        let _ = answer.send(Answered { alive_at: Some(asked), stored: stored.rows, finished });
        if stop {
            return Ok(session);
        }
        tokio::time::sleep(STORE_EVERY).await;
        let _ = timeout(PING_EVERY, told.changed()).await;
    }
}

/// Somebody has deleted or replaced the row.
fn gone(done: &BackfillDone) -> Error {
    Error::refused(
        ErrorCode::BackfillImpossible,
        format!(
            "the row of the backfill {} in {} was deleted or replaced while its rows were sent",
            done.id,
            super::TABLE
        ),
        "Start the router again: it goes on with what the table has now",
    )
}
