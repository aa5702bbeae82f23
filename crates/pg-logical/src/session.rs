//! An authenticated session: simple queries and walsender commands, until the replication stream takes over.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::fallible_iterator::FallibleIterator;
use tracing::debug;

use super::auth;
use super::failure::{Failure, unexpected};
use super::login::Login;
use super::query_error::QueryError;
use super::server_error::{ServerError, io_reason};
use super::startup::{NO_TRANSACTION_TIMEOUT, Startup, WITH_TRANSACTION_TIMEOUT, startup_message};
use super::stream::Stream;
use super::wire::Wire;
use crate::conninfo::Host;
use crate::error::Error;

/// What is known about a session besides its socket.
#[derive(Clone)]
pub struct SessionInfo {
    /// Host and port with the resolved address, `db:5432 (10.0.0.7)`, or the path of a unix socket.
    pub place: String,
    /// The host of the connection string that the session is connected to, with its address.
    pub host: Host,
    /// Parameters reported by the server: `server_version`, `in_hot_standby`, ... (`ParameterStatus`; Postgres manual,
    /// "Asynchronous Operations").
    pub parameters: BTreeMap<String, String>,
    /// The server process of this session, as in `pg_stat_activity.pid`.
    pub backend_pid: i32,
    /// The secret key that cancels its queries (`BackendKeyData`).
    pub cancel_key: i32,
    /// As in [`Startup`].
    pub pooled: bool,
}

impl SessionInfo {
    /// The server's major version, if it is reported in the usual form.
    fn major_version(&self) -> Option<u32> {
        let digits = self.parameters.get("server_version")?.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    }
}

impl fmt::Debug for SessionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionInfo")
            .field("place", &self.place)
            .field("backend_pid", &self.backend_pid)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

/// A row as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Row {
    columns: Vec<Option<String>>,
}

/// Without the values, because they may include a payload.
impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Row of {} columns", self.columns.len())
    }
}

impl Row {
    /// The column at `index`, from 0. `None`: NULL, or no such column.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.columns.get(index)?.as_deref()
    }

    /// The number of columns.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether it has no columns.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// A row for tests.
    #[cfg(test)]
    pub(super) fn of(columns: impl Iterator<Item = Option<String>>) -> Row {
        Row { columns: columns.collect() }
    }

    fn read(body: &DataRowBody) -> io::Result<Row> {
        let text = |range: Option<std::ops::Range<usize>>| {
            let Some(range) = range else { return Ok(None) };
            let bytes = body.buffer().get(range).ok_or(io::ErrorKind::InvalidData)?;
            let text = String::from_utf8(bytes.to_vec());
            text.map(Some).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a column is not UTF-8"))
        };
        Ok(Row { columns: body.ranges().map(text).collect()? })
    }
}

/// Finds out what a session waits for while an answer is late.
pub trait Watcher: Send + Sync {
    /// The time after which an answer is late.
    fn delay(&self) -> Duration;

    /// Checks again and again until it is dropped. It begins without a result.
    fn watch(&mut self) -> Pin<Box<dyn Future<Output = Infallible> + Send + '_>>;

    /// What the answer waited for by the last check, as a clause for a message: `waiting for ...`.
    fn found(&self) -> Option<String>;
}

/// Waits for `answer`, and has `watcher` check meanwhile. Returns also what it has found.
async fn watched<T>(watcher: &mut dyn Watcher, answer: impl Future<Output = T>) -> (T, Option<String>) {
    let mut answer = pin!(answer);
    // most answers take milliseconds and need no second connection
    if let Ok(answer) = timeout(watcher.delay(), &mut answer).await {
        return (answer, None);
    }
    let answer = tokio::select! {
        biased;
        answer = answer => answer,
        never = watcher.watch() => match never {},
    };
    (answer, watcher.found())
}

/// No answer arrived within this time.
struct NoAnswer(Duration);

/// An authenticated session for simple queries and walsender commands.
pub struct Session {
    wire: Wire,
    info: SessionInfo,
    /// Whether a query was abandoned before its end, so that the rest of its answer is still to come.
    interrupted: bool,
    /// How long an answer may take; `None`: as long as the connection lasts.
    answer_limit: Option<Duration>,
    /// Finds out what a slow answer waits for.
    watcher: Option<Box<dyn Watcher>>,
    /// Whether a notification has arrived that nobody has waited for yet.
    notified: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.info).finish()
    }
}

