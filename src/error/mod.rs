//! What a failure means for the caller: wait and try again, or stop and tell a person.
//!
//! A function that talks to Postgres or Kafka returns [`Error`], so that its caller must decide between
//! [`Transient`] and [`Definite`]. Both say to the operator what happened; neither ever holds a secret or a payload.

mod code;
mod own_commands;
mod remedy;

use std::borrow::Cow;
use std::fmt;

use serde::{Serialize, Serializer};

pub(crate) use code::UNRETAINED;
pub use code::{Effect, ErrorCode};
pub use own_commands::{repeat_config_file, shell_word, with_config_file};
pub use remedy::{Remedy, Step};

/// The server at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The database that holds the outbox.
    Postgres,
    /// The brokers that the events go to.
    Kafka,
}

impl Peer {
    /// The value of the metric label `peer`.
    pub fn label(self) -> &'static str {
        match self {
            Peer::Postgres => "postgres",
            Peer::Kafka => "kafka",
        }
    }

    /// What to do if it cannot be reached.
    pub fn if_unreachable(self) -> &'static str {
        match self {
            Peer::Postgres => {
                "Check that the server runs and can be reached, and that host and port in `[postgres] url` are correct"
            }
            Peer::Kafka => {
                "Check that the brokers run, that `bootstrap.servers` and the addresses that they advertise can be reached from here, \
                 and security.protocol under `[kafka]`"
            }
        }
    }
}

/// A failure that may pass by itself: a lost connection, a restarting server. `run` tries again, for ever.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{what}")]
pub struct Transient {
    /// Who failed.
    pub peer: Peer,
    /// What happened and where, as one sentence without a full stop.
    pub what: String,
    /// Whether the server said that it is shutting down, has crashed or is not up yet.
    pub unavailable: bool,
    /// The refusal that a running router waits out: it passes only once somebody acts.
    pub refusal: Option<Box<Definite>>,
}

impl Transient {
    /// A failure of a server that did not say that it is unavailable.
    pub fn new(peer: Peer, what: impl Into<String>) -> Self {
        Transient { peer, what: without_numbers(what.into()), unavailable: false, refusal: None }
    }

    /// A refusal that is retried, because somebody may correct its cause while the router runs.
    pub fn from_refusal(refusal: Definite) -> Self {
        let what = format!("{}. {}", refusal.what, refusal.remedy);
        Transient { refusal: Some(Box::new(refusal.clone())), ..Transient::new(refusal.code.peer(), what) }
    }

    /// The code of the refusal, or that of an unreachable server for a command that does not try again.
    pub fn code(&self) -> ErrorCode {
        match (&self.refusal, self.peer) {
            (Some(refusal), _) => refusal.code,
            (None, Peer::Postgres) => ErrorCode::PostgresUnreachable,
            (None, Peer::Kafka) => ErrorCode::KafkaUnreachable,
        }
    }

    /// As lines for a person, after a command that does not try again.
    pub fn in_lines(&self) -> String {
        match &self.refusal {
            Some(refusal) => refusal.in_lines(),
            None => {
                format!("{}: {self}\n{}", self.code(), Remedy::from(self.peer.if_unreachable()).in_lines())
            }
        }
    }

    /// A failure of Postgres, which may have said that it is unavailable.
    pub fn of_postgres(what: impl Into<String>, unavailable: bool) -> Self {
        Transient { unavailable, ..Transient::new(Peer::Postgres, what) }
    }
}

/// The exit code that a definite failure ends the process with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// A server gave a definite answer at start: password, privilege, `wal_level`, a missing table.
    Refused = 1,
    /// Known without asking a server: usage, configuration.
    Usage = 2,
    /// Going on could lose events.
    Unsafe = 3,
}

/// A failure that stays until somebody acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definite {
    /// Which failure.
    pub code: ErrorCode,
    /// How the process ends.
    pub exit: Exit,
    /// What was found and where, as one sentence without a full stop.
    pub what: String,
    /// What it means for events.
    pub events: Events,
    /// What to do about it.
    pub remedy: Remedy,
}

/// What a failure means for events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events {
    /// The kind of harm.
    pub effect: Effect,
    /// Which events, as a clause; empty if that is clear.
    pub which: Cow<'static, str>,
}

impl Events {
    /// A line for a person; nothing if no event is affected.
    pub fn in_line(&self) -> String {
        match self.effect {
            Effect::None => String::new(),
            _ => format!("  Events: {self}\n"),
        }
    }

    /// The same for a router without a slot: nothing waits in the log for it.
    pub fn without_slot(self) -> Self {
        match self.effect {
            Effect::Late => Events { effect: Effect::Lost, which: UNRETAINED.into() },
            _ => self,
        }
    }
}

impl From<ErrorCode> for Events {
    fn from(code: ErrorCode) -> Self {
        Events { effect: code.effect(), which: code.meaning().into() }
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.effect.in_words())?;
        if !self.which.is_empty() {
            write!(f, ": {}", self.which)?;
        }
        Ok(())
    }
}

impl Definite {
    /// As lines for a person: what was found, what it means for events, and the steps.
    pub fn in_lines(&self) -> String {
        let Definite { code, what, events, remedy, .. } = self;
        format!("{code}: {what}\n{}{}", events.in_line(), remedy.in_lines())
    }

    /// What `--json` shows.
    fn parts(&self) -> (ErrorCode, &str, Events, Remedy) {
        (self.code, &self.what, self.events.clone(), self.remedy.clone())
    }
}

