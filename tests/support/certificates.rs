//! Certificates for tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SigningKey,
};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::asn1::BitString;
use x509_cert::der::{Decode, Encode};

/// A PEM certificate and its PEM key.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Identity {
    /// Writes both into `folder`. Only the owner may read the key.
    pub(crate) fn save(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        fs::write(&certificate, &self.certificate).unwrap();
        fs::write(&key, &self.key).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        (certificate, key)
    }
}

/// A certificate authority.
pub(crate) struct Authority {
    pub(crate) certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = named(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    /// A certificate for the common name and the alternative names.
    pub(crate) fn issue(&self, common: &str, alternative: &[&str]) -> Identity {
        self.sign(&named(common, alternative))
    }

    /// The same, but the certificate expired long ago.
    pub(crate) fn issue_expired(&self, common: &str, alternative: &[&str]) -> Identity {
        let mut params = named(common, alternative);
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        self.sign(&params)
    }

    /// A certificate of X.509 version 1, as `openssl x509 -req` issues it.
    pub(crate) fn issue_version_1(&self, common: &str) -> Identity {
        let Identity { certificate, key } = self.issue(common, &[]);
        let der = pem::parse(certificate).unwrap();
        let mut certificate = Certificate::from_der(der.contents()).unwrap();
        certificate.tbs_certificate.version = Version::V1;
        certificate.tbs_certificate.extensions = None;
        let signature = self.issuer.key().sign(&certificate.tbs_certificate.to_der().unwrap()).unwrap();
        certificate.signature = BitString::from_bytes(&signature).unwrap();
        let certificate = pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_der().unwrap()));
        Identity { certificate, key }
    }

    fn sign(&self, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Identity { certificate, key: key.serialize_pem() }
    }
}

/// A certificate that its own key signed.
pub(crate) fn self_signed(common: &str, alternative: &[&str]) -> Identity {
    let key = KeyPair::generate().unwrap();
    let mut params = named(common, alternative);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Identity { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

fn named(common: &str, alternative: &[&str]) -> CertificateParams {
    let names: Vec<String> = alternative.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    params
}
