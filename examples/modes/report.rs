//! The report, as a table and as JSON.

use comfy_table::{Cell, Color};
use indicatif::HumanCount;
use outbox_router::config::DeliveryMode;
use serde::Serialize;

use crate::LOAD;
use crate::backlog;
use crate::judge::Verdict;
use crate::measure::catch_up::CatchUp;
use crate::measure::ground::PARTITIONS;
use crate::measure::latency::LatencyRun;
use crate::measure::machine::Machine;
use crate::measure::table;
use crate::summary::{Line, lines, tally};
use crate::takeover::{self, Takeover};

const PARTS: [&str; 4] = ["catch-up", "parked", "latency", "takeover"];

/// The extent of the measurements.
#[derive(Debug, Serialize)]
pub(crate) struct Settings {
    pub(crate) rows: u64,
    pub(crate) rounds: u32,
    pub(crate) seconds: u32,
    pub(crate) latency_rounds: u32,
    pub(crate) kills: u32,
}

impl Settings {
    /// The number of measurements, with the warm-up.
    pub(crate) fn steps(&self) -> u64 {
        2 * u64::from(2 + 2 * self.rounds + self.latency_rounds + self.kills)
    }
}

/// The individual measurements.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Measured {
    pub(crate) catch_up: Vec<CatchUp>,
    /// The same with parked aggregates, each after the corresponding run without.
    pub(crate) parked: Vec<CatchUp>,
    pub(crate) latency: Vec<LatencyRun>,
    pub(crate) takeovers: Vec<Takeover>,
    pub(crate) verdicts: Vec<Verdict>,
}

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    #[serde(rename = "figures")]
    pub(crate) lines: Vec<Line>,
    pub(crate) measured: Measured,
}

impl Report {
    pub(crate) fn new(machine: Machine, settings: Settings, measured: Measured) -> Self {
        Report { machine, settings, lines: lines(&measured), measured }
    }

    /// Renders the tables, with colours if standard output supports them.
    pub(crate) fn render(&self) -> String {
        let header = ["median (least to most)", "at-least-once", "exactly-once", "ratio", "of pairs"];
        let mut figures = table::figures(&header);
        for line in &self.lines {
            figures.add_row(row(line));
        }
        for part in PARTS {
            figures.add_row(self.judged(part));
        }
        let lines = self.machine.lines().into_iter().chain(self.circumstances());
        format!("{}\n{}", table::circumstances(lines), table::rendered(figures))
    }

    fn circumstances(&self) -> [(&'static str, String); 2] {
        let Settings { rows, rounds, seconds, latency_rounds, kills } = &self.settings;
        [
            (
                "settings",
                format!(
                    "catch-up {rounds} times with {} rows, {PARTITIONS} partitions, and with {} aggregates parked; latency {latency_rounds} times {seconds} s at {} \
                     transactions/s; takeover {kills} times at {} transactions/s",
                    HumanCount(*rows),
                    backlog::PARKED,
                    LOAD.rate,
                    takeover::LOAD.rate
                ),
            ),
            ("ratio", "exactly-once to at-least-once, of the medians and of consecutive runs".to_owned()),
        ]
    }

    /// Counts that must be 0 and are not are red.
    fn judged(&self, part: &str) -> Vec<Cell> {
        let mut cells = vec![Cell::new(format!("{part}: lost, repeated of rows"))];
        for mode in DeliveryMode::ALL {
            let tally = tally(&self.measured, part, mode);
            let text = format!("{}, {} of {}", tally.lost, tally.duplicates, HumanCount(tally.rows));
            let broken =
                |verdict: &Verdict| verdict.mode == mode && verdict.part == part && verdict.is_broken();
            let faulty = self.measured.verdicts.iter().any(broken);
            cells.push(Cell::new(text).fg(if faulty { Color::Red } else { Color::Green }));
        }
        cells
    }
}

fn row(line: &Line) -> Vec<String> {
    vec![
        line.name.to_owned(),
        table::spread(line.at_least_once, line.decimals),
        table::spread(line.exactly_once, line.decimals),
        line.ratio.map_or_else(String::new, |ratio| table::number(ratio, 2)),
        table::spread(line.ratio_of_pairs, 2),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::figures::Spread;

    #[test]
    fn a_row_has_both_modes_and_their_ratio() {
        let spread = |median| Some(Spread { median, least: median - 1.5, most: median + 1000.0 });
        let line = Line {
            name: "speed",
            decimals: 1,
            at_least_once: spread(4.0),
            exactly_once: spread(3.0),
            ratio: Some(0.75),
            ratio_of_pairs: Some(Spread { median: 0.7, least: 0.5, most: 1.0 }),
        };
        let expected = ["speed", "4.0 (2.5 to 1004.0)", "3.0 (1.5 to 1003.0)", "0.75", "0.70 (0.50 to 1.00)"];
        assert_eq!(row(&line), expected);
    }

    #[test]
    fn warm_up_counts_as_a_measurement() {
        let settings = Settings { rows: 1, rounds: 5, seconds: 1, latency_rounds: 3, kills: 20 };
        assert_eq!(settings.steps(), 70);
    }
}