impl Session {
    /// Starts a session on a connected stream, up to the first ReadyForQuery (Postgres manual, "Start-up").
    pub(super) async fn start(
        stream: Stream,
        login: Login<'_>,
        place: &str,
        startup: &Startup<'_>,
    ) -> Result<Session, Failure> {
        let mut wire = Wire::new(stream);
        let message = startup_message(login.conninfo, startup)?;
        // a server that refuses the connection may have closed it already, but its message can still be read
        let sent = wire.send(&message).await;
        match auth::authenticate(&mut wire, login).await {
            Ok(()) => sent?,
            Err(failure) => return Err(failure),
        }
        wire.authenticated();
        let info = SessionInfo {
            place: place.to_owned(),
            host: login.host.clone(),
            parameters: BTreeMap::new(),
            backend_pid: 0,
            cancel_key: 0,
            pooled: startup.pooled,
        };
        let mut session =
            Session { wire, info, interrupted: false, answer_limit: None, watcher: None, notified: false };
        loop {
            match session.wire.receive().await? {
                Message::ReadyForQuery(_) => break,
                Message::BackendKeyData(key) => {
                    session.info.backend_pid = key.process_id();
                    session.info.cancel_key = key.secret_key();
                }
                Message::ErrorResponse(body) => return Err(Failure::from_server(&body).after_login()),
                other => {
                    if !session.handle_async_message(&other)? {
                        return Err(unexpected());
                    }
                }
            }
        }
        if !startup.pooled && session.info.major_version() >= Some(WITH_TRANSACTION_TIMEOUT) {
            session.query(NO_TRANSACTION_TIMEOUT).await?;
        }
        Ok(session)
    }

    pub(super) fn set_host(&mut self, host: Host) {
        self.info.host = host;
    }

    /// Limits the time for each answer from now on. Without a limit, the session waits for a silent server until TCP gives
    /// up, and for a frozen one for ever.
    pub fn set_answer_timeout(&mut self, limit: Option<Duration>) {
        self.answer_limit = limit;
    }

    /// Lets `watcher` find out what slow answers wait for. Errors because of the answer timeout or `lock_timeout` then
    /// include it.
    pub fn set_watcher(&mut self, watcher: impl Watcher + 'static) {
        self.watcher = Some(Box::new(watcher));
    }

    /// The parameters reported by the server, updated by every query.
    pub fn parameters(&self) -> &BTreeMap<String, String> {
        &self.info.parameters
    }

    /// The server process of this session.
    pub fn backend_pid(&self) -> i32 {
        self.info.backend_pid
    }

    /// Its server, process and reported parameters.
    pub fn info(&self) -> &SessionInfo {
        &self.info
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.wire.stream().is_tls()
    }

