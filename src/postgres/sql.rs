//! Ordinary SQL: a `tokio_postgres` client over a session that was opened by the same rules as every other.
//!
//! The client is handed an authenticated session rather than a host: its own startup knows neither the passfile nor
//! our `sslmode`s, and its errors at startup say little. So its stream swallows the client's startup message and
//! answers it with what the server said to ours.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pg_logical::connect::{Startup, connect as open};
use pg_logical::conninfo::ConnInfo;
use pg_logical::server_error::{QueryError, ServerError};
use pg_logical::session::{Session, SessionInfo};
use pg_logical::stream::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls};
use tracing::debug;

use crate::error::{Error, Peer};

/// Opens a client, with its connection as a task of its own that ends with the client or the server.
///
/// # Errors
/// As [`connect`](pg_logical::connect::connect).
pub async fn connect(conninfo: &ConnInfo, application_name: &str) -> Result<Client, Error> {
    let session = open(conninfo, &Startup { application_name, ..Startup::default() }).await?;
    adopt(session).await
}

/// Makes a client of a session.
///
/// # Errors
/// Transient: the session ended meanwhile.
pub async fn adopt(session: Session) -> Result<Client, Error> {
    let (stream, unread, info) = session.into_parts();
    let place = info.place.clone();
    let adopted = Adopted { stream, answer: answer(&info, &unread)?, startup: Swallowed::default() };
    let mut config = tokio_postgres::Config::new();
    // The user and the mode are those of the session already; these keep the client from asking the environment.
    config.user("").ssl_mode(SslMode::Disable);
    let (client, connection) =
        config.connect_raw(adopted, NoTls).await.map_err(|error| server_error(&error, &place))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!("lost the connection to Postgres at {place}: {error}");
        }
    });
    Ok(client)
}

/// A failure of a client's call, with the server's answer kept for callers that branch on its SQLSTATE. `place` is the
/// server's, for the message.
pub fn query_error(error: &tokio_postgres::Error, place: &str) -> QueryError {
    if let Some(refusal) = error.as_db_error() {
        return QueryError::Server { place: place.to_owned(), error: Box::new(refused(refusal)) };
    }
    let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    let what = format!("a query on Postgres at {place} failed: {error}{source}");
    QueryError::Connection(pg_logical::Error::transient(what))
}

/// The same as a failure of either kind.
pub fn server_error(error: &tokio_postgres::Error, place: &str) -> Error {
    query_error(error, place).into()
}

/// What a server says after a startup message that it likes (Postgres manual, "Message Formats").
fn answer(info: &SessionInfo, unread: &[u8]) -> Result<Bytes, Error> {
    let mut answer = BytesMut::new();
    let mut message = |tag: u8, body: &[u8]| {
        let length = u32::try_from(body.len() + 4)
            .map_err(|_| Error::transient(Peer::Postgres, "a parameter of the server is too long"))?;
        answer.put_u8(tag);
        answer.put_u32(length);
        answer.put_slice(body);
        Ok::<_, Error>(())
    };
    message(b'R', &0_u32.to_be_bytes())?;
    for (name, value) in &info.parameters {
        message(b'S', format!("{name}\0{value}\0").as_bytes())?;
    }
    message(b'K', &[info.backend_pid.to_be_bytes(), info.cancel_key.to_be_bytes()].concat())?;
    message(b'Z', b"I")?;
    answer.put_slice(unread);
    Ok(answer.freeze())
}

/// A session's stream that begins with `answer` and passes on all that is written to it but the startup message.
struct Adopted {
    stream: Stream,
    answer: Bytes,
    startup: Swallowed,
}

/// How much of the startup message has been swallowed: it begins with its own length.
#[derive(Default)]
struct Swallowed {
    length: [u8; 4],
    seen: usize,
}

impl Swallowed {
    /// How many of the first bytes of `written` belong to the startup message.
    fn take(&mut self, written: &[u8]) -> usize {
        let mut taken = 0;
        for &byte in written {
            if let Some(place) = self.length.get_mut(self.seen) {
                *place = byte;
            } else if self.seen >= u32::from_be_bytes(self.length) as usize {
                break;
            }
            self.seen += 1;
            taken += 1;
        }
        taken
    }
}

impl AsyncRead for Adopted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.answer.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let now = this.answer.split_to(buf.remaining().min(this.answer.remaining()));
        buf.put_slice(&now);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Adopted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let swallowed = this.startup.take(buf);
        if swallowed > 0 {
            return Poll::Ready(Ok(swallowed));
        }
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, buf))?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

fn refused(error: &tokio_postgres::error::DbError) -> ServerError {
    ServerError {
        severity: error.severity().to_owned(),
        code: error.code().clone(),
        message: error.message().to_owned(),
        detail: error.detail().map(str::to_owned),
        hint: error.hint().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_startup_message_is_swallowed_however_it_is_cut() {
        let message = [&12_u32.to_be_bytes()[..], b"startup!", b"Query"].concat();
        for cut in 1..message.len() {
            let mut startup = Swallowed::default();
            let passed: Vec<u8> = message
                .chunks(cut)
                .flat_map(|chunk| {
                    let taken = startup.take(chunk);
                    let again = startup.take(&chunk[taken..]);
                    assert_eq!(again, 0);
                    chunk[taken..].to_vec()
                })
                .collect();
            assert_eq!(passed, b"Query", "cut every {cut}");
        }
    }
}
