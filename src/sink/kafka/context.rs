//! What librdkafka calls back: delivery reports, errors of the connection, log lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};

use super::error_policy::{ErrorPolicy, MAY_NOT_WRITE, denied, unsendable_as, verdict};
use super::outcomes::Outcomes;
use super::position_report::{NotCommitted, PositionReport};
use super::topic_cache::TopicCache;
use crate::progress::Sequence;
use crate::relay::Refusal;
use crate::unsendable::{Reason, Unsendable};

/// Whether the brokers can be reached, as librdkafka's threads see it.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// A broker has answered. Until then it is the supervisor that says why none does.
    reached: AtomicBool,
    down: AtomicBool,
    /// The server of OpenID Connect tokens has answered, with a refusal.
    token_refused: AtomicBool,
    last_error: Mutex<Option<(RDKafkaErrorCode, String)>>,
}

impl Connection {
    /// The last error of the connection since a broker was reached: its code, and what librdkafka says of it.
    pub(super) fn last_error(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A broker has answered.
    pub(super) fn reached(&self) {
        self.reached.store(true, Ordering::Relaxed);
    }

    /// Why no broker can be reached, if that is so.
    pub(super) fn down(&self) -> Option<String> {
        let down = self.down.load(Ordering::Relaxed);
        down.then(|| self.reason())
    }

    fn reason(&self) -> String {
        self.last_error().map_or_else(|| NO_REASON.to_owned(), |(_, reason)| reason)
    }

    /// Logged once when it goes and once when it comes back.
    pub(super) fn set_down(&self, down: bool) {
        // each delivery report asks, and nothing is to be written then
        if self.down.load(Ordering::Relaxed) == down {
            return;
        }
        if self.reached.load(Ordering::Relaxed) && self.down.swap(down, Ordering::Relaxed) != down {
            if down {
                tracing::warn!(
                    peer = "kafka",
                    reason = self.reason(),
                    "no broker can be reached; events wait in Postgres"
                );
            } else {
                *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = None;
                tracing::info!(peer = "kafka", "broker reached again");
            }
        }
    }

    fn failed(&self, code: RDKafkaErrorCode, reason: &str) {
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((code, lasting(reason)));
    }

    fn error(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        let code = of_token(code, reason, self.token_refused.load(Ordering::Relaxed));
        // "all brokers down" follows the reason and says less
        if code != RDKafkaErrorCode::AllBrokersDown {
            self.failed(code, reason);
        }
        match code {
            RDKafkaErrorCode::AllBrokersDown => self.set_down(true),
            _ => tracing::debug!(peer = "kafka", %error, reason, "connection"),
        }
    }
}

/// What is said of brokers that are gone before librdkafka has a reason: a connection that is closed is none.
const NO_REASON: &str = "they closed the connections, or do not answer";

/// A reason without the times and counts that differ from attempt to attempt: the same failure is logged once.
fn lasting(reason: &str) -> String {
    let lasting = reason.split_once(" (after ").map_or(reason, |(lasting, _)| lasting);
    // libcurl has it in the middle: "Failed to connect to HOST port 443 after 3 ms: Could not connect to server"
    let lasting = match lasting.split_once(" after ") {
        Some((before, rest)) => match rest.split_once(" ms: ") {
            Some((number, after)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                &format!("{before}: {after}")
            }
            _ => lasting,
        },
        None => lasting,
    };
    let ours = if lasting.contains("Too many open files") {
        "; raise the limit of this process (ulimit -n)"
    } else if lasting.contains("certificate verify failed") {
        // librdkafka says only that the authority may be unknown
        "; or the broker's certificate has expired, or is not for the name in bootstrap.servers or in advertised.listeners"
    } else {
        ""
    };
    format!("{lasting}{ours}")
}

/// What librdkafka says before the reason why there is no token.
pub(super) const NO_TOKEN: &str = "Failed to acquire SASL OAUTHBEARER token: ";

/// A token server that is away or broken may be back, while librdkafka says of any failure that it is one of
/// authentication.
pub(super) fn of_token(code: RDKafkaErrorCode, reason: &str, refused: bool) -> RDKafkaErrorCode {
    match code {
        RDKafkaErrorCode::Authentication if reason.starts_with(NO_TOKEN) && !refused => {
            RDKafkaErrorCode::BrokerTransportFailure
        }
        code => code,
    }
}

/// The HTTP status of a token server's answer, in a log line that ends in it: `Failed to retrieve OIDC token from
/// "URL": ANSWER (401)`. Without an answer it is -1.
pub(super) fn token_status(facility: &str, message: &str) -> Option<i32> {
    let (_, status) = message.trim_end().rsplit_once(" (").filter(|_| facility == "OIDC")?;
    status.strip_suffix(')')?.parse().ok()
}

/// Whether the request for a token will be refused again until somebody changes it.
pub(super) fn refuses(status: i32) -> bool {
    (400..500).contains(&status)
}

/// For clients that send nothing: administration, probes.
#[derive(Debug, Clone, Default)]
pub(super) struct AdminContext {
    pub(super) connection: Arc<Connection>,
}

impl ClientContext for AdminContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.connection.error(&error, reason);
    }
}

