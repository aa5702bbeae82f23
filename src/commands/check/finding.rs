//! The results of `check`.

use serde::{Serialize, Serializer};

use crate::error::{Definite, Effect, Error, ErrorCode, Events, Remedy, Transient};
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

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub level: Level,
    /// What was checked, in snake case: `wal_level`. Several findings may share it.
    pub check: &'static str,
    /// The code of an error. `run` stops with the same code, if it stops for this reason.
    pub code: Option<ErrorCode>,
    /// The finding, a sentence without a full stop.
    pub what: String,
    /// What an error means for events.
    pub events: Option<Events>,
    /// What to do about it; empty if nothing is to be done.
    pub remedy: Remedy,
}

/// The keys of `--json`, which must not change.
#[derive(Serialize)]
struct Json<'a> {
    level: Level,
    check: &'static str,
    code: Option<ErrorCode>,
    what: &'a str,
    effect: Option<Effect>,
    events: Option<String>,
    /// The remedy on one line.
    remedy: Option<String>,
    ways: &'a Remedy,
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Finding { level, check, code, what, events, remedy } = self;
        let json = Json {
            level: *level,
            check,
            code: *code,
            what,
            effect: events.as_ref().map(|events| events.effect),
            events: events.as_ref().map(Events::to_string),
            remedy: (!remedy.is_empty()).then(|| remedy.to_string()),
            ways: remedy,
        };
        json.serialize(serializer)
    }
}

/// The findings so far.
#[derive(Debug, Default)]
pub(in crate::commands) struct Findings(pub(in crate::commands) Vec<Finding>);

impl Findings {
    pub(super) fn has_error(&self) -> bool {
        self.0.iter().any(|finding| finding.level == Level::Error)
    }

    pub(in crate::commands) fn ok(&mut self, check: &'static str, what: impl Into<String>) {
        self.add(Level::Ok, check, what.into(), Remedy::default());
    }

    pub(in crate::commands) fn skipped(&mut self, check: &'static str, what: impl Into<String>) {
        self.add(Level::Skipped, check, what.into(), Remedy::default());
    }

    pub(in crate::commands) fn warning(
        &mut self,
        check: &'static str,
        what: impl Into<String>,
        remedy: impl Into<Remedy>,
    ) {
        self.add(Level::Warning, check, what.into(), remedy.into());
    }

    pub(in crate::commands) fn error(
        &mut self,
        check: &'static str,
        code: ErrorCode,
        what: impl Into<String>,
        remedy: impl Into<Remedy>,
    ) {
        self.refused(check, code, what.into(), code.into(), remedy.into());
    }

    pub(super) fn refused(
        &mut self,
        check: &'static str,
        code: ErrorCode,
        what: String,
        events: Events,
        remedy: Remedy,
    ) {
        self.add(Level::Error, check, what, remedy);
        if let Some(finding) = self.0.last_mut() {
            (finding.code, finding.events) = (Some(code), Some(events));
        }
    }

    /// Replaces control characters, because findings quote servers and are printed on terminals.
    fn add(&mut self, level: Level, check: &'static str, what: String, remedy: Remedy) {
        let harmless = |text: String| terminal::harmless(&text).into_owned();
        self.0.push(Finding {
            level,
            check,
            code: None,
            what: harmless(what),
            events: None,
            remedy: remedy.map(harmless),
        });
    }

    /// Corrects what the errors mean for events if the router has no slot: nothing waits in the log for it.
    pub(super) fn without_slot(&mut self) {
        for finding in &mut self.0 {
            finding.events = finding.events.take().map(Events::without_slot);
        }
    }

    /// Adds a failure as a finding. A transient failure has no remedy of its own, and gets `remedy`.
    pub(super) fn failure(&mut self, check: &'static str, failure: Error, remedy: &str) {
        let refusal = match failure {
            Error::Definite(refusal) => refusal,
            // a running router waits for it to pass
            Error::Transient(Transient { refusal: Some(refusal), .. }) => *refusal,
            Error::Transient(transient) => {
                return self.error(check, transient.code(), transient.what, remedy);
            }
        };
        let Definite { code, what, events, remedy, .. } = refusal;
        self.refused(check, code, what, events, remedy);
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
