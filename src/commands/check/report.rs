//! The findings for people and for programs.

use comfy_table::{Cell, Color};

use super::finding::{Finding, Level};
use crate::commands::table::{TableStyle, bold, trimmed};
use crate::error::Error;
use crate::quantity::counted;
use crate::terminal;

pub(in crate::commands) fn print(findings: &[Finding], json: bool) -> Result<(), Error> {
    if json {
        return terminal::print_json(findings);
    }
    let text = [table(findings, &TableStyle::for_stdout()), remedies(findings), summary(findings) + "\n"];
    terminal::print(&text.join("\n"))
}

fn table(findings: &[Finding], style: &TableStyle) -> String {
    let mut table = style.table();
    for Finding { level, check, code, what, .. } in findings {
        let label = bold(level.label()).fg(colour(*level));
        let what = code.map_or_else(|| what.clone(), |code| format!("{code}: {what}"));
        table.add_row([label, Cell::new(check), Cell::new(what)]);
    }
    trimmed(&table)
}

/// What to do about each finding. Not in the table, whose lines are broken on a terminal: a command is copied as a whole.
fn remedies(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { level, check, code, events, remedy, .. } in findings {
        if remedy.is_empty() {
            continue;
        }
        let code = code.map(|code| format!(", {code}")).unwrap_or_default();
        text.push_str(&format!("{}: {check}{code}\n", level.label()));
        if let Some(events) = events {
            text.push_str(&events.in_line());
        }
        text.push_str(&remedy.in_lines());
        text.push('\n');
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
        insta::assert_snapshot!(
            [table(&findings, &style), remedies(&findings), summary(&findings)].join("\n")
        );
        insta::assert_snapshot!("as_json", serde_json::to_string_pretty(&findings).unwrap());
    }

    #[test]
    fn the_summary_says_whether_it_will_run() {
        let warning = finding(Level::Warning, "x", "y", Some("z"));
        assert_eq!(summary(&[]), "No problems found.");
        assert_eq!(summary(std::slice::from_ref(&warning)), "1 warning, no errors.");
    }
}
