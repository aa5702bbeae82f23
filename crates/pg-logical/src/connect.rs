//! The order of connection attempts, and what each failure means for the next.
//!
//! As in libpq (Postgres manual, "Specifying Multiple Hosts"), every address of every host is tried in turn, with and without
//! TLS as `sslmode` says. After a failure of one server (unreachable, starting up, full, not of the wanted kind) the next is
//! tried. A definite answer (wrong password, no such database, an invalid certificate) ends the search, so that the password
//! is not tried on one server after another. Unlike in libpq, a password that was refused over TLS is never sent again
//! without TLS.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tokio::net;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::failure::{Failure, Next, unexpected};
use super::login::Login;
use super::password_command;
use super::query_error::QueryError;
use super::session::Session;
pub use super::startup::{Startup, VALUE_TEXT};
use super::stream::{self, Stream};
use super::tls;
use crate::conninfo::{ConnInfo, Host, HostAddr, Password, SslMode, TargetSessionAttrs};
use crate::error::{Definite, Error, Remedy, Transient};

impl Session {
    /// Opens a session with the first server of `conninfo` that accepts it and is of the wanted kind.
    ///
    /// # Errors
    /// The program that prints the password failed. Otherwise one error that lists every attempt with its reason: transient if a
    /// later try may succeed, else definite.
    pub async fn connect(conninfo: &ConnInfo, startup: &Startup<'_>) -> Result<Session, Error> {
        let conninfo = &*conninfo.read_again();
        let printed = match &conninfo.password {
            Some(Password::Command(words)) => {
                Some(password_command::run(words, conninfo.connect_timeout).await?)
            }
            _ => None,
        };
        let mut attempts = Attempts::default();
        for &wanted in passes(conninfo.target_session_attrs) {
            for host in &conninfo.hosts {
                let login = Login { conninfo, host, printed: printed.as_ref() };
                match try_host(login, startup, wanted, &mut attempts).await {
                    Search::Found(session) => return Ok(*session),
                    Search::GoOn => {}
                    Search::End => return Err(attempts.conclude(conninfo)),
                }
            }
        }
        Err(attempts.conclude(conninfo))
    }
}

