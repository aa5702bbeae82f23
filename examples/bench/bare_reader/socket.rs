//! The sockets of the bare reader.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

use super::{READ_SIZE, SILENCE};

/// The same interval as the router's.
const READ_PAUSE: Duration = Duration::from_micros(150);

/// The code of an SSLRequest (Postgres manual, "Message Formats").
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// The address of Postgres.
#[derive(Debug, Clone)]
pub(crate) enum Server {
    Tls(String),
    Tcp(String),
    Unix(String),
}

pub(super) trait Socket: Read + Write + Send {}
impl<T: Read + Write + Send> Socket for T {}

impl Server {
    pub(super) fn connect(&self, gathers: bool) -> anyhow::Result<Box<dyn Socket>> {
        let pause = gathers.then_some(READ_PAUSE);
        match self {
            Server::Tls(address) => {
                let mut socket = tcp(address)?;
                socket.write_all(&SSL_REQUEST)?;
                let mut answer = [0];
                socket.read_exact(&mut answer)?;
                ensure!(answer == *b"S", "Postgres at {address} has no TLS");
                let connection = ClientConnection::new(Arc::new(config()?), "localhost".try_into()?)?;
                // rustls reads 4 kB at a time
                Ok(match pause {
                    None => Box::new(StreamOwned::new(connection, socket)),
                    Some(_) => Box::new(StreamOwned::new(connection, LargeReads::new(socket, pause))),
                })
            }
            Server::Tcp(address) => Ok(Box::new(Pausing { socket: tcp(address)?, pause })),
            Server::Unix(path) => {
                let socket =
                    UnixStream::connect(Path::new(path)).with_context(|| format!("connect to {path}"))?;
                socket.set_read_timeout(Some(SILENCE))?;
                Ok(Box::new(Pausing { socket, pause }))
            }
        }
    }
}

fn tcp(address: &str) -> anyhow::Result<TcpStream> {
    let socket = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE))?;
    Ok(socket)
}

/// A socket that is left alone for a moment before each read.
struct Pausing<S> {
    socket: S,
    pause: Option<Duration>,
}

impl<S: Read> Read for Pausing<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(pause) = self.pause {
            thread::sleep(pause);
        }
        self.socket.read(buffer)
    }
}

impl<S: Write> Write for Pausing<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// A socket that is read in large pieces.
struct LargeReads(BufReader<Pausing<TcpStream>>);

impl LargeReads {
    fn new(socket: TcpStream, pause: Option<Duration>) -> Self {
        LargeReads(BufReader::with_capacity(READ_SIZE, Pausing { socket, pause }))
    }
}

impl Read for LargeReads {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for LargeReads {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

/// TLS as with `sslmode=prefer`, which does not verify the certificate.
fn config() -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    Ok(ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth())
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
