//! The results of `check`.

use serde::Serialize;

use crate::error::Error;
use crate::terminal;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It could not be checked, and the router does not depend on it.
    Skipped,
    /// It works, but carries a risk.
    Warning,
    /// It would lose or block events, or might.
    Error,
}

impl Level {
    /// The text in the printed report.
    pub fn label(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Skipped => "skipped",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// One finding. The members are the keys of `--json` and must not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its severity.
    pub level: Level,
    /// What was checked, in snake case: `wal_level`. Several findings may share it.
    pub check: &'static str,
    /// The finding, a sentence without a full stop.
    pub what: String,
    /// What to do about it, a sentence without a full stop; `None` if nothing is to be done.
    pub remedy: Option<String>,
}

/// The findings so far.
#[derive(Debug, Default)]
pub(in crate::commands) struct Findings(pub(in crate::commands) Vec<Finding>);

impl Findings {
    pub(in crate::commands) fn ok(&mut self, check: &'static str, what: impl Into<String>) {
        self.add(Level::Ok, check, what.into(), None);
    }

    pub(in crate::commands) fn skipped(&mut self, check: &'static str, what: impl Into<String>) {
        self.add(Level::Skipped, check, what.into(), None);
    }

    pub(in crate::commands) fn warning(
        &mut self,
        check: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Level::Warning, check, what.into(), Some(remedy.into()));
    }

    pub(in crate::commands) fn error(
        &mut self,
        check: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Level::Error, check, what.into(), Some(remedy.into()));
    }

    /// Replaces control characters, because findings quote servers and are printed on terminals.
    fn add(&mut self, level: Level, check: &'static str, what: String, remedy: Option<String>) {
        let harmless = |text: String| terminal::harmless(&text).into_owned();
        self.0.push(Finding { level, check, what: harmless(what), remedy: remedy.map(harmless) });
    }

    /// Adds a failure as a finding. A transient failure has no remedy of its own, and gets `remedy`.
    pub(super) fn failure(&mut self, check: &'static str, failure: Error, remedy: &str) {
        match failure {
            Error::Definite(definite) => self.error(check, definite.what, definite.remedy),
            Error::Transient(transient) => self.error(check, transient.what, remedy),
        }
    }

    /// Adds the failure, or `fine` if there was none. Returns whether there was none.
    pub(super) fn result(&mut self, check: &'static str, result: Result<(), Error>, fine: String) -> bool {
        match result {
            Ok(()) => {
                self.ok(check, fine);
                true
            }
            Err(failure) => {
                self.failure(check, failure, "Run check again");
                false
            }
        }
    }
}
