//! Sends what was counted, session after session, and stores how far that has come.

use std::time::{Duration, Instant};

use pg_logical::session::Session;
use serde::Serialize;
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::open;
use super::selected::Selected;
use crate::commands::progress::CommandProgress;
use crate::commands::signals::cancelled_by;
use crate::commands::{ANSWER_TIMEOUT, Completion};
use crate::config::Config;
use crate::error::{Error, ErrorCode, Remedy, Step, with_config_file};
use crate::postgres::replays::Done;
use crate::postgres::replays::lease::{self, Lease, State};
use crate::quantity::{counted, time};
use crate::replay::{Batch, End, send};
use crate::sink::leave_out::LeftOut;
use crate::source::table::sent::Acknowledged;
use crate::supervisor::Backoff;
use crate::terminal;

/// How often progress is stored. A crash repeats what was acknowledged since.
const STORE_EVERY: Duration = Duration::from_millis(50);

/// How often the lease is renewed without progress.
const RENEW_EVERY: Duration = Duration::from_secs(lease::SECONDS / 5);

/// A replay that this process sends.
pub(super) struct Sending<'a> {
    config: &'a Config,
    selected: Selected,
    lease: Lease,
    rate: Option<f64>,
    /// How many rows were counted.
    rows: u64,
    json: bool,
    done: Done,
    /// How many events were left out before this process began.
    left_out_before: u64,
    left_out: LeftOut,
    /// How many of the next rows are sent one at a time, because Kafka has refused one of them.
    alone: u64,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    replay: u64,
    complete: bool,
    rows: u64,
    rows_done: u64,
    cannot_be_sent: u64,
    replay_header: &'a str,
}

impl<'a> Sending<'a> {
    /// Sends `selected`, of which so many rows were counted.
    pub(super) fn new(
        config: &'a Config,
        selected: Selected,
        lease: Lease,
        rate: Option<f64>,
        rows: u64,
        json: bool,
    ) -> Self {
        Sending {
            config,
            selected,
            lease,
            rate,
            rows,
            json,
            done: Done::default(),
            left_out_before: 0,
            left_out: LeftOut::default(),
            alone: 0,
        }
    }

    /// The same from where it was interrupted.
    pub(super) fn from(self, done: Done) -> Self {
        Sending { left_out_before: done.left_out, done, ..self }
    }

    /// Sends until everything is done, or somebody stops it.
    pub(super) async fn run(mut self, session: Session) -> Result<Completion, Error> {
        let stop = cancelled_by(&[SignalKind::interrupt(), SignalKind::terminate()])?;
        let what = format!("replay {}", self.lease.id);
        let mut progress = CommandProgress::of_rows(what, self.done.rows, self.json);
        let (begun, mut backoff, mut session) = (Instant::now(), Backoff::default(), Some(session));
        let complete = loop {
            let before = self.done.rows;
            let ended = self.session(&mut session, &mut progress, &stop).await;
            if self.done.rows > before {
                backoff.reset();
            }
            match ended {
                Ok(End::Complete) => break true,
                Ok(End::Stopped) => break false,
                Ok(End::Refused(rows)) => self.alone = rows,
                Ok(End::RefusedAlone { row, event, why }) => {
                    self.left_out.add(event, why);
                    self.done.rows += 1;
                    self.done.last = row.or(self.done.last);
                }
                Ok(End::Failed(Error::Transient(failure))) | Err(Error::Transient(failure)) => {
                    backoff.log(&failure, false);
                    // the session with Postgres may be what has failed
                    session = None;
                    tokio::select! {
                        () = stop.cancelled() => break false,
                        () = tokio::time::sleep(backoff.next()) => {}
                    }
                }
                Ok(End::Failed(error)) | Err(error) => {
                    progress.end();
                    self.release(&mut session).await;
                    return Err(self.with_command(error));
                }
            }
        };
        progress.end();
        let stored = complete || self.release(&mut session).await;
        if let Some(session) = session {
            session.close().await;
        }
        self.report(complete, stored, begun.elapsed())
    }

