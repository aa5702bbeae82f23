//! The picture of the README: throughput, memory and latency next to Debezium and a polling loop.

use std::fmt::Write;

use indicatif::HumanCount;

use crate::chart::{STYLE, escaped};
use crate::contestant::Contestant;
use crate::peers;
use crate::report::Measured;
use crate::stage::figures::Spread;

const WIDTH: f64 = 860.0;
const LABELS: f64 = 170.0;
const FIGURES: f64 = 110.0;
const TITLE: f64 = 34.0;
const BAR: f64 = 22.0;

/// The labels of the bars.
const NAMES: [&str; peers::CONTESTANTS.len()] =
    ["outbox-router", "Debezium", "Debezium, 1 ms poll", "polling loop"];

struct Panel {
    title: &'static str,
    unit: &'static str,
    decimals: usize,
    bars: Vec<(&'static str, f64)>,
}

/// The picture, if the report has figures for each of its panels.
pub(crate) fn draw(measured: &Measured) -> Option<String> {
    let bars = |figure: &dyn Fn(Contestant) -> Option<Spread>| {
        let contestants = NAMES.into_iter().zip(peers::CONTESTANTS);
        contestants.filter_map(|(name, contestant)| Some((name, figure(contestant)?.median))).collect()
    };
    let caught_up = |contestant| measured.of(peers::CASE, contestant);
    let panels = [
        Panel {
            title: "Events a second, with a backlog",
            unit: "more is better",
            decimals: 0,
            bars: bars(&|contestant| caught_up(contestant).events_per_second()),
        },
        Panel {
            title: "Memory, MB",
            unit: "less is better",
            decimals: 0,
            bars: bars(&|contestant| caught_up(contestant).memory()),
        },
        Panel {
            title: "Milliseconds from COMMIT to consumer, at 1,000 transactions a second",
            unit: "median; less is better",
            decimals: 1,
            bars: bars(&|contestant| {
                Spread::of(measured.latencies(contestant).iter().map(|seen| seen.p50_ms))
            }),
        },
    ];
    panels.iter().all(|panel| panel.bars.len() == NAMES.len()).then(|| drawn(&panels))
}

/// Runs differ by more than what this leaves out.
fn three_digits(value: f64) -> u64 {
    let unit = 10f64.powf((value.max(1.0).log10().floor() - 2.0).max(0.0));
    ((value / unit).round() * unit) as u64
}

fn drawn(panels: &[Panel]) -> String {
    let bars: usize = panels.iter().map(|panel| panel.bars.len()).sum();
    let height = panels.len() as f64 * TITLE + bars as f64 * BAR + 14.0;
    let mut svg = String::new();
    // writing to a String cannot fail
    let _ = write!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="14">
{STYLE}
<rect width="{WIDTH}" height="{height}" class="paper"/>
"#
    );
    let mut y = 0.0;
    for panel in panels {
        let _ = writeln!(
            svg,
            r#"<text x="10" y="{:.0}" font-weight="bold" class="ink">{} <tspan class="soft" font-weight="normal">({})</tspan></text>"#,
            y + 24.0,
            escaped(panel.title),
            panel.unit
        );
        y += TITLE;
        let most = panel.bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
        for (n, (name, value)) in panel.bars.iter().enumerate() {
            let width = ((WIDTH - LABELS - FIGURES) * value / most).max(2.0);
            let colour = if n == 0 { 0 } else { 3 };
            let figure = if panel.decimals == 0 || *value >= 100.0 {
                HumanCount(three_digits(*value)).to_string()
            } else {
                format!("{value:.*}", panel.decimals)
            };
            let _ = writeln!(
                svg,
                r#"<text x="{:.0}" y="{:.0}" text-anchor="end" class="ink">{}</text>
<rect x="{LABELS}" y="{y:.0}" width="{width:.1}" height="{:.0}" class="s{colour}"/>
<text x="{:.1}" y="{:.0}" class="ink">{figure}</text>"#,
                LABELS - 8.0,
                y + 14.0,
                escaped(name),
                BAR - 4.0,
                LABELS + width + 6.0,
                y + 14.0,
            );
            y += BAR;
        }
    }
    svg.push_str("</svg>\n");
    svg
}
