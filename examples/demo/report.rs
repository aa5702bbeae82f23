//! The table at the end.

use std::io;
use std::time::Duration;

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use indicatif::HumanCount;
use outbox_router::terminal;

use crate::comparison::Findings;
use crate::latency::Pause;
use crate::stage::figures::{Latency, time};
use crate::writers::Written;

/// The results of the demo.
pub(crate) struct Report {
    pub(crate) written: Written,
    pub(crate) findings: Findings,
    pub(crate) all: Latency,
    pub(crate) steady: Latency,
    pub(crate) outage: Pause,
}

impl Report {
    /// Renders the table, with colours if standard output supports them.
    pub(crate) fn render(&self) -> String {
        render(&self.lines(), terminal::colours(&io::stdout()), Table::new().width())
    }

    fn lines(&self) -> Vec<Line> {
        let Report { written, findings, all, steady, outage } = self;
        let down = outage.until.saturating_duration_since(outage.from).as_secs_f64();
        let transactions = format!(
            "{} transactions, of which {} rolled back; {} went back to a savepoint",
            count(written.transactions),
            count(written.rollbacks),
            count(written.savepoint_rollbacks)
        );
        let kept_back = format!("of {} rows that were rolled back", count(written.rolled_back.len()));
        let mut lines = vec![
            Line::plain("rows committed", count(findings.rows), transactions),
            Line::plain(
                "records read",
                count(findings.records),
                format!("{} rows arrived", count(findings.arrived)),
            ),
            Line::fault("lost", findings.lost.len(), "committed, and in no topic"),
            Line::allowed(
                "duplicates",
                findings.duplicates,
                "sent again after SIGKILL: delivery is at least once, consumers recognise them by the header id",
            ),
            Line::fault(
                "out of order",
                findings.out_of_order.len(),
                &format!("in the logs of {} aggregates", count(findings.aggregates)),
            ),
            Line::fault("altered", findings.altered.len(), "topic, key, headers and payload, byte by byte"),
            Line::fault("sent, not committed", findings.never_committed.len(), &kept_back),
        ];
        if !findings.not_in_table.is_empty() {
            lines.push(Line::fault(
                "not in the table",
                findings.not_in_table.len(),
                "though COMMIT succeeded",
            ));
        }
        lines.push(Line::time(
            "latency p50",
            steady.p50,
            "from COMMIT at the writer to the consumer, while the router was up",
        ));
        let p99 = format!("{} events, the longest {}", count(steady.events), time(steady.longest));
        lines.push(Line::time("latency p99", steady.p99, &p99));
        let with_pauses = format!(
            "all events, also those that waited {down:.1} s for a router or for the topics' creation"
        );
        lines.push(Line::time("p50 of all", all.p50, &with_pauses));
        lines.push(Line::time("p99 of all", all.p99, &format!("the longest {}", time(all.longest))));
        lines
    }
}

struct Line {
    name: &'static str,
    value: String,
    remark: String,
    colour: Option<Color>,
}

impl Line {
    fn plain(name: &'static str, value: String, remark: String) -> Self {
        Line { name, value, remark, colour: None }
    }

    /// A count that has to be 0.
    fn fault(name: &'static str, faults: usize, remark: &str) -> Self {
        let colour = Some(if faults == 0 { Color::Green } else { Color::Red });
        Line { name, value: count(faults), remark: remark.to_owned(), colour }
    }

    fn allowed(name: &'static str, cases: usize, remark: &str) -> Self {
        let colour = Some(if cases == 0 { Color::Green } else { Color::Yellow });
        Line { name, value: count(cases), remark: remark.to_owned(), colour }
    }

    fn time(name: &'static str, value: Duration, remark: &str) -> Self {
        Line::plain(name, time(value), remark.to_owned())
    }
}

fn render(lines: &[Line], colours: bool, width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    match width {
        Some(width) => table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    // `terminal` honours NO_COLOR, which the library does not know
    if colours {
        table.enforce_styling()
    } else {
        table.force_no_tty()
    };
    for line in lines {
        let mut value = Cell::new(&line.value).set_alignment(CellAlignment::Right);
        if let Some(colour) = line.colour {
            value = value.fg(colour).add_attribute(Attribute::Bold);
        }
        table.add_row([Cell::new(line.name).add_attribute(Attribute::Bold), value, Cell::new(&line.remark)]);
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n"
}

fn count(number: impl TryInto<u64>) -> String {
    HumanCount(number.try_into().unwrap_or(u64::MAX)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_and_plain_without_colours() {
        let lines = [
            Line::fault("lost", 0, "none"),
            Line::allowed("duplicates", 12_345, "some"),
            Line::time("p50", Duration::from_micros(1_234), "short"),
            Line::time("p99", Duration::from_millis(2_500), "long"),
        ];
        let text = render(&lines, false, None);
        let expected = [
            " lost             0  none",
            " duplicates  12,345  some",
            " p50         1.2 ms  short",
            " p99         2.50 s  long",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        assert!(!text.contains('\x1b'));
        assert!(render(&lines, true, None).contains('\x1b'));
    }
}
