//! The report, as tables and as JSON, from which the plots are drawn.

use clap::ValueEnum;
use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::contestant::{Contestant, Measurement, Transport, bulk_pairs};
use crate::measure::latency::Seen;
use crate::measure::machine::Machine;
use crate::measure::table;
use crate::measure::writers::Load;
use crate::new_topics::{self, NewTopics};
use crate::peers;
use crate::stage::figures::{Spread, ratio};

/// CPU times are given per this many events.
pub(crate) const CPU_OF: f64 = 500_000.0;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// All contestants catch up with one backlog
    Compare,
    /// The stream and bulk reads side by side, with growing backlogs
    #[value(name = "bulk-reads")]
    #[serde(rename = "bulk-reads")]
    BulkReads,
    /// One thing varied at a time
    Cases,
    /// Latency under load
    Latency,
    /// Time per event as something grows
    Growth,
    /// The router next to Debezium and a polling loop
    Peers,
    /// A backlog for thousands of topics that do not exist
    #[value(name = "new-topics")]
    #[serde(rename = "new-topics")]
    NewTopics,
}

/// The extent of the measurements.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) rows: u64,
    pub(crate) rounds: u32,
    pub(crate) case_rows: u64,
    pub(crate) case_rounds: u32,
    pub(crate) seconds: u32,
    pub(crate) latency_rounds: u32,
    pub(crate) backlog: u64,
    pub(crate) parts: Vec<Part>,
    pub(crate) transports: Vec<Transport>,
    /// Parts of the names of the cases that are measured; empty for all.
    #[serde(default)]
    pub(crate) only: Vec<String>,
}

impl Settings {
    fn is_wanted(&self, case: &Case) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| case.name.contains(part))
    }

    pub(crate) fn bulk_cases(&self) -> Vec<Case> {
        Case::for_bulk_reads(self.backlog).into_iter().filter(|case| self.is_wanted(case)).collect()
    }

    pub(crate) fn varied_cases(&self) -> Vec<Case> {
        Case::varied(self.case_rows).into_iter().filter(|case| self.is_wanted(case)).collect()
    }

    /// What grows, its size, and the case.
    pub(crate) fn growing_cases(&self) -> Vec<(&'static str, u64, Case)> {
        let all = Case::growing(self.case_rows, self.backlog).into_iter();
        all.filter(|(_, _, case)| self.is_wanted(case)).collect()
    }

    /// The contestants that are compared.
    pub(crate) fn contestants(&self) -> Vec<Contestant> {
        let all = Contestant::own().into_iter();
        all.filter(|contestant| self.transports.contains(&contestant.transport())).collect()
    }
}

/// One load on one contestant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lateness {
    pub(crate) contestant: String,
    pub(crate) load: Load,
    /// The name of the load.
    pub(crate) called: String,
    pub(crate) round: u32,
    #[serde(flatten)]
    pub(crate) seen: Seen,
}

/// One size of a growth series.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Grown {
    pub(crate) what: String,
    pub(crate) size: u64,
    #[serde(flatten)]
    pub(crate) measurement: Measurement,
}

/// An idle router.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Idle {
    pub(crate) mode: String,
    pub(crate) peak_memory_bytes: u64,
    /// As a share of one processor.
    pub(crate) cpu_percent: f64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The catch-up of all contestants, and of the cases.
    pub(crate) cases: Vec<Case>,
    pub(crate) catch_up: Vec<Measurement>,
    /// The backlogs that were streamed and read in bulk.
    pub(crate) bulk_cases: Vec<Case>,
    pub(crate) latency: Vec<Lateness>,
    pub(crate) idle: Vec<Idle>,
    /// Events per second that one router delivers while writers write without pause.
    pub(crate) maximum: Option<f64>,
    pub(crate) growth: Vec<Grown>,
    #[serde(default)]
    pub(crate) new_topics: Vec<NewTopics>,
    /// The latencies of the router and its peers.
    #[serde(default)]
    pub(crate) peers: Vec<Lateness>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    /// The size of the router's program.
    pub(crate) program_bytes: u64,
    pub(crate) measured: Measured,
}

/// All rounds of one contestant in one case.
pub(crate) struct Rounds<'a>(pub(crate) Vec<&'a Measurement>);

