//! Summarizes the measurements: one line per figure, with both modes and their ratio.

use outbox_router::config::DeliveryMode;
use serde::Serialize;

use crate::report::Measured;
use crate::stage::figures::{Spread, ratio};

/// One figure in both modes.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    #[serde(skip)]
    pub(crate) decimals: usize,
    pub(crate) at_least_once: Option<Spread>,
    pub(crate) exactly_once: Option<Spread>,
    /// The ratio of the medians, exactly-once to at-least-once.
    pub(crate) ratio: Option<f64>,
    /// The ratios of consecutive runs.
    pub(crate) ratio_of_pairs: Option<Spread>,
}

impl Line {
    /// Kills hit different moments of a Kafka transaction, so they cannot be compared in pairs.
    fn not_in_pairs(self) -> Self {
        Line { ratio_of_pairs: None, ..self }
    }
}

/// The sum of the judge's counts over all runs of a mode.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    pub(crate) rows: u64,
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    pub(crate) strange: u64,
}

/// All lines, in the order of the table.
pub(crate) fn lines(measured: &Measured) -> Vec<Line> {
    let Measured { catch_up, parked, latency, takeovers, .. } = measured;
    // both lists have the same modes and rounds
    let of_without: Vec<(DeliveryMode, f64)> = parked
        .iter()
        .zip(catch_up)
        .filter_map(|(with, without)| {
            Some((with.mode, ratio(with.events_per_second, without.events_per_second)?))
        })
        .collect();
    vec![
        line("catch-up, events/s", 0, catch_up, |run| (run.mode, run.events_per_second)),
        line("catch-up, s", 2, catch_up, |run| (run.mode, run.seconds)),
        line("  start to first event, s", 2, catch_up, |run| (run.mode, run.first_after_seconds)),
        line("  CPU of the router, s", 2, catch_up, |run| (run.mode, run.cpu_seconds)),
        line("  memory (VmHWM), MB", 1, catch_up, |run| (run.mode, run.peak_memory_bytes as f64 / 1e6)),
        line("parked, events/s of the others", 0, parked, |run| (run.mode, run.events_per_second)),
        line("  of that without", 2, &of_without, |run| *run),
        line("latency p50, ms", 1, latency, |run| (run.mode, run.seen.p50_ms)),
        line("latency p99, ms", 1, latency, |run| (run.mode, run.seen.p99_ms)),
        line("latency longest, ms", 1, latency, |run| (run.mode, run.seen.longest_ms)),
        line("  transactions/s written", 0, latency, |run| (run.mode, run.seen.transactions_per_second)),
        line("takeover, active, ms", 0, takeovers, |kill| (kill.mode, kill.active_ms)).not_in_pairs(),
        line("takeover, first record, ms", 0, takeovers, |kill| (kill.mode, kill.first_record_ms))
            .not_in_pairs(),
    ]
}

fn line<T>(name: &'static str, decimals: usize, runs: &[T], of: impl Fn(&T) -> (DeliveryMode, f64)) -> Line {
    let in_mode =
        |mode| -> Vec<f64> { runs.iter().map(&of).filter(|(of, _)| *of == mode).map(|(_, v)| v).collect() };
    let [at_least, exactly] = DeliveryMode::ALL.map(in_mode);
    let pairs: Vec<f64> =
        exactly.iter().zip(&at_least).filter_map(|(this, that)| ratio(*this, *that)).collect();
    let [at_least_once, exactly_once] = [at_least, exactly].map(Spread::of);
    Line {
        name,
        decimals,
        at_least_once,
        exactly_once,
        ratio: exactly_once.zip(at_least_once).and_then(|(this, that)| ratio(this.median, that.median)),
        ratio_of_pairs: Spread::of(pairs),
    }
}

/// The sum of lost, repeated and unexpected records of one part in one mode.
pub(crate) fn tally(measured: &Measured, part: &str, mode: DeliveryMode) -> Tally {
    let of = measured.verdicts.iter().filter(|verdict| verdict.mode == mode && verdict.part == part);
    of.fold(Tally::default(), |sum, verdict| Tally {
        rows: sum.rows + verdict.rows,
        lost: sum.lost + verdict.lost,
        duplicates: sum.duplicates + verdict.duplicates,
        strange: sum.strange + verdict.strange,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_compares_medians_and_pairs() {
        let [at_least, exactly] = DeliveryMode::ALL;
        let runs = [
            (at_least, 10.0),
            (exactly, 9.0),
            (exactly, 20.0),
            (at_least, 16.0),
            (at_least, 8.0),
            (exactly, 8.0),
        ];
        let line = line("speed", 0, &runs, |run| *run);
        assert_eq!(line.at_least_once, Some(Spread { median: 10.0, least: 8.0, most: 16.0 }));
        assert_eq!(line.exactly_once, Some(Spread { median: 9.0, least: 8.0, most: 20.0 }));
        assert_eq!(line.ratio, Some(0.9));
        // 9 to 10, 20 to 16, 8 to 8
        assert_eq!(line.ratio_of_pairs, Some(Spread { median: 1.0, least: 0.9, most: 1.25 }));
    }

    #[test]
    fn missing_measurements_have_no_figure() {
        let line = line("speed", 0, &[(DeliveryMode::ExactlyOnce, 1.0)], |run| *run);
        assert_eq!((line.at_least_once, line.ratio, line.ratio_of_pairs), (None, None, None));
    }
}
