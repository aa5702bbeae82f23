//! A TLS connection whose socket is read in large pieces.
//!
//! A walsender encrypts each of its messages as a TLS record of its own. rustls does no I/O here: it decrypts all records that
//! one read of the socket has received, and the caller decides when the socket is read.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::ClientConnection;
use rustls::pki_types::CertificateDer;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The size of one read of the socket.
const READ_SIZE: usize = 64 * 1024;

/// How a socket is read without waiting.
type ReadSocket = fn(&TcpStream, &mut [u8]) -> io::Result<usize>;

/// TLS over TCP.
pub struct TlsStream {
    socket: TcpStream,
    connection: ClientConnection,
    /// What the last read of the socket has received, of which the range `encrypted` is not decrypted yet.
    received: Vec<u8>,
    encrypted: Range<usize>,
    /// An error that is reported once the bytes received before it have been read.
    failed: Option<io::Error>,
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsStream").field(&self.socket).finish()
    }
}

impl TlsStream {
    /// Continues with a socket and a connection after their handshake.
    pub(super) fn new(socket: TcpStream, connection: ClientConnection) -> Self {
        let received = vec![0; READ_SIZE];
        TlsStream { socket, connection, received, encrypted: 0..0, failed: None }
    }

    /// The server's certificate.
    pub(crate) fn server_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.connection.peer_certificates()?.first()
    }

    /// Reads the bytes that are already in the socket, without the runtime, like a socket that does not block: 0 is the end.
    pub(crate) fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_with(|socket, buffer| (&*SockRef::from(socket)).read(buffer), buffer)
    }

    fn read_with(&mut self, read_socket: ReadSocket, buffer: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        loop {
            let Some(free @ [_, ..]) = buffer.get_mut(count..) else { return Ok(count) };
            let read = match self.connection.reader().read(free) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => match self.decrypt(read_socket) {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                read => read,
            };
            match read {
                Ok(read @ 1..) => count += read,
                Ok(0) | Err(_) if count > 0 => {
                    self.failed = read.err().filter(|error| !is_temporary(error));
                    return Ok(count);
                }
                end => return end,
            }
        }
    }

    /// Decrypts the next records, and reads the socket if there are none.
    fn decrypt(&mut self, read_socket: ReadSocket) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.encrypted.is_empty() {
            // the end of the socket, 0, becomes the end of the connection
            self.encrypted = 0..read_socket(&self.socket, &mut self.received)?;
        }
        let mut encrypted = self.received.get(self.encrypted.clone()).unwrap_or_default();
        self.encrypted.start += self.connection.read_tls(&mut encrypted)?;
        if let Err(error) = self.connection.process_new_packets() {
            // tells the server why, if the socket accepts it at once
            let _: io::Result<usize> = self.connection.write_tls(&mut NonBlocking(&self.socket));
            self.failed = Some(io::Error::new(ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    /// Sends what is encrypted.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut NonBlocking(&self.socket)) {
                Ok(0) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_write_ready(context))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            // unlike a read without the runtime, `try_read` makes the runtime wait for the next bytes
            match this.read_with(TcpStream::try_read, buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if is_temporary(&error) => ready!(this.socket.poll_read_ready(context))?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            // rustls accepts up to 64 kB, as one record for each 16 kB
            let accepted = this.connection.writer().write(bytes)?;
            match this.poll_send(context)? {
                Poll::Pending if accepted == 0 && !bytes.is_empty() => return Poll::Pending,
                // a flush sends the rest
                _ if accepted > 0 || bytes.is_empty() => return Poll::Ready(Ok(accepted)),
                _ => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_send(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.connection.send_close_notify();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.socket).poll_shutdown(context)
    }
}

/// Writes to a socket, and makes the runtime wait until it accepts more if it is full.
struct NonBlocking<'a>(&'a TcpStream);

impl Write for NonBlocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, records: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(records)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
