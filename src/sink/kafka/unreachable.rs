//! The error if no broker answers, with a remedy.

use rdkafka::error::RDKafkaErrorCode as Code;

use super::context;
use crate::config::Config;
use crate::error::{Error, ErrorCode, Peer};

fn servers(config: &Config) -> &str {
    config.kafka.properties.get("bootstrap.servers").map_or("", |servers| servers.reveal())
}

/// The error for the connection's last error.
pub(super) fn no_answer(config: &Config, last_error: Option<(Code, String)>) -> Error {
    let servers = servers(config);
    let property = |name: &str| config.kafka.properties.get(name).map(|value| value.reveal());
    let tokens = property("sasl.oauthbearer.token.endpoint.url");
    match (last_error, tokens) {
        (Some((Code::Authentication, reason)), Some(url)) if reason.starts_with(context::NO_TOKEN) => {
            let reason = reason.trim_start_matches(context::NO_TOKEN);
            Error::refused(
                ErrorCode::KafkaLogin,
                format!("the token server at {url} refused: {}", reason.trim()),
                "Correct sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret and sasl.oauthbearer.scope under `[kafka]`",
            )
        }
        (Some((Code::Authentication | Code::SaslAuthenticationFailed, reason)), tokens) => Error::refused(
            ErrorCode::KafkaLogin,
            format!("the Kafka brokers at {servers} refused the credentials: {reason}"),
            match tokens {
                None => "Correct sasl.mechanism, sasl.username and sasl.password under `[kafka]`",
                Some(_) => {
                    "Let the token server issue tokens that the brokers accept (audience, scope, subject), or correct \
                     sasl.mechanism and sasl.oauthbearer.scope under `[kafka]`"
                }
            },
        ),
        (Some((_, reason)), _) => {
            Error::transient(Peer::Kafka, format!("no Kafka broker answers at {servers}: {reason}"))
        }
        // brokers are only asked once there is a token
        (None, Some(url)) => Error::transient(
            Peer::Kafka,
            format!("no Kafka broker answers at {servers}, or no token comes from {url}"),
        ),
        (None, None) => Error::transient(Peer::Kafka, format!("no Kafka broker answers at {servers}")),
    }
}
