//! Authentication: cleartext, md5 and SCRAM passwords (Postgres manual, "Authentication" under "Message Flow").

use std::fs;

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, ErrorResponseBody, Message};
use postgres_protocol::message::frontend;
use tokio_postgres::error::SqlState;
use tokio_postgres::fallible_iterator::FallibleIterator;
use tracing::warn;

use super::failure::{Failure, unexpected};
use super::passfile::{self, Lookup};
use super::server_error::ServerError;
use super::tls;
use super::wire::Wire;
use crate::conninfo::{ChannelBinding, ConnInfo, Host, Password};
use crate::error::{Error, Remedy};
use crate::secret::Secret;

/// The user and database, and how far to trust the server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Login<'a> {
    pub(super) conninfo: &'a ConnInfo,
    pub(super) host: &'a Host,
}

/// A password, and where it came from, for messages.
struct FoundPassword {
    password: Secret,
    origin: String,
}

impl Login<'_> {
    /// Looks up the password for each connection, so that a rotated password file takes effect.
    fn password(&self) -> Result<FoundPassword, Failure> {
        let conninfo = self.conninfo;
        match &conninfo.password {
            Some(Password::Given(password)) if !password.reveal().is_empty() => {
                Ok(FoundPassword { password: password.clone(), origin: "the configured password".to_owned() })
            }
            Some(Password::File(path)) => {
                let text = fs::read_to_string(path).map_err(|error| {
                    Failure::definite(
                        format!("cannot read the password file {}: {error}", path.display()),
                        Remedy::PasswordFile,
                    )
                })?;
                let password = text.strip_suffix('\n').unwrap_or(&text);
                let password = password.strip_suffix('\r').unwrap_or(password);
                if password.is_empty() {
                    let what = format!("the password file {} is empty", path.display());
                    return Err(Failure::definite(what, Remedy::PasswordFile));
                }
                Ok(FoundPassword {
                    password: Secret::new(password),
                    origin: format!("the password from {}", path.display()),
                })
            }
            Some(Password::Given(_)) | None => self.passfile_password(),
        }
    }

    fn passfile_password(&self) -> Result<FoundPassword, Failure> {
        let conninfo = self.conninfo;
        let needed = "the server asks for a password and none is configured";
        let Some(path) = &conninfo.passfile else {
            return Err(Failure::definite(needed, Remedy::SetPassword));
        };
        match passfile::look_up(path, self.host, &conninfo.dbname, &conninfo.user) {
            Lookup::Found(password) if !password.reveal().is_empty() => {
                Ok(FoundPassword { password, origin: format!("the password from {}", path.display()) })
            }
            Lookup::Found(_) | Lookup::NotFound => {
                let what = format!("{needed}: no line of the passfile {} matches", path.display());
                Err(Failure::definite(what, Remedy::SetPassword))
            }
            Lookup::Ignored(why) => {
                warn!("passfile ignored: {why}");
                Err(Failure::definite(
                    format!("{needed}: the passfile is ignored, {why}"),
                    Remedy::SetPassword,
                ))
            }
        }
    }
}

/// Answers the server's requests until it accepts the user.
pub(super) async fn authenticate(wire: &mut Wire, login: Login<'_>) -> Result<(), Failure> {
    let user = login.conninfo.user.as_str();
    let mut reply = BytesMut::new();
    let found = match wire.receive().await? {
        Message::AuthenticationOk => return check_binding_not_required(login),
        Message::AuthenticationCleartextPassword => {
            check_binding_not_required(login)?;
            let found = login.password()?;
            frontend::password_message(found.password.reveal().as_bytes(), &mut reply)?;
            found
        }
        Message::AuthenticationMd5Password(body) => {
            check_binding_not_required(login)?;
            let found = login.password()?;
            let hash = md5_hash(user.as_bytes(), found.password.reveal().as_bytes(), body.salt());
            frontend::password_message(hash.as_bytes(), &mut reply)?;
            found
        }
        Message::AuthenticationSasl(body) => return scram(wire, login, &body).await,
        Message::AuthenticationGss
        | Message::AuthenticationSspi
        | Message::AuthenticationKerberosV5
        | Message::AuthenticationScmCredential => {
            return Err(Failure::definite(
                "the server asks for an authentication method other than a password or a certificate",
                Remedy::PasswordMethod { user: user.to_owned() },
            ));
        }
        Message::ErrorResponse(body) => return Err(Failure::from_server(&body)),
        _ => return Err(unexpected()),
    };
    wire.send(&reply).await?;
    match wire.receive().await? {
        Message::AuthenticationOk => Ok(()),
        Message::ErrorResponse(body) => Err(Failure::from_server(&body).after_password(&found.origin)),
        _ => Err(unexpected()),
    }
}

