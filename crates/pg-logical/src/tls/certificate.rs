//! The contents of a server's certificate: names, dates, and its hash for channel binding.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::der::asn1::{ContextSpecific, ObjectIdentifier};
use x509_cert::der::oid::db::{rfc4519, rfc5912};
use x509_cert::der::{DateTime, Decode, SliceReader, TagNumber};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::spki::AlgorithmIdentifierOwned;

/// `ecdsa-with-SHA1` (RFC 3279, section 2.2.3).
const ECDSA_WITH_SHA_1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.1");

/// The names that a certificate is for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Its subject alternative names: DNS names and IP addresses.
    pub(super) alternative: Vec<String>,
    /// Its subject's common name, which only counts without alternative names.
    pub(super) common: Option<String>,
}

impl Names {
    /// Whether the common name matches `host`, either exactly or as a wildcard for one label (Postgres manual, "Client
    /// Verification of Server Certificates").
    pub(super) fn common_name_matches(&self, host: &str) -> bool {
        let Some(common) = &self.common else { return false };
        if common.eq_ignore_ascii_case(host) {
            return !host.is_empty();
        }
        let (Some(wanted), Some((label, rest))) = (common.strip_prefix("*."), host.split_once('.')) else {
            return false;
        };
        // a wildcard such as "*.0.0.7" does not match an IP address
        !label.is_empty() && host.parse::<IpAddr>().is_err() && wanted.eq_ignore_ascii_case(rest)
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names =
            self.alternative.iter().chain(self.common.iter().filter(|_| self.alternative.is_empty()));
        match names.next() {
            None => return f.write_str("no host at all"),
            Some(first) => write!(f, "\"{first}\"")?,
        }
        names.try_for_each(|name| write!(f, ", \"{name}\""))
    }
}

/// The names in a DER certificate; empty if it cannot be read.
pub(super) fn names(der: impl AsRef<[u8]>) -> Names {
    let Ok(certificate) = Certificate::from_der(der.as_ref()) else { return Names::default() };
    let certificate = certificate.tbs_certificate;
    let alternative = match certificate.get::<SubjectAltName>() {
        Ok(Some((_, SubjectAltName(names)))) => names.iter().filter_map(host_name).collect(),
        _ => Vec::new(),
    };
    let attributes = certificate.subject.0.iter().flat_map(|name| name.0.iter());
    let common = attributes
        .filter(|attribute| attribute.oid == rfc4519::CN)
        .find_map(|attribute| std::str::from_utf8(attribute.value.value()).ok())
        .map(str::to_owned);
    Names { alternative, common }
}

fn host_name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(name.to_string()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}

/// The name of the authority that signed it.
pub(super) fn issuer(der: impl AsRef<[u8]>) -> Option<String> {
    Some(Certificate::from_der(der.as_ref()).ok()?.tbs_certificate.issuer.to_string())
}

/// Whether its issuer is its own subject, as in a self-signed certificate.
pub(super) fn is_self_issued(der: impl AsRef<[u8]>) -> bool {
    Certificate::from_der(der.as_ref())
        .is_ok_and(|certificate| certificate.tbs_certificate.issuer == certificate.tbs_certificate.subject)
}

/// Whether `now` is within its dates.
pub(super) fn check_validity(der: impl AsRef<[u8]>, now: UnixTime) -> Result<(), Error> {
    let certificate = Certificate::from_der(der.as_ref()).map_err(|_| CertificateError::BadEncoding)?;
    let validity = certificate.tbs_certificate.validity;
    let not_before = UnixTime::since_unix_epoch(validity.not_before.to_unix_duration());
    let not_after = UnixTime::since_unix_epoch(validity.not_after.to_unix_duration());
    if now < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
    }
    if now > not_after {
        return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
    }
    Ok(())
}

/// A date for a message, as `2026-01-31T12:00:00Z`.
pub(super) fn date(time: UnixTime) -> String {
    let date = DateTime::from_unix_duration(Duration::from_secs(time.as_secs()));
    date.map_or_else(|_| "a date out of range".to_owned(), |date| date.to_string())
}

