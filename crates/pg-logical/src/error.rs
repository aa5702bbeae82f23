//! Errors, which either may pass by themselves or stay until somebody acts.

use std::fmt;

use tokio_postgres::error::SqlState;

use crate::server_error::{ErrorKind, ServerError};

/// A failure that may pass by itself: a lost connection, a restarting server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Transient {
    /// What happened and where, as one sentence without a full stop.
    pub what: String,
    /// Whether the server said that it is shutting down, has crashed or is not up yet. A server that is shutting down waits
    /// for its replication sessions to end.
    pub unavailable: bool,
    /// The server's message, if there is one.
    pub server: Option<Box<ServerError>>,
}

/// A failure that stays until somebody acts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Definite {
    /// What was found and where, as one sentence without a full stop.
    pub what: String,
    /// What kind of remedy there is.
    pub remedy: Remedy,
    /// The server's message, if there is one.
    pub server: Option<Box<ServerError>>,
}

/// A failure of either kind. No message contains a secret or the contents of a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Try again.
    #[error(transparent)]
    Transient(#[from] Transient),
    /// Stop, and tell the user what to do.
    #[error(transparent)]
    Definite(#[from] Definite),
}

impl Error {
    /// A failure that may pass by itself.
    pub fn transient(what: impl Into<String>) -> Self {
        Transient { what: what.into(), unavailable: false, server: None }.into()
    }

    /// A failure that stays until somebody acts.
    pub fn definite(what: impl Into<String>, remedy: Remedy) -> Self {
        Definite { what: what.into(), remedy, server: None }.into()
    }

    /// What happened.
    pub fn what(&self) -> &str {
        match self {
            Error::Transient(error) => &error.what,
            Error::Definite(error) => &error.what,
        }
    }

    /// The server's message, if there is one.
    pub fn server_error(&self) -> Option<&ServerError> {
        match self {
            Error::Transient(error) => error.server.as_deref(),
            Error::Definite(error) => error.server.as_deref(),
        }
    }

    /// The SQLSTATE, if there is a message of the server.
    pub fn code(&self) -> Option<&SqlState> {
        self.server_error().map(|error| &error.code)
    }

    /// An error from the server `at` a place, such as "postgres at db:5432"; `remedy` is used if the error is definite.
    pub(crate) fn of_server(at: &str, error: ServerError, remedy: Remedy) -> Self {
        let what = format!("{at}: {error}");
        let kind = error.kind();
        let server = Some(Box::new(error));
        match kind {
            ErrorKind::Transient => Transient { what, unavailable: false, server }.into(),
            ErrorKind::Definite => Definite { what, remedy, server }.into(),
        }
    }
}

/// What to do about a definite failure. The program puts it into words, because it knows the names of its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// Name a host: the list is empty.
    NameHost,
    /// Put names into `host` and numeric addresses into `hostaddr`.
    NumericAddress,
    /// Let the user of this process enter the socket's directory and write to the socket.
    SocketPermission,
    /// Check host and port: it does not seem to be a Postgres server.
    CheckServer,
    /// Check host and port: it is not a Postgres server, or a proxy changes the messages.
    CheckServerAndProxies,
    /// Connect to the server itself rather than to a pooler.
    AvoidPooler,
    /// Remove the zero byte from user, database, password, `application_name` or `options`.
    RemoveZeroByte,
    /// Correct this user's password here or on the server.
    CorrectPassword {
        /// The user.
        user: String,
    },
    /// Allow the user to log in: the role exists, has LOGIN, and `pg_hba.conf` has a line for it.
    AllowLogin {
        /// The user.
        user: String,
        /// The database.
        dbname: String,
    },
    /// Create the database, or correct its name.
    CorrectDatabase {
        /// The database.
        dbname: String,
    },
    /// Grant the user what it needs to connect.
    GrantConnect {
        /// The user.
        user: String,
        /// The database.
        dbname: String,
        /// Whether it wants a replication session, which requires the attribute REPLICATION.
        replication: bool,
    },
    /// Correct `options`, or use a newer server.
    CorrectOptions,
    /// Do what the server's hint or SQLSTATE suggests.
    FollowServerHint,
    /// Set a password: the server requires one.
    SetPassword,
    /// Make the password file readable and not empty.
    PasswordFile,
    /// Configure a program that can be run, and prints the password and nothing else.
    PasswordCommand,
    /// Configure `pg_hba.conf` to require a password or a certificate.
    PasswordMethod {
        /// The user.
        user: String,
    },
    /// Configure `pg_hba.conf` to require SCRAM.
    Scram,
    /// Configure `pg_hba.conf` to require SCRAM over TLS and set the password again, or relax `channel_binding`.
    ScramOverTls,
    /// Connect with TLS to a server that offers channel binding, or relax `channel_binding`.
    ChannelBinding,
    /// Connect past the proxy that terminates TLS, or do without channel binding.
    BypassTlsTermination,
    /// Make sure that this is the right server: it does not know the password.
    CheckServerIdentity,
    /// Enable TLS on the server, or relax `sslmode`.
    ServerTls,
    /// Install the system's trusted authorities, or name a file.
    SystemRoots,
    /// Set `sslrootcert`.
    SetRootCertificate,
    /// Put certificates of authorities into the file in `sslrootcert`.
    RootCertificates,
    /// No remedy: this is a bug.
    ReportBug,
    /// Set `sslkey` to the key of the first certificate in `sslcert`.
    MatchKey,
    /// Make the file that this parameter names a readable PEM file.
    PemFile {
        /// `sslrootcert`, `sslcert` or `sslkey`.
        parameter: &'static str,
    },
    /// Make `sslkey` unreadable for others.
    ProtectKey,
    /// Set `sslcert` and `sslkey` to a certificate that the server trusts.
    ClientCertificate,
    /// Allow TLS 1.2 or later on the server.
    TlsVersion,
    /// Connect with a name that is in the server's certificate.
    CertificateName {
        /// The name that is not in it.
        host: String,
    },
    /// Trust the self-signed certificate with `sslrootcert`, if it is known.
    TrustSelfSigned,
    /// Set `sslrootcert` to the authority that signed the server's certificate.
    TrustAuthority,
    /// Renew the server's certificate, or set the clock.
    RenewCertificate,
    /// Set the clock, or replace the server's certificate.
    SetClock,
    /// Give the server a certificate for server authentication.
    ServerCertificate,
    /// Find the rows behind this place by other means: the stream cannot be read past it.
    StreamEnded,
}

/// A connection string that is invalid, or inconsistent with the environment. It never contains a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidConnInfo {
    /// What is wrong, as a clause after a colon.
    pub what: String,
    /// What to do about it, in terms of the string and libpq's variables.
    pub remedy: String,
    /// The parameter, if libpq supports it and this crate does not.
    pub unsupported: Option<&'static str>,
}

impl InvalidConnInfo {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        InvalidConnInfo { what: what.into(), remedy: remedy.into(), unsupported: None }
    }
}

impl fmt::Display for InvalidConnInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "The connection string: {}. {}", self.what, self.remedy)
    }
}

impl std::error::Error for InvalidConnInfo {}