impl Measured {
    pub(crate) fn of(&self, case: &str, contestant: Contestant) -> Rounds<'_> {
        let name = contestant.name();
        let found =
            self.catch_up.iter().filter(|found| found.case == case && found.contestant == name).collect();
        Rounds(found)
    }

    /// The ratios to the bare reader of the same transport, round by round.
    pub(crate) fn to_bound(&self, case: &str, contestant: Contestant) -> Option<Spread> {
        self.ratios(case, contestant, contestant.bound())
    }

    /// The ratios of the events per second to those of another contestant, round by round.
    pub(crate) fn ratios(&self, case: &str, contestant: Contestant, other: Contestant) -> Option<Spread> {
        self.pairs(case, contestant, other, |found, other| {
            ratio(found.events_per_second, other.events_per_second)
        })
    }

    /// How many times as fast as another contestant it is, round by round, including the start.
    pub(crate) fn speedup(&self, case: &str, contestant: Contestant, other: Contestant) -> Option<Spread> {
        self.pairs(case, contestant, other, |found, other| ratio(other.duration()?, found.duration()?))
    }

    fn pairs(
        &self,
        case: &str,
        contestant: Contestant,
        other: Contestant,
        figure: impl Fn(&Measurement, &Measurement) -> Option<f64>,
    ) -> Option<Spread> {
        let others = self.of(case, other);
        let of_round =
            |found: &Measurement| others.0.iter().find(|other| other.round == found.round).copied();
        let pairs = self.of(case, contestant).0.into_iter();
        Spread::of(pairs.filter_map(|found| figure(found, of_round(found)?)))
    }

    /// The loads, in the order in which they were measured.
    pub(crate) fn loads(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for lateness in &self.latency {
            if !names.contains(&lateness.called) {
                names.push(lateness.called.clone());
            }
        }
        names
    }

    /// The contestants of one load, each with its rounds.
    pub(crate) fn under(&self, load: &str) -> Vec<(&str, Vec<&Seen>)> {
        let mut found: Vec<(&str, Vec<&Seen>)> = Vec::new();
        for lateness in self.latency.iter().filter(|lateness| lateness.called == load) {
            match found.iter_mut().find(|(name, _)| *name == lateness.contestant) {
                Some((_, rounds)) => rounds.push(&lateness.seen),
                None => found.push((&lateness.contestant, vec![&lateness.seen])),
            }
        }
        found
    }

    /// The growth series, each with its sizes and their rounds.
    pub(crate) fn grown(&self) -> Vec<(&str, Vec<(u64, Rounds<'_>)>)> {
        let mut found: Vec<(&str, Vec<(u64, Rounds<'_>)>)> = Vec::new();
        for grown in &self.growth {
            if found.last().is_none_or(|(what, _)| *what != grown.what) {
                found.push((&grown.what, Vec::new()));
            }
            let Some((_, sizes)) = found.last_mut() else { continue };
            match sizes.iter_mut().find(|(size, _)| *size == grown.size) {
                Some((_, rounds)) => rounds.0.push(&grown.measurement),
                None => sizes.push((grown.size, Rounds(vec![&grown.measurement]))),
            }
        }
        found
    }
}

impl Rounds<'_> {
    pub(crate) fn events_per_second(&self) -> Option<Spread> {
        Spread::of(self.0.iter().map(|found| found.events_per_second))
    }

    /// The CPU time of so many events, in seconds.
    pub(crate) fn cpu(&self, events: f64) -> Option<Spread> {
        let cpu = |found: &&Measurement| Some(found.cpu_seconds? / found.rows as f64 * events);
        Spread::of(self.0.iter().filter_map(cpu))
    }

    /// The CPU time of all events, in seconds.
    pub(crate) fn cpu_seconds(&self) -> Option<Spread> {
        Spread::of(self.0.iter().filter_map(|found| found.cpu_seconds))
    }

    pub(crate) fn memory(&self) -> Option<Spread> {
        Spread::of(self.0.iter().filter_map(|found| Some(found.peak_memory_bytes? as f64 / 1e6)))
    }

    pub(crate) fn first(&self) -> Option<Spread> {
        Spread::of(self.0.iter().filter_map(|found| found.first_after_seconds))
    }

    /// From the start of the process to the last event, in seconds.
    pub(crate) fn duration(&self) -> Option<Spread> {
        Spread::of(self.0.iter().filter_map(|found| found.duration()))
    }

    /// The elapsed time per event, in microseconds.
    pub(crate) fn time(&self) -> Option<Spread> {
        Spread::of(self.0.iter().map(|found| 1e6 / found.events_per_second))
    }
}

impl Report {
    /// Renders the tables.
    pub(crate) fn render(&self) -> String {
        let lines = self.machine.lines().into_iter().chain([self.settings_line()]).chain(self.idle_line());
        let mut text = table::circumstances(lines);
        let parts = [
            self.compared(),
            self.bulk_reads(),
            self.cases(),
            self.latency(),
            self.growth(),
            peers::render(&self.measured, self.settings.seconds),
            new_topics::render(&self.measured.new_topics),
        ];
        for part in parts.into_iter().flatten() {
            text.push('\n');
            text.push_str(&part);
        }
        text
    }

    fn settings_line(&self) -> (&'static str, String) {
        let Settings { rows, rounds, case_rows, case_rounds, seconds, latency_rounds, .. } = &self.settings;
        let text = format!(
            "median (least to most); {} rows {rounds} times, in cases {} rows {case_rounds} times; latency {latency_rounds} times {seconds} s",
            HumanCount(*rows),
            HumanCount(*case_rows)
        );
        ("settings", text)
    }

    fn idle_line(&self) -> Option<(&'static str, String)> {
        let of = |idle: &Idle| {
            let Idle { mode, peak_memory_bytes, cpu_percent } = idle;
            format!("{mode} {:.1} MB, {cpu_percent:.1} % of a processor", *peak_memory_bytes as f64 / 1e6)
        };
        let idle: Vec<String> = self.measured.idle.iter().map(of).collect();
        let program = self.program_bytes as f64 / 1e6;
        (!idle.is_empty())
            .then(|| ("footprint", format!("program {program:.1} MB; idle: {}", idle.join("; "))))
    }

    fn compared(&self) -> Option<String> {
        let case = self.measured.cases.first().filter(|case| case.name == COMPARED)?;
        let mut table = table::figures(&[
            "catch-up",
            "events/s",
            "ratio to the bare reader",
            "CPU-s per 500,000",
            "memory (VmHWM), MB",
            "first event after, s",
        ]);
        for contestant in self.settings.contestants() {
            let rounds = self.measured.of(&case.name, contestant);
            if rounds.0.is_empty() {
                continue;
            }
            table.add_row([
                contestant.name(),
                table::spread(rounds.events_per_second(), 0),
                table::spread(self.measured.to_bound(&case.name, contestant), 2),
                table::spread(rounds.cpu(CPU_OF), 2),
                table::spread(rounds.memory(), 1),
                table::spread(rounds.first(), 2),
            ]);
        }
        Some(table::rendered(table))
    }

    fn bulk_reads(&self) -> Option<String> {
        (!self.measured.bulk_cases.is_empty()).then_some(())?;
        let mut table = table::figures(&[
            "bulk reads",
            "streamed, s",
            "in bulk, s",
            "times as fast",
            "CPU-s per 500,000, streamed",
            "in bulk",
            "memory, MB, in bulk",
        ]);
        for case in &self.measured.bulk_cases {
            for [streamed, in_bulk] in bulk_pairs(&self.settings.transports) {
                let of = |contestant| self.measured.of(&case.name, contestant);
                table.add_row([
                    format!("{}, {}", case.name, streamed.transport().name()),
                    table::spread(of(streamed).duration(), 2),
                    table::spread(of(in_bulk).duration(), 2),
                    table::spread(self.measured.speedup(&case.name, in_bulk, streamed), 2),
                    table::spread(of(streamed).cpu(CPU_OF), 2),
                    table::spread(of(in_bulk).cpu(CPU_OF), 2),
                    table::spread(of(in_bulk).memory(), 1),
                ]);
            }
        }
        Some(table::rendered(table))
    }

    fn cases(&self) -> Option<String> {
        let cases: Vec<&Case> = self.measured.cases.iter().filter(|case| case.name != COMPARED).collect();
        (!cases.is_empty()).then_some(())?;
        let [bare, at_least, exactly] = Contestant::OF_CASES;
        let mut table = table::figures(&[
            "case",
            "bare reader, events/s",
            "ratio, at-least-once",
            "ratio, exactly-once",
            "CPU-s per 500,000",
            "exactly-once",
            "memory, MB",
            "exactly-once",
        ]);
        for case in cases {
            let of = |contestant| self.measured.of(&case.name, contestant);
            table.add_row([
                case.name.clone(),
                table::spread(of(bare).events_per_second(), 0),
                table::spread(self.measured.to_bound(&case.name, at_least), 2),
                table::spread(self.measured.to_bound(&case.name, exactly), 2),
                table::spread(of(at_least).cpu(CPU_OF), 2),
                table::spread(of(exactly).cpu(CPU_OF), 2),
                table::spread(of(at_least).memory(), 1),
                table::spread(of(exactly).memory(), 1),
            ]);
        }
        Some(table::rendered(table))
    }

    fn latency(&self) -> Option<String> {
        (!self.measured.latency.is_empty()).then_some(())?;
        let loads = self.measured.loads();
        let found = loads.iter().flat_map(|load| {
            let contestants = self.measured.under(load).into_iter();
            contestants.map(move |(contestant, rounds)| (format!("{load}: {contestant}"), rounds))
        });
        Some(latency_table("latency", found, self.settings.seconds))
    }

    fn growth(&self) -> Option<String> {
        (!self.measured.growth.is_empty()).then_some(())?;
        let header = ["growth", "time per event, us", "CPU time per event, us", "memory, MB"];
        let mut table = table::figures(&header);
        for (what, sizes) in self.measured.grown() {
            for (size, rounds) in sizes {
                table.add_row([
                    format!("{what}: {}", HumanCount(size)),
                    table::spread(rounds.time(), 2),
                    // seconds per million events are microseconds per event
                    table::spread(rounds.cpu(1e6), 2),
                    table::spread(rounds.memory(), 1),
                ]);
            }
        }
        Some(table::rendered(table))
    }
}

/// A table of the latencies that were measured for this many seconds, with a row for each name.
pub(crate) fn latency_table<'a>(
    title: &str,
    found: impl IntoIterator<Item = (String, Vec<&'a Seen>)>,
    seconds: u32,
) -> String {
    let mut table = table::figures(&[
        title,
        "transactions/s written",
        "p50, ms",
        "p99, ms",
        "longest, ms",
        "CPU-s in 8 s",
        "memory, MB",
    ]);
    for (name, rounds) in found {
        let of = |figure: fn(&Seen) -> f64| Spread::of(rounds.iter().copied().map(figure));
        let cpu = Spread::of(rounds.iter().map(|seen| seen.cpu_seconds / f64::from(seconds) * 8.0));
        table.add_row([
            name,
            table::spread(of(|seen| seen.transactions_per_second), 0),
            table::spread(of(|seen| seen.p50_ms), 1),
            table::spread(of(|seen| seen.p99_ms), 1),
            table::spread(of(|seen| seen.longest_ms), 1),
            table::spread(cpu, 2),
            table::spread(of(|seen| seen.peak_memory_bytes as f64 / 1e6), 1),
        ]);
    }
    table::rendered(table)
}

/// The case that all contestants run.
pub(crate) const COMPARED: &str = "all contestants";

#[cfg(test)]
mod tests {
    use outbox_router::config::DeliveryMode;

    use super::*;

    fn measurement(contestant: Contestant, round: u32, events_per_second: f64) -> Measurement {
        Measurement {
            case: COMPARED.to_owned(),
            contestant: contestant.name(),
            round,
            rows: 250_000,
            events_per_second,
            first_after_seconds: Some(0.3),
            seconds: None,
            cpu_seconds: Some(1.0),
            peak_memory_bytes: Some(20_000_000),
        }
    }

    #[test]
    fn a_router_is_compared_with_the_reader_of_its_transport_in_the_same_round() {
        let [tls, unix] = [Transport::Tls, Transport::Unix];
        let router = Contestant::Router(unix, DeliveryMode::AtLeastOnce);
        let measured = Measured {
            catch_up: vec![
                measurement(Contestant::BareReader(unix), 1, 100.0),
                measurement(Contestant::BareReader(tls), 1, 50.0),
                measurement(router, 1, 90.0),
                measurement(router, 2, 100.0),
                measurement(Contestant::BareReader(unix), 2, 200.0),
                measurement(router, 3, 100.0),
            ],
            ..Measured::default()
        };
        let expected = Spread { median: 0.7, least: 0.5, most: 0.9 };
        assert_eq!(measured.to_bound(COMPARED, router), Some(expected));
        let rounds = measured.of(COMPARED, router);
        assert_eq!(rounds.cpu(CPU_OF).map(|cpu| cpu.median), Some(2.0));
        assert_eq!(rounds.events_per_second().map(|rate| rate.median), Some(100.0));
    }

    #[test]
    fn growth_is_listed_by_size() {
        let router = Contestant::Router(Transport::Tls, DeliveryMode::AtLeastOnce);
        let grown = |what: &str, size, rate| Grown {
            what: what.to_owned(),
            size,
            measurement: measurement(router, 1, rate),
        };
        let measured = Measured {
            growth: vec![
                grown("topics", 1, 5.0),
                grown("topics", 1, 7.0),
                grown("topics", 10, 5.0),
                grown("rows", 1, 9.0),
            ],
            ..Measured::default()
        };
        let found: Vec<(&str, Vec<(u64, usize)>)> = measured
            .grown()
            .into_iter()
            .map(|(what, sizes)| {
                (what, sizes.into_iter().map(|(size, rounds)| (size, rounds.0.len())).collect())
            })
            .collect();
        assert_eq!(found, [("topics", vec![(1, 2), (10, 1)]), ("rows", vec![(1, 1)])]);
    }
}
