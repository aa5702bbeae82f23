//! The faults of a directory of contracts, collected so that they can be fixed at once.

use std::fmt;
use std::path::Path;

use crate::error::{Error, ErrorCode};

/// One fault or warning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The file, relative to the directory, with `/` between its parts; empty for the directory itself.
    pub file: String,
    /// The place in it, a JSON pointer (RFC 6901); empty for the whole file.
    pub at: String,
    /// The finding, a sentence without a full stop.
    pub what: String,
    /// What to do about it, a sentence without a full stop.
    pub remedy: String,
}

impl Fault {
    pub(super) fn new(
        file: impl Into<String>,
        at: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Fault { file: file.into(), at: at.into(), what: what.into(), remedy: remedy.into() }
    }

    /// The file and the place in it: `order/OrderPlaced.json at /properties/total`.
    pub fn place(&self) -> String {
        match (self.file.as_str(), self.at.as_str()) {
            (file, "") => file.to_owned(),
            (file, at) => format!("{file} at {at}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place().as_str() {
            "" => write!(f, "{}. {}", self.what, self.remedy),
            place => write!(f, "{place}: {}. {}", self.what, self.remedy),
        }
    }
}

/// All faults of a directory, in the order of the files; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    /// One error with exit code 2, for a command that needs the contracts of `directory`.
    pub fn into_error(self, directory: &Path) -> Error {
        let number = self.0.len();
        let list: String = self.0.iter().map(|fault| format!("\n  {fault}")).collect();
        Error::usage(
            ErrorCode::Contracts,
            format!(
                "The contracts in {} have {number} fault{}:{list}",
                directory.display(),
                if number == 1 { "" } else { "s" }
            ),
            "`outbox-router contracts check` checks them without a server",
        )
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Fault::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}
