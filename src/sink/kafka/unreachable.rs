//! The error if no broker answers, with a remedy.

use rdkafka::error::RDKafkaErrorCode as Code;

use super::context;
use crate::config::Config;
use crate::config::kafka_properties::shown;
use crate::error::{Error, ErrorCode, Peer, Transient};

fn servers(config: &Config) -> &str {
    config.kafka.properties.get("bootstrap.servers").map_or("", |servers| servers.reveal())
}

/// The error for the connection's last error.
pub(super) fn no_answer(config: &Config, last_error: Option<(Code, String)>) -> Error {
    let servers = servers(config);
    let property = |name: &str| config.kafka.properties.get(name).map(|value| value.reveal());
    const TOKEN_SERVER: &str = "sasl.oauthbearer.token.endpoint.url";
    let takes_tokens =
        property("sasl.mechanism").is_some_and(|name| name.eq_ignore_ascii_case("OAUTHBEARER"));
    let tokens = property(TOKEN_SERVER).filter(|_| takes_tokens).map(|url| shown(TOKEN_SERVER, url));
    match (last_error, tokens) {
        (Some((Code::Authentication, reason)), Some(url)) if reason.starts_with(context::NO_TOKEN) => {
            let reason = reason.trim_start_matches(context::NO_TOKEN);
            Error::refused(
                ErrorCode::KafkaLogin,
                format!("the token server at {url} refused: {}", reason.trim()),
                "Correct sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret and sasl.oauthbearer.scope under `[kafka]`",
            )
        }
        // nobody has refused anything, so it may pass
        (Some((_, reason)), Some(url)) if reason.starts_with(context::NO_TOKEN) => {
            let reason = reason.trim_start_matches(context::NO_TOKEN);
            waited_out(Error::refused(
                ErrorCode::KafkaLogin,
                format!("no token comes from {url}: {}", reason.trim()),
                "Check that the token server can be reached from here, and under `[kafka]` sasl.oauthbearer.token.endpoint.url, and \
                 https.ca.location, which names the authority of its certificate as ssl.ca.location does for the brokers",
            ))
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

/// The same failure, for which the router waits.
fn waited_out(error: Error) -> Error {
    match error {
        Error::Definite(refusal) => Transient::from_refusal(refusal).into(),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::minimal_with;

    const URL: &str = "kafka.\"sasl.oauthbearer.token.endpoint.url\" = \"https://user:hunter2@id/token\"\n";

    fn with(mechanism: &str) -> Config {
        let method = "kafka.\"sasl.oauthbearer.method\" = \"oidc\"";
        minimal_with(&format!("{URL}{method}\nkafka.\"sasl.mechanism\" = \"{mechanism}\""))
    }

    fn failed(mechanism: &str, code: Code, reason: &str) -> String {
        no_answer(&with(mechanism), Some((code, reason.to_owned()))).to_string()
    }

    #[test]
    fn a_token_server_is_named_without_its_password() {
        let refused = format!("{}no", context::NO_TOKEN);
        let error = failed("OAUTHBEARER", Code::Authentication, &refused);
        assert!(error.contains("the token server at https://****@id/token refused: no"), "{error}");
        let error = no_answer(&with("oauthbearer"), None).to_string();
        assert!(error.contains("no token comes from https://****@id/token"), "{error}");
    }

    #[test]
    fn a_token_that_does_not_come_is_no_fault_of_the_brokers() {
        for reason in [
            "SSL certificate problem: unable to get local issuer certificate",
            "Could not resolve host: id",
            "Failed to connect to id port 443: Could not connect to server",
            "HTTP error 503",
        ] {
            let reason = format!("{}{reason}", context::NO_TOKEN);
            let error = no_answer(&with("OAUTHBEARER"), Some((Code::BrokerTransportFailure, reason.clone())));
            let Error::Transient(failure) = &error else { panic!("{error:?}") };
            assert_eq!(failure.code(), ErrorCode::KafkaLogin);
            let lines = failure.in_lines();
            for part in ["https://****@id/token", "https.ca.location", "sasl.oauthbearer.token.endpoint.url"]
            {
                assert!(lines.contains(part) && failure.what.contains(part), "{part}: {lines}");
            }
            for part in ["bootstrap.servers", "no Kafka broker", "Failed to acquire"] {
                assert!(!lines.contains(part), "{part}: {lines}");
            }
        }
    }

    #[test]
    fn a_token_server_is_only_blamed_if_tokens_are_used() {
        let error = failed("PLAIN", Code::SaslAuthenticationFailed, "no");
        assert!(error.contains("Correct sasl.mechanism, sasl.username and sasl.password"), "{error}");
        let error = failed("OAUTHBEARER", Code::SaslAuthenticationFailed, "no");
        assert!(error.contains("Let the token server issue tokens"), "{error}");
    }
}
