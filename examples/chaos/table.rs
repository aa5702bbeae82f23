//! The report as text: a table and a summary.

use std::io;
use std::time::Duration;

use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, presets};
use indicatif::HumanCount;
use outbox_router::terminal;

use crate::report::{Case, Report};

/// Figures above these are highlighted.
const RECOVERY: Duration = Duration::from_secs(2);
const MEMORY: u64 = 64_000_000;

/// Columns that are left out without a slot.
const OF_A_SLOT: [&str; 2] = ["position age", "retained WAL"];

/// Renders the table and the summary.
pub(crate) fn render(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    // `terminal` honours NO_COLOR, which the library does not know
    if terminal::colours(&io::stdout()) {
        table.enforce_styling()
    } else {
        table.force_no_tty()
    };
    let has_slot = report.evidence.source.has_slot();
    let header = [
        "fault",
        "times",
        "lost",
        "out of order",
        "stale",
        "duplicates",
        "allowed",
        "asked for",
        "position age",
        "recovery p50",
        "max",
        "retained WAL",
        "memory",
    ];
    let shown = header.map(|name| has_slot || !OF_A_SLOT.contains(&name));
    let of_shown = |cells: Vec<Cell>| {
        cells.into_iter().zip(shown).filter_map(|(cell, shown)| shown.then_some(cell)).collect::<Vec<_>>()
    };
    let columns = shown.iter().filter(|shown| **shown).count();
    table.set_header(of_shown(
        header.into_iter().map(|name| Cell::new(name).add_attribute(Attribute::Bold)).collect(),
    ));
    for (number, kind) in report.evidence.kinds.iter().enumerate() {
        let cases: Vec<&Case> = report.cases.iter().filter(|case| case.kind == number).collect();
        if !cases.is_empty() {
            table.add_row(of_shown(row(kind.name, &cases)));
        }
    }
    let all: Vec<&Case> = report.cases.iter().collect();
    if report.evidence.kinds.len() > 1 && !all.is_empty() {
        table.add_row(of_shown(row("all", &all)));
    }
    for column in 1..columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.to_string();
    let lines: Vec<&str> = lines.lines().map(str::trim_end).collect();
    format!("{}\n\n{}", lines.join("\n"), summary(report))
}

fn row(name: &str, cases: &[&Case]) -> Vec<Cell> {
    let sum = |of: fn(&Case) -> u64| cases.iter().map(|case| of(case)).sum::<u64>();
    let most = |of: fn(&Case) -> u64| cases.iter().map(|case| of(case)).max().unwrap_or_default();
    let mut recoveries: Vec<Duration> = cases.iter().filter_map(|case| case.recovery).collect();
    recoveries.sort_unstable();
    let p50 = recoveries.get(recoveries.len().div_ceil(2).saturating_sub(1)).copied();
    let outside = cases.iter().any(|case| case.duplicates > case.allowed);
    let mut cells = vec![
        Cell::new(name).add_attribute(Attribute::Bold),
        Cell::new(count(cases.len() as u64)),
        must_be_none(sum(|case| case.lost as u64)),
        must_be_none(sum(|case| (case.out_of_order + case.wrong) as u64)),
        Cell::new(count(sum(|case| case.stale as u64))),
        coloured(count(sum(|case| case.duplicates)), if outside { Color::Red } else { Color::Green }),
        Cell::new(count(sum(|case| case.allowed))),
    ];
    let memory = most(|case| case.memory);
    let asked = sum(|case| case.asked);
    let age = cases.iter().filter_map(|case| case.position_age).max();
    cells.extend([
        Cell::new(if asked > 0 { count(asked) } else { String::new() }),
        age.map_or_else(|| Cell::new(""), |age| Cell::new(format!("{} ms", age.as_millis()))),
        time(p50),
        time(recoveries.last().copied()),
        Cell::new(megabytes(most(|case| case.retained))),
        if memory > MEMORY {
            coloured(megabytes(memory), Color::Yellow)
        } else {
            Cell::new(megabytes(memory))
        },
    ]);
    cells
}

fn must_be_none(number: u64) -> Cell {
    coloured(count(number), if number == 0 { Color::Green } else { Color::Red })
}

fn coloured(text: String, colour: Color) -> Cell {
    Cell::new(text).fg(colour).add_attribute(Attribute::Bold)
}

fn time(time: Option<Duration>) -> Cell {
    let Some(time) = time else { return Cell::new("") };
    let text = if time.as_millis() < 1000 {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    };
    if time > RECOVERY { coloured(text, Color::Yellow) } else { Cell::new(text) }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

fn summary(report: &Report) -> String {
    let (evidence, written) = (&report.evidence, &report.evidence.written);
    let number = |number: usize| count(number as u64);
    let mut lines = vec![
        format!(
            "{} rows committed in {} transactions, {} of them large, the largest of {} rows; {} rolled back, {} rolled back \
             to a savepoint; {} rows deleted since",
            number(evidence.committed.len()),
            count(written.transactions),
            count(written.large),
            count(written.largest),
            count(written.rollbacks),
            count(written.savepoint_rollbacks),
            number(report.deleted()),
        ),
        format!(
            "{} records read for {} rows; {} duplicates, and {} that were requested; {} events with a COMMIT that was not answered",
            number(evidence.arrivals.len()),
            number(evidence.judgement.first_arrivals.len()),
            number(evidence.judgement.duplicates.len()),
            number(evidence.judgement.asked.len()),
            count(written.in_doubt),
        ),
        format!("seed {}, {:.0} s", evidence.seed, evidence.end.duration_since(evidence.start).as_secs_f64()),
    ];
    let unexpected = evidence.committed.len() - evidence.expected;
    if unexpected > 0 {
        let unexpected = number(unexpected);
        lines.push(format!("{unexpected} rows were deleted by the transactions that inserted them, so that polling cannot see them"));
    }
    if report.is_good() {
        lines.push("nothing lost, nothing reordered, no more duplicates than allowed, no standstill without a reason".to_owned());
    }
    for fault in &report.faults {
        lines.push(format!("wrong: {fault}"));
    }
    for finding in report.findings() {
        lines.push(format!("  {finding}"));
    }
    lines.join("\n") + "\n"
}
