//! Alerts by which a server ends a TLS connection.

use std::io;

use rustls::AlertDescription as Alert;

use crate::error::{Error, Remedy};

/// The error if the server refuses the client's certificate, which in TLS 1.3 arrives only after the handshake.
pub(crate) fn client_certificate_refused(error: &io::Error) -> Option<Error> {
    let rustls::Error::AlertReceived(alert) = tls_error(error)? else { return None };
    let ours = matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
    );
    ours.then(|| {
        let what = format!("the server does not accept the client's certificate ({alert:?})");
        Error::definite(what, Remedy::ClientCertificate)
    })
}

pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