    /// One session with Kafka, from the last row that is known to be done.
    async fn session(
        &mut self,
        session: &mut Option<Session>,
        progress: &mut CommandProgress,
        stop: &CancellationToken,
    ) -> Result<End, Error> {
        let starting = async {
            let mut storing = match session.take() {
                Some(session) => session,
                None => open(self.config).await?,
            };
            storing.set_answer_timeout(Some(ANSWER_TIMEOUT));
            let pages = self.selected.pages(self.config, self.done.last.clone()).await?;
            Ok::<_, Error>((storing, pages))
        };
        let (mut storing, pages) = tokio::select! {
            biased;
            started = starting => started?,
            () = stop.cancelled() => return Ok(End::Stopped),
        };
        let batch = Batch {
            conversion: &self.selected.conversion,
            pages,
            rate: self.rate,
            alone: self.alone,
            left_out: self.left_out.clone(),
        };
        let (tell, told) = watch::channel(Acknowledged::default());
        // the session also ends if progress cannot be stored
        let (stop, ended) = (stop.child_token(), CancellationToken::new());
        let before = self.done.clone();
        let (lease, left_out, left_out_before) = (&self.lease, self.left_out.clone(), self.left_out_before);
        let now = || {
            let acknowledged = told.borrow().clone();
            Done {
                rows: before.rows + acknowledged.rows,
                left_out: left_out_before + left_out.count(),
                last: acknowledged.last.or_else(|| before.last.clone()),
            }
        };
        let sends = async {
            let end = send(batch, tell, &stop).await;
            ended.cancel();
            end
        };
        let stores = async {
            let (mut stored, mut renewed) = (before.clone(), None::<Instant>);
            let end = loop {
                let done = now();
                if done != stored || renewed.is_none_or(|at| at.elapsed() >= RENEW_EVERY) {
                    match lease.store(&mut storing, &done, State::Runs).await {
                        Ok(true) => renewed = Some(Instant::now()),
                        Ok(false) => break Err(lost(lease)),
                        Err(error) => break Err(error.into()),
                    }
                    progress.show(done.rows, self.rows);
                    stored = done;
                }
                tokio::select! {
                    biased;
                    () = ended.cancelled() => break Ok(()),
                    () = tokio::time::sleep(STORE_EVERY) => {}
                }
            };
            if end.is_err() {
                stop.cancel();
            }
            end
        };
        let (end, stored) = tokio::join!(sends, stores);
        self.done = now();
        self.alone = self.alone.saturating_sub(self.done.rows - before.rows);
        stored?;
        if let Ok(End::Complete) = end
            && !self.lease.store(&mut storing, &self.done, State::Finished).await?
        {
            return Err(lost(&self.lease));
        }
        *session = Some(storing);
        end
    }

    /// Stores how far it has come, so that it can be continued at once. Returns whether that was possible.
    async fn release(&self, session: &mut Option<Session>) -> bool {
        let done = Done { left_out: self.left_out_count(), ..self.done.clone() };
        let storing = async {
            let mut storing = match session.take() {
                Some(session) => session,
                None => open(self.config).await?,
            };
            let stored = self.lease.store(&mut storing, &done, State::Interrupted).await?;
            *session = Some(storing);
            Ok::<_, Error>(stored)
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, storing).await {
            Ok(Ok(stored)) => stored,
            Ok(Err(error)) => {
                tracing::warn!("how far the replay has come could not be stored: {error}");
                false
            }
            Err(_) => {
                tracing::warn!("how far the replay has come could not be stored in time");
                false
            }
        }
    }

    /// How many events were left out so far.
    fn left_out_count(&self) -> u64 {
        self.left_out_before + self.left_out.count()
    }

    fn command(&self) -> String {
        format!("outbox-router replay --resume {}", self.lease.id)
    }

    fn with_command(&self, error: Error) -> Error {
        match error {
            Error::Definite(mut definite) if definite.code != ErrorCode::ReplayRunning => {
                let step = Step::new("Then continue").typing(self.command());
                definite.remedy = definite.remedy.then(step);
                definite.into()
            }
            error => error,
        }
    }

    fn report(&self, complete: bool, stored: bool, took: Duration) -> Result<Completion, Error> {
        let (id, rows, done) = (self.lease.id, self.rows, self.done.rows);
        let left_out = self.left_out_count();
        let completion =
            if complete && left_out == 0 { Completion::Success } else { Completion::ProblemsFound };
        if self.json {
            let replay_header = &self.selected.conversion.mark;
            let report = Report {
                replay: id,
                complete,
                rows,
                rows_done: done,
                cannot_be_sent: left_out,
                replay_header,
            };
            return terminal::print_json(&report).map(|()| completion);
        }
        let mut text = match complete {
            true => format!("Replay {id}: {} done after {}.\n", counted(done, "row"), time(took)),
            false => format!(
                "Replay {id} was interrupted: {done} of {rows} rows are done. To continue:\n  {}\n",
                with_config_file(self.command())
            ),
        };
        if complete && done < rows {
            text += &format!("{} changed or deleted since they were counted.\n", counted(rows - done, "row"));
        }
        if !stored {
            text += "The last rows may be sent again.\n";
        }
        if left_out > 0 {
            let first = self.left_out.first();
            let first =
                first.map_or_else(String::new, |(event, why)| format!("; the first is {event}: {why}"));
            text += &format!("{} could not be sent{first}.\n", counted(left_out, "event"));
        }
        terminal::print(&text).map(|()| completion)
    }
}

/// Another process has taken the replay over.
fn lost(lease: &Lease) -> Error {
    Error::refused(
        ErrorCode::ReplayRunning,
        format!("another process has continued replay {} meanwhile", lease.id),
        Remedy::steps([Step::new("See how far it has come").typing("outbox-router replay --list")]),
    )
}
