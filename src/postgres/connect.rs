//! The order in which a connection is tried, and what each failure means for the next attempt.
//!
//! As libpq (Postgres manual, "Specifying Multiple Hosts"): every host in turn, every address of it, with and without TLS
//! as `sslmode` says. What concerns one server alone (unreachable, starting up, full, not of the wanted kind) moves on
//! to the next; a definite answer (wrong password, no such database, a certificate that does not hold) ends the search,
//! so that no password is tried on one server after another. Unlike libpq, a password that was refused over TLS is
//! never sent again without.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use postgres_protocol::message::backend::ErrorResponseBody;
use tokio::net;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tracing::debug;

use super::auth::Login;
use super::server_error::{Outlook, QueryError, ServerError, io_reason};
use super::session::Session;
use super::stream::{self, Stream};
use super::tls;
use crate::config::conninfo::{ConnInfo, Host, HostAddr, RootCert, SslMode, TargetSessionAttrs};
use crate::error::{Definite, Error, Peer, Transient};

/// What a session is for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Startup<'a> {
    /// `replication=database`: a walsender session, which takes replication commands and SQL alike.
    pub replication: bool,
    /// `application_name`, unless the connection string has one.
    pub application_name: &'a str,
    /// Settings of the session, name and value; they win over those in the connection string's `options`.
    pub settings: &'a [(&'a str, &'a str)],
}

/// Opens a session with the first server of `conninfo` that takes us and is of the wanted kind.
///
/// # Errors
/// One error that lists every attempt with its reason: transient if a later try may succeed, else definite.
pub async fn connect(conninfo: &ConnInfo, startup: &Startup<'_>) -> Result<Session, Error> {
    let mut attempts = Attempts::default();
    for &wanted in passes(conninfo.target_session_attrs) {
        for host in &conninfo.hosts {
            match try_host(conninfo, host, startup, wanted, &mut attempts).await {
                Search::Found(session) => return Ok(*session),
                Search::GoOn => {}
                Search::End => return Err(attempts.conclude(conninfo)),
            }
        }
    }
    Err(attempts.conclude(conninfo))
}

/// `prefer-standby` looks twice at the list.
fn passes(wanted: TargetSessionAttrs) -> &'static [TargetSessionAttrs] {
    use TargetSessionAttrs as Attrs;
    match wanted {
        Attrs::Any => &[Attrs::Any],
        Attrs::ReadWrite => &[Attrs::ReadWrite],
        Attrs::ReadOnly => &[Attrs::ReadOnly],
        Attrs::Primary => &[Attrs::Primary],
        Attrs::Standby => &[Attrs::Standby],
        Attrs::PreferStandby => &[Attrs::Standby, Attrs::Any],
    }
}

enum Search {
    Found(Box<Session>),
    GoOn,
    End,
}

async fn try_host(
    conninfo: &ConnInfo,
    host: &Host,
    startup: &Startup<'_>,
    wanted: TargetSessionAttrs,
    attempts: &mut Attempts,
) -> Search {
    let addresses = match resolve(conninfo, host).await {
        Ok(addresses) => addresses,
        Err(error) => {
            attempts.note(name(host), error);
            return Search::GoOn;
        }
    };
    for address in addresses {
        let place = place(host, &address);
        let target = Target { login: Login { conninfo, host }, address: &address, place: &place, startup };
        let opening = async {
            let mut session = target.open().await?;
            let mismatch = mismatch(wanted, &mut session).await?;
            Ok::<_, Failure>((session, mismatch))
        };
        let outcome = match conninfo.connect_timeout {
            None => opening.await,
            Some(limit) => timeout(limit, opening).await.unwrap_or_else(|_| {
                Err(Failure::passing(format!("no answer within {} s", limit.as_secs_f32())))
            }),
        };
        match outcome {
            Ok((session, None)) => return Search::Found(Box::new(session)),
            Ok((session, Some(mismatch))) => {
                session.close().await;
                attempts.note(place, Error::transient(Peer::Postgres, mismatch));
                return Search::GoOn;
            }
            Err(failure) => {
                let next = failure.next;
                attempts.note(place, failure.into_error(conninfo, startup));
                match next {
                    Next::Address => {}
                    Next::Host => return Search::GoOn,
                    Next::Stop | Next::Encryption => {
                        attempts.ended = true;
                        return Search::End;
                    }
                }
            }
        }
    }
    Search::GoOn
}

/// Where one attempt goes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

