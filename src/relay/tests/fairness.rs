//! A port that is always ready must not starve the other one, whose server waits for answers.

use std::cell::Cell;
use std::rc::Rc;

use pg_logical::Lsn;
use tokio_util::sync::CancellationToken;

use super::Fixture;
use super::sink::first;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Peer};
use crate::monitor::Monitor;
use crate::pipeline::{Made, Pipeline};
use crate::progress::{Progress, Sequence};
use crate::relay::{
    Certain, Delivered, Event, Health, InFlight, Intake, NotSent, Outcome, Read, Reading, Refusal, Relay,
    Sent, Sink, Source, Stalled, Turn, Window,
};

/// Both ports were served if the loop has waited for each of them so often.
const ENOUGH: u32 = 100;

/// One port was starved if the loop has waited for the other one so often.
const TOO_MANY: u32 = 10_000;

/// A port with nothing to read or to send.
struct Idle {
    /// Whether it is always ready.
    busy: bool,
    /// How often the loop has waited for this port, and for the other one.
    this: Rc<Cell<u32>>,
    other: Rc<Cell<u32>>,
}

impl Idle {
    async fn changed(&mut self) -> Result<(), Error> {
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

    fn dealt_with(&mut self) {}

    fn turn(&mut self, _: &Delivered) -> Result<Reading, Error> {
        Ok(Reading {
            intake: Intake::Live,
            received: Lsn(0),
            confirmed: Lsn(0),
            caught_up: true,
            begins_again: false,
            ended: false,
            again: false,
            gathered: false,
        })
    }

    async fn changed(&mut self) -> Result<(), Error> {
        Idle::changed(self).await
    }

    fn health(&self) -> Option<Stalled> {
        None
    }

    fn is_recognized(&self) -> bool {
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

    fn send(&mut self, _: &Made<'_>, _: Sequence) -> Result<Sent, NotSent> {
        Ok(Sent::Nothing)
    }

    fn reports(&mut self, _: &mut impl FnMut(Event) -> Option<InFlight>) -> Option<Refusal> {
        None
    }

    fn turn(&mut self, _: &Turn<'_>, _: &mut dyn FnMut(&mut Checkpoint)) -> Result<bool, Error> {
        Ok(false)
    }

    fn certain(&self, progress: &Progress) -> Certain {
        Certain::of_acknowledged(progress, true)
    }

    async fn changed(&mut self) -> Result<(), Error> {
        Idle::changed(self).await
    }

    fn health(&self) -> Health {
        Health::Flowing
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

#[test]
fn neither_port_is_starved_by_the_other() {
    let fixture = Fixture::new();
    for sink_is_busy in [true, false] {
        let (one, other) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let source = Idle { busy: !sink_is_busy, this: Rc::clone(&one), other: Rc::clone(&other) };
        let sink = Idle { busy: sink_is_busy, this: other, other: one };
        let (outbox, router) = fixture.parts();
        let on_update = fixture.config.outbox.on_update;
        let pipeline = Pipeline::new(outbox, router, None, Lsn(0), on_update, Monitor::new("fairness"));
        let relay = Relay::new(
            source,
            pipeline,
            sink,
            first(Lsn(0)).position,
            Window::new(10, 1_000),
            Monitor::new("fairness"),
            std::time::Duration::from_secs(5),
        );
        let ended = fixture.runtime.block_on(relay.run(&CancellationToken::new()));
        let Outcome::Failed(error) = ended.outcome else { panic!("{:?}", ended.outcome) };
        assert!(error.to_string().contains("both were served"), "{error}, sink busy: {sink_is_busy}");
    }
}
