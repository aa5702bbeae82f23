//! A source that reads the world's log as the script lets it arrive.

use std::future::poll_fn;
use std::task::Poll;

use pg_logical::Lsn;
use pg_logical::pgoutput::LogicalMessage;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::UnboundedSender;

use super::table::Table;
use super::world::{Action, Shared, World};
use crate::error::{Error, Peer};
use crate::pipeline::Change;
use crate::postgres::dead_letters::messages::{Command, Report};
use crate::progress::Position;
use crate::relay::{DeliveryState, Intake, Outcome, Read, Source, SourceState, Stalled};

pub(super) const PREFIX: &str = "outbox";

/// A message of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Begin(usize),
    Change(usize, String),
    Commit(usize),
    KeepAlive(Lsn),
    End(Option<Lsn>),
}

pub(super) struct ScriptedSource {
    world: Shared,
    items: Vec<Item>,
    next: usize,
    arrived: usize,
    /// How many messages the resume check has to see first.
    unknown: usize,
    received: Lsn,
    confirmed: Lsn,
    table: Option<Table>,
}

impl ScriptedSource {
    /// Resumes at `start`. The resume check has to see `unknown` transactions from before it. `table` receives the orders for
    /// parked events.
    pub(super) fn new(
        world: &Shared,
        start: Position,
        unknown: usize,
        table: Option<(UnboundedReceiver<Command>, UnboundedSender<Report>)>,
    ) -> Self {
        let mut items = Vec::new();
        let mut before = 0;
        let confirmed = {
            let world = world.borrow();
            let delivered = world.log.iter().filter(|one| one.end <= start.flush).count();
            for (number, one) in world.log.iter().enumerate().skip(delivered.saturating_sub(unknown)) {
                if number < delivered {
                    before = items.len() + one.changes.len() + 2;
                }
                if let Some(until) = world.until.filter(|until| one.itself.final_lsn >= *until) {
                    items.push(Item::End(Some(until)));
                    break;
                }
                items.push(Item::Begin(number));
                for (change, of) in one.changes.iter().enumerate() {
                    let content = format!(
                        r#"{{"id":"{number}.{change}","aggregate_type":"order","aggregate_id":"{}","event_type":"t","payload":{{}}}}"#,
                        of.aggregate
                    );
                    items.push(Item::Change(number, content));
                }
                items.push(Item::Commit(number));
                if number % 2 == 0 && number >= delivered {
                    items.push(Item::KeepAlive(one.end));
                }
            }
            if world.until.is_none() {
                items.push(Item::KeepAlive(world.end));
            } else if !matches!(items.last(), Some(Item::End(_))) {
                items.push(Item::End(world.until));
            }
            world.confirmed
        };
        let table = table.map(|(orders, reports)| Table::new(orders, reports));
        ScriptedSource {
            world: world.clone(),
            items,
            next: 0,
            arrived: 0,
            unknown: before,
            received: start.flush,
            confirmed,
            table,
        }
    }

