//! Draws the plots of README.md and docs/performance.md from a report.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::chart::{Chart, Group};
use crate::contestant::Contestant;
use crate::measure::latency::Seen;
use crate::overview;
use crate::report::{COMPARED, Report};
use crate::stage::figures::Spread;

/// Draws the plots for which the report has figures; returns their number.
pub(crate) fn draw(report: &Report, folder: &Path) -> anyhow::Result<usize> {
    let charts = [
        ("catch-up", catch_up(report)),
        ("cases", cases(report)),
        ("latency", latency(report)),
        ("growth", growth(report)),
    ];
    let charts = charts
        .into_iter()
        .filter(|(_, chart)| !chart.groups.is_empty())
        .map(|(name, chart)| (name, chart.draw()));
    let mut drawn = 0;
    for (name, svg) in charts.chain(overview::draw(&report.measured).map(|svg| ("overview", svg))) {
        let file = folder.join(format!("performance-{name}.svg"));
        fs::write(&file, svg).with_context(|| format!("write {}", file.display()))?;
        drawn += 1;
    }
    Ok(drawn)
}

fn catch_up(report: &Report) -> Chart {
    let bars = report.settings.contestants().into_iter().filter_map(|contestant| {
        let series = match contestant {
            Contestant::BareReader(_) | Contestant::GatheringReader(_) | Contestant::BareShards(_) => 1,
            Contestant::Router(..) | Contestant::InBulk(..) | Contestant::Shards(..) => 0,
            Contestant::PgRecvlogical => 2,
            // these have a picture of their own
            Contestant::Debezium { .. } | Contestant::PollingLoop => return None,
        };
        let spread = report.measured.of(COMPARED, contestant).events_per_second()?;
        Some(Group { label: contestant.name(), bars: vec![(series, spread)] })
    });
    Chart {
        title: "Catch-up with a backlog".to_owned(),
        unit: "events a second; median, least and most".to_owned(),
        series: ["outbox-router", "bare reader, throws everything away", "pg_recvlogical"]
            .map(str::to_owned)
            .to_vec(),
        groups: bars.collect(),
        logarithmic: false,
        decimals: 0,
        line: None,
    }
}

fn cases(report: &Report) -> Chart {
    let [_, modes @ ..] = Contestant::OF_CASES;
    let groups = report.measured.cases.iter().filter(|case| case.name != COMPARED).map(|case| {
        let bars = modes.into_iter().enumerate();
        let bars = bars.filter_map(|(n, mode)| Some((n, report.measured.to_bound(&case.name, mode)?)));
        Group { label: case.name.clone(), bars: bars.collect() }
    });
    Chart {
        title: "Catch-up over TLS, one thing varied at a time".to_owned(),
        unit: "to the bare reader of the same round; median, least and most".to_owned(),
        series: ["at-least-once", "exactly-once"].map(str::to_owned).to_vec(),
        groups: groups.collect(),
        logarithmic: false,
        decimals: 2,
        line: Some((1.0, "as fast as the bare reader")),
    }
}

fn latency(report: &Report) -> Chart {
    let mut groups = Vec::new();
    for load in report.measured.loads() {
        for (contestant, rounds) in report.measured.under(&load) {
            let of = |figure: fn(&Seen) -> f64| Spread::of(rounds.iter().copied().map(figure));
            let bars = [of(|seen| seen.p50_ms), of(|seen| seen.p99_ms)].into_iter().enumerate();
            let bars = bars.filter_map(|(n, spread)| Some((n, spread?)));
            let who = contestant.trim_start_matches("router, ");
            groups.push(Group { label: format!("{load}: {who}"), bars: bars.collect() });
        }
    }
    Chart {
        title: "From the COMMIT in Postgres to the consumer".to_owned(),
        unit: "milliseconds; median, least and most of the rounds".to_owned(),
        series: ["p50", "p99"].map(str::to_owned).to_vec(),
        groups,
        logarithmic: true,
        decimals: 1,
        line: None,
    }
}

fn growth(report: &Report) -> Chart {
    let mut groups = Vec::new();
    for (what, sizes) in report.measured.grown() {
        for (size, rounds) in sizes {
            let label = format!("{what}: {}", indicatif::HumanCount(size));
            groups.push(Group { label, bars: rounds.time().map(|time| (0, time)).into_iter().collect() });
        }
    }
    Chart {
        title: "What one event takes, as something grows".to_owned(),
        unit: "microseconds of the clock an event; median, least and most".to_owned(),
        series: vec!["at-least-once, TLS".to_owned()],
        groups,
        logarithmic: false,
        decimals: 1,
        line: None,
    }
}