/// `prefer-standby` goes through the list twice.
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
    login: Login<'_>,
    startup: &Startup<'_>,
    wanted: TargetSessionAttrs,
    attempts: &mut Attempts,
) -> Search {
    let Login { conninfo, host, .. } = login;
    let addresses = match resolve(conninfo, host).await {
        Ok(addresses) => addresses,
        Err(error) => {
            attempts.note(name(host), error);
            return Search::GoOn;
        }
    };
    for address in addresses {
        let place = place(host, &address);
        let target = Target { login, address: &address, place: &place, startup };
        let opening = async {
            let mut session = target.open().await?;
            let mismatch = mismatch(wanted, &mut session).await?;
            Ok::<_, Failure>((session, mismatch))
        };
        let outcome = match conninfo.connect_timeout {
            None => opening.await,
            Some(limit) => timeout(limit, opening).await.unwrap_or_else(|_| {
                Err(Failure::transient(format!("no answer within {} s", limit.as_secs_f32())))
            }),
        };
        match outcome {
            Ok((mut session, None)) => {
                session.set_host(with_address(host, &address));
                return Search::Found(Box::new(session));
            }
            Ok((session, Some(mismatch))) => {
                session.close().await;
                attempts.note(place, Error::transient(mismatch));
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

/// The address of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The host, restricted to this address.
fn with_address(host: &Host, address: &Address) -> Host {
    let addr = match (&host.addr, address) {
        (HostAddr::Tcp { name, .. }, Address::Tcp(address)) => {
            HostAddr::Tcp { name: name.clone(), hostaddr: Some(address.ip().to_string()) }
        }
        (addr, _) => addr.clone(),
    };
    Host { addr, port: host.port }
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
            let what = format!("hostaddr \"{hostaddr}\" is not an IP address");
            Error::definite(what, Remedy::NumericAddress)
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
                return Err(Error::transient(what));
            }
        },
    };
    let found = found.map_err(|error| {
        let reason = error.to_string();
        let reason = reason.strip_prefix("failed to lookup address information: ").unwrap_or(&reason);
        Error::transient(format!("cannot find the address of host \"{name}\": {reason}"))
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

/// The same, followed by the IP address that the name resolved to.
fn place(host: &Host, address: &Address) -> String {
    let name = name(host);
    match address {
        Address::Tcp(socket) if socket.to_string() != name => format!("{name} ({})", socket.ip()),
        _ => name,
    }
}

/// Whether to use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encryption {
    Plain,
    /// With TLS. If the server does not support it and `sslmode` is `prefer`, continues without TLS on the same connection.
    Tls,
}

impl Encryption {
    /// The choice that was tried before, for messages.
    fn other(self) -> &'static str {
        match self {
            Encryption::Plain => "with TLS",
            Encryption::Tls => "without TLS",
        }
    }
}

/// What to try on one address (Postgres manual, "SSL Mode Descriptions"). Unix sockets never have TLS.
fn encryptions(mode: SslMode, address: &Address) -> &'static [Encryption] {
    match (address, mode) {
        (Address::Unix(_), _) | (_, SslMode::Disable) => &[Encryption::Plain],
        (_, SslMode::Allow) => &[Encryption::Plain, Encryption::Tls],
        (_, SslMode::Prefer) => &[Encryption::Tls, Encryption::Plain],
        (_, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => &[Encryption::Tls],
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
        let choices = encryptions(self.login.conninfo.effective_ssl_mode(), self.address);
        let mut earlier: Option<Failure> = None;
        for &encryption in choices {
            match self.open_with(encryption).await {
                Ok(session) => return Ok(session),
                Err(failure) => {
                    let next = failure.next;
                    let failure = match earlier.take() {
                        None => failure,
                        Some(first) => failure.after(&first, encryption.other()),
                    };
                    if next != Next::Encryption {
                        return Err(failure);
                    }
                    match encryption {
                        Encryption::Plain => debug!("{}: {}", self.place, failure.reason()),
                        Encryption::Tls if choices.last() != Some(&encryption) => {
                            warn!(
                                "{}: trying without TLS, as sslmode allows: {}",
                                self.place,
                                failure.reason()
                            );
                        }
                        Encryption::Tls => {}
                    }
                    earlier = Some(failure);
                }
            }
        }
        Err(earlier.map_or_else(unexpected, Failure::without_another_encryption))
    }

    async fn open_with(&self, encryption: Encryption) -> Result<Session, Failure> {
        let stream = match self.address {
            Address::Unix(path) => Stream::unix(path).await.map_err(|error| Failure::of_socket(&error))?,
            Address::Tcp(address) => {
                let tcp = stream::tcp(*address, &self.login.conninfo.tcp).await?;
                match encryption {
                    Encryption::Plain => Stream::Tcp(tcp),
                    Encryption::Tls => tls::negotiate(tcp, self.login).await?,
                }
            }
        };
        let tls_declined = encryption == Encryption::Tls && !stream.is_tls();
        Session::start(stream, self.login, self.place, self.startup).await.map_err(|mut failure| {
            // the server has no TLS, and the attempt without TLS has just failed
            if tls_declined && failure.next == Next::Encryption {
                failure.next = Next::Stop;
            }
            failure
        })
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
        // the second pass of prefer-standby mostly repeats the failures of the first
        if !self.failed.contains(&attempt) {
            self.failed.push(attempt);
        }
    }

    /// One error for all attempts: transient if any of them may succeed later, unless a definite failure ended the search.
    fn conclude(self, conninfo: &ConnInfo) -> Error {
        let who = format!("user \"{}\", database \"{}\"", conninfo.user, conninfo.dbname);
        let what = match self.failed.as_slice() {
            [] => return Error::definite("no Postgres host is configured", Remedy::NameHost),
            [(place, error)] => format!("cannot connect to Postgres at {place}, {who}: {}", error.what()),
            several => {
                let list: Vec<String> =
                    several.iter().map(|(place, error)| format!("{place}: {}", error.what())).collect();
                format!("cannot connect to Postgres, {who}: {}", list.join("; "))
            }
        };
        let transient = self.failed.iter().any(|(_, error)| matches!(error, Error::Transient(_)));
        let unavailable = self
            .failed
            .iter()
            .any(|(_, error)| matches!(error, Error::Transient(error) if error.unavailable));
        match self.failed.into_iter().next_back() {
            Some((_, Error::Definite(definite))) if self.ended || !transient => {
                Definite { what, ..definite }.into()
            }
            Some((_, error)) => {
                let server = error.server_error().cloned().map(Box::new);
                Transient { what, unavailable, server }.into()
            }
            None => Error::transient(what),
        }
    }
}

/// Whether a server is a standby, and whether its sessions are read-only.
#[derive(Debug, Clone, Copy)]
struct ServerState {
    hot_standby: bool,
    read_only: bool,
}

/// Why `session` does not have the `wanted` session attributes; `None` if it has.
async fn mismatch(
    wanted: TargetSessionAttrs,
    session: &mut Session,
) -> Result<Option<&'static str>, QueryError> {
    if wanted == TargetSessionAttrs::Any {
        return Ok(None);
    }
    // Postgres reports these since version 14; a pooler may not
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
    Ok(mismatch_reason(wanted, ServerState { hot_standby, read_only }))
}

fn mismatch_reason(wanted: TargetSessionAttrs, server: ServerState) -> Option<&'static str> {
    use TargetSessionAttrs as Attrs;
    match wanted {
        Attrs::ReadWrite if server.read_only => {
            Some("the session is read-only (target_session_attrs=read-write)")
        }
        Attrs::ReadOnly if !server.read_only => {
            Some("the session is not read-only (target_session_attrs=read-only)")
        }
        Attrs::Primary if server.hot_standby => Some("the server is a standby, and a primary is wanted"),
        Attrs::Standby | Attrs::PreferStandby if !server.hot_standby => Some("the server is not a standby"),
        _ => None,
    }
}
