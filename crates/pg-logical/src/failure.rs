//! Why an attempt to connect failed, what to try next, and what the operator should do.

use std::io;

use postgres_protocol::message::backend::ErrorResponseBody;
use tokio_postgres::error::SqlState;

use super::query_error::QueryError;
use super::server_error::{ErrorKind, ServerError, io_reason, is_unavailable};
use super::startup::Startup;
use super::tls::alert::client_certificate_refused;
use crate::conninfo::ConnInfo;
use crate::error::{Definite, Error, Remedy, Transient};

/// Where the search continues after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The same address with the other choice of TLS.
    Encryption,
    /// The next address of this host, or the next host.
    Address,
    /// The next host.
    Host,
    /// The search ends.
    Stop,
}

/// Why one attempt failed.
#[derive(Debug)]
pub(super) struct Failure {
    cause: Cause,
    /// Text that follows the cause.
    addition: String,
    pub(super) next: Next,
}

#[derive(Debug)]
enum Cause {
    Server(Box<ServerError>),
    Client(Error),
}

impl Failure {
    /// A failure that ends the search.
    pub(super) fn stop(error: Error) -> Self {
        Failure { cause: Cause::Client(error), addition: String::new(), next: Next::Stop }
    }

    /// A definite failure that the client found, which ends the search.
    pub(super) fn definite(what: impl Into<String>, remedy: Remedy) -> Self {
        Failure::stop(Error::definite(what, remedy))
    }

    /// A failure of this address that may pass; the next address is tried.
    pub(super) fn transient(what: impl Into<String>) -> Self {
        let cause = Cause::Client(Error::transient(what));
        Failure { cause, addition: String::new(), next: Next::Address }
    }

    /// A failure to connect to a unix socket.
    pub(super) fn of_socket(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::transient("no such socket: no server runs there, or it uses another directory")
            }
            io::ErrorKind::PermissionDenied => {
                let mut failure = Failure::definite("permission denied", Remedy::SocketPermission);
                failure.next = Next::Address;
                failure
            }
            _ => Failure::transient(io_reason(error)),
        }
    }

    /// An error from the server.
    pub(super) fn from_server(body: &ErrorResponseBody) -> Self {
        ServerError::from_fields(body.fields()).into()
    }

    /// The other choice of TLS is tried next.
    pub(super) fn or_other_encryption(mut self) -> Self {
        self.next = Next::Encryption;
        self
    }

    /// There is no other choice of TLS.
    pub(super) fn without_another_encryption(mut self) -> Self {
        let definite = match &self.cause {
            Cause::Server(error) => error.kind() == ErrorKind::Definite,
            Cause::Client(error) => matches!(error, Error::Definite(_)),
        };
        self.next = if definite { Next::Stop } else { Next::Address };
        self
    }

    /// The server has received the password or a proof of it, so the other choice of TLS is not tried.
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

    /// Adds an earlier failure on the same address to the message. `how` is how that attempt differed.
    pub(super) fn after(mut self, first: &Failure, how: &str) -> Self {
        self.addition.push_str(&format!(" (before that, {how}: {})", first.reason()));
        self
    }

    pub(super) fn reason(&self) -> String {
        let what = match &self.cause {
            Cause::Server(error) => error.to_string(),
            Cause::Client(error) => error.what().to_owned(),
        };
        what + &self.addition
    }

    pub(super) fn into_error(self, conninfo: &ConnInfo, startup: &Startup<'_>) -> Error {
        let what = self.reason();
        match self.cause {
            Cause::Client(Error::Transient(transient)) => Transient { what, ..transient }.into(),
            Cause::Client(Error::Definite(definite)) => Definite { what, ..definite }.into(),
            Cause::Server(error) => match error.kind() {
                ErrorKind::Transient => {
                    Transient { what, unavailable: is_unavailable(&error.code), server: Some(error) }.into()
                }
                ErrorKind::Definite => {
                    let remedy = remedy(&error, conninfo, startup);
                    Definite { what, remedy, server: Some(error) }.into()
                }
            },
        }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let next = match error.kind() {
            ErrorKind::Definite => Next::Encryption,
            ErrorKind::Transient if error.code == SqlState::CANNOT_CONNECT_NOW => Next::Host,
            ErrorKind::Transient => Next::Address,
        };
        Failure { cause: Cause::Server(Box::new(error)), addition: String::new(), next }
    }
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Server { error, .. } => Failure { next: Next::Host, ..(*error).into() },
            QueryError::Connection(error) => {
                Failure { cause: Cause::Client(error), addition: String::new(), next: Next::Host }
            }
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if let Some(refusal) = client_certificate_refused(&error) {
            return Failure::stop(refusal).or_other_encryption();
        }
        let inner_is_tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
        match error.kind() {
            io::ErrorKind::InvalidInput => Failure::definite(
                format!("the connection parameters cannot be sent: {error}"),
                Remedy::RemoveZeroByte,
            ),
            io::ErrorKind::InvalidData if !inner_is_tls => {
                Failure::definite(error.to_string(), Remedy::CheckServer)
            }
            _ => Failure::transient(io_reason(&error)),
        }
    }
}

/// The server sent a message that is not valid at this point.
pub(super) fn unexpected() -> Failure {
    Failure::definite("the server's answer does not follow the protocol", Remedy::CheckServerAndProxies)
}

/// The remedy for an error that the server returned during startup.
fn remedy(error: &ServerError, conninfo: &ConnInfo, startup: &Startup<'_>) -> Remedy {
    if error.is_pooler_refusal() {
        return Remedy::AvoidPooler;
    }
    let (user, dbname) = (conninfo.user.clone(), conninfo.dbname.clone());
    match error.code.code() {
        "28P01" => Remedy::CorrectPassword { user },
        "28000" => Remedy::AllowLogin { user, dbname },
        "3D000" => Remedy::CorrectDatabase { dbname },
        "42501" => Remedy::GrantConnect { user, dbname, replication: startup.replication },
        "42704" | "22023" | "55P02" => Remedy::CorrectOptions,
        _ => Remedy::FollowServerHint,
    }
}
