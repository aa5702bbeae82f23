//! Authentication: cleartext, md5 and SCRAM passwords (Postgres manual, "Authentication" under "Message Flow").

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, ErrorResponseBody, Message};
use postgres_protocol::message::frontend;
use tokio_postgres::error::SqlState;
use tokio_postgres::fallible_iterator::FallibleIterator;

use super::failure::{Failure, unexpected};
use super::login::Login;
use super::server_error::ServerError;
use super::tls;
use super::wire::Wire;
use crate::conninfo::ChannelBinding;
use crate::error::{Error, Remedy};

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
