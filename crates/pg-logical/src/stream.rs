//! The byte stream to a server, over any kind of socket.

use std::io::{self, Read};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::conninfo::Tcp;
pub use crate::tls::stream::TlsStream;

/// The default idle time before a quiet connection is probed; more probes follow every [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// The default time after which a connection with unacknowledged bytes is closed. Without it the kernel retransmits for a
/// quarter of an hour (tcp(7), `TCP_USER_TIMEOUT`).
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time limit of one TCP handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// How many handshakes are tried if the user sets no limit: two minutes in all, as in the kernel.
const HANDSHAKES: u32 = 40;

/// A byte stream that a replication session can use.
pub trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Reads the bytes that are already in the socket, without waiting and without the runtime: 0 if it is empty or at its
    /// end.
    fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// What kind of connection this is.
    fn kind(&self) -> TransportKind;
}

/// The kinds of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    /// TCP without TLS.
    Tcp,
    /// A unix socket. Its buffer is so small that the server soon blocks when nobody reads.
    Unix,
    /// TLS over TCP.
    Tls,
}

/// A connected socket, with TLS if that was negotiated.
#[derive(Debug)]
pub enum Stream {
    /// TCP without TLS.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Connects to the unix socket at `path`.
    pub(super) async fn unix(path: &Path) -> io::Result<Stream> {
        UnixStream::connect(path).await.map(Stream::Unix)
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// The server's certificate.
    pub(super) fn server_certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Stream::Tls(tls) => tls.server_certificate(),
            Stream::Tcp(_) | Stream::Unix(_) => None,
        }
    }
}

/// Connects with TCP, with `TCP_NODELAY` and the keepalives and timeouts of `tcp`.
pub(super) async fn tcp(address: std::net::SocketAddr, tcp: &Tcp) -> io::Result<TcpStream> {
    let stream = handshake(address).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    if tcp.keepalives {
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(tcp.keepalives_idle.unwrap_or(KEEPALIVE_IDLE))
                .with_interval(tcp.keepalives_interval.unwrap_or(KEEPALIVE_INTERVAL))
                .with_retries(tcp.keepalives_count.unwrap_or(KEEPALIVE_RETRIES)),
        )?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(tcp.tcp_user_timeout.unwrap_or(USER_TIMEOUT)))?;
    Ok(stream)
}

/// Starts a new attempt every few seconds. The kernel doubles the time between its own attempts, and would notice a recovered
/// network seconds late.
async fn handshake(address: std::net::SocketAddr) -> io::Result<TcpStream> {
    for _ in 0..HANDSHAKES {
        if let Ok(connected) = timeout(HANDSHAKE_TIMEOUT, TcpStream::connect(address)).await {
            return connected;
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

impl Transport for Stream {
    fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Stream::Tcp(socket) => (&*SockRef::from(&*socket)).read(buffer),
            Stream::Unix(socket) => (&*SockRef::from(&*socket)).read(buffer),
            Stream::Tls(connection) => connection.read_now(buffer),
        };
        match read {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(0)
            }
            read => read,
        }
    }

    fn kind(&self) -> TransportKind {
        match self {
            Stream::Tcp(_) => TransportKind::Tcp,
            Stream::Unix(_) => TransportKind::Unix,
            Stream::Tls(_) => TransportKind::Tls,
        }
    }
}

/// For tests without a server.
impl Transport for tokio::io::DuplexStream {
    fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut target = ReadBuf::new(buffer);
        match Pin::new(self).poll_read(&mut Context::from_waker(Waker::noop()), &mut target) {
            Poll::Ready(read) => read.map(|()| target.filled().len()),
            Poll::Pending => Ok(0),
        }
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_flush(cx),
            Stream::Unix(s) => Pin::new(s).poll_flush(cx),
            Stream::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn connected(settings: &Tcp) -> TcpStream {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        tcp(listener.local_addr().unwrap(), settings).await.unwrap()
    }

    #[tokio::test]
    async fn keepalives_and_timeouts_are_set_as_the_user_says() {
        let stream = connected(&Tcp::default()).await;
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(USER_TIMEOUT));

        let secs = Duration::from_secs;
        let stream = connected(&Tcp {
            keepalives: true,
            keepalives_idle: Some(secs(7)),
            keepalives_interval: Some(secs(3)),
            keepalives_count: Some(2),
            tcp_user_timeout: Some(secs(4)),
        })
        .await;
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tcp_keepalive_time().unwrap(), secs(7));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), secs(3));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 2);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(secs(4)));

        let stream = connected(&Tcp { keepalives: false, ..Tcp::default() }).await;
        assert!(!SockRef::from(&stream).keepalive().unwrap());
    }
}