    fn read<'a>(&self, item: &'a Item) -> Read<'a> {
        let world = self.world.borrow();
        match item {
            Item::Begin(number) => match world.log.get(*number) {
                Some(one) => Read::Begin(one.itself),
                None => Read::Nothing,
            },
            Item::Change(_, content) => {
                let message = LogicalMessage {
                    transactional: true,
                    lsn: Lsn(1),
                    prefix: PREFIX,
                    content: content.as_bytes(),
                };
                Read::Change(Change::Message(message))
            }
            Item::Commit(number) => Read::Commit(world.log.get(*number).map_or(Lsn(0), |one| one.end)),
            Item::KeepAlive(end) => Read::Reached(*end),
            Item::End(reached) => Read::End(*reached),
        }
    }

    fn confirm(&mut self, durable: Lsn) {
        if durable > self.confirmed && self.is_log_verified() {
            self.confirmed = durable;
            self.world.borrow_mut().confirm(durable);
        }
    }

    /// Does the next step of the script, or drains when it is over.
    fn act(&mut self) -> Poll<Result<(), Error>> {
        let mut world = self.world.borrow_mut();
        if world.is_draining() {
            drop(world);
            return self.drain();
        }
        let Some(action) = world.next(false) else { return Poll::Pending };
        match action {
            Action::Arrive(count) => {
                self.arrived = (self.arrived + usize::from(count)).min(self.items.len());
            }
            Action::SourceFails => {
                return Poll::Ready(Err(Error::transient(Peer::Postgres, "lost")));
            }
            Action::Crash(luck) => {
                world.crashed = Some(luck);
                return Poll::Pending;
            }
            Action::Stop => world.stop.cancel(),
            Action::Table(count) => {
                if let Some(table) = &mut self.table {
                    table.carry_out(&mut world, usize::from(count));
                }
            }
            Action::Cure => world.cured = true,
            _ => {}
        }
        Poll::Ready(Ok(()))
    }

    fn drain(&mut self) -> Poll<Result<(), Error>> {
        let mut world = self.world.borrow_mut();
        let world: &mut World = &mut world;
        world.cured = true;
        if self.table.as_mut().is_some_and(|table| table.carry_out(world, usize::MAX)) {
            return Poll::Ready(Ok(()));
        }
        if self.arrived < self.items.len() {
            self.arrived = self.items.len();
            return Poll::Ready(Ok(()));
        }
        let all_read = self.next == self.items.len();
        let says_so =
            self.items.iter().any(|item| matches!(item, Item::End(_)) || *item == Item::KeepAlive(world.end));
        if all_read && !says_so {
            self.items.push(Item::KeepAlive(world.end));
            return Poll::Ready(Ok(()));
        }
        let all_confirmed = self.confirmed >= world.end;
        if all_read && all_confirmed && world.table.is_empty() && !world.stop.is_cancelled() {
            world.stop.cancel();
            world.is_done = true;
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}

impl Source for ScriptedSource {
    /// Whether it was read to the end.
    type End = bool;

    fn next(&mut self) -> Result<Read<'_>, Error> {
        if self.next >= self.arrived {
            return Ok(Read::Nothing);
        }
        let Some(item) = self.items.get(self.next) else { return Ok(Read::Nothing) };
        Ok(self.read(item))
    }

    fn consume(&mut self) {
        match self.items.get(self.next) {
            Some(Item::KeepAlive(end)) => self.received = self.received.max(*end),
            Some(Item::Commit(number)) => {
                let end = self.world.borrow().log.get(*number).map(|one| one.end);
                self.received = self.received.max(end.unwrap_or_default());
            }
            _ => {}
        }
        self.next += 1;
    }

    fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool) {
        let arrived = self.items.get(self.next + 1..self.arrived).unwrap_or_default();
        for item in arrived {
            if !see(self.read(item)) {
                return;
            }
        }
    }

    fn after_dispatch(&mut self, delivered: &DeliveryState) -> Result<SourceState, Error> {
        let flush = delivered.durability.position.flush;
        if delivered.durability.durable > flush {
            let durable = delivered.durability.durable;
            self.world
                .borrow_mut()
                .wrong(format!("{durable} is durable, and {flush} is all that is certain"));
        }
        self.confirm(delivered.durability.durable);
        let intake = if !self.is_log_verified() {
            Intake::Verifying
        } else if delivered.idle && self.arrived == self.next {
            Intake::Live
        } else {
            Intake::Behind
        };
        Ok(SourceState {
            intake,
            received: self.received,
            confirmed: self.confirmed,
            caught_up: self.next == self.items.len(),
            restarted: false,
            ended: false,
            again: false,
            gathered: self.next % 3 == 1,
        })
    }

    async fn wait(&mut self) -> Result<(), Error> {
        poll_fn(|_| self.act()).await
    }

    fn health(&self) -> Option<Stalled> {
        None
    }

    fn is_log_verified(&self) -> bool {
        self.next >= self.unknown
    }

    async fn confirm_last(&mut self, durable: Lsn) -> Result<(), Error> {
        self.confirm(durable);
        Ok(())
    }

    async fn close(self, outcome: &Outcome, _: bool) -> bool {
        matches!(outcome, Outcome::SourceEnded)
    }
}
