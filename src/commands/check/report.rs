//! The findings for people and for programs.

use comfy_table::{Cell, Color, ColumnConstraint, Width};

use super::finding::{Finding, Level};
use crate::commands::table::{TableStyle, bold, trimmed};
use crate::error::Error;
use crate::quantity::counted;
use crate::terminal;

pub(in crate::commands) fn print(findings: &[Finding], json: bool) -> Result<(), Error> {
    if json {
        return terminal::print_json(findings);
    }
    let style = TableStyle::for_stdout();
    terminal::print(&(list(findings, &style) + "\n" + &summary(findings) + "\n"))
}

/// Each finding as the row of a table and, below it, what to do. Those lines are not in the table, which would break them on a
/// terminal: a command is copied as a whole.
fn list(findings: &[Finding], style: &TableStyle) -> String {
    let width = |texts: &mut dyn Iterator<Item = &str>| texts.map(str::len).max().unwrap_or_default();
    let label = width(&mut findings.iter().map(|finding| finding.level.label()));
    let check = width(&mut findings.iter().map(|finding| finding.check));
    let mut text = String::new();
    for (number, Finding { level, check: name, code, what, events, remedy }) in findings.iter().enumerate() {
        let what = code.map_or_else(|| what.clone(), |code| format!("{code}: {what}"));
        let mut row = style.table();
        row.add_row([bold(level.label()).fg(colour(*level)), Cell::new(name), Cell::new(what)]);
        for (column, width) in [label, check].into_iter().enumerate() {
            // with a blank on either side
            let width = u16::try_from(width + 2).unwrap_or(u16::MAX);
            if let Some(column) = row.column_mut(column) {
                column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
            }
        }
        text.push_str(&trimmed(&row));
        if let Some(events) = events {
            text.push_str(&events.in_line());
        }
        // topics often share a weakness and what to do about it
        let next = findings.get(number + 1);
        if next.is_none_or(|next| (next.check, &next.remedy) != (*name, remedy)) {
            text.push_str(&remedy.in_lines());
        }
    }
    text
}

fn summary(findings: &[Finding]) -> String {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    match (count(Level::Error), count(Level::Warning)) {
        (0, 0) => "No problems found.".to_owned(),
        (0, warnings) => format!("{}, no errors.", counted(warnings, "warning")),
        (errors, warnings) => format!("{}, {}.", counted(errors, "error"), counted(warnings, "warning")),
    }
}

fn colour(level: Level) -> Color {
    match level {
        Level::Ok => Color::Green,
        Level::Skipped => Color::Reset,
        Level::Warning => Color::Yellow,
        Level::Error => Color::Red,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    fn finding(level: Level, check: &'static str, what: &str, remedy: Option<&str>) -> Finding {
        let code = (level == Level::Error).then_some(ErrorCode::SlotMissing);
        Finding {
            level,
            check,
            code,
            what: what.to_owned(),
            events: code.map(Into::into),
            remedy: remedy.unwrap_or_default().into(),
        }
    }

    #[test]
    fn for_people_and_for_programs() {
        let findings = [
            finding(Level::Ok, "wal_level", "logical", None),
            finding(Level::Skipped, "row_sizes", "the role may not read the table", None),
            finding(
                Level::Warning,
                "replication_factor",
                "the topic orders has one replica",
                Some("Add replicas"),
            ),
            finding(Level::Error, "slot", "the slot s does not exist", Some("Run `outbox-router init`")),
        ];
        let style = TableStyle { colours: false, width: None };
        insta::assert_snapshot!(list(&findings, &style) + "\n" + &summary(&findings));
        insta::assert_snapshot!("as_json", serde_json::to_string_pretty(&findings).unwrap());
    }

    #[test]
    fn the_summary_says_whether_it_will_run() {
        let warning = finding(Level::Warning, "x", "y", Some("z"));
        assert_eq!(summary(&[]), "No problems found.");
        assert_eq!(summary(std::slice::from_ref(&warning)), "1 warning, no errors.");
    }
}