/// `tls-server-end-point`: the certificate's hash with the hash function of its signature, or SHA-256 instead of MD5 and
/// SHA-1 (RFC 5929, section 4.1). `None` for signatures without a single hash function, such as Ed25519.
pub(crate) fn server_end_point(der: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    let der = der.as_ref();
    let signed_by = Certificate::from_der(der).ok()?.signature_algorithm;
    let hash = match signed_by.oid {
        rfc5912::ID_RSASSA_PSS => pss_hash(&signed_by)?,
        other => other,
    };
    match hash {
        rfc5912::MD_5_WITH_RSA_ENCRYPTION
        | rfc5912::SHA_1_WITH_RSA_ENCRYPTION
        | ECDSA_WITH_SHA_1
        | rfc5912::ID_SHA_1
        | rfc5912::SHA_256_WITH_RSA_ENCRYPTION
        | rfc5912::ECDSA_WITH_SHA_256
        | rfc5912::ID_SHA_256 => Some(Sha256::digest(der).to_vec()),
        rfc5912::SHA_384_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_384 | rfc5912::ID_SHA_384 => {
            Some(Sha384::digest(der).to_vec())
        }
        rfc5912::SHA_512_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_512 | rfc5912::ID_SHA_512 => {
            Some(Sha512::digest(der).to_vec())
        }
        _ => None,
    }
}

/// RSASSA-PSS names its hash function in its first parameter; SHA-1 if that is missing (RFC 4055, section 3.1).
fn pss_hash(algorithm: &AlgorithmIdentifierOwned) -> Option<ObjectIdentifier> {
    let parameters = algorithm.parameters.as_ref()?.value();
    let mut reader = SliceReader::new(parameters).ok()?;
    let hash =
        ContextSpecific::<AlgorithmIdentifierOwned>::decode_explicit(&mut reader, TagNumber::N0).ok()?;
    Some(hash.map_or(rfc5912::ID_SHA_1, |hash| hash.value.oid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn certificate(alternative: &[&str], common: Option<&str>, key: &KeyPair) -> Vec<u8> {
        let names: Vec<String> = alternative.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        params.self_signed(key).unwrap().der().to_vec()
    }

    #[test]
    fn the_common_name_is_listed_only_without_alternative_names() {
        let key = KeyPair::generate().unwrap();
        let both = names(certificate(&["db.example", "10.0.0.7", "::1"], Some("cn.example"), &key));
        assert_eq!(both.to_string(), r#""db.example", "10.0.0.7", "::1""#);
        let common = names(certificate(&[], Some("cn.example"), &key));
        assert_eq!(common.to_string(), r#""cn.example""#);
        assert_eq!(names(certificate(&[], None, &key)).to_string(), "no host at all");
        assert_eq!(names(b"no certificate"), Names::default());
    }

    #[test]
    fn common_names_match_by_libpqs_rules() {
        let fits = |common: &str, host: &str| {
            Names { alternative: Vec::new(), common: Some(common.to_owned()) }.common_name_matches(host)
        };
        assert!(fits("db.example", "DB.example"));
        assert!(fits("*.example", "db.example"));
        assert!(!fits("*.example", "a.db.example"));
        assert!(!fits("*.example", "example"));
        assert!(!fits("*.0.0.7", "10.0.0.7"));
        assert!(!fits("", ""));
    }

    #[test]
    fn channel_binding_uses_the_hash_of_the_signature() {
        for (algorithm, length) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Some(32)),
            (&rcgen::PKCS_ECDSA_P384_SHA384, Some(48)),
            (&rcgen::PKCS_ED25519, None),
        ] {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let der = certificate(&["db.example"], None, &key);
            assert_eq!(server_end_point(&der).map(|hash| hash.len()), length, "{algorithm:?}");
        }
        assert_eq!(server_end_point(b"no certificate"), None);
    }

    #[test]
    fn a_certificate_is_valid_between_its_dates() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        let at = |seconds| {
            check_validity(certificate.der(), UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
        };
        let (first, last) = (978_307_200, 1_009_843_200);
        assert!(at(first).is_ok() && at(last).is_ok());
        for (outside, reason) in [(first - 1, "NotValidYet"), (last + 1, "Expired")] {
            assert!(format!("{:?}", at(outside).unwrap_err()).contains(reason));
        }
    }

    #[test]
    fn a_date_is_written_in_rfc_3339() {
        let noon = UnixTime::since_unix_epoch(Duration::from_secs(1_769_860_800));
        assert_eq!(date(noon), "2026-01-31T12:00:00Z");
    }
}
