//! Bar charts with ranges, as SVG.

use std::fmt::Write;

use crate::stage::figures::Spread;

const WIDTH: f64 = 920.0;
const LABELS: f64 = 270.0;
const FIGURES: f64 = 90.0;
const TOP: f64 = 64.0;
const BAR: f64 = 15.0;
const GAP: f64 = 9.0;
const BOTTOM: f64 = 34.0;
/// How many series have a colour, `s0` to `s3` in the style.
const COLOURS: usize = 4;

/// Colours on light and on dark pages.
pub(crate) const STYLE: &str = "<style>.paper{fill:#fff}.ink{fill:#222}.soft{fill:#555}.grid{stroke:#ddd}.range{stroke:#999}.mark{fill:#c00}.limit{stroke:#c00}\
    .s0{fill:#1f3b57}.s1{fill:#b8860b}.s2{fill:#6b8e6b}.s3{fill:#8c4646}\
    @media(prefers-color-scheme:dark){.paper{fill:#161b22}.ink{fill:#e6e6e6}.soft{fill:#a8b0ba}.grid{stroke:#333b45}.mark{fill:#ff7b72}.limit{stroke:#ff7b72}\
    .s0{fill:#6ea8dc}.s1{fill:#d9a941}.s2{fill:#8fbc8f}.s3{fill:#d08080}}</style>";

/// A bar chart.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) unit: String,
    /// The names of the series.
    pub(crate) series: Vec<String>,
    pub(crate) groups: Vec<Group>,
    /// Whether the scale is logarithmic.
    pub(crate) logarithmic: bool,
    pub(crate) decimals: usize,
    /// A horizontal line: its value and label.
    pub(crate) line: Option<(f64, &'static str)>,
}

/// Bars under one label.
pub(crate) struct Group {
    pub(crate) label: String,
    /// Which series, and how long.
    pub(crate) bars: Vec<(usize, Spread)>,
}

impl Chart {
    pub(crate) fn draw(&self) -> String {
        let (lowest, highest) = self.ends();
        let right = WIDTH - FIGURES;
        let x = |value: f64| {
            let part = if self.logarithmic {
                (value.max(lowest) / lowest).ln() / (highest / lowest).ln()
            } else {
                value / highest
            };
            LABELS + (right - LABELS) * part.clamp(0.0, 1.0)
        };
        let bars: usize = self.groups.iter().map(|group| group.bars.len()).sum();
        let height = TOP + bars as f64 * BAR + self.groups.len() as f64 * GAP + BOTTOM;
        let base = height - BOTTOM;
        let mut svg = String::new();
        // writing to a String cannot fail
        let _ = write!(
            svg,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
{STYLE}
<rect width="{WIDTH}" height="{height}" class="paper"/>
<text x="10" y="22" font-size="15" font-weight="bold" class="ink">{}</text>
"#,
            escaped(&self.title)
        );
        self.legend(&mut svg);
        for tick in self.ticks(lowest, highest) {
            let at = x(tick);
            let _ = write!(
                svg,
                r#"<line x1="{at:.1}" y1="{TOP}" x2="{at:.1}" y2="{base:.1}" class="grid"/>
<text x="{at:.1}" y="{:.1}" text-anchor="middle" class="soft">{}</text>
"#,
                base + 16.0,
                short(tick)
            );
        }
        let mut y = TOP + GAP / 2.0;
        for group in &self.groups {
            let middle = y + group.bars.len() as f64 * BAR / 2.0 + 4.0;
            let _ = writeln!(
                svg,
                r#"<text x="{:.1}" y="{middle:.1}" text-anchor="end" class="ink">{}</text>"#,
                LABELS - 8.0,
                escaped(&group.label)
            );
            for (series, Spread { median, least, most }) in &group.bars {
                let colour = series % COLOURS;
                let (to, from, until, centre) = (x(*median), x(*least), x(*most), y + BAR / 2.0 - 1.0);
                let _ = write!(
                    svg,
                    r#"<rect x="{LABELS}" y="{y:.1}" width="{:.1}" height="{:.1}" class="s{colour}"/>
<path d="M{from:.1} {centre:.1}H{until:.1}M{from:.1} {:.1}v6M{until:.1} {:.1}v6" class="range" stroke-width="1.5" fill="none"/>
<text x="{:.1}" y="{:.1}" class="ink">{median:.*}</text>
"#,
                    (to - LABELS).max(1.0),
                    BAR - 2.0,
                    centre - 3.0,
                    centre - 3.0,
                    until.max(to) + 6.0,
                    centre + 4.0,
                    self.decimals,
                );
                y += BAR;
            }
            y += GAP;
        }
        if let Some((place, name)) = self.line {
            let at = x(place);
            let _ = write!(
                svg,
                r#"<line x1="{at:.1}" y1="{:.1}" x2="{at:.1}" y2="{base:.1}" class="limit" stroke-dasharray="4 3"/>
<text x="{at:.1}" y="{:.1}" text-anchor="middle" class="mark">{name}</text>
"#,
                TOP - 2.0,
                TOP - 6.0
            );
        }
        let _ = write!(
            svg,
            r#"<text x="{right:.1}" y="{:.1}" text-anchor="end" class="soft">{}</text>
</svg>
"#,
            height - 4.0,
            escaped(&self.unit)
        );
        svg
    }