    /// Runs one statement, or one walsender command, with the simple query protocol and returns its rows as text.
    ///
    /// # Errors
    /// [`QueryError::Server`] if the server refuses; the session can be used again unless that was FATAL. All other errors
    /// end the session, including a missing answer. So does dropping this future before it completes.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<Row>, QueryError> {
        let mut watcher = self.watcher.take();
        let (answer, found) = match &mut watcher {
            Some(watcher) => watched(&mut **watcher, self.run_with_timeout(sql)).await,
            None => (self.run_with_timeout(sql).await, None),
        };
        self.watcher = watcher;
        answer
            .unwrap_or_else(|NoAnswer(limit)| {
                let (place, seconds) = (&self.info.place, limit.as_secs_f32());
                let why = found.as_ref().map_or_else(String::new, |wait| format!(": {wait}"));
                let what = format!("Postgres at {place} gave no answer within {seconds} s{why}");
                Err(Error::transient(what).into())
            })
            .map_err(|error| match (error, found) {
                (QueryError::Server { place, mut error }, Some(wait))
                    if error.code == SqlState::LOCK_NOT_AVAILABLE =>
                {
                    error.detail = Some(wait);
                    QueryError::Server { place, error }
                }
                (error, _) => error,
            })
    }

    async fn run_with_timeout(&mut self, sql: &str) -> Result<Result<Vec<Row>, QueryError>, NoAnswer> {
        let Some(limit) = self.answer_limit else { return Ok(self.run_query(sql).await) };
        timeout(limit, self.run_query(sql)).await.map_err(|_| NoAnswer(limit))
    }

    async fn run_query(&mut self, sql: &str) -> Result<Vec<Row>, QueryError> {
        if std::mem::replace(&mut self.interrupted, true) {
            return Err(self.lost("an earlier query was abandoned before its answer").into());
        }
        let mut message = BytesMut::new();
        frontend::query(sql, &mut message).map_err(|error| self.lost(error))?;
        self.wire.send(&message).await.map_err(|error| self.lost(io_reason(&error)))?;
        let mut rows = Vec::new();
        let mut refusal = None;
        loop {
            let message = match self.wire.receive().await {
                Ok(message) => message,
                Err(error) => return Err(self.ended(refusal, &error)),
            };
            match message {
                Message::DataRow(body) => rows.push(Row::read(&body).map_err(|error| self.lost(error))?),
                Message::ErrorResponse(body) => refusal = Some(ServerError::from_fields(body.fields())),
                Message::RowDescription(_) | Message::CommandComplete(_) | Message::EmptyQueryResponse => {}
                Message::ReadyForQuery(_) => {
                    self.interrupted = false;
                    return match refusal {
                        None => Ok(rows),
                        Some(error) => Err(self.refused(error)),
                    };
                }
                other => {
                    if !self.handle_async_message(&other).map_err(|error| self.lost(error))? {
                        return Err(self.lost("an answer that does not belong to a query").into());
                    }
                }
            }
        }
    }

    /// The first column of the first row, if there is one and it is not NULL.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub async fn query_one(&mut self, sql: &str) -> Result<Option<String>, QueryError> {
        let rows = self.query(sql).await?;
        Ok(rows.into_iter().next().and_then(|row| row.columns.into_iter().next()).flatten())
    }

    /// Waits for a notification on a channel that this session listens to (Postgres manual, "LISTEN"). Returns at once if one has
    /// arrived since the last call. The future may be dropped at any time.
    ///
    /// # Errors
    /// The session has ended.
    pub async fn notification(&mut self) -> Result<(), QueryError> {
        while !self.notified {
            match self.wire.receive().await {
                Ok(Message::ErrorResponse(body)) => {
                    return Err(self.refused(ServerError::from_fields(body.fields())));
                }
                Ok(message) => {
                    if !self.handle_async_message(&message).map_err(|error| self.lost(error))? {
                        return Err(self.lost("an answer that does not belong to a query").into());
                    }
                }
                Err(error) => return Err(self.lost(io_reason(&error)).into()),
            }
        }
        self.notified = false;
        Ok(())
    }

    /// Returns the socket, and the bytes that were read from it but not processed yet.
    pub fn into_parts(self) -> (Stream, Vec<u8>, SessionInfo) {
        let (stream, unread) = self.wire.into_parts();
        (stream, unread.to_vec(), self.info)
    }

    /// Terminates the session. A dropped session ends too, once the server notices.
    pub async fn close(mut self) {
        let mut message = BytesMut::new();
        frontend::terminate(&mut message);
        if let Err(error) = self.wire.send(&message).await {
            debug!("closing the session with Postgres at {}: {}", self.info.place, io_reason(&error));
        }
    }

    /// Handles messages that a server may send at any time (Postgres manual, "Asynchronous Operations").
    fn handle_async_message(&mut self, message: &Message) -> io::Result<bool> {
        match message {
            Message::ParameterStatus(status) => {
                self.info.parameters.insert(status.name()?.to_owned(), status.value()?.to_owned());
            }
            Message::NoticeResponse(notice) => {
                let notice = ServerError::from_fields(notice.fields());
                debug!("{} from Postgres at {}: {notice}", notice.severity, self.info.place);
            }
            Message::NotificationResponse(_) => self.notified = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn refused(&self, error: ServerError) -> QueryError {
        QueryError::Server { place: self.info.place.clone(), error: Box::new(error) }
    }

    /// The error for a connection that ended: the FATAL error before it, if there was one.
    fn ended(&self, refusal: Option<ServerError>, error: &io::Error) -> QueryError {
        match refusal {
            Some(refusal) => self.refused(refusal),
            None => self.lost(io_reason(error)).into(),
        }
    }

    fn lost(&self, why: impl fmt::Display) -> Error {
        let what = format!("lost the connection to Postgres at {}: {why}", self.info.place);
        Error::transient(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conninfo::HostAddr;

    #[test]
    fn debug_shows_neither_the_cancel_key_nor_values() {
        let info = SessionInfo {
            place: "db:5432".into(),
            host: Host { addr: HostAddr::Unix("/run".into()), port: 5432 },
            parameters: BTreeMap::new(),
            backend_pid: 7,
            cancel_key: 918_273_645,
            pooled: false,
        };
        assert!(!format!("{info:?}").contains("918273645"));
        let row = Row { columns: vec![Some("payload".into())] };
        assert_eq!(format!("{row:?}"), "Row of 1 columns");
    }
}
