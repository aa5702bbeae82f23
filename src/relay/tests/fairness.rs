//! A busy port must not keep the loop from the other one, whose server waits for answers, and shows what it does.

use std::cell::Cell;
use std::rc::Rc;

use pg_logical::Lsn;
use tokio_util::sync::CancellationToken;

use super::Fixture;
use super::sink::first;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Peer};
use crate::monitor::{Monitor, State};
use crate::pipeline::{Pipeline, PipelineOutput};
use crate::progress::{Progress, Sequence};
use crate::relay::{
    DeliveryState, Durability, Health, InFlight, Intake, LoopState, NotSent, Outcome, Read, Refusal, Relay,
    Sent, Sink, SinkEvent, Source, SourceState, Stalled, Window,
};

/// The test passes when both ports were polled this often.
const ENOUGH: u32 = 100;

/// The test fails when one port was polled this often before.
const TOO_MANY: u32 = 10_000;

/// A port with nothing to read or send.
struct Idle {
    /// Whether it has something to do at each poll.
    busy: bool,
    /// What the source says.
    stalled: Option<Stalled>,
    /// How often this port and the other one were polled.
    this: Rc<Cell<u32>>,
    other: Rc<Cell<u32>>,
    /// The health of a sink, after so many polls.
    health: Rc<dyn Fn(u32) -> Health>,
}

impl Idle {
    async fn wait(&mut self) -> Result<(), Error> {
        self.this.set(self.this.get() + 1);
        if self.this.get().min(self.other.get()) >= ENOUGH {
            return Err(Error::transient(Peer::Kafka, "both were served"));
        }
        if self.this.get() >= TOO_MANY {
            return Err(Error::transient(Peer::Kafka, "one was starved"));
        }
        if !self.busy {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

impl Source for Idle {
    type End = ();

    fn next(&mut self) -> Result<Read<'_>, Error> {
        Ok(Read::Nothing)
    }

    fn consume(&mut self) {}

    fn look_ahead(&self, _: &mut dyn FnMut(Read<'_>) -> bool) {}

    fn after_dispatch(&mut self, _: &DeliveryState) -> Result<SourceState, Error> {
        Ok(SourceState {
            intake: Intake::Live,
            received: Lsn(0),
            confirmed: Lsn(0),
            caught_up: true,
            restarted: false,
            ended: false,
            again: false,
            gathered: false,
        })
    }

    async fn wait(&mut self) -> Result<(), Error> {
        Idle::wait(self).await
    }

    fn health(&self) -> Option<Stalled> {
        self.stalled.clone()
    }

    fn is_log_verified(&self) -> bool {
        true
    }

    async fn confirm_last(&mut self, _: Lsn) -> Result<(), Error> {
        Ok(())
    }

    async fn close(self, _: &Outcome, _: bool) {}
}

impl Sink for Idle {
    type End = ();

    fn is_ready(&self) -> bool {
        true
    }

    fn send(&mut self, _: &PipelineOutput<'_>, _: Sequence) -> Result<Sent, NotSent> {
        Ok(Sent::Nothing)
    }

    fn reports(&mut self, _: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal> {
        None
    }

    fn after_dispatch(
        &mut self,
        _: &LoopState<'_>,
        _: &mut dyn FnMut(&mut Checkpoint),
    ) -> Result<bool, Error> {
        Ok(false)
    }

    fn durability(&self, progress: &Progress) -> Durability {
        Durability::of_acknowledged(progress, true)
    }

    async fn wait(&mut self) -> Result<(), Error> {
        Idle::wait(self).await
    }

    fn health(&self) -> Health {
        (self.health)(self.this.get())
    }

    async fn close(
        self,
        outcome: Outcome,
        _: &mut Progress,
        _: bool,
        _: &mut dyn FnMut(&mut Checkpoint),
    ) -> (Outcome, ()) {
        (outcome, ())
    }
}

/// Runs a session in which one of the ports is busy, and whose ports say this of themselves. Returns how it ended, and what was shown.
fn run(
    sink_is_busy: bool,
    health: impl Fn(u32) -> Health + 'static,
    stalled: Option<Stalled>,
) -> (Outcome, Monitor) {
    let fixture = Fixture::new();
    let (one, other) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let health: Rc<dyn Fn(u32) -> Health> = Rc::new(health);
    let port = |busy, this: &Rc<Cell<u32>>, other: &Rc<Cell<u32>>| {
        let (this, other) = (Rc::clone(this), Rc::clone(other));
        Idle { busy, health: Rc::clone(&health), stalled: stalled.clone(), this, other }
    };
    let (source, sink) = (port(!sink_is_busy, &one, &other), port(sink_is_busy, &other, &one));
    let (outbox, router) = fixture.parts();
    let on_update = fixture.config.outbox.on_update;
    let monitor = Monitor::new("fairness");
    let pipeline = Pipeline::new(outbox, router, None, Lsn(0), on_update, monitor.clone());
    let relay = Relay::new(
        source,
        pipeline,
        sink,
        first(Lsn(0)).position,
        Window::new(10, 1_000),
        monitor.clone(),
        std::time::Duration::from_secs(5),
    );
    let ended = fixture.runtime.block_on(relay.run(&CancellationToken::new()));
    (ended.outcome, monitor)
}

#[test]
fn neither_port_is_starved_by_the_other() {
    for sink_is_busy in [true, false] {
        let (Outcome::Failed(error), _) = run(sink_is_busy, |_| Health::Flowing, None) else {
            panic!("no error")
        };
        assert!(error.to_string().contains("both were served"), "{error}, sink busy: {sink_is_busy}");
    }
}

/// A state that names a connection is one without it.
#[test]
fn the_state_shows_what_the_ports_say() {
    let at = |peer, reason: &str| Stalled { peer, reason: reason.to_owned() };
    let busy = || "creating topics: 1 of 2".to_owned();
    let quota = || at(Peer::Kafka, "a quota delays every answer");
    let withheld = || at(Peer::Postgres, "Postgres withholds changes");
    let down = || at(Peer::Kafka, "all brokers are down");
    let stalled = |Stalled { peer, reason }| State::Stalled { peer, reason };
    for (health, of_source, shown, ready) in [
        (Health::Flowing, None, State::Starting, false),
        (Health::Busy(busy()), None, State::Busy { with: busy() }, true),
        (Health::Stalled(quota()), None, stalled(quota()), false),
        (Health::Stalled(quota()), Some(withheld()), stalled(quota()), false),
        (Health::Flowing, Some(withheld()), stalled(withheld()), false),
        (
            Health::Down(down()),
            Some(withheld()),
            State::Reconnecting { peer: Peer::Kafka, code: None, reason: down().reason },
            false,
        ),
    ] {
        let (_, monitor) = run(true, move |_| health.clone(), of_source);
        let state = monitor.current_state();
        assert_eq!(state, shown);
        assert_eq!(state.kind().is_ready(), ready, "{state}");
    }
}

#[test]
fn the_state_shows_the_present_reason_of_an_outage_and_counts_it_once() {
    let down = |polls| {
        let reason = if polls < ENOUGH / 2 { "connection refused" } else { "authentication failed" };
        Health::Down(Stalled { peer: Peer::Kafka, reason: reason.to_owned() })
    };
    let (_, monitor) = run(false, down, None);
    let state = monitor.current_state();
    assert!(
        matches!(&state, State::Reconnecting { reason, .. } if reason == "authentication failed"),
        "{state:?}"
    );
    assert_eq!(monitor.snapshot().reconnects.kafka, 1);
}
