//! Takeover: of two routers on one slot, the active one is killed under load.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use outbox_router::config::DeliveryMode;
use outbox_router::monitor::StateKind;
use serde::Serialize;
use tokio::time::sleep;

use crate::measure::ground::{Ground, Id, Run};
use crate::measure::latency::{all_arrive, reading};
use crate::measure::progress::Progress;
use crate::measure::writers::{Ledger, Load, Writers, arrivals};
use crate::stage::router::{Router, status};

/// The load meanwhile.
pub(crate) const LOAD: Load = Load { rate: 200, rows: 1 };
/// The pause between the moment the standby waits and the next SIGKILL.
const CALM: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const FIRST_RECORD_WITHIN: Duration = Duration::from_secs(60);

/// The takeover after one SIGKILL.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Takeover {
    #[serde(serialize_with = "crate::measure::mode_name")]
    pub(crate) mode: DeliveryMode,
    /// From the SIGKILL until the standby reports that it is active.
    pub(crate) active_ms: f64,
    /// From the SIGKILL to the first record of an event committed after it.
    pub(crate) first_record_ms: f64,
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "active after {:.0} ms, first record after {:.0} ms", self.active_ms, self.first_record_ms)
    }
}

/// Kills the active router repeatedly.
pub(crate) async fn measure(
    ground: &Ground,
    run: &Run,
    kills: u32,
    progress: &Progress,
) -> anyhow::Result<Vec<Takeover>> {
    ground.create_slot(&run.slot()).await?;
    let mut routers = [ground.router(run, "one")?, ground.router(run, "two")?];
    let [first, second] = &mut routers;
    first.start()?;
    first.wait_for_state(StateKind::Active).await?;
    second.start()?;
    second.wait_for_state(StateKind::Waiting).await?;

    let mut reading = reading(ground, &run.topic)?;
    let (mut records, mut arrived) = (Vec::new(), HashMap::new());
    let mut writers = Writers::start(&ground.url, &run.name, LOAD).await?;
    // the first record creates the topic
    while arrived.is_empty() {
        sleep(LOOK_EVERY).await;
        reading.take(&mut records)?;
        arrivals(&mut records, &mut arrived);
        writers.check()?;
    }
    let mut takeovers = Vec::new();
    for kill in 1..=kills {
        progress.now(&format!("{}: kill {kill} of {kills}", run.name));
        sleep(CALM).await;
        writers.check()?;
        reading.take(&mut records)?;
        arrivals(&mut records, &mut arrived);
        let (active, standby) = by_role(&mut routers).await?;
        let killed = Instant::now();
        active.kill().await?;
        // earlier events may have been delivered by the killed router
        let gone = Instant::now();
        standby.wait_for_state(StateKind::Active).await?;
        let taken_over = Instant::now();
        let mut since = HashMap::new();
        let first = loop {
            reading.take(&mut records)?;
            arrivals(&mut records, &mut since);
            if let Some(first) = first_of_after(gone, &since, &writers.ledger) {
                break first;
            }
            if killed.elapsed() > FIRST_RECORD_WITHIN {
                bail!("{}: nothing arrives after kill {kill}", run.name);
            }
            standby.check_running()?;
            sleep(LOOK_EVERY).await;
        };
        arrived.extend(since);
        let milliseconds = |at: Instant| at.saturating_duration_since(killed).as_secs_f64() * 1000.0;
        takeovers.push(Takeover {
            mode: run.mode,
            active_ms: milliseconds(taken_over),
            first_record_ms: milliseconds(first),
        });
        active.start()?;
        active.wait_for_state(StateKind::Waiting).await?;
        progress.step();
    }

    let committed = writers.stop().await?.lock().clone();
    all_arrive(&mut reading, &mut arrived, &committed).await?;
    let (active, standby) = by_role(&mut routers).await?;
    standby.stop().await?;
    active.stop().await?;
    ground.drop_slot(&run.slot()).await?;
    Ok(takeovers)
}

/// The active router and the standby, by their status.
async fn by_role(routers: &mut [Router; 2]) -> anyhow::Result<(&mut Router, &mut Router)> {
    let [one, two] = routers;
    let states = (status(one.admin()).await?.state, status(two.admin()).await?.state);
    ensure!(
        matches!(states, (StateKind::Active, StateKind::Waiting) | (StateKind::Waiting, StateKind::Active)),
        "expected one active and one waiting router; they are {states:?}"
    );
    Ok(if states.0 == StateKind::Active { (one, two) } else { (two, one) })
}

/// The arrival of the first event that was committed after `since`.
fn first_of_after(since: Instant, arrived: &HashMap<Id, Instant>, ledger: &Ledger) -> Option<Instant> {
    let ledger = ledger.lock();
    let after = |id: &Id| ledger.get(id).is_some_and(|committed| *committed > since);
    arrived.iter().filter(|(id, _)| after(id)).map(|(_, arrived)| *arrived).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_committed_before_the_kill_do_not_end_the_takeover() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let ledger = Ledger::default();
        ledger.lock().extend([(1, at(5)), (2, at(20)), (3, at(30))]);
        let records = HashMap::from([(1, at(40)), (3, at(60)), (2, at(50))]);
        assert_eq!(first_of_after(at(10), &records, &ledger), Some(at(50)));
        assert_eq!(first_of_after(at(30), &records, &ledger), None);
    }
}