/// The number of a record that is no event but the position that goes with a transaction.
pub(super) const POSITION: usize = usize::MAX;

/// For the producers.
#[derive(Debug, Clone, Default)]
pub(super) struct ProducerReports {
    pub(super) outcomes: Arc<Outcomes>,
    pub(super) connection: Arc<Connection>,
    pub(super) known: Arc<TopicCache>,
    pub(super) position: PositionReport,
}

impl ClientContext for ProducerReports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // a request that is not answered is no error to librdkafka; it is sent again for ever
        if facility == "REQTMOUT" {
            self.connection.failed(RDKafkaErrorCode::OperationTimedOut, "the broker does not answer");
        }
        if let Some(status) = token_status(facility, message) {
            self.connection.token_refused.store(refuses(status), Ordering::Relaxed);
        }
        if let Some((topic, error)) = partition_not_added(facility, message) {
            self.not_added(topic, error);
        }
        log(level, facility, message);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        // for who sets statistics.interval.ms
        tracing::debug!(target: "librdkafka", statistics = %String::from_utf8_lossy(statistics));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.connection.error(&error, reason);
    }
}

/// The topic and the broker's answer in librdkafka's log line about a partition that the transaction cannot have. The
/// transaction has failed then, its records are purged, and neither a delivery report nor an error says why.
fn partition_not_added<'a>(facility: &str, message: &'a str) -> Option<(&'a str, &'a str)> {
    let (_, rest) = message.split_once("Failed to add partition \"").filter(|_| facility == "ADDPARTS")?;
    let (topic, rest) = rest.split_once('"')?;
    let (_, error) = rest.split_once(" to transaction: ")?;
    // this partition was left out because of another one, which has a line of its own
    (error.trim() != NOT_ATTEMPTED).then_some((topic, error.trim()))
}

/// librdkafka's text for `OPERATION_NOT_ATTEMPTED`.
const NOT_ATTEMPTED: &str = "Broker: Operation not attempted";

/// librdkafka's text for `TOPIC_AUTHORIZATION_FAILED`.
const TOPIC_DENIED: &str = "Broker: Topic authorization failed";

impl ProducerReports {
    /// The transaction has failed because a partition of this topic could not be added to it.
    fn not_added(&self, topic: &str, error: &str) {
        let (reason, remedy) = if error == TOPIC_DENIED {
            let reason = denied(RDKafkaErrorCode::TopicAuthorizationFailed, topic, MAY_NOT_WRITE);
            self.known.obstacle.met(reason.clone());
            (reason, MAY_NOT_WRITE)
        } else {
            (format!("the topic {topic} cannot be added to its transaction: {error}"), "")
        };
        self.position.not_added(NotCommitted { reason: reason.clone(), remedy });
        self.outcomes.refused(Refusal::of_session(reason, remedy));
    }

    /// The transaction has failed, and the records that are behind the position in it may never be reported.
    fn position_failed(&self, code: RDKafkaErrorCode, topic: &str) {
        if let ErrorPolicy::Refused(remedy) = verdict(code) {
            let reason = format!("the position cannot be written to the topic {topic}: {code}. {remedy}");
            self.outcomes.refused(Refusal::of_session(reason, remedy));
        }
        self.position.failed(code);
    }

    /// Only an offset proves that the broker has written the record. librdkafka also reports one as delivered because
    /// a later one of its partition was, which is no proof: a broker that knows no sequence of this producer takes any.
    fn delivered(&self, offset: i64, sequence: Sequence) {
        if offset >= 0 {
            return self.outcomes.delivered(sequence);
        }
        let what = "the broker took a record and not the one before it";
        let why = Unsendable::new(Reason::Refused, what, "");
        self.outcomes.refused(Refusal { last: sequence, transient: true, why });
    }
}

