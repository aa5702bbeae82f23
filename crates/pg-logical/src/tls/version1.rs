//! X.509 version 1, which webpki does not support. The Postgres manual ("Creating Certificates") signs the server's request
//! with `openssl x509 -req` without extensions, which yields version 1 with OpenSSL 3.0, as in Debian 12. Such a certificate
//! is accepted if an authority signed it directly.

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode, Encode};
use x509_cert::spki::{AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};

use super::certificate::check_validity;

/// A certificate of version 1.
pub(super) struct Version1<'a> {
    der: &'a [u8],
    certificate: Certificate,
}

impl<'a> Version1<'a> {
    /// Parses `der`; `None` if it has another version, or is not a certificate.
    pub(super) fn read(der: &'a CertificateDer<'_>) -> Option<Self> {
        let certificate = Certificate::from_der(der).ok()?;
        (certificate.tbs_certificate.version == Version::V1).then_some(Version1 { der, certificate })
    }

    /// Whether it is within its dates and signed by one of `trusted`.
    pub(super) fn check(
        &self,
        trusted: &[CertificateDer<'_>],
        now: UnixTime,
        algorithms: &[&'static dyn SignatureVerificationAlgorithm],
    ) -> Result<(), Error> {
        check_validity(self.der, now)?;
        let signed = self.certificate.tbs_certificate.to_der().map_err(|_| CertificateError::BadEncoding)?;
        let signature = self.certificate.signature.raw_bytes();
        let signed_by =
            identifier(&self.certificate.signature_algorithm).ok_or(CertificateError::BadEncoding)?;
        let usable = || algorithms.iter().filter(|known| known.signature_alg_id().as_ref() == signed_by);
        let issuers = trusted.iter().filter_map(|der| Certificate::from_der(der).ok());
        let trusted = issuers
            .map(|issuer| issuer.tbs_certificate)
            .filter(|issuer| issuer.subject == self.certificate.tbs_certificate.issuer)
            .any(|issuer| signature_holds(&issuer.subject_public_key_info, usable(), &signed, signature));
        if trusted { Ok(()) } else { Err(CertificateError::UnknownIssuer.into()) }
    }

    /// Whether the server has the private key, in TLS 1.2.
    pub(super) fn check_tls12_signature(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        let usable = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
        let usable = usable.flat_map(|(_, algorithms)| algorithms.iter());
        let key = &self.certificate.tbs_certificate.subject_public_key_info;
        if signature_holds(key, usable, message, signed.signature()) {
            return Ok(());
        }
        Err(CertificateError::BadSignature.into())
    }

    /// Its public key, with which rustls verifies signatures in TLS 1.3.
    pub(super) fn key(&self) -> Result<SubjectPublicKeyInfoDer<'static>, Error> {
        let key = self.certificate.tbs_certificate.subject_public_key_info.to_der();
        key.map(SubjectPublicKeyInfoDer::from).map_err(|_| CertificateError::BadEncoding.into())
    }
}

/// The contents of the algorithm's SEQUENCE, which rustls compares.
fn identifier(algorithm: &AlgorithmIdentifierOwned) -> Option<Vec<u8>> {
    let der = algorithm.to_der().ok()?;
    Some(AnyRef::from_der(&der).ok()?.value().to_vec())
}

fn signature_holds<'a>(
    key: &SubjectPublicKeyInfoOwned,
    algorithms: impl Iterator<Item = &'a &'static dyn SignatureVerificationAlgorithm>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let Some(kind) = identifier(&key.algorithm) else { return false };
    let bytes = key.subject_public_key.raw_bytes();
    let mut of_this_kind = algorithms.filter(|known| known.public_key_alg_id().as_ref() == kind);
    of_this_kind.any(|algorithm| algorithm.verify_signature(bytes, message, signature).is_ok())
}