async fn resolve(conninfo: &ConnInfo, host: &Host) -> Result<Vec<Address>, Error> {
    let (name, hostaddr) = match &host.addr {
        HostAddr::Unix(directory) => {
            return Ok(vec![Address::Unix(directory.join(format!(".s.PGSQL.{}", host.port)))]);
        }
        HostAddr::Tcp { name, hostaddr } => (name, hostaddr),
    };
    if let Some(hostaddr) = hostaddr {
        let ip: IpAddr = hostaddr.parse().map_err(|_| {
            Error::refused(
                format!("hostaddr \"{hostaddr}\" is not an IP address"),
                "Put names into host and numeric addresses into hostaddr",
            )
        })?;
        return Ok(vec![Address::Tcp(SocketAddr::new(ip, host.port))]);
    }
    let lookup = net::lookup_host((name.as_str(), host.port));
    let found = match conninfo.connect_timeout {
        None => lookup.await,
        Some(limit) => match timeout(limit, lookup).await {
            Ok(found) => found,
            Err(_) => {
                let what = format!("no answer from DNS within {} s", limit.as_secs_f32());
                return Err(Error::transient(Peer::Postgres, what));
            }
        },
    };
    let found = found.map_err(|error| {
        let reason = error.to_string();
        let reason = reason.strip_prefix("failed to lookup address information: ").unwrap_or(&reason);
        Error::transient(Peer::Postgres, format!("cannot find the address of host \"{name}\": {reason}"))
    })?;
    Ok(found.map(Address::Tcp).collect())
}

/// Host and port as the user gave them.
fn name(host: &Host) -> String {
    match &host.addr {
        HostAddr::Tcp { name, .. } if name.contains(':') => format!("[{name}]:{}", host.port),
        HostAddr::Tcp { name, hostaddr } if name.is_empty() => {
            format!("{}:{}", hostaddr.as_deref().unwrap_or_default(), host.port)
        }
        HostAddr::Tcp { name, .. } => format!("{name}:{}", host.port),
        HostAddr::Unix(directory) => directory.join(format!(".s.PGSQL.{}", host.port)).display().to_string(),
    }
}

/// The same with the address that the name stands for.
fn place(host: &Host, address: &Address) -> String {
    let name = name(host);
    match address {
        Address::Tcp(socket) if socket.to_string() != name => format!("{name} ({})", socket.ip()),
        _ => name,
    }
}

/// With TLS or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encryption {
    Plain,
    /// With TLS; without it on the same connection if the server has none and `prefer` allows.
    Tls,
}

/// What to try on one address (Postgres manual, "SSL Mode Descriptions"). A unix socket has no TLS, whatever `sslmode` says.
fn encryptions(mode: SslMode, address: &Address) -> &'static [Encryption] {
    match (address, mode) {
        (Address::Unix(_), _) | (_, SslMode::Disable) => &[Encryption::Plain],
        (_, SslMode::Allow) => &[Encryption::Plain, Encryption::Tls],
        (_, SslMode::Prefer) => &[Encryption::Tls, Encryption::Plain],
        (_, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => &[Encryption::Tls],
    }
}

/// `sslmode`, as strict as `sslrootcert=system` makes it: a public authority signs for anybody, so the name must fit.
pub(super) fn ssl_mode(conninfo: &ConnInfo) -> SslMode {
    match conninfo.ssl_root_cert {
        Some(RootCert::System) => SslMode::VerifyFull,
        _ => conninfo.ssl_mode,
    }
}

/// One address of one host.
struct Target<'a> {
    login: Login<'a>,
    address: &'a Address,
    place: &'a str,
    startup: &'a Startup<'a>,
}

impl Target<'_> {
    async fn open(&self) -> Result<Session, Failure> {
        let choices = encryptions(ssl_mode(self.login.conninfo), self.address);
        let mut earlier: Option<Failure> = None;
        for &encryption in choices {
            match self.open_with(encryption).await {
                Ok(session) => return Ok(session),
                Err(failure) => {
                    let next = failure.next;
                    let failure = match earlier.take() {
                        None => failure,
                        Some(first) => failure.also(&first, encryption),
                    };
                    if next != Next::Encryption {
                        return Err(failure);
                    }
                    debug!("{}: {}", self.place, failure.reason());
                    earlier = Some(failure);
                }
            }
        }
        Err(earlier.map_or_else(unexpected, Failure::without_another_encryption))
    }

    async fn open_with(&self, encryption: Encryption) -> Result<Session, Failure> {
        let stream = match self.address {
            Address::Unix(path) => Stream::unix(path).await.map_err(|error| socket_failure(&error))?,
            Address::Tcp(address) => {
                let tcp = stream::tcp(*address).await?;
                match encryption {
                    Encryption::Plain => Stream::Tcp(tcp),
                    Encryption::Tls => tls::negotiate(tcp, self.login).await?,
                }
            }
        };
        let in_vain = encryption == Encryption::Tls && !stream.is_tls();
        Session::start(stream, self.login, self.place, self.startup).await.map_err(|mut failure| {
            // The server has no TLS, and without it was what failed just now.
            if in_vain && failure.next == Next::Encryption {
                failure.next = Next::Stop;
            }
            failure
        })
    }
}

