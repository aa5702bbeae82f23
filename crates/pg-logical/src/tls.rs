//! TLS by libpq's rules (Postgres manual, "SSL Support" under "libpq").

pub(super) mod alert;
mod certificate;
pub(super) mod stream;
mod verifier;
mod version1;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::client::Resumption;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tracing::warn;

use alert::{client_certificate_refused, tls_error};
pub(super) use certificate::server_end_point;
use stream::TlsStream;
use verifier::{Check, Verifier};

use super::failure::Failure;
use super::login::Login;
use super::server_error::io_reason;
use super::stream::Stream;
use crate::conninfo::{ConnInfo, HostAddr, RootCert, SslMode};
use crate::error::Remedy;

/// Requests TLS from the server and negotiates it. With `sslmode=prefer`, continues without TLS if the server has none.
pub(super) async fn negotiate(mut tcp: TcpStream, login: Login<'_>) -> Result<Stream, Failure> {
    let mode = login.conninfo.effective_ssl_mode();
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    tcp.write_all(&request).await?;
    // Exactly one byte is read: bytes that an attacker inserts after it become part of the handshake, which then fails.
    match tcp.read_u8().await? {
        b'S' => handshake(tcp, login, mode).await,
        b'N' if mode == SslMode::Prefer => Ok(Stream::Tcp(tcp)),
        b'N' => Err(Failure::definite(
            format!("the server does not support TLS, but sslmode={} asks for it", keyword(mode)),
            Remedy::ServerTls,
        )),
        // The message is not read, because nothing proves yet that it comes from the server.
        b'E' => {
            Err(Failure::transient("the server answers the request for TLS with an error")
                .or_other_encryption())
        }
        other => Err(Failure::definite(
            format!("the server answers the request for TLS with {:?}", char::from(other)),
            Remedy::CheckServer,
        )),
    }
}

async fn handshake(tcp: TcpStream, login: Login<'_>, mode: SslMode) -> Result<Stream, Failure> {
    let host = host_name(login);
    let trust = Trust::load(login.conninfo, mode)?;
    let verifier = Arc::new(trust.verifier(host)?);
    let config = config(login.conninfo, Arc::clone(&verifier))?;
    // With a numeric address, no SNI is sent.
    let server_name = ServerName::try_from(host.to_owned())
        .unwrap_or(ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into()));
    match TlsConnector::from(Arc::new(config)).connect(server_name, tcp).await {
        Ok(stream) => {
            let (socket, connection) = stream.into_inner();
            Ok(Stream::Tls(Box::new(TlsStream::new(socket, connection))))
        }
        Err(error) => Err(handshake_failure(&error, &verifier, &trust, host).or_other_encryption()),
    }
}

/// The name that the server's certificate must have.
fn host_name(login: Login<'_>) -> &str {
    match &login.host.addr {
        HostAddr::Tcp { name, hostaddr } if name.is_empty() => hostaddr.as_deref().unwrap_or_default(),
        HostAddr::Tcp { name, .. } => name,
        HostAddr::Unix(_) => "",
    }
}

fn keyword(mode: SslMode) -> &'static str {
    match mode {
        SslMode::Disable => "disable",
        SslMode::Allow => "allow",
        SslMode::Prefer => "prefer",
        SslMode::Require => "require",
        SslMode::VerifyCa => "verify-ca",
        SslMode::VerifyFull => "verify-full",
    }
}

/// The trusted authorities for the server's certificate.
struct Trust {
    check: Check,
    roots: Vec<CertificateDer<'static>>,
    /// The origin of the roots, for messages.
    origin: String,
}

impl Trust {
    /// Loads the trusted roots. An existing root certificate file is used in every mode; only `verify-ca` and `verify-full`
    /// require one.
    fn load(conninfo: &ConnInfo, mode: SslMode) -> Result<Trust, Failure> {
        let check = match mode {
            SslMode::VerifyFull => Check::ChainAndName,
            _ => Check::Chain,
        };
        match &conninfo.ssl_root_cert {
            Some(RootCert::System) => {
                let roots = rustls_native_certs::load_native_certs().certs;
                if roots.is_empty() {
                    return Err(Failure::definite(
                        "sslrootcert=system, but this machine has no trusted authorities",
                        Remedy::SystemRoots,
                    ));
                }
                Ok(Trust { check, roots, origin: "this machine's trust store".to_owned() })
            }
            Some(RootCert::File(path)) => match read_certificates(path) {
                Ok(roots) => Ok(Trust { check, roots, origin: path.display().to_string() }),
                Err(PemFailure::Missing) if mode < SslMode::VerifyCa => {
                    warn!(
                        "sslrootcert {} does not exist: the server's certificate is not verified",
                        path.display()
                    );
                    Ok(Trust::unverified())
                }
                Err(failure) => Err(failure.explain("sslrootcert", path)),
            },
            None if mode < SslMode::VerifyCa => Ok(Trust::unverified()),
            None => Err(Failure::definite(
                format!("sslmode={} needs to know whom to trust, and sslrootcert is not set", keyword(mode)),
                Remedy::SetRootCertificate,
            )),
        }
    }

    fn unverified() -> Trust {
        Trust { check: Check::Nothing, roots: Vec::new(), origin: String::new() }
    }

    fn verifier(&self, host: &str) -> Result<Verifier, Failure> {
        Verifier::new(self.check, self.roots.clone(), host).map_err(|error| {
            let what = format!("sslrootcert {} cannot be used: {error}", self.origin);
            Failure::definite(what, Remedy::RootCertificates)
        })
    }
}