/// On one line.
impl fmt::Display for Definite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Definite { code, what, events, remedy, .. } = self;
        write!(f, "{code}: {what}. ")?;
        if events.effect != Effect::None {
            write!(f, "Events: {events}. ")?;
        }
        write!(f, "{remedy}")
    }
}

impl std::error::Error for Definite {}

/// A failure of either kind.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Try again.
    #[error(transparent)]
    Transient(#[from] Transient),
    /// Stop and say what to do.
    #[error(transparent)]
    Definite(#[from] Definite),
}

impl Error {
    /// A failure of `peer` that may pass by itself.
    pub fn transient(peer: Peer, what: impl Into<String>) -> Self {
        Transient::new(peer, what).into()
    }

    /// A definite answer of a server at start.
    pub fn refused(code: ErrorCode, what: impl Into<String>, remedy: impl Into<Remedy>) -> Self {
        Self::definite(code, Exit::Refused, what, remedy)
    }

    /// A definite answer of a server that passes once somebody acts elsewhere, so that a router waits for it.
    pub fn refused_for_now(code: ErrorCode, what: impl Into<String>, remedy: impl Into<Remedy>) -> Self {
        match Self::refused(code, what, remedy) {
            Error::Definite(refusal) => Transient::from_refusal(refusal).into(),
            transient => transient,
        }
    }

    /// A fault of usage or configuration, known without a server.
    pub fn usage(code: ErrorCode, what: impl Into<String>, remedy: impl Into<Remedy>) -> Self {
        Self::definite(code, Exit::Usage, what, remedy)
    }

    /// A finding that makes it unsafe to go on.
    pub fn not_safe(code: ErrorCode, what: impl Into<String>, remedy: impl Into<Remedy>) -> Self {
        Self::definite(code, Exit::Unsafe, what, remedy)
    }

    /// The same, if it is definite, with another code.
    pub fn with_code(self, code: ErrorCode) -> Self {
        match self {
            Error::Definite(definite) => Definite { code, events: code.into(), ..definite }.into(),
            transient => transient,
        }
    }

    /// The same, if it is definite, with what it means for events in this case.
    pub fn meaning(self, effect: Effect, which: impl Into<Cow<'static, str>>) -> Self {
        match self {
            Error::Definite(definite) => {
                Definite { events: Events { effect, which: which.into() }, ..definite }.into()
            }
            transient => transient,
        }
    }

    /// The same for a database without a router: no events wait for one.
    pub fn without_router(self) -> Self {
        match self {
            Error::Definite(definite) if definite.events.effect == Effect::Late => {
                Error::Definite(definite).meaning(Effect::None, "")
            }
            other => other,
        }
    }

    /// The same for a router without a slot: nothing waits in the log for it.
    pub fn without_slot(self) -> Self {
        match self {
            Error::Definite(definite) => {
                Definite { events: definite.events.without_slot(), ..definite }.into()
            }
            transient => transient,
        }
    }

    fn definite(code: ErrorCode, exit: Exit, what: impl Into<String>, remedy: impl Into<Remedy>) -> Self {
        Definite {
            code,
            exit,
            what: without_numbers(what.into()),
            events: code.into(),
            remedy: remedy.into(),
        }
        .into()
    }
}

/// Removes the numbers of the operating system's errors, as in "No such file or directory (os error 2)", which say nothing to a person.
pub(crate) fn without_numbers(what: String) -> String {
    const BEGINNING: &str = " (os error ";
    let mut parts = what.split(BEGINNING);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| match part.split_once(')') {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => text + rest,
        _ => text + BEGINNING + part,
    })
}

/// The keys of a failed command's `--json`, which must not change.
#[derive(Serialize)]
struct Json<'a> {
    error_code: ErrorCode,
    message: &'a str,
    effect: Effect,
    events: String,
    ways: Remedy,
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (error_code, message, events, ways) = match self {
            Error::Definite(definite) => definite.parts(),
            Error::Transient(Transient { refusal: Some(refusal), .. }) => refusal.parts(),
            Error::Transient(transient) => {
                let code = transient.code();
                (code, transient.what.as_str(), code.into(), transient.peer.if_unreachable().into())
            }
        };
        let Events { effect, .. } = events;
        Json { error_code, message, effect, events: events.to_string(), ways }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_in_the_log_is_not_retained_without_a_slot() {
        for (code, effect) in [
            (ErrorCode::ColumnUnusable, Effect::Lost),
            (ErrorCode::PostgresRefused, Effect::Lost),
            (ErrorCode::TableMissing, Effect::Lost),
            (ErrorCode::CommandLine, Effect::None),
            (ErrorCode::LogMismatch, Effect::Doubled),
        ] {
            let Error::Definite(refusal) = Error::refused(code, "x", "act").without_slot() else { panic!() };
            assert_eq!(refusal.events.effect, effect, "{refusal}");
            assert!(!refusal.to_string().contains("wait in the log"), "{refusal}");
        }
    }

    #[test]
    fn the_operating_systems_number_is_left_out() {
        for (what, expected) in [
            (
                "cannot read a: No such file or directory (os error 2)",
                "cannot read a: No such file or directory",
            ),
            ("a (os error 2); b (os error 13): c", "a; b: c"),
            ("a (os error x); b (os error 2", "a (os error x); b (os error 2"),
        ] {
            assert_eq!(Error::transient(Peer::Postgres, what).to_string(), expected);
            let refused = Error::refused(ErrorCode::InputOutput, what, "act").to_string();
            assert!(refused.contains(&format!("{expected}. ")), "{refused}");
        }
    }
}
