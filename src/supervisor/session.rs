//! One session, from start to end.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::idle_end::show_if_late;
use super::session_state::SessionState;
use super::startup::{Started, StartedSource, start};
use super::{LIVENESS_INTERVAL, STABLE_AFTER};
use crate::config::Config;
use crate::dead_letters::Key;
use crate::error::Error;
use crate::monitor::Monitor;
use crate::pipeline::Pipeline;
use crate::postgres::bookmarks::RollingBookmarks;
use crate::progress::Position;
use crate::relay::{Ended, Outcome, Relay, Sink, Source, Window};
use crate::sink::dead_letters::{DeadLetterParts, DeadLetters, DeadLettersEnd};
use crate::sink::kafka::{KafkaEnd, KafkaParts, KafkaSink};
use crate::source::slot::{SlotLeft, SlotSource};
use crate::source::table::backfilled::BackfilledRows;

/// Why a session did not start.
pub(super) enum StartError {
    /// The router was asked to stop first.
    Stopped,
    /// A step of the start failed.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for StartError {
    fn from(error: E) -> Self {
        StartError::Failed(error.into())
    }
}

/// The result of a session.
#[derive(Debug)]
pub(super) struct SessionEnded {
    /// Why it ended.
    pub(super) outcome: Outcome,
    /// Sent records without acknowledgement.
    pub(super) unacknowledged: usize,
    /// `None`: the router polls, and has no position.
    pub(super) slot: Option<SlotLeft>,
    pub(super) kafka: KafkaEnd,
    /// The first retried parked event that was refused, and whether it was in flight alone.
    pub(super) retry: Option<(Key, bool)>,
}

impl From<Ended<SlotLeft, KafkaEnd>> for SessionEnded {
    fn from(Ended { outcome, unacknowledged, source, sink }: Ended<SlotLeft, KafkaEnd>) -> Self {
        SessionEnded { outcome, unacknowledged, slot: Some(source), kafka: sink, retry: None }
    }
}

impl From<Ended<SlotLeft, DeadLettersEnd<KafkaEnd>>> for SessionEnded {
    fn from(ended: Ended<SlotLeft, DeadLettersEnd<KafkaEnd>>) -> Self {
        let Ended { outcome, unacknowledged, source, sink } = ended;
        let DeadLettersEnd { inner, retry } = sink;
        SessionEnded { outcome, unacknowledged, slot: Some(source), kafka: inner, retry }
    }
}

/// Starts a session and runs it to its end.
pub(super) async fn run(
    config: &Arc<Config>,
    monitor: &Monitor,
    stop: &CancellationToken,
    state: &mut SessionState,
) -> Result<SessionEnded, StartError> {
    let started = {
        let last = state.idle_end.clone();
        let starting = pin!(async {
            tokio::select! {
                biased;
                started = start(config, monitor, stop, state) => started,
                never = show_if_late(monitor, last.as_ref()) => match never {},
            }
        });
        until_stopped(monitor, stop, starting).await?
    };
    let started = started.inspect_err(|_| state.not_started())?;
    (state.was_active, state.switch_to_bulk, state.idle_end) = (true, None, None);
    // lives as long as the session
    let _bookmarks = config.bookmarks.clone().map(|settings| {
        let host = started.host.clone();
        RollingBookmarks::start(&config.name, &config.postgres, settings, host, monitor.bookmarks())
    });
    let connected = started.connected.clone();
    let mut relay = pin!(relay(config, started, monitor, stop));
    let ended = if state.no_progress {
        // the previous session ended right after it had logged this
        tokio::select! {
            ended = &mut relay => ended,
            () = tokio::time::sleep(STABLE_AFTER) => {
                connected.log();
                relay.await
            }
        }
    } else {
        relay.await
    };
    monitor.session_ended();
    Ok(ended)
}

/// Waits for a start, unless the router is asked to stop first.
pub(super) async fn until_stopped<T>(
    monitor: &Monitor,
    stop: &CancellationToken,
    // by reference: a copy of such a future takes much of a stack
    starting: Pin<&mut impl Future<Output = T>>,
) -> Result<T, StartError> {
    tokio::select! {
        biased;
        () = stop.cancelled() => Err(StartError::Stopped),
        never = report_liveness(monitor) => match never {},
        started = starting => Ok(started),
    }
}

/// Runs the loop between slot or table and Kafka, with the dead-letter sink around Kafka if parking is on.
async fn relay(
    config: &Config,
    started: Started,
    monitor: &Monitor,
    stop: &CancellationToken,
) -> SessionEnded {
    let Started { source, pipeline, kafka, dead_letters, .. } = started;
    let start = kafka.start;
    match source {
        StartedSource::Slot(source) => {
            let source = SlotSource::new(*source, start);
            run_relay(config, (source, pipeline, start), kafka, dead_letters, monitor, stop).await
        }
        StartedSource::Backfill(parts) => {
            let source = BackfilledRows::new(*parts);
            let running = run_relay(config, (source, pipeline, start), kafka, dead_letters, monitor, stop);
            Box::pin(running).await
        }
    }
}

async fn run_relay<S: Source<End = SlotLeft>>(
    config: &Config,
    (source, pipeline, start): (S, Pipeline, Position),
    kafka: KafkaParts,
    dead_letters: Option<DeadLetterParts>,
    monitor: &Monitor,
    stop: &CancellationToken,
) -> SessionEnded {
    let kafka = KafkaSink::new(kafka);
    match dead_letters {
        None => new_relay(config, source, pipeline, kafka, start, monitor).run(stop).await.into(),
        Some(parts) => {
            let sink = DeadLetters::new(kafka, parts);
            new_relay(config, source, pipeline, sink, start, monitor).run(stop).await.into()
        }
    }
}

fn new_relay<S: Source, K: Sink>(
    config: &Config,
    source: S,
    pipeline: Pipeline,
    sink: K,
    start: Position,
    monitor: &Monitor,
) -> Relay<S, K> {
    let delivery = &config.delivery;
    let window = Window::new(delivery.window_records, delivery.window_bytes);
    Relay::new(source, pipeline, sink, start, window, monitor.clone(), delivery.shutdown_timeout)
}

/// Reports to the monitor that the main task is alive while a start waits for servers.
async fn report_liveness(monitor: &Monitor) -> Infallible {
    loop {
        monitor.main_loop_ran();
        tokio::time::sleep(LIVENESS_INTERVAL).await;
    }
}
