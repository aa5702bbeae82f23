//! Tables without lines, as the commands print them.

use std::io;

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::terminal;

/// How tables are rendered for an output.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableStyle {
    /// Whether to use colours and bold text.
    pub(super) colours: bool,
    /// The width of the terminal in characters; `None` if the output is not a terminal, and lines may have any length.
    pub(super) width: Option<u16>,
}

impl TableStyle {
    /// The style for standard output.
    pub(super) fn for_stdout() -> Self {
        TableStyle { colours: terminal::colours(&io::stdout()), width: Table::new().width() }
    }

    /// The style for standard error.
    pub(super) fn for_stderr() -> Self {
        TableStyle { colours: terminal::colours(&io::stderr()), width: Table::new().use_stderr().width() }
    }

    /// An empty table in this style.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        // a terminal that does not know its width has 0 columns
        match self.width.filter(|width| *width > 0) {
            Some(width) => table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic),
            None => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        // set explicitly, because the library does not know NO_COLOR
        if self.colours {
            table.enforce_styling()
        } else {
            table.force_no_tty()
        };
        table
    }

    /// A table with these headings.
    pub(super) fn table_with_headings<const N: usize>(&self, headings: [&str; N]) -> Table {
        let mut table = self.table();
        table.add_row(headings.map(bold));
        table
    }
}

/// A heading of a column or a row.
pub(super) fn bold(text: &str) -> Cell {
    Cell::new(text).add_attribute(Attribute::Bold)
}

/// Aligns a column of numbers, with its heading.
pub(super) fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// The table without the padding of its first and last columns.
pub(super) fn trimmed(table: &Table) -> String {
    let lines = table.lines().map(|line| {
        let line = line.trim_end();
        line.strip_prefix(' ').unwrap_or(line).to_owned() + "\n"
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_of_unknown_width_gets_whole_lines() {
        let rendered = |width| {
            let mut table = TableStyle { colours: false, width }.table_with_headings(["consumer", "id"]);
            table.add_row(["shipping", "3f1c"]);
            trimmed(&table)
        };
        assert_eq!(rendered(Some(0)), "consumer  id\nshipping  3f1c\n");
        assert_eq!(rendered(Some(0)), rendered(None));
    }
}
