//! Tables of figures for a terminal.

use std::io;

use comfy_table::{Attribute, Cell, CellAlignment, Table, presets};
use indicatif::HumanCount;
use outbox_router::terminal;

use crate::stage::figures::Spread;

/// A table without lines, with colours if standard output supports them.
pub(crate) fn bare() -> Table {
    plain(terminal::colours(&io::stdout()))
}

fn plain(colours: bool) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    // `terminal` honours NO_COLOR, which the library does not know
    if colours {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table
}

/// A table with names in the first column and figures in the others.
pub(crate) fn figures(header: &[&str]) -> Table {
    let mut table = bare();
    table.set_header(header.iter().map(|name| bold(name)));
    table
}

/// Renders the table, with figures aligned to the right.
pub(crate) fn rendered(mut table: Table) -> String {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    trimmed(&table)
}

/// A table of names and texts, such as the machine and the settings.
pub(crate) fn circumstances(lines: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = bare();
    for (name, text) in lines {
        table.add_row([bold(name), Cell::new(text)]);
    }
    trimmed(&table)
}

/// The median and the range; empty if nothing was measured.
pub(crate) fn spread(spread: Option<Spread>, decimals: usize) -> String {
    spread.map_or_else(String::new, |Spread { median, least, most }| {
        let [median, least, most] = [median, least, most].map(|value| number(value, decimals));
        format!("{median} ({least} to {most})")
    })
}

/// Formats a number; whole numbers are grouped.
pub(crate) fn number(value: f64, decimals: usize) -> String {
    if decimals == 0 { HumanCount(value.round() as u64).to_string() } else { format!("{value:.decimals$}") }
}

fn bold(text: &str) -> Cell {
    Cell::new(text).add_attribute(Attribute::Bold)
}

fn trimmed(table: &Table) -> String {
    let text = table.to_string();
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_right_aligned() {
        let mut table = plain(false);
        table.add_row(["speed", "1"]);
        table.add_row(["x", "1,000"]);
        assert_eq!(rendered(table), " speed      1\n x      1,000\n");
    }

    #[test]
    fn whole_numbers_are_grouped() {
        assert_eq!([number(12_345.6, 0), number(1.25, 1)], ["12,346", "1.2"]);
        let of = Some(Spread { median: 4.0, least: 2.5, most: 1004.0 });
        assert_eq!([spread(of, 1), spread(None, 1)], ["4.0 (2.5 to 1004.0)", ""]);
    }
}
