//! Runs the production loop between a source and a sink that follow a random script: reports in any order, refusals, stalls, lost
//! transactions, lost connections, crashes, parked events, the end of a shard's part. The invariants must hold at each step, and
//! at the end everything must be delivered.

mod fairness;
mod sink;
mod source;
mod table;
mod world;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use pg_logical::Lsn;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{Ended, Outcome, Relay, Sink, Window};
use crate::checkpoint::Checkpoint;
use crate::config::{Config, minimal_with};
use crate::error::Error;
use crate::monitor::Monitor;
use crate::outbox::Outbox;
use crate::pipeline::Pipeline;
use crate::postgres::dead_letters::store::DeadLetterStore;
use crate::routing::Router;
use crate::sink::dead_letters::{DeadLetterParts, DeadLetters};
use sink::{MemorySink, first};
use source::{PREFIX, ScriptedSource};
use world::{Action, Change, Kind, Mode, Shared, World};

/// A session without progress for this long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(600);

/// A schedule may take at most this many sessions.
const MAX_SESSIONS: usize = 200;

/// How many schedules are tried.
const SCHEDULES: u32 = 10_000;

#[derive(Debug, Clone)]
struct Schedule {
    mode: Mode,
    log: Vec<Vec<Change>>,
    script: Vec<Action>,
    window: usize,
    parks: bool,
    /// How many transactions before the position the resume check has to see in each session.
    unknown: usize,
    /// The first transaction that is another router's.
    until: Option<usize>,
}

/// What all schedules share because creating it is slow.
struct Fixture {
    config: Config,
    monitor: Monitor,
    runtime: tokio::runtime::Runtime,
}

