//! The router next to what people use instead of it: Debezium and a polling loop, with a backlog and under load.

use std::time::Duration;

use outbox_router::config::DeliveryMode;

use crate::case::Case;
use crate::contestant::{Contestant, Place, Transport};
use crate::measure::ground::Run;
use crate::measure::latency::{self, Seen};
use crate::measure::progress::Progress;
use crate::measure::table;
use crate::measure::writers::Load;
use crate::report::{Lateness, Measured, Settings, latency_table};
use crate::{debezium, of_case, polling_loop};

/// The name of the case in which they catch up.
pub(crate) const CASE: &str = "peers";
pub(crate) const ROUTER: Contestant = Contestant::InBulk(Transport::Tls, DeliveryMode::AtLeastOnce);
/// The router as it is by default, and its peers.
pub(crate) const CONTESTANTS: [Contestant; 4] = [
    ROUTER,
    Contestant::Debezium { tuned: false },
    Contestant::Debezium { tuned: true },
    Contestant::PollingLoop,
];
const LOAD: Load = Load { rate: 1_000, rows: 1 };

/// The number of measurements.
pub(crate) fn steps(settings: &Settings) -> usize {
    CONTESTANTS.len() * (settings.rounds + settings.latency_rounds) as usize
}

pub(crate) async fn measure(
    place: &Place,
    settings: &Settings,
    progress: &Progress,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let case = Case { payload: 286, ..Case::plain(CASE, settings.rows) };
    of_case(place, case, &CONTESTANTS, settings.rounds, progress, measured).await?;
    let span = Duration::from_secs(settings.seconds.into());
    // warm-up: the broker's JVM compiles its code for small batches
    under_load(place, ROUTER, 0, span, progress).await?;
    for round in 1..=settings.latency_rounds {
        for contestant in CONTESTANTS {
            let seen = under_load(place, contestant, round, span, progress).await?;
            let called = format!("{} transactions/s", LOAD.rate);
            progress.say(&format!("{called}, {}: {seen}", contestant.name()));
            progress.step();
            measured.peers.push(Lateness { contestant: contestant.name(), load: LOAD, called, round, seen });
        }
        place.ground.client.batch_execute("TRUNCATE outbox").await?;
    }
    place.topics.delete_like("bench-peers").await
}

async fn under_load(
    place: &Place,
    contestant: Contestant,
    round: u32,
    span: Duration,
    progress: &Progress,
) -> anyhow::Result<Seen> {
    match contestant {
        Contestant::Debezium { tuned } => {
            let name = format!("bench-peers-debezium-{}-{round}", u8::from(tuned));
            debezium::latency(place, &name, tuned, LOAD, span, progress).await
        }
        Contestant::PollingLoop => {
            let name = format!("bench-peers-polling-loop-{round}");
            polling_loop::latency(place, &name, LOAD, span, progress).await
        }
        _ => {
            let run = Run::new("bench-peers", DeliveryMode::AtLeastOnce, round);
            Ok(latency::measure(&place.ground, &run, LOAD, span, progress).await?.seen)
        }
    }
}

/// A table of the catch-up, and one of the latencies.
pub(crate) fn render(measured: &Measured, seconds: u32) -> Option<String> {
    (!measured.of(CASE, ROUTER).0.is_empty()).then_some(())?;
    let mut table = table::figures(&[
        "peers, catch-up",
        "events/s",
        "router, times as fast",
        "CPU-s",
        "memory (VmHWM), MB",
        "first event after, s",
    ]);
    for contestant in CONTESTANTS {
        let rounds = measured.of(CASE, contestant);
        table.add_row([
            contestant.name(),
            table::spread(rounds.events_per_second(), 0),
            table::spread(measured.ratios(CASE, ROUTER, contestant), 2),
            table::spread(rounds.cpu_seconds(), 2),
            table::spread(rounds.memory(), 1),
            table::spread(rounds.first(), 2),
        ]);
    }
    let found = CONTESTANTS.map(|contestant| (contestant.name(), measured.latencies(contestant)));
    Some(table::rendered(table) + "\n" + &latency_table("peers, latency", found, seconds))
}

impl Measured {
    /// The latencies of a peer, round by round.
    pub(crate) fn latencies(&self, contestant: Contestant) -> Vec<&Seen> {
        let name = contestant.name();
        self.peers.iter().filter(|found| found.contestant == name).map(|found| &found.seen).collect()
    }
}
