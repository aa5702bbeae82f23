//! Where a value was written (a line of the file, or a variable), and the problems found.
//!
//! The parsed tree only has byte ranges of the file. Values from the environment get ranges beyond the end of the file, so that
//! both can be in one tree.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorCode, with_config_file, without_numbers};

/// The configuration files to try, in this order, if none is named.
pub(super) const SEARCH_PATH: [&str; 2] = ["outbox-router.toml", "/etc/outbox-router/outbox-router.toml"];

/// The ranges of one variable: one for each level of its name, and the last for its value.
const RANGES_PER_VARIABLE: usize = 32;

/// The file and the variables that a configuration is read from.
pub(super) struct Sources<'a> {
    path: Option<&'a Path>,
    text: &'a str,
    /// Where each line of the file begins, so that a place is found without reading all lines before it.
    lines: Vec<usize>,
    variables: Vec<String>,
    /// The ranges of the file's values into which variables were inserted, or of arrays and tables with such values.
    inserted: HashMap<Range<usize>, Inserted>,
    /// The texts of the file into which variables were inserted, as they are written, by their ranges.
    originals: HashMap<Range<usize>, String>,
}

/// What became of the variables that a value of the file names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Inserted {
    /// Their values are part of it, and must not be shown.
    All,
    /// One of them is not set, which has been reported.
    NotAll,
}

impl<'a> Sources<'a> {
    /// Starts with the file, if there is one; variables are added later.
    pub(super) fn new(file: Option<(&'a Path, &'a str)>) -> Self {
        let (path, text) = file.unzip();
        let text = text.unwrap_or_default();
        let after_newline = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            path,
            text,
            lines: std::iter::once(0).chain(after_newline).collect(),
            variables: Vec::new(),
            inserted: HashMap::new(),
            originals: HashMap::new(),
        }
    }

    /// Reserves ranges for the variable `name`.
    pub(super) fn add_variable(&mut self, name: &str) -> VariableRanges {
        let start = self.text.len() + 1 + self.variables.len() * RANGES_PER_VARIABLE;
        self.variables.push(name.to_owned());
        VariableRanges { start }
    }

    /// Whether a value with this range came from the environment.
    pub(super) fn is_variable(&self, span: &Range<usize>) -> bool {
        span.start > self.text.len()
    }

    /// Records that the value with this range names variables.
    pub(super) fn add_inserted(&mut self, span: Range<usize>, inserted: Inserted) {
        self.inserted.insert(span, inserted);
    }

    /// Whether the value with this range names variables of the environment.
    pub(super) fn inserted(&self, span: &Range<usize>) -> Option<Inserted> {
        self.inserted.get(span).copied()
    }

    /// Records the text with this range as it was before variables were inserted.
    pub(super) fn add_original(&mut self, span: Range<usize>, text: String) {
        self.originals.insert(span, text);
    }

    /// The text with this range before variables were inserted; `None` if it names none.
    pub(super) fn original(&self, span: &Range<usize>) -> Option<&str> {
        self.originals.get(span).map(String::as_str)
    }

    /// The place of this range, for a message.
    pub(super) fn place(&self, span: &Range<usize>) -> Place {
        if self.is_variable(span) {
            let variable = self.variables.get((span.start - self.text.len() - 1) / RANGES_PER_VARIABLE);
            return variable.map_or(Place::Nowhere, |name| Place::Variable(name.clone()));
        }
        let Some(path) = self.path else { return Place::Nowhere };
        let line = self.lines.partition_point(|start| *start <= span.start);
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or_default();
        let before = self.text.get(start..span.start).or(self.text.get(start..)).unwrap_or_default();
        Place::File { path: path.to_owned(), line, column: before.chars().count() + 1 }
    }

    /// The directory of the file; paths in the file are relative to it.
    pub(super) fn directory(&self) -> Option<&'a Path> {
        self.path.and_then(Path::parent)
    }

    /// Where a missing key was searched for, for a message.
    pub(super) fn searched(&self) -> String {
        match self.path {
            Some(path) => format!("neither in {} nor in the environment", path.display()),
            None => {
                format!("there is no configuration file ({}), and no variable for it", SEARCH_PATH.join(", "))
            }
        }
    }
}

