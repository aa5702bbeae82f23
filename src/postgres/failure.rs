//! Why one attempt to connect failed, what may be tried after it, and what the operator should do.

use std::io;

use postgres_protocol::message::backend::ErrorResponseBody;
use tokio_postgres::error::SqlState;

use super::connect::Startup;
use super::server_error::{Outlook, QueryError, ServerError, io_reason, leaves};
use super::tls;
use crate::config::conninfo::ConnInfo;
use crate::error::{Definite, Error, Peer, Transient};

/// Where the search goes after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The same address with the other choice of TLS.
    Encryption,
    /// The next address of this host, or the next host.
    Address,
    /// The next host.
    Host,
    /// Nowhere.
    Stop,
}

/// Why one attempt failed.
#[derive(Debug)]
pub(super) struct Failure {
    cause: Cause,
    /// Words that follow the cause.
    addition: String,
    pub(super) next: Next,
}

#[derive(Debug)]
enum Cause {
    Server(Box<ServerError>),
    Ours(Error),
}

impl Failure {
    /// Ends the search.
    pub(super) fn stop(error: Error) -> Self {
        Failure { cause: Cause::Ours(error), addition: String::new(), next: Next::Stop }
    }

    /// A definite failure found on this side.
    pub(super) fn refused(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Failure::stop(Error::refused(what, remedy))
    }

    /// A failure of this address alone that may pass.
    pub(super) fn passing(what: impl Into<String>) -> Self {
        let cause = Cause::Ours(Error::transient(Peer::Postgres, what));
        Failure { cause, addition: String::new(), next: Next::Address }
    }

    /// A failure to connect a unix socket.
    pub(super) fn of_socket(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::passing("no such socket: no server runs there, or it has another directory")
            }
            io::ErrorKind::PermissionDenied => {
                let remedy = "Let the router's user enter the socket's directory and write to the socket";
                let mut failure = Failure::refused("permission denied", remedy);
                failure.next = Next::Address;
                failure
            }
            _ => Failure::passing(io_reason(error)),
        }
    }

    /// What the server answered.
    pub(super) fn from_server(body: &ErrorResponseBody) -> Self {
        ServerError::from_fields(body.fields()).into()
    }

    /// Another choice of TLS may do.
    pub(super) fn or_other_encryption(mut self) -> Self {
        self.next = Next::Encryption;
        self
    }

    /// There was none.
    pub(super) fn without_another_encryption(mut self) -> Self {
        let lasting = match &self.cause {
            Cause::Server(error) => error.outlook() == Outlook::Lasting,
            Cause::Ours(error) => matches!(error, Error::Definite(_)),
        };
        self.next = if lasting { Next::Stop } else { Next::Address };
        self
    }

    /// The server has seen the password by now, or a proof of it: nothing more is tried with it there.
    pub(super) fn after_login(mut self) -> Self {
        if self.next == Next::Encryption {
            self.next = Next::Stop;
        }
        self
    }

    /// The server refused the password that came from `origin`.
    pub(super) fn after_password(mut self, origin: &str) -> Self {
        if matches!(&self.cause, Cause::Server(error) if error.code == SqlState::INVALID_PASSWORD) {
            self.addition = format!(", with {origin}");
        }
        self.after_login()
    }

    /// The later of two failures on one address tells both.
    pub(super) fn after(mut self, first: &Failure, how: &str) -> Self {
        self.addition.push_str(&format!(" (before that, {how}: {})", first.reason()));
        self
    }

    pub(super) fn reason(&self) -> String {
        let what = match &self.cause {
            Cause::Server(error) => error.to_string(),
            Cause::Ours(Error::Transient(error)) => error.what.clone(),
            Cause::Ours(Error::Definite(error)) => error.what.clone(),
        };
        what + &self.addition
    }

    pub(super) fn into_error(self, conninfo: &ConnInfo, startup: &Startup<'_>) -> Error {
        let what = self.reason();
        match self.cause {
            Cause::Ours(Error::Transient(transient)) => Transient { what, ..transient }.into(),
            Cause::Ours(Error::Definite(definite)) => Definite { what, ..definite }.into(),
            Cause::Server(error) => match error.outlook() {
                Outlook::Passing => Transient::of_postgres(what, leaves(&error.code)).into(),
                Outlook::Lasting => Error::refused(what, remedy(&error, conninfo, startup)),
            },
        }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let next = match error.outlook() {
            Outlook::Lasting => Next::Encryption,
            Outlook::Passing if error.code == SqlState::CANNOT_CONNECT_NOW => Next::Host,
            Outlook::Passing => Next::Address,
        };
        Failure { cause: Cause::Server(Box::new(error)), addition: String::new(), next }
    }
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Server { error, .. } => Failure { next: Next::Host, ..(*error).into() },
            QueryError::Connection(error) => {
                Failure { cause: Cause::Ours(error), addition: String::new(), next: Next::Host }
            }
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if let Some(refusal) = tls::client_certificate_refused(&error) {
            return Failure::stop(refusal).or_other_encryption();
        }
        let inner_is_tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
        match error.kind() {
            io::ErrorKind::InvalidInput => Failure::refused(
                format!("the connection parameters cannot be sent: {error}"),
                "Remove the zero byte from user, database, password, application_name or options",
            ),
            io::ErrorKind::InvalidData if !inner_is_tls => {
                Failure::refused(error.to_string(), "Check host and port: is that a Postgres server?")
            }
            _ => Failure::passing(io_reason(&error)),
        }
    }
}

/// A message that has no place where it came.
pub(super) fn unexpected() -> Failure {
    Failure::refused(
        "the server's answer does not follow the protocol",
        "Check host and port: is that a Postgres server, and nothing in between?",
    )
}

/// What to do about a refusal at startup.
fn remedy(error: &ServerError, conninfo: &ConnInfo, startup: &Startup<'_>) -> String {
    let ConnInfo { user, dbname, .. } = conninfo;
    if error.refused_by_a_pooler() {
        return "Connect to Postgres itself: a pooler such as PgBouncer carries no replication session"
            .to_owned();
    }
    match error.code.code() {
        "28P01" => format!(
            "Correct the password (postgres.url, postgres.password_file, PGPASSWORD or the passfile), or on the server: ALTER ROLE \"{user}\" PASSWORD '...'"
        ),
        "28000" => format!(
            "Make sure that role \"{user}\" exists (`outbox-router init --url ADMINISTRATOR --role {user}` makes it) and may log in, that pg_hba.conf (then SELECT pg_reload_conf()) has a line for it, for database \"{dbname}\", for this client's address and for this sslmode, and that sslcert is set if the line asks for a certificate"
        ),
        "3D000" => format!("Create database \"{dbname}\", or correct the database's name in postgres.url"),
        "42501" if startup.replication => format!(
            "As a superuser: ALTER ROLE \"{user}\" LOGIN REPLICATION; GRANT CONNECT ON DATABASE \"{dbname}\" TO \"{user}\" (managed services: GRANT rds_replication and the like)"
        ),
        "42501" => format!("As a superuser: GRANT CONNECT ON DATABASE \"{dbname}\" TO \"{user}\""),
        "42704" | "22023" | "55P02" => {
            "Correct options in postgres.url, or use a Postgres from 14 on".to_owned()
        }
        _ => error.general_remedy(),
    }
}
