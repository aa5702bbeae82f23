//! The table at the end.

use comfy_table::{CellAlignment, Table, presets};

use crate::comparison::Findings;

/// The cases so far.
#[derive(Default)]
pub(crate) struct Report {
    cases: Vec<(String, Findings)>,
}

impl Report {
    pub(crate) fn add(&mut self, name: &str, findings: Findings) {
        self.cases.push((name.to_owned(), findings));
    }

    /// Whether all differences are listed by their cases.
    pub(crate) fn all_same(&self) -> bool {
        self.cases.iter().all(|(_, findings)| findings.is_same())
    }

    pub(crate) fn render(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(["case", "records", "verdict"]);
        for (name, findings) in &self.cases {
            table.add_row([name.clone(), findings.records.to_string(), verdict(findings)]);
        }
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let records: usize = self.cases.iter().map(|(_, findings)| findings.records).sum();
        let different = self.cases.iter().filter(|(_, findings)| !findings.is_same()).count();
        let cases = self.cases.len();
        format!("{table}\n\n{cases} cases, {records} records of Debezium, {different} cases different\n")
    }
}

/// One line with the result of a case.
pub(crate) fn verdict(findings: &Findings) -> String {
    if !findings.is_same() {
        let mut words = vec!["DIFFERENT".to_owned()];
        if !findings.unexpected.is_empty() {
            words.push(format!("{} unexpected", findings.unexpected.len()));
        }
        for known in &findings.vanished {
            words.push(format!("differences.md lists `{} {}`, which does not differ", known.id, known.field));
        }
        return words.join(", ");
    }
    match findings.expected {
        0 => "same".to_owned(),
        listed => format!("same, but for {listed} in differences.md"),
    }
}
