//! Verifies a server's certificate.

use std::sync::OnceLock;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::certificate;
use super::version1::Version1;

/// What is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Nothing: any server is accepted.
    Nothing,
    /// A trusted authority must have signed it.
    Chain,
    /// The same, and it must name the host.
    ChainAndName,
}

/// Verifies one server's certificate and stores it for messages.
#[derive(Debug)]
pub(super) struct Verifier {
    check: Check,
    host: String,
    trusted: Vec<CertificateDer<'static>>,
    anchors: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
    presented: OnceLock<CertificateDer<'static>>,
}

impl Verifier {
    pub(super) fn new(
        check: Check,
        trusted: Vec<CertificateDer<'static>>,
        host: &str,
    ) -> Result<Verifier, Error> {
        let mut anchors = RootCertStore::empty();
        let (used, unusable) = anchors.add_parsable_certificates(trusted.iter().cloned());
        if used == 0 && unusable > 0 {
            return Err(CertificateError::BadEncoding.into());
        }
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        Ok(Verifier {
            check,
            host: host.to_owned(),
            trusted,
            anchors,
            algorithms,
            presented: OnceLock::new(),
        })
    }

    /// The certificate that was verified.
    pub(super) fn presented(&self) -> Option<&CertificateDer<'static>> {
        self.presented.get()
    }

    fn check_chain(
        &self,
        presented: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        // A trusted self-signed certificate is its own authority (Postgres manual, "Creating Certificates"); webpki would
        // refuse it.
        if self.trusted.iter().any(|trusted| trusted == presented) {
            return certificate::check_validity(presented, now);
        }
        let algorithms = self.algorithms.all;
        if let Some(old) = Version1::read(presented) {
            return old.check(&self.trusted, now, algorithms);
        }
        let parsed = ParsedCertificate::try_from(presented)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.anchors, intermediates, now, algorithms)
            .map_err(|error| match certificate::is_self_issued(presented) {
                // A clearer error than webpki's, which would say that an authority is used as a server.
                true => CertificateError::UnknownIssuer.into(),
                false => error,
            })
    }

    fn check_name(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        let names = certificate::names(presented);
        let wrong = Error::from(CertificateError::NotValidForName);
        if !names.alternative.is_empty() {
            let host = ServerName::try_from(self.host.as_str()).map_err(|_| wrong)?;
            return verify_server_name(&ParsedCertificate::try_from(presented)?, &host);
        }
        if names.common_name_matches(&self.host) { Ok(()) } else { Err(wrong) }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.presented.get_or_init(|| end_entity.clone().into_owned());
        if self.check != Check::Nothing {
            self.check_chain(end_entity, intermediates, now)?;
        }
        if self.check == Check::ChainAndName {
            self.check_name(end_entity)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match Version1::read(cert) {
            None => verify_tls12_signature(message, cert, dss, &self.algorithms),
            Some(old) => old
                .check_tls12_signature(message, dss, &self.algorithms)
                .map(|()| HandshakeSignatureValid::assertion()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match Version1::read(cert) {
            None => verify_tls13_signature(message, cert, dss, &self.algorithms),
            Some(old) => verify_tls13_signature_with_raw_key(message, &old.key()?, dss, &self.algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