fn config(conninfo: &ConnInfo, verifier: Arc<Verifier>) -> Result<ClientConfig, Failure> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::definite(format!("TLS cannot be set up: {error}"), Remedy::ReportBug))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &conninfo.ssl_client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain =
                read_certificates(certificate).map_err(|failure| failure.explain("sslcert", certificate))?;
            builder.with_client_auth_cert(chain, read_key(key)?).map_err(|error| {
                Failure::definite(
                    format!(
                        "sslcert {} and sslkey {} cannot be used: {error}",
                        certificate.display(),
                        key.display()
                    ),
                    Remedy::MatchKey,
                )
            })?
        }
    };
    // Connections are rare, and Postgres resumes no sessions.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Why a PEM file could not be used.
enum PemFailure {
    Missing,
    Unusable(String),
}

impl PemFailure {
    fn explain(self, parameter: &'static str, path: &Path) -> Failure {
        let why = match self {
            PemFailure::Missing => "there is no such file".to_owned(),
            PemFailure::Unusable(why) => why,
        };
        Failure::definite(
            format!("{parameter} {} cannot be used: {why}", path.display()),
            Remedy::PemFile { parameter },
        )
    }
}

impl From<pem::Error> for PemFailure {
    fn from(error: pem::Error) -> Self {
        match error {
            pem::Error::Io(error) if error.kind() == io::ErrorKind::NotFound => PemFailure::Missing,
            pem::Error::Io(error) => PemFailure::Unusable(io_reason(&error)),
            pem::Error::NoItemsFound => PemFailure::Unusable("it holds none".to_owned()),
            other => PemFailure::Unusable(other.to_string()),
        }
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemFailure> {
    let certificates = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if certificates.is_empty() {
        return Err(PemFailure::Unusable("it holds no certificate".to_owned()));
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Failure> {
    let unusable = |failure: PemFailure| failure.explain("sslkey", path);
    let metadata = fs::metadata(path).map_err(|error| unusable(pem::Error::Io(error).into()))?;
    if !metadata.is_file() {
        return Err(unusable(PemFailure::Unusable("it is not a plain file".to_owned())));
    }
    if key_is_exposed(metadata.mode(), metadata.uid()) {
        return Err(Failure::definite(
            format!("sslkey {} has group or world access", path.display()),
            Remedy::ProtectKey,
        ));
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        unusable(match error {
            pem::Error::NoItemsFound => PemFailure::Unusable(
                "it contains no unencrypted private key (PKCS#8, PKCS#1 or SEC1)".to_owned(),
            ),
            other => other.into(),
        })
    })
}

/// libpq's rule: only the owner may read the key, except that a key of root may be readable by a group.
fn key_is_exposed(mode: u32, owner: u32) -> bool {
    let forbidden = if owner == 0 { 0o037 } else { 0o077 };
    mode & forbidden != 0
}

fn handshake_failure(error: &io::Error, verifier: &Verifier, trust: &Trust, host: &str) -> Failure {
    use AlertDescription as Alert;
    if let Some(refusal) = client_certificate_refused(error) {
        return Failure::stop(refusal);
    }
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(reason)) => certificate_failure(reason, verifier, trust, host),
        Some(
            reason @ (rustls::Error::PeerIncompatible(_)
            | rustls::Error::AlertReceived(
                Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity,
            )),
        ) => Failure::definite(
            format!("the server and the client have no TLS version or cipher in common: {reason}"),
            Remedy::TlsVersion,
        ),
        Some(reason) => Failure::transient(format!("the TLS handshake failed: {reason}")),
        None => Failure::transient(format!("the TLS handshake failed: {}", io_reason(error))),
    }
}

fn certificate_failure(reason: &CertificateError, verifier: &Verifier, trust: &Trust, host: &str) -> Failure {
    use certificate::{date, is_self_issued, issuer, names};
    use rustls::CertificateError as Invalid;
    let presented = verifier.presented();
    match reason {
        Invalid::NotValidForName | Invalid::NotValidForNameContext { .. } => {
            let names = presented.map(names).unwrap_or_default().to_string();
            Failure::definite(
                format!("the server's certificate is for {names}, not for \"{host}\""),
                Remedy::CertificateName { host: host.to_owned() },
            )
        }
        Invalid::UnknownIssuer if presented.is_some_and(is_self_issued) => Failure::definite(
            format!("the server's certificate is self-signed and is not in {}", trust.origin),
            Remedy::TrustSelfSigned,
        ),
        Invalid::UnknownIssuer | Invalid::BadSignature => {
            let issuer = presented.and_then(issuer).unwrap_or_default();
            Failure::definite(
                format!(
                    "the server's certificate was signed by \"{issuer}\", an authority that is not in {}",
                    trust.origin
                ),
                Remedy::TrustAuthority,
            )
        }
        Invalid::ExpiredContext { not_after, .. } => Failure::definite(
            format!("the server's certificate expired on {}", date(*not_after)),
            Remedy::RenewCertificate,
        ),
        Invalid::NotValidYetContext { not_before, .. } => Failure::definite(
            format!("the server's certificate is not valid before {}", date(*not_before)),
            Remedy::SetClock,
        ),
        other => Failure::definite(
            format!("the server's certificate cannot be used: {other}"),
            Remedy::ServerCertificate,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_read_a_key_and_a_group_if_root_owns_it() {
        for (mode, owner, exposed) in [
            (0o100_600, 1000, false),
            (0o100_400, 1000, false),
            (0o100_640, 1000, true),
            (0o100_604, 1000, true),
            (0o100_640, 0, false),
            (0o100_660, 0, true),
            (0o100_644, 0, true),
        ] {
            assert_eq!(key_is_exposed(mode, owner), exposed, "mode {mode:o}, owner {owner}");
        }
    }
}