    fn legend(&self, svg: &mut String) {
        let mut x = 10.0;
        let shown =
            |series: usize| self.groups.iter().flat_map(|group| &group.bars).any(|(of, _)| *of == series);
        for (n, name) in self.series.iter().take(COLOURS).enumerate() {
            if !shown(n) {
                continue;
            }
            let _ = write!(
                svg,
                r#"<rect x="{x:.1}" y="34" width="11" height="11" class="s{n}"/>
<text x="{:.1}" y="44" class="ink">{}</text>
"#,
                x + 16.0,
                escaped(name)
            );
            x += 36.0 + 6.8 * name.len() as f64;
        }
    }

    /// The range of the scale.
    fn ends(&self) -> (f64, f64) {
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        let line = self.line.map(|(place, _)| place);
        let most = bars.clone().map(|(_, spread)| spread.most).chain(line).fold(0.0, f64::max);
        if !self.logarithmic {
            return (0.0, if most > 0.0 { most * 1.02 } else { 1.0 });
        }
        let least = bars.map(|(_, spread)| spread.least).chain(line).filter(|value| *value > 0.0);
        let least = least.fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { 10f64.powf(least.log10().floor()) } else { 0.1 };
        (least, most.max(least * 10.0))
    }

    fn ticks(&self, lowest: f64, highest: f64) -> Vec<f64> {
        if self.logarithmic {
            let powers = std::iter::successors(Some(lowest), |tick| Some(tick * 10.0));
            return powers.take_while(|tick| *tick <= highest * 1.001).collect();
        }
        // four to ten steps, at round numbers
        let power = 10f64.powf(highest.log10().floor());
        let step = [0.1, 0.2, 0.25, 0.5, 1.0].map(|part| part * power);
        let step = step.into_iter().find(|step| highest / step <= 10.0).unwrap_or(power);
        (0..=10).map(|n| f64::from(n) * step).take_while(|tick| *tick <= highest).collect()
    }
}

fn short(value: f64) -> String {
    if value >= 1_000.0 {
        format!("{}k", value / 1_000.0)
    } else {
        format!("{}", (value * 1_000.0).round() / 1_000.0)
    }
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(logarithmic: bool) -> Chart {
        let spread = |median: f64| Spread { median, least: median / 2.0, most: median * 2.0 };
        Chart {
            title: "a < b".to_owned(),
            unit: "ms".to_owned(),
            series: vec!["one".to_owned(), "two".to_owned()],
            groups: vec![Group {
                label: "x & y".to_owned(),
                bars: vec![(0, spread(4.0)), (1, spread(40.0))],
            }],
            logarithmic,
            decimals: 1,
            line: None,
        }
    }

    #[test]
    fn a_longer_bar_is_longer_and_texts_are_escaped() {
        let svg = chart(false).draw();
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains(&format!(r#"<rect x="{LABELS}""#)))
            .filter_map(|line| line.split(r#"width=""#).nth(1)?.split('"').next()?.parse().ok())
            .collect();
        let [short, long] = widths[..] else { panic!("{svg}") };
        assert!((long / short - 10.0).abs() < 0.1, "{widths:?}");
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y"), "{svg}");
    }

    #[test]
    fn scales_have_round_numbers() {
        let plain = chart(false);
        assert_eq!(plain.ticks(0.0, 95.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]);
        assert_eq!(plain.ticks(0.0, 110_000.0)[1], 20_000.0);
        let by_ten = chart(true);
        let (lowest, highest) = by_ten.ends();
        assert_eq!((lowest, by_ten.ticks(lowest, highest).len()), (1.0, 2));
        assert_eq!([short(20_000.0), short(0.1)], ["20k", "0.1"]);
    }
}
