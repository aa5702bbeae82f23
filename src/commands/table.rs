//! Tables without lines, as the commands print them.

use std::io;

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::terminal;

/// What the output can show.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Whether it shows colours and bold text.
    pub(super) colours: bool,
    /// The number of columns; `None` if it is no terminal, where lines may have any length.
    pub(super) width: Option<u16>,
}

impl Look {
    /// What standard output can show.
    pub(super) fn of_stdout() -> Self {
        Look { colours: terminal::colours(&io::stdout()), width: Table::new().width() }
    }

    /// What standard error can show.
    pub(super) fn of_stderr() -> Self {
        Look { colours: terminal::colours(&io::stderr()), width: Table::new().use_stderr().width() }
    }

    /// An empty table in this style.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        match self.width {
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
    pub(super) fn table_of<const N: usize>(&self, headings: [&str; N]) -> Table {
        let mut table = self.table();
        table.add_row(headings.map(bold));
        table
    }
}

/// A heading, or the name of a line.
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