/// `channel_binding=require` refuses methods that do not prove that the server knows the password.
fn check_binding_not_required(login: Login<'_>) -> Result<(), Failure> {
    if login.conninfo.channel_binding != ChannelBinding::Require {
        return Ok(());
    }
    Err(Failure::definite(
        "channel_binding=require, but the server does not ask for SCRAM-SHA-256-PLUS",
        Remedy::ScramOverTls,
    ))
}

/// SCRAM-SHA-256, bound to the TLS channel if both sides support it (Postgres manual, "SASL Authentication").
async fn scram(wire: &mut Wire, login: Login<'_>, offered: &AuthenticationSaslBody) -> Result<(), Failure> {
    let offered: Vec<&str> = offered.mechanisms().collect()?;
    let wanted = login.conninfo.channel_binding;
    let certificate = wire.stream().server_certificate();
    let certificate_hash = match wanted {
        ChannelBinding::Disable => None,
        ChannelBinding::Prefer | ChannelBinding::Require => certificate.and_then(tls::server_end_point),
    };
    let (mechanism, binding) = match certificate_hash {
        Some(hash) if offered.contains(&SCRAM_SHA_256_PLUS) => {
            (SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(hash))
        }
        _ if wanted == ChannelBinding::Require => {
            let what = if !wire.stream().is_tls() {
                "channel_binding=require, but this connection is not encrypted"
            } else if offered.contains(&SCRAM_SHA_256_PLUS) {
                "channel_binding=require, but the server's kind of certificate does not support channel binding"
            } else {
                "channel_binding=require, but the server does not offer SCRAM-SHA-256-PLUS"
            };
            return Err(Failure::definite(what, Remedy::ChannelBinding));
        }
        _ if !offered.contains(&SCRAM_SHA_256) => {
            return Err(Failure::definite(
                format!("the server offers only these SASL mechanisms: {}", offered.join(", ")),
                Remedy::Scram,
            ));
        }
        // if the server did offer channel binding, this tells it that somebody in between removed the offer
        Some(_) => (SCRAM_SHA_256, sasl::ChannelBinding::unrequested()),
        None => (SCRAM_SHA_256, sasl::ChannelBinding::unsupported()),
    };

    let found = login.password()?;
    let refused = |body: &_| match ServerError::from_fields(ErrorResponseBody::fields(body)) {
        error
            if mechanism == SCRAM_SHA_256_PLUS
                && error.code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
        {
            Failure::definite(error.to_string(), Remedy::BypassTlsTermination)
        }
        error => Failure::from(error).after_password(&found.origin),
    };
    let mut scram = ScramSha256::new(found.password.reveal().as_bytes(), binding);
    let mut message = BytesMut::new();
    frontend::sasl_initial_response(mechanism, scram.message(), &mut message)?;
    wire.send(&message).await?;
    match wire.receive().await? {
        Message::AuthenticationSaslContinue(body) => scram.update(body.data()).map_err(broken_scram)?,
        Message::ErrorResponse(body) => return Err(refused(&body)),
        _ => return Err(unexpected()),
    }
    message.clear();
    frontend::sasl_response(scram.message(), &mut message)?;
    wire.send(&message).await?;
    match wire.receive().await? {
        Message::AuthenticationSaslFinal(body) => scram.finish(body.data()).map_err(broken_scram)?,
        Message::ErrorResponse(body) => return Err(refused(&body)),
        _ => return Err(unexpected()),
    }
    match wire.receive().await? {
        Message::AuthenticationOk => Ok(()),
        Message::ErrorResponse(body) => Err(refused(&body)),
        _ => Err(unexpected()),
    }
}

/// The server's proof is wrong: it does not know the password, or the connection was intercepted.
fn broken_scram(error: std::io::Error) -> Failure {
    Failure::stop(Error::definite(
        format!("the server failed to prove that it knows the password: {error}"),
        Remedy::CheckServerIdentity,
    ))
}
