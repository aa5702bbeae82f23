//! A backlog for many topics that the brokers do not have yet, next to a client that only creates as many. The topics stay: deleting
//! them would take the broker minutes. So nothing else is measured after this.

use std::time::Instant;

use anyhow::ensure;
use indicatif::HumanCount;
use outbox_router::config::DeliveryMode;
use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::contestant::Place;
use crate::measure::catch_up;
use crate::measure::ground::Run;
use crate::measure::progress::Progress;
use crate::measure::table;
use crate::report::Settings;
use crate::stage::figures::Spread;

const TOPICS: u64 = 3_000;
/// Rows of each topic.
const ROWS: u64 = 3;
/// With more topics the broker runs into Linux's default limit of mapped files, vm.max_map_count.
const MOST_ROUNDS: u32 = 2;
const CLIENT: &str = "a client that creates them";

/// One contestant in one round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NewTopics {
    contestant: String,
    round: u32,
    /// From the start until the last event is acknowledged, or until the last topic has a leader.
    seconds: f64,
    /// `None` for the client.
    peak_memory_bytes: Option<u64>,
}

/// The number of measurements.
pub(crate) fn steps(settings: &Settings) -> usize {
    (1 + DeliveryMode::ALL.len()) * settings.rounds.min(MOST_ROUNDS) as usize
}

pub(crate) async fn measure(
    place: &Place,
    settings: &Settings,
    progress: &Progress,
    found: &mut Vec<NewTopics>,
) -> anyhow::Result<()> {
    let case = Case {
        topics: TOPICS,
        aggregates: TOPICS,
        partitions: 1,
        ..Case::plain("new topics", ROWS * TOPICS)
    };
    let backlog = case.backlog();
    backlog.write(&place.ground, progress).await?;
    for round in 1..=settings.rounds.min(MOST_ROUNDS) {
        let prefix = format!("{}-client-{round}", case.id());
        let begun = Instant::now();
        place.topics.make_many(&prefix, TOPICS).await?;
        let seconds = begun.elapsed().as_secs_f64();
        found.push(NewTopics { contestant: CLIENT.to_owned(), round, seconds, peak_memory_bytes: None });
        progress.step();
        for mode in DeliveryMode::ALL {
            let run = Run::new(&case.id(), mode, round);
            let run = Run { topic: format!("{}.${{aggregate_type}}", run.name), partitions: 1, ..run };
            let caught_up =
                catch_up::measure(&place.ground, &backlog.name, &run, case.rows, false, progress).await?;
            let delivered = place.topics.count_like(&run.name)?;
            ensure!(delivered == TOPICS, "{}: the router has created {delivered} topics", run.name);
            let found_now = NewTopics {
                contestant: format!("router, {}", mode.name()),
                round,
                seconds: caught_up.first_after_seconds + caught_up.seconds,
                peak_memory_bytes: Some(caught_up.peak_memory_bytes),
            };
            progress.say(&format!(
                "{} new topics, {}: {:.1} s",
                HumanCount(TOPICS),
                mode.name(),
                found_now.seconds
            ));
            found.push(found_now);
            progress.step();
        }
    }
    place.ground.drop_slot(&backlog.name).await
}

/// A table with a row for each contestant.
pub(crate) fn render(found: &[NewTopics]) -> Option<String> {
    (!found.is_empty()).then_some(())?;
    let title = format!("{} new topics", HumanCount(TOPICS));
    let mut table = table::figures(&[&title, "ready and delivered after, s", "memory (VmHWM), MB"]);
    let mut contestants: Vec<&str> = found.iter().map(|found| found.contestant.as_str()).collect();
    contestants.sort_unstable();
    contestants.dedup();
    for contestant in contestants {
        let of = || found.iter().filter(|found| found.contestant == contestant);
        table.add_row([
            contestant.to_owned(),
            table::spread(Spread::of(of().map(|found| found.seconds)), 1),
            table::spread(
                Spread::of(of().filter_map(|found| Some(found.peak_memory_bytes? as f64 / 1e6))),
                1,
            ),
        ]);
    }
    Some(table::rendered(table))
}