impl ProducerContext for ProducerReports {
    /// The [`Sequence`] of the record.
    type DeliveryOpaque = usize;

    fn delivery(&self, report: &DeliveryResult<'_>, sequence: usize) {
        let is_position = sequence == POSITION;
        let sequence = Sequence(sequence as u64);
        let (error, message) = match report {
            Ok(message) => {
                self.connection.set_down(false);
                // it counts with its transaction
                if is_position {
                    return;
                }
                return self.delivered(message.offset(), sequence);
            }
            Err(failed) => failed,
        };
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        if is_position {
            return self.position_failed(code, message.topic());
        }
        let (transient, reason, remedy) = match verdict(code) {
            ErrorPolicy::Consequence => return,
            ErrorPolicy::Again => (true, code.to_string(), ""),
            ErrorPolicy::Denied(remedy) => {
                let reason = denied(code, message.topic(), remedy);
                self.known.obstacle.met(reason.clone());
                (true, reason, remedy)
            }
            ErrorPolicy::Refused(remedy) => (false, code.to_string(), remedy),
        };
        let why = Unsendable::new(unsendable_as(code), reason, remedy);
        self.outcomes.refused(Refusal { last: sequence, transient, why });
    }
}

pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    let level = match facility {
        // librdkafka warns of enable.gapless.guarantee at every start, because it is marked experimental
        "CONFWARN" => RDKafkaLogLevel::Debug,
        // each attempt at a connection or a token, of which the error callback hears too, and each request without an answer
        "FAIL" | "REQTMOUT" | "OIDC" => RDKafkaLogLevel::Debug,
        // what the end of the session tells
        "FATAL" | "TXNERR" | "ADDPARTS" => RDKafkaLogLevel::Debug,
        // a broker that has just started is asked again
        "GETPID" if message.contains("retrying") => RDKafkaLogLevel::Debug,
        // our own purge at the end of a session
        _ if message.contains("Local: Purged") => RDKafkaLogLevel::Debug,
        _ => level,
    };
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{message}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_same_at_each_attempt() {
        for (reason, expected) in [
            ("connect failed (after 3ms in state CONNECT)", "connect failed"),
            ("no way to h port 1 after 12 ms: refused", "no way to h port 1: refused"),
            ("after all, after lunch", "after all, after lunch"),
        ] {
            assert_eq!(lasting(reason), expected);
        }
    }

    #[test]
    fn a_partition_that_is_not_added_to_the_transaction_is_told_by_a_log_line() {
        let line = |error: &str| {
            format!(
                "[thrd:main]: TxnCoordinator/1: Failed to add partition \"shop.order\" [2] to transaction: {error}"
            )
        };
        let (denied, skipped) = (line(TOPIC_DENIED), line(NOT_ATTEMPTED));
        assert_eq!(partition_not_added("ADDPARTS", &denied), Some(("shop.order", TOPIC_DENIED)));
        assert_eq!(partition_not_added("ADDPARTS", &skipped), None);
        assert_eq!(partition_not_added("TXNERR", &denied), None);
        assert_eq!(partition_not_added("ADDPARTS", "anything else"), None);
        assert_eq!(
            TOPIC_DENIED,
            RDKafkaErrorCode::TopicAuthorizationFailed
                .to_string()
                .split(" (")
                .last()
                .map_or("", |text| text.trim_end_matches(')'))
        );
    }

    #[test]
    fn only_a_token_server_that_says_no_is_a_refusal() {
        let line = |answer: &str| {
            format!("[thrd:background]: Failed to retrieve OIDC token from \"http://t\": {answer}")
        };
        for (answer, status, refused) in [
            ("{\"error\": \"invalid_client\"}\n (401)", Some(401), true),
            ("Couldn't connect to server (-1)", Some(-1), false),
            ("no (really)", None, false),
        ] {
            assert_eq!(token_status("OIDC", &line(answer)), status, "{answer}");
            assert_eq!(status.is_some_and(refuses), refused, "{answer}");
        }
        assert_eq!(token_status("FAIL", &line("x (401)")), None);
        let reason = format!("{NO_TOKEN}x");
        let authentication = RDKafkaErrorCode::Authentication;
        assert_eq!(of_token(authentication, &reason, true), authentication);
        assert_eq!(of_token(authentication, &reason, false), RDKafkaErrorCode::BrokerTransportFailure);
        assert_eq!(of_token(authentication, "the broker says no", false), authentication);
    }
}