fn socket_failure(error: &io::Error) -> Failure {
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

/// Where the search goes after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
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
    next: Next,
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
    fn without_another_encryption(mut self) -> Self {
        let lasting = match &self.cause {
            Cause::Server(error) => error.outlook() == Outlook::Lasting,
            Cause::Ours(error) => matches!(error, Error::Definite(_)),
        };
        self.next = if lasting { Next::Stop } else { Next::Address };
        self
    }

    /// The server knows the password by now, or a proof of it: it is not offered again.
    pub(super) fn after_password(mut self, origin: &str) -> Self {
        if self.next == Next::Encryption {
            self.next = Next::Stop;
        }
        if matches!(&self.cause, Cause::Server(error) if error.code == SqlState::INVALID_PASSWORD) {
            self.addition = format!(", with {origin}");
        }
        self
    }

    /// The later of two failures on one address tells both.
    fn also(mut self, first: &Failure, this: Encryption) -> Self {
        let how = match this {
            Encryption::Plain => "with TLS",
            Encryption::Tls => "without TLS",
        };
        self.addition.push_str(&format!(" (before that, {how}: {})", first.reason()));
        self
    }

    fn reason(&self) -> String {
        let what = match &self.cause {
            Cause::Server(error) => error.to_string(),
            Cause::Ours(Error::Transient(error)) => error.what.clone(),
            Cause::Ours(Error::Definite(error)) => error.what.clone(),
        };
        what + &self.addition
    }

    fn into_error(self, conninfo: &ConnInfo, startup: &Startup<'_>) -> Error {
        let what = self.reason();
        match self.cause {
            Cause::Ours(Error::Transient(Transient { peer, .. })) => Error::transient(peer, what),
            Cause::Ours(Error::Definite(definite)) => Definite { what, ..definite }.into(),
            Cause::Server(error) => match error.outlook() {
                Outlook::Passing => Error::transient(Peer::Postgres, what),
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
            "Make sure that role \"{user}\" exists and may log in, that pg_hba.conf (then SELECT pg_reload_conf()) has a line for it, for database \"{dbname}\", for this client's address and for this sslmode, and that sslcert is set if the line asks for a certificate"
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

/// The attempts so far.
#[derive(Debug, Default)]
struct Attempts {
    failed: Vec<(String, Error)>,
    ended: bool,
}

impl Attempts {
    fn note(&mut self, place: String, error: Error) {
        let attempt = (place, error);
        // The second pass of prefer-standby mostly finds what the first found.
        if !self.failed.contains(&attempt) {
            self.failed.push(attempt);
        }
    }

    /// One error for all: transient if any server may take us later, unless a definite answer ended the search.
    fn conclude(self, conninfo: &ConnInfo) -> Error {
        let who = format!("user \"{}\", database \"{}\"", conninfo.user, conninfo.dbname);
        let reason = |error: &Error| match error {
            Error::Transient(error) => error.what.clone(),
            Error::Definite(error) => error.what.clone(),
        };
        let what = match self.failed.as_slice() {
            [] => return Error::usage("no Postgres host is configured", "Set postgres.url"),
            [(place, error)] => format!("cannot connect to Postgres at {place}, {who}: {}", reason(error)),
            several => {
                let list: Vec<String> =
                    several.iter().map(|(place, error)| format!("{place}: {}", reason(error))).collect();
                format!("cannot connect to Postgres, {who}: {}", list.join("; "))
            }
        };
        let transient = self.failed.iter().any(|(_, error)| matches!(error, Error::Transient(_)));
        match self.failed.into_iter().next_back() {
            Some((_, Error::Definite(definite))) if self.ended || !transient => {
                Definite { what, ..definite }.into()
            }
            _ => Error::transient(Peer::Postgres, what),
        }
    }
}

/// What kind of session a server offers.
#[derive(Debug, Clone, Copy)]
struct Standing {
    hot_standby: bool,
    read_only: bool,
}

/// Why `session` is not of the `wanted` kind, if so.
async fn mismatch(
    wanted: TargetSessionAttrs,
    session: &mut Session,
) -> Result<Option<&'static str>, QueryError> {
    if wanted == TargetSessionAttrs::Any {
        return Ok(None);
    }
    // Reported from Postgres 14 on; what stands in for Postgres may not.
    let parameter = |name| session.parameters().get(name).map(|value| value == "on");
    let (hot_standby, read_only) = (parameter("in_hot_standby"), parameter("default_transaction_read_only"));
    let hot_standby = match hot_standby {
        Some(known) => known,
        None => session.query_one("SELECT pg_catalog.pg_is_in_recovery()").await?.as_deref() == Some("t"),
    };
    let read_only = match read_only {
        Some(known) => known || hot_standby,
        None => session.query_one("SHOW transaction_read_only").await?.as_deref() == Some("on"),
    };
    Ok(unfit(wanted, Standing { hot_standby, read_only }))
}

fn unfit(wanted: TargetSessionAttrs, server: Standing) -> Option<&'static str> {
    use TargetSessionAttrs as Attrs;
    match wanted {
        Attrs::ReadWrite if server.read_only => {
            Some("the session is read-only (target_session_attrs=read-write)")
        }
        Attrs::ReadOnly if !server.read_only => {
            Some("the session is not read-only (target_session_attrs=read-only)")
        }
        Attrs::Primary if server.hot_standby => {
            Some("the server is a standby (target_session_attrs=primary)")
        }
        Attrs::Standby | Attrs::PreferStandby if !server.hot_standby => Some("the server is not a standby"),
        _ => None,
    }
}
