//! Draws the campaign: events committed and arrived per second, and the faults.

use std::fmt::Write;

use crate::report::Report;

const WIDTH: f64 = 1000.0;
/// Space for the slanted names of the last faults.
const RIGHT: f64 = 90.0;
const LEFT: f64 = 46.0;
/// Space for the faults' names.
const TOP: f64 = 150.0;
const HEIGHT: f64 = 180.0;
const BOTTOM: f64 = 34.0;

/// Draws an SVG. The scale fits ordinary seconds; the peaks after outages are cut off.
pub(crate) fn draw(report: &Report) -> String {
    let timeline = report.timeline();
    let end = report.evidence.end.duration_since(report.evidence.start).as_secs_f64().max(1.0);
    let x = |seconds: f64| LEFT + (WIDTH - LEFT - 10.0) * (seconds / end).clamp(0.0, 1.0);
    let highest = scale(&timeline);
    let y = |count: u64| TOP + HEIGHT * (1.0 - (count as f64 / highest as f64).min(1.0));
    let mut svg = String::new();
    let (canvas, height) = (WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    // writing to a String cannot fail
    let _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {canvas} {height}" font-family="sans-serif" font-size="11">
<rect width="{canvas}" height="{height}" fill="#fff"/>
"##
    );
    for case in &report.cases {
        let (from, to) = (x(case.began.as_secs_f64()), x(case.back.as_secs_f64()));
        let name = report.evidence.kinds.get(case.kind).map_or("", |kind| kind.name);
        let colour = colour(name);
        let _ = write!(
            svg,
            r#"<rect x="{from:.1}" y="{TOP}" width="{:.1}" height="{HEIGHT}" fill="{colour}" opacity="0.25"/>
<text transform="translate({:.1} {:.1}) rotate(-60)" font-size="9" fill="{colour}">{name}</text>
"#,
            (to - from).max(1.5),
            (from + to) / 2.0 + 3.0,
            TOP - 4.0,
        );
    }
    for (which, colour, width) in [(1, "#b8860b", 1.2), (0, "#1f3b57", 1.6)] {
        let points: Vec<String> = timeline
            .iter()
            .filter_map(|(second, counts)| Some((second, counts.get(which)?)))
            .map(|(second, count)| format!("{:.1},{:.1}", x(*second as f64 + 0.5), y(*count)))
            .collect();
        let points = points.join(" ");
        let _ = writeln!(
            svg,
            r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#
        );
    }
    let base = TOP + HEIGHT;
    let _ = write!(
        svg,
        r##"<path d="M{LEFT} {TOP}V{base}H{WIDTH}" fill="none" stroke="#888"/>
<text x="{:.0}" y="{:.0}" text-anchor="end">{highest}</text>
<text x="{:.0}" y="{base}" text-anchor="end">0</text>
<text x="{LEFT}" y="{:.0}" fill="#1f3b57">events committed per second</text>
<text x="{:.0}" y="{:.0}" fill="#b8860b">first arrivals of events per second; more than {highest} are cut off</text>
<text x="{:.0}" y="{:.0}" text-anchor="end">{end:.0} s</text>
</svg>
"##,
        LEFT - 4.0,
        TOP + 8.0,
        LEFT - 4.0,
        base + 20.0,
        LEFT + 190.0,
        base + 20.0,
        WIDTH - 10.0,
        base + 20.0,
    );
    svg
}

/// Four times the median of the events committed per second, rounded up to hundreds.
fn scale(timeline: &[(u64, [u64; 2])]) -> u64 {
    let mut committed: Vec<u64> = timeline.iter().map(|(_, [committed, _])| *committed).collect();
    committed.sort_unstable();
    let median = committed.get(committed.len() / 2).copied().unwrap_or_default();
    (median * 4).div_ceil(100).max(1) * 100
}

fn colour(kind: &str) -> &'static str {
    match kind.split('-').next() {
        Some("router" | "machine") => "#a03030",
        Some("postgres" | "walsender" | "session" | "checkpoint" | "column" | "rows" | "large") => "#2a6099",
        _ => "#3a7a3a",
    }
}
