//! `import-debezium`: translates the configuration of a Debezium connector, and reports the differences.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use comfy_table::{Cell, Color};
use serde::Serialize;

use super::table::{TableStyle, bold, trimmed};
use crate::cli::import_debezium::ImportDebeziumArgs;
use crate::commands::Completion;
use crate::error::{Error, ErrorCode};
use crate::import::{Finding, Import, Level, Surroundings, import};
use crate::terminal;

/// The output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    import: &'a Import,
    /// The reason for the exit code 1, or null.
    error_code: Option<ErrorCode>,
}

/// Translates and prints the configuration. The exit code is 1 if the router would not do everything that the connector did.
///
/// # Errors
/// A file cannot be read, or it has no outbox event router.
pub fn import_debezium(args: &ImportDebeziumArgs) -> Result<Completion, Error> {
    let text = read(&args.file)?;
    let worker = args.worker_config.as_deref().map(read).transpose()?;
    let surroundings = Surroundings { bootstrap_servers: args.bootstrap_servers.clone(), worker };
    let import = import(&text, &surroundings)?;
    if args.json {
        let error_code = (!import.is_complete()).then_some(ErrorCode::DebeziumConfiguration);
        terminal::print_json(&Document { import: &import, error_code })?;
    } else {
        terminal::print(&import.configuration)?;
        let report = report(&import.findings, &TableStyle::for_stderr());
        // a closed standard error is not a failure
        let _ = io::stderr().lock().write_all(report.as_bytes());
    }
    Ok(if import.is_complete() { Completion::Success } else { Completion::ProblemsFound })
}

fn read(path: &Path) -> Result<String, Error> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    text.map_err(|error| {
        let name = if path == Path::new("-") { "standard input".into() } else { path.display().to_string() };
        Error::usage(
            ErrorCode::InputOutput,
            format!("Cannot read {name}: {error}"),
            "Name a text file in UTF-8, or - for standard input",
        )
    })
}

fn report(findings: &[Finding], style: &TableStyle) -> String {
    let mut table = style.table_with_headings(["level", "setting", "value", "what it means"]);
    for Finding { level, setting, value, meaning } in findings {
        let label = bold(level.label()).fg(colour(*level));
        let value = value.as_deref().map_or("(not set)".to_owned(), in_table);
        table.add_row([label, Cell::new(setting), Cell::new(value), Cell::new(meaning)]);
    }
    trimmed(&table) + "\n" + &summary(findings) + "\n"
}

/// The longest value that is shown in full, in characters.
const LONGEST_VALUE: usize = 60;

fn in_table(value: &str) -> String {
    let one_line: String = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    terminal::shortened(&one_line, LONGEST_VALUE).into_owned()
}

fn summary(findings: &[Finding]) -> String {
    let count = |wanted: &[Level]| findings.iter().filter(|finding| wanted.contains(&finding.level)).count();
    let to_do = match count(&[Level::ToDo]) {
        0 => String::new(),
        1 => " 1 task is left to do first.".to_owned(),
        several => format!(" {several} tasks are left to do first."),
    };
    let bad = match count(&[Level::NoEquivalent, Level::Differs]) {
        0 if !to_do.is_empty() => "The router can do everything that the connector did.".to_owned(),
        0 => "The router does everything that the connector did.".to_owned(),
        1 => "1 setting differs or has no equivalent.".to_owned(),
        several => format!("{several} settings differ or have no equivalent."),
    };
    format!("{bad}{to_do} Run `outbox-router check` with the configuration before the switch.")
}

fn colour(level: Level) -> Color {
    match level {
        Level::NoEquivalent => Color::Red,
        Level::Differs | Level::ToDo => Color::Yellow,
        Level::Note | Level::Ignored => Color::Reset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(level: Level, setting: &str, value: Option<&str>, meaning: &str) -> Finding {
        Finding {
            level,
            setting: setting.to_owned(),
            value: value.map(str::to_owned),
            meaning: meaning.to_owned(),
        }
    }

    #[test]
    fn the_worst_first_and_long_values_cut() {
        let long = "x".repeat(100);
        let findings = [
            finding(Level::NoEquivalent, "transforms.a.type", Some("a.Filter"), "Nothing would be left out"),
            finding(Level::Differs, "value.converter", None, "The worker's decides"),
            finding(Level::ToDo, "database.password", Some("********"), "Write it into a file"),
            finding(Level::Ignored, "tasks.max", Some(&long), "Only concerns Connect's worker"),
        ];
        insta::assert_snapshot!(report(&findings, &TableStyle { colours: false, width: None }));
    }

    #[test]
    fn the_summary_says_how_much_is_left() {
        let to_do = finding(Level::ToDo, "a", None, "b");
        let one = summary(std::slice::from_ref(&to_do));
        assert!(
            one.starts_with(
                "The router can do everything that the connector did. 1 task is left to do first. "
            ),
            "{one}"
        );
        assert!(summary(&[]).starts_with("The router does everything that the connector did. Run"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = read(Path::new("/none/such.json")).unwrap_err().to_string();
        assert!(error.starts_with("OBR-2008: Cannot read /none/such.json: "), "{error}");
    }
}
