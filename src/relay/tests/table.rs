//! The table of parked events.

use std::collections::BTreeMap;

use pg_logical::Lsn;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::world::World;
use crate::dead_letters::{Decision, Key, ResolvedRows};
use crate::postgres::dead_letters::messages::{Command, Loaded, Report};
use crate::postgres::dead_letters::sql::Waiting;

/// The session that reads and writes parked events.
pub(super) struct Table {
    orders: UnboundedReceiver<Command>,
    reports: UnboundedSender<Report>,
}

impl Table {
    pub(super) fn new(orders: UnboundedReceiver<Command>, reports: UnboundedSender<Report>) -> Self {
        Table { orders, reports }
    }

    /// Executes up to `most` orders. Returns whether there were any.
    pub(super) fn carry_out(&mut self, world: &mut World, most: usize) -> bool {
        let mut any = false;
        for _ in 0..most {
            let Ok(order) = self.orders.try_recv() else { break };
            any = true;
            let report = match order {
                Command::Park(sequence, letter) => {
                    let aggregate = letter.aggregate_id.clone();
                    let new = world.table.insert(letter.key, letter).is_none();
                    Report::Parked { rows: vec![(sequence, aggregate, new)], committed: commit(world) }
                }
                Command::Delete(keys) => {
                    for key in &keys {
                        world.table.remove(key);
                    }
                    Report::Deleted { keys, committed: commit(world) }
                }
                Command::Failed(..) => continue,
                Command::Fetch(_) => Report::Fetched(decided(world)),
            };
            let _ = self.reports.send(report);
        }
        any
    }
}

/// A commit makes the log longer.
fn commit(world: &mut World) -> Lsn {
    world.end.0 += 1;
    world.end
}

/// Once the events can be sent, all are retried in order.
fn decided(world: &World) -> Vec<Waiting> {
    if !world.cured {
        return Vec::new();
    }
    let retry =
        |letter: &_| Waiting { letter: Clone::clone(letter), decision: Some(Decision::Retry), attempts: 0 };
    world.table.values().map(retry).collect()
}

/// What a session loads from the table. `sent`: rows whose events were sent in a committed transaction.
pub(super) fn load(world: &mut World, sent: &[Key]) -> Loaded {
    for key in sent {
        world.table.remove(key);
    }
    let gone = ResolvedRows::from_earlier_session(sent.to_vec(), commit(world));
    let mut aggregates: BTreeMap<Option<String>, (u64, Key)> = BTreeMap::new();
    for letter in world.table.values() {
        let rows = aggregates.entry(letter.aggregate_id.clone()).or_insert((0, letter.key));
        rows.0 += 1;
    }
    let aggregates = aggregates.into_iter().map(|(id, (count, first))| (id, count, first)).collect();
    Loaded { aggregates, without_aggregate: Vec::new(), resolved: gone }
}