impl Fixture {
    fn new() -> Self {
        let config = minimal_with(&format!("outbox.message_prefix = \"{PREFIX}\"\n"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        Fixture { config, monitor: Monitor::new("model"), runtime: runtime.unwrap() }
    }

    fn parts(&self) -> (Outbox, Router) {
        let router = Router::of(&self.config);
        (Outbox::of(&self.config, router.extra_columns()), router)
    }

    /// Runs sessions until everything is delivered. Returns the first violation.
    fn run(&self, schedule: &Schedule) -> Option<String> {
        let Schedule { mode, log, script, window, parks, unknown, until } = schedule.clone();
        let world = World::new(mode, log, script, window);
        world.borrow_mut().until = until.map(|transaction| Lsn((transaction as u64 + 1) * 100));
        let mut remembered = None;
        for _ in 0..MAX_SESSIONS {
            let start = start(&world, remembered.take());
            let ended = self.runtime.block_on(self.session(&world, start, parks, unknown));
            if world.borrow().fault.is_some() {
                break;
            }
            let Some(Ended { outcome, sink, .. }) = ended else { continue };
            match outcome {
                // during the script it may have had no time for its last checkpoint
                Outcome::SourceEnded if !world.borrow().is_draining() => {}
                Outcome::SourceEnded => {
                    finished(&world);
                    check_decisions(&world);
                    return world.borrow().fault.clone();
                }
                Outcome::Stopped if world.borrow().is_done => {
                    finished(&world);
                    return world.borrow().fault.clone();
                }
                Outcome::Stopped => {}
                // an operator follows the remedy, which assumes that everything before the event has arrived
                Outcome::Failed(Error::Definite(_)) => {
                    let mut world = world.borrow_mut();
                    world.check_before_unsendable();
                    world.cured = true;
                }
                Outcome::Failed(Error::Transient(_)) | Outcome::Refused(_) => remembered = Some(sink),
            }
        }
        world.borrow_mut().wrong("the schedule does not end".to_owned());
        world.borrow().fault.clone()
    }

    /// `None` if the process died.
    async fn session(
        &self,
        world: &Shared,
        start: Checkpoint,
        parks: bool,
        unknown: usize,
    ) -> Option<Ended<bool, Checkpoint>> {
        let sink = MemorySink::new(world, start.clone());
        if !parks {
            let source = ScriptedSource::new(world, start.position, unknown, None);
            return self.run_relay(world, source, sink, &start).await;
        }
        let (store, orders, reports) = DeadLetterStore::scripted();
        let loaded = table::load(&mut world.borrow_mut(), &start.retried);
        let mode = world.borrow().mode;
        let sink = DeadLetters::new(
            sink,
            DeadLetterParts {
                store,
                loaded,
                max_aggregates: 100,
                refused: BTreeMap::new(),
                retry_alone: false,
                required_log_end: start.parked,
                of_rows: None,
                pipeline: self.parts(),
                transactional: mode == Mode::ExactlyOnce,
                with_checkpoints: mode != Mode::SlotOnly,
                monitor: self.monitor.clone(),
            },
        );
        let source = ScriptedSource::new(world, start.position, unknown, Some((orders, reports)));
        let ended = self.run_relay(world, source, sink, &start).await?;
        let Ended { outcome, unacknowledged, source, sink } = ended;
        Some(Ended { outcome, unacknowledged, source, sink: sink.inner })
    }

    async fn run_relay<K: Sink>(
        &self,
        world: &Shared,
        source: ScriptedSource,
        sink: K,
        start: &Checkpoint,
    ) -> Option<Ended<bool, K::End>> {
        let (outbox, router) = self.parts();
        let on_update = self.config.outbox.on_update;
        let pipeline = Pipeline::new(outbox, router, None, Lsn(0), on_update, self.monitor.clone());
        let window = Window::new(world.borrow().window, 1_000);
        let (stop, position) = (world.borrow().stop.clone(), start.position);
        let patience = Duration::from_secs(5);
        let relay = Relay::new(source, pipeline, sink, position, window, self.monitor.clone(), patience);
        let dies =
            poll_fn(|_| if world.borrow().crashed.is_some() { Poll::Ready(()) } else { Poll::Pending });
        tokio::select! {
            biased;
            ended = relay.run(&stop) => Some(ended),
            () = dies => None,
            () = tokio::time::sleep(STUCK_AFTER) => {
                world.borrow_mut().wrong("the session is stuck".to_owned());
                None
            }
        }
    }
}

/// Where the next session resumes. `remembered`: the checkpoint of the process, if it is still the same one.
fn start(world: &Shared, remembered: Option<Checkpoint>) -> Checkpoint {
    let mut world = world.borrow_mut();
    world.crashed = None;
    world.decided_before = world.cured;
    world.stop = tokio_util::sync::CancellationToken::new();
    let slot = first(world.confirmed);
    let start = match world.mode {
        Mode::SlotOnly => remembered,
        Mode::AtLeastOnce => remembered.or_else(|| world.stored.clone()),
        Mode::ExactlyOnce => world.stored.clone(),
    };
    let start = start.unwrap_or(slot);
    if start.position.flush < world.confirmed {
        let confirmed = world.confirmed;
        world.wrong(format!("a start at {:?}, and the slot is confirmed up to {confirmed}", start.position));
    }
    world.check_covered(start.position, "the start");
    if world.mode != Mode::SlotOnly {
        // a start writes its first checkpoint
        world.stored = Some(start.clone());
    }
    start
}

/// Checks that everything is delivered and confirmed.
fn finished(world: &Shared) {
    let mut world = world.borrow_mut();
    world.check_delivered();
    let (confirmed, end) = (world.confirmed, world.until.unwrap_or(world.end));
    if confirmed < end {
        world.wrong(format!("the slot is confirmed up to {confirmed}, and the log ends at {end}"));
    }
}

/// Checks that the router has acted on every decision that was made before its last session.
fn check_decisions(world: &Shared) {
    let mut world = world.borrow_mut();
    if world.decided_before && !world.table.is_empty() {
        let rows = world.table.len();
        world.wrong(format!(
            "it ends with {rows} parked events that were marked for a retry before it started"
        ));
    }
}

fn change() -> impl Strategy<Value = Change> {
    let kind = prop_oneof![8 => Just(Kind::Event), 1 => Just(Kind::Dropped), 1 => Just(Kind::Unsendable)];
    (0..3_u8, kind).prop_map(|(aggregate, kind)| Change { aggregate, kind })
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (1..6_u8).prop_map(Action::Arrive),
        1 => Just(Action::Tick),
        1 => Just(Action::SourceFails),
        1 => any::<u8>().prop_map(Action::Crash),
        1 => Just(Action::Stop),
        3 => (1..3_u8).prop_map(Action::Table),
        1 => Just(Action::Cure),
        6 => (0..3_u8).prop_map(Action::Deliver),
        2 => Just(Action::DeliverAll),
        1 => (0..3_u8).prop_map(Action::Refuse),
        4 => Just(Action::Checkpoint),
        1 => any::<bool>().prop_map(Action::CheckpointFails),
        1 => Just(Action::SinkFails),
        1 => Just(Action::Stall),
        3 => Just(Action::Prepare),
    ]
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let mode = prop_oneof![Just(Mode::SlotOnly), Just(Mode::AtLeastOnce), Just(Mode::ExactlyOnce)];
    (
        mode,
        prop::collection::vec(prop::collection::vec(change(), 0..5), 0..6),
        prop::collection::vec(action(), 0..60),
        1..6_usize,
        any::<bool>(),
        prop_oneof![3 => Just(0_usize), 1 => 1..3_usize],
        prop_oneof![3 => Just(None), 1 => (0..6_usize).prop_map(Some)],
    )
        .prop_map(|(mode, log, script, window, parks, unknown, until)| Schedule {
            mode,
            log,
            script,
            window,
            parks,
            unknown,
            // shards need checkpoints
            until: until.filter(|_| mode != Mode::SlotOnly),
        })
}

/// Many topics in a backlog are not prepared one after the other.
#[test]
fn topics_of_later_events_are_prepared_with_the_one_that_is_needed() {
    let fixture = Fixture::new();
    let event = |aggregate| Change { aggregate, kind: Kind::Event };
    for parks in [false, true] {
        let world = World::new(
            Mode::AtLeastOnce,
            (0..4).map(|number| (number * 25..number * 25 + 25).map(event).collect()).collect(),
            vec![Action::Arrive(200)],
            1_000,
        );
        world.borrow_mut().ahead = usize::MAX;
        let start = start(&world, None);
        fixture.runtime.block_on(fixture.session(&world, start, parks, 0));
        finished(&world);
        let world = world.borrow();
        assert_eq!((world.preparations, &world.fault), (1, &None), "parks: {parks}");
    }
}

#[test]
fn every_schedule_delivers_everything_in_order_and_confirms_no_more_than_that() {
    let fixture = Fixture::new();
    let config = ProptestConfig { cases: SCHEDULES, failure_persistence: None, ..ProptestConfig::default() };
    let result = proptest::test_runner::TestRunner::new(config).run(&schedule(), |schedule| {
        fixture.run(&schedule).map_or(Ok(()), |fault| Err(TestCaseError::fail(fault)))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
