//! What a failure means for the caller: wait and try again, or stop and tell a person.
//!
//! A function that talks to Postgres or Kafka returns [`Error`], so that its caller must decide between
//! [`Transient`] and [`Definite`]. Both hold one sentence for the operator; neither ever holds a secret or a payload.

use std::fmt;

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
}

impl Transient {
    /// A failure of a server that did not say that it is unavailable.
    pub fn new(peer: Peer, what: impl Into<String>) -> Self {
        Transient { peer, what: what.into(), unavailable: false }
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
    /// How the process ends.
    pub exit: Exit,
    /// What was found and where, as one sentence without a full stop.
    pub what: String,
    /// What to do about it, as one sentence without a full stop.
    pub remedy: String,
}

impl fmt::Display for Definite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}", self.what, self.remedy)
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
    pub fn refused(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::definite(Exit::Refused, what, remedy)
    }

    /// A fault of usage or configuration, known without a server.
    pub fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::definite(Exit::Usage, what, remedy)
    }

    /// A finding that makes it unsafe to go on.
    pub fn not_safe(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::definite(Exit::Unsafe, what, remedy)
    }

    /// The same, if it is definite, as a finding that makes it unsafe to go on.
    pub fn unsafe_to_go_on(self) -> Self {
        match self {
            Error::Definite(definite) => Definite { exit: Exit::Unsafe, ..definite }.into(),
            transient => transient,
        }
    }

    fn definite(exit: Exit, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Definite { exit, what: what.into(), remedy: remedy.into() }.into()
    }
}
