//! How to connect to Postgres: libpq's connection parameters.
//!
//! Names, defaults and precedence are libpq's (Postgres manual, "Database Connection Control Functions").

mod file;
mod keyword_value;
mod keywords;
mod nearest;
mod resolve;
#[cfg(test)]
mod tests;
mod uri;
mod write;

use std::path::PathBuf;
use std::time::Duration;

use keywords::Parameters;
pub use nearest::nearest;

use crate::environment::Environment;
use crate::error::InvalidConnInfo;
use crate::secret::Secret;

/// A connection string, completed by environment and defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnInfo {
    /// The hosts in the order to try.
    pub hosts: Vec<Host>,
    /// `user`
    pub user: String,
    /// `dbname`
    pub dbname: String,
    /// `password`, `password_file`, a program or `PGPASSWORD`; `None`: look in the passfile.
    pub password: Option<Password>,
    /// The file that the string was read from, if user and password may be replaced there.
    pub file: Option<PathBuf>,
    /// `passfile`, default `~/.pgpass`.
    pub passfile: Option<PathBuf>,
    /// `sslmode`
    pub ssl_mode: SslMode,
    /// `sslrootcert`
    pub ssl_root_cert: Option<RootCert>,
    /// `sslcert` and `sslkey`: the client's own certificate.
    pub ssl_client: Option<(PathBuf, PathBuf)>,
    /// `channel_binding`
    pub channel_binding: ChannelBinding,
    /// `target_session_attrs`
    pub target_session_attrs: TargetSessionAttrs,
    /// `connect_timeout`, per host. `None`: wait as long as TCP does.
    pub connect_timeout: Option<Duration>,
    /// `application_name`; `None`: the program's own.
    pub application_name: Option<String>,
    /// `options`: command-line options for the server process.
    pub options: Option<String>,
    /// How TCP notices a lost server.
    pub tcp: Tcp,
}

impl ConnInfo {
    /// With several hosts, selects the primary unless `target_session_attrs` is set: the slot is there, and a standby may lag
    /// behind.
    pub fn prefer_primary(mut self) -> Self {
        if self.hosts.len() > 1 && self.target_session_attrs == TargetSessionAttrs::Any {
            self.target_session_attrs = TargetSessionAttrs::Primary;
        }
        self
    }

    /// `sslmode`, made stricter by `sslrootcert=system`: public authorities sign for anybody, so the name must match.
    pub(crate) fn effective_ssl_mode(&self) -> SslMode {
        match self.ssl_root_cert {
            Some(RootCert::System) => SslMode::VerifyFull,
            _ => self.ssl_mode,
        }
    }

    /// Reads a connection string (a URI or keyword=value pairs), and completes it with the `PG*` variables and libpq's
    /// defaults.
    ///
    /// # Errors
    /// The string or a variable is invalid or requires something that is not supported.
    pub fn parse(text: &str, env: &Environment) -> Result<Self, InvalidConnInfo> {
        Self::parse_with(text, None, env)
    }

    /// The same, with a password that is configured outside of the string.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_with(
        text: &str,
        password: Option<Password>,
        env: &Environment,
    ) -> Result<Self, InvalidConnInfo> {
        resolve::resolve(parameters(text)?, password, env)
    }
}

/// The password that the string itself contains.
pub fn password_in(text: &str) -> Option<Secret> {
    let parameters = parameters(text).ok()?;
    let password = parameters.get("password").filter(|_| parameters.in_string("password"));
    password.map(Secret::new)
}

fn parameters(text: &str) -> Result<Parameters, InvalidConnInfo> {
    // a zero byte would end a value in the startup message, and the rest would become another parameter
    if text.contains('\0') {
        return Err(InvalidConnInfo::new("it contains a zero byte", "Remove it"));
    }
    if uri::is_uri(text) {
        uri::parse(text)
    } else if text.contains('=') || text.trim().is_empty() {
        keyword_value::parse(text)
    } else {
        Err(InvalidConnInfo::new(
            "it is neither a URI nor keyword=value pairs",
            "Write it as postgres://user@host/database or as host=... user=... dbname=...",
        ))
    }
}

/// libpq's TCP parameters. `None` means the system's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tcp {
    /// `keepalives`: whether TCP keepalives are sent. Default true.
    pub keepalives: bool,
    /// `keepalives_idle`: how long the connection is idle before the first keepalive.
    pub keepalives_idle: Option<Duration>,
    /// `keepalives_interval`: the time between unanswered keepalives.
    pub keepalives_interval: Option<Duration>,
    /// `keepalives_count`: how many keepalives go unanswered before the connection counts as lost.
    pub keepalives_count: Option<u32>,
    /// `tcp_user_timeout`: how long sent data may remain unacknowledged.
    pub tcp_user_timeout: Option<Duration>,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            keepalives: true,
            keepalives_idle: None,
            keepalives_interval: None,
            keepalives_count: None,
            tcp_user_timeout: None,
        }
    }
}

/// One host to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its address.
    pub addr: HostAddr,
    /// The port, which is part of the file name for a unix socket.
    pub port: u16,
}

/// A host's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAddr {
    /// A DNS name or an IP address. `hostaddr`, if given, is the address to connect to; `name` is checked against the
    /// certificate.
    Tcp {
        /// `host`
        name: String,
        /// `hostaddr`
        hostaddr: Option<String>,
    },
    /// The directory of a unix socket.
    Unix(PathBuf),
}

/// Where a password comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Password {
    /// In the connection string or in `PGPASSWORD`.
    Given(Secret),
    /// A file, which is read again for each connection in case the password was rotated.
    File(PathBuf),
    /// A program and its arguments, run for each connection: it prints the password.
    Command(Vec<String>),
}

/// `sslmode`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Never TLS.
    Disable,
    /// Without TLS first, then with TLS if the server refuses that.
    Allow,
    /// With TLS first, then without TLS if the server does not support it (libpq's default).
    Prefer,
    /// TLS with any server; with a root certificate, as `verify-ca`.
    Require,
    /// TLS with a certificate signed by a trusted authority.
    VerifyCa,
    /// The same, and the certificate must name the host.
    VerifyFull,
}

/// `sslrootcert`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootCert {
    /// `system`: the system's trust store.
    System,
    /// A PEM file.
    File(PathBuf),
}

/// `channel_binding`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// If the server offers it (the default).
    Prefer,
    /// Always; refuse a server that does not offer it.
    Require,
}

/// `target_session_attrs`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetSessionAttrs {
    /// Any server (the default).
    Any,
    /// Not in hot standby and not read-only by default.
    ReadWrite,
    /// The opposite of read-write.
    ReadOnly,
    /// Not in hot standby.
    Primary,
    /// In hot standby.
    Standby,
    /// A standby if there is one, else any.
    PreferStandby,
}