/// The ranges of one variable. No two are equal, so a range identifies one entry of the tree.
pub(super) struct VariableRanges {
    start: usize,
}

impl VariableRanges {
    /// For the key at this depth of the variable's name.
    pub(super) fn key(&self, depth: usize) -> Range<usize> {
        let start = self.start + depth.min(RANGES_PER_VARIABLE - 2);
        start..start + 1
    }

    /// For a table that was created for the key at this depth.
    pub(super) fn table(&self, depth: usize) -> Range<usize> {
        let key = self.key(depth);
        key.start..key.end + 1
    }

    /// For the variable's value.
    pub(super) fn value(&self) -> Range<usize> {
        let start = self.start + RANGES_PER_VARIABLE - 1;
        start..start + 1
    }
}

/// A line and column of the file, or a variable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
    },
    /// A variable by its full name.
    Variable(String),
    /// Not written anywhere: a default, or a missing value.
    Nowhere,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line, column } => write!(f, "{}:{line}:{column}: ", path.display()),
            Place::Variable(name) => write!(f, "{name}: "),
            Place::Nowhere => Ok(()),
        }
    }
}

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What, without a full stop. It contains no secret.
    pub what: String,
    /// What to do about it, without a full stop.
    pub remedy: String,
}

/// All problems of a configuration, so that the user can fix them at once.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    /// Records a problem: its place, what is wrong, and the remedy. Neither sentence ends in a full stop or contains a secret.
    pub(super) fn push(&mut self, place: Place, what: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(Problem { place, what: without_numbers(what.into()), remedy: remedy.into() });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All problems, in the order of the file.
    pub(super) fn into_list(mut self) -> Vec<Problem> {
        // stable, because problems at one place were found in the order in which they should be read
        self.0.sort_by(|a, b| a.place.cmp(&b.place));
        self.0
    }
}

impl From<Problems> for Error {
    fn from(problems: Problems) -> Self {
        problems.into_list().into()
    }
}

/// How many problems an error lists.
const LISTED: usize = 100;

/// As one error.
impl From<Vec<Problem>> for Error {
    fn from(problems: Vec<Problem>) -> Self {
        if let [Problem { place, what, remedy }] = problems.as_slice() {
            return Error::usage(ErrorCode::Configuration, format!("{place}{what}"), remedy.clone());
        }
        let mut list = format!("The configuration has {} problems:", problems.len());
        for Problem { place, what, remedy } in problems.iter().take(LISTED) {
            list.push_str(&format!("\n  {place}{what}. {remedy}"));
        }
        if let Some(more @ 1..) = problems.len().checked_sub(LISTED) {
            let lists = with_config_file("outbox-router config validate --json");
            list.push_str(&format!("\n  and {more} more, which `{lists}` lists"));
        }
        Error::usage(ErrorCode::Configuration, list, "Correct each of them")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_lines_and_characters_from_one() {
        let text = "a = 1\nλ = 2\n";
        let sources = Sources::new(Some((Path::new("c.toml"), text)));
        assert_eq!(sources.place(&(0..1)).to_string(), "c.toml:1:1: ");
        assert_eq!(sources.place(&(6..8)).to_string(), "c.toml:2:1: ");
        assert_eq!(sources.place(&(11..12)).to_string(), "c.toml:2:5: ");
        assert_eq!(sources.place(&(text.len()..text.len())).to_string(), "c.toml:3:1: ");
    }

    #[test]
    fn each_variable_has_its_own_range() {
        let mut sources = Sources::new(Some((Path::new("c.toml"), "a = 1")));
        let first = sources.add_variable("A").key(0);
        let second = sources.add_variable("B").value();
        assert_eq!(sources.place(&first), Place::Variable("A".into()));
        assert_eq!(sources.place(&second), Place::Variable("B".into()));
        assert!(sources.is_variable(&first) && !sources.is_variable(&(5..5)));
    }
}
