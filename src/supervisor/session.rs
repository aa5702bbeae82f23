//! One session, from its start to its end.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use pg_logical::stream::Stream;
use tokio_util::sync::CancellationToken;

use super::session_state::SessionState;
use super::startup::{Started, start};
use super::{SETTLED, TURN};
use crate::config::Config;
use crate::dead_letters::Key;
use crate::error::Error;
use crate::monitor::Monitor;
use crate::pipeline::Pipeline;
use crate::postgres::bookmarks::RollingBookmarks;
use crate::progress::Position;
use crate::relay::{Ended, Outcome, Relay, Sink, Window};
use crate::sink::dead_letters::{DeadLetters, DeadLettersEnd};
use crate::sink::kafka::{KafkaEnd, KafkaSink};
use crate::source::slot::{SlotLeft, SlotSource};

/// Why a session did not come to run.
pub(super) enum NoSession {
    /// Asked to stop before it did.
    Stopped,
    /// It could not be started.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for NoSession {
    fn from(error: E) -> Self {
        NoSession::Failed(error.into())
    }
}

/// What a session leaves behind.
#[derive(Debug)]
pub(super) struct SessionEnded {
    /// Why it is over.
    pub(super) outcome: Outcome,
    /// Records that were sent and not acknowledged.
    pub(super) unacknowledged: usize,
    pub(super) slot: SlotLeft,
    pub(super) kafka: KafkaEnd,
    /// A parked event that was refused, or the first of several, and whether it was under way alone.
    pub(super) retry: Option<(Key, bool)>,
}

impl From<Ended<SlotLeft, KafkaEnd>> for SessionEnded {
    fn from(Ended { outcome, unacknowledged, source, sink }: Ended<SlotLeft, KafkaEnd>) -> Self {
        SessionEnded { outcome, unacknowledged, slot: source, kafka: sink, retry: None }
    }
}

impl From<Ended<SlotLeft, DeadLettersEnd<KafkaEnd>>> for SessionEnded {
    fn from(ended: Ended<SlotLeft, DeadLettersEnd<KafkaEnd>>) -> Self {
        let Ended { outcome, unacknowledged, source, sink } = ended;
        let DeadLettersEnd { inner, retry } = sink;
        SessionEnded { outcome, unacknowledged, slot: source, kafka: inner, retry }
    }
}

/// Starts a session and runs it to its end.
pub(super) async fn run(
    config: &Arc<Config>,
    monitor: &Monitor,
    stop: &CancellationToken,
    memory: &mut SessionState,
) -> Result<SessionEnded, NoSession> {
    let started = tokio::select! {
        biased;
        () = stop.cancelled() => return Err(NoSession::Stopped),
        never = turning(monitor) => match never {},
        started = start(config, monitor, stop, memory) => started,
    };
    let started = started.inspect_err(|_| memory.not_started())?;
    (memory.was_active, memory.goes_over) = (true, None);
    // for as long as the session lasts
    let _bookmarks = config.bookmarks.clone().map(|settings| {
        RollingBookmarks::start(&config.name, &config.postgres, settings, started.host.clone())
    });
    let connected = started.connected.clone();
    let mut relay = pin!(relay(config, started, monitor, stop));
    let ended = if memory.fruitless {
        // the last one ended as soon as this was logged
        tokio::select! {
            ended = &mut relay => ended,
            () = tokio::time::sleep(SETTLED) => {
                connected.log();
                relay.await
            }
        }
    } else {
        relay.await
    };
    monitor.session_over();
    Ok(ended)
}

/// Runs the loop between the slot and Kafka, with dead letters around Kafka if there are any.
async fn relay(
    config: &Config,
    started: Started,
    monitor: &Monitor,
    stop: &CancellationToken,
) -> SessionEnded {
    let Started { source, pipeline, kafka, dead_letters, .. } = started;
    let start = kafka.resumed_from.position;
    let source = SlotSource::new(source, start);
    let kafka = KafkaSink::new(kafka);
    match dead_letters {
        None => joined(config, source, pipeline, kafka, start, monitor).run(stop).await.into(),
        Some(parts) => {
            let sink = DeadLetters::new(kafka, parts);
            joined(config, source, pipeline, sink, start, monitor).run(stop).await.into()
        }
    }
}

fn joined<K: Sink>(
    config: &Config,
    source: SlotSource<Stream>,
    pipeline: Pipeline,
    sink: K,
    start: Position,
    monitor: &Monitor,
) -> Relay<SlotSource<Stream>, K> {
    let delivery = &config.delivery;
    let window = Window::new(delivery.window_records, delivery.window_bytes);
    Relay::new(source, pipeline, sink, start, window, monitor.clone(), delivery.shutdown_timeout)
}

/// A start waits for servers, each answer for so long at most. Meanwhile the main loop turns, and says so.
async fn turning(monitor: &Monitor) -> Infallible {
    loop {
        monitor.turned();
        tokio::time::sleep(TURN).await;
    }
}
