//! TLS records with one Insert each, as a walsender sends them, through a client and a server in memory.

use std::io::{Read, Write};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

/// As many bytes as the router reads from a socket at a time.
const READ_SIZE: usize = 64 * 1024;

/// Both ends of a connection after its handshake.
pub(crate) struct Tls {
    server: ServerConnection,
    client: ClientConnection,
    wire: Vec<u8>,
    plaintext: Vec<u8>,
}

impl Tls {
    pub(crate) fn connect() -> Result<Self> {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let certificate: CertificateDer<'static> = certified.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone())?;
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let mut tls = Tls {
            server: ServerConnection::new(Arc::new(server))?,
            client: ClientConnection::new(Arc::new(client), ServerName::try_from("localhost")?)?,
            wire: Vec::new(),
            plaintext: Vec::new(),
        };
        while tls.client.is_handshaking() || tls.server.is_handshaking() {
            let mut sent = Vec::new();
            while tls.client.wants_write() {
                tls.client.write_tls(&mut sent)?;
            }
            tls.server.read_tls(&mut sent.as_slice())?;
            tls.server.process_new_packets()?;
            tls.take_records()?;
            tls.decrypt()?;
        }
        Ok(tls)
    }

    /// Encrypts the message. Once as much as the router reads at a time has gathered, decrypts or discards it.
    pub(crate) fn send(&mut self, message: &[u8], decrypt: bool) -> Result<()> {
        self.server.writer().write_all(message)?;
        self.take_records()?;
        if self.wire.len() < READ_SIZE {
            return Ok(());
        }
        if decrypt {
            return self.decrypt();
        }
        self.wire.clear();
        Ok(())
    }

    fn take_records(&mut self) -> Result<()> {
        while self.server.wants_write() {
            self.server.write_tls(&mut self.wire).context("encrypt")?;
        }
        Ok(())
    }

    fn decrypt(&mut self) -> Result<()> {
        let mut received = self.wire.as_slice();
        while !received.is_empty() {
            self.client.read_tls(&mut received)?;
            let state = self.client.process_new_packets()?;
            self.plaintext.resize(state.plaintext_bytes_to_read(), 0);
            self.client.reader().read_exact(&mut self.plaintext)?;
        }
        self.wire.clear();
        Ok(())
    }
}
