//! The callbacks of librdkafka: delivery reports, connection errors, log lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};

use super::acls::Grants;
use super::checkpoint_failure::{CheckpointFailure, NotCommitted};
use super::delivery_reports::DeliveryReports;
use super::error_policy::{ErrorPolicy, error_policy, in_words, unsendable_reason};
use super::topic_cache::TopicCache;
use crate::config::kafka_properties::{shown_log_line, without_users_of_urls};
use crate::progress::Sequence;
use crate::relay::Refusal;
use crate::unsendable::{Reason, Unsendable};

/// The state of the connection to the brokers, as librdkafka's threads see it.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// A broker has answered. Until then the supervisor reports why none does.
    reached: AtomicBool,
    down: AtomicBool,
    /// The OpenID Connect token server has refused a request.
    token_refused: AtomicBool,
    /// The token server that gave no token last.
    token_server: Mutex<Option<String>>,
    last_error: Mutex<Option<(RDKafkaErrorCode, String)>>,
}

impl Connection {
    /// The last connection error since a broker was reached: its code and librdkafka's text.
    pub(super) fn last_error(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A broker has answered.
    pub(super) fn reached(&self) {
        self.reached.store(true, Ordering::Relaxed);
    }

    /// Why no broker can be reached; `None`: one can.
    pub(super) fn down(&self) -> Option<String> {
        let down = self.down.load(Ordering::Relaxed);
        down.then(|| self.reason())
    }

    fn reason(&self) -> String {
        let Some((_, reason)) = self.last_error() else { return NO_REASON.to_owned() };
        let server = self.token_server.lock().unwrap_or_else(PoisonError::into_inner);
        match (reason.strip_prefix(NO_TOKEN), server.as_deref()) {
            (Some(why), Some(server)) => {
                let whose = if why.contains("certificate") {
                    "; https.ca.location names the authority of the token server's certificate"
                } else {
                    ""
                };
                format!("no token comes from {server}: {why}{whose}")
            }
            _ => reason,
        }
    }

    /// Logs once when the brokers are lost and once when they are back.
    pub(super) fn set_down(&self, down: bool) {
        // every delivery report calls this, so the common case only reads
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
        *last = Some((code, without_times(reason)));
    }

    fn error(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        let reason = &*without_users_of_urls(reason);
        let code = token_error_code(code, reason, self.token_refused.load(Ordering::Relaxed));
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

/// The reason if librdkafka gives none: it reports no error when a broker closes a connection.
const NO_REASON: &str = "they closed the connections, or do not answer";

/// Removes times and counts, which differ between attempts, so that the same failure is logged once.
pub(super) fn without_times(reason: &str) -> String {
    let without_times = reason.split_once(" (after ").map_or(reason, |(without_times, _)| without_times);
    // libcurl puts the time in the middle: "Failed to connect to HOST port 443 after 3 ms: Could not connect to server"
    let without_times = match without_times.split_once(" after ") {
        Some((before, rest)) => match rest.split_once(" ms: ") {
            Some((number, after)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                &format!("{before}: {after}")
            }
            _ => without_times,
        },
        None => without_times,
    };
    // librdkafka takes the first bytes of any other protocol for the length of a response
    if let Some((before, _)) = without_times.split_once("Invalid response size ") {
        return format!(
            "{before}this is not a response of a Kafka broker; check the port and security.protocol"
        );
    }
    let ours = if without_times.contains("Too many open files") {
        "; raise the limit of this process (ulimit -n)"
    } else if without_times.contains("certificate verify failed") {
        // librdkafka says only that the authority may be unknown
        "; or the broker's certificate has expired, or is not for the name in bootstrap.servers or in advertised.listeners"
    } else {
        ""
    };
    format!("{without_times}{ours}")
}

/// The prefix of librdkafka's error when it gets no token.
pub(super) const NO_TOKEN: &str = "Failed to acquire SASL OAUTHBEARER token: ";

/// librdkafka reports every failure to get a token as an authentication error. If the token server has not refused the
/// request, the failure may be temporary.
pub(super) fn token_error_code(code: RDKafkaErrorCode, reason: &str, refused: bool) -> RDKafkaErrorCode {
    match code {
        RDKafkaErrorCode::Authentication if reason.starts_with(NO_TOKEN) && !refused => {
            RDKafkaErrorCode::BrokerTransportFailure
        }
        code => code,
    }
}

/// The HTTP status of the token server, from a log line such as `Failed to retrieve OIDC token from "URL": ANSWER (401)`;
/// -1 if there was no answer.
pub(super) fn token_status(facility: &str, message: &str) -> Option<i32> {
    let (_, status) = message.trim_end().rsplit_once(" (").filter(|_| facility == "OIDC")?;
    status.strip_suffix(')')?.parse().ok()
}

/// The URL in such a line.
fn token_server(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once(" from \"")?;
    rest.split_once('"').map(|(url, _)| url)
}

/// Whether the token server will refuse the request until somebody changes the configuration.
pub(super) fn is_refusal(status: i32) -> bool {
    (400..500).contains(&status)
}

/// The context of clients that send no records: administration and probes.
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

/// The opaque of a checkpoint that is part of a transaction, in place of an event's sequence number.
pub(super) const CHECKPOINT_OPAQUE: usize = usize::MAX;

/// The context of the producers of events.
#[derive(Debug, Clone, Default)]
pub(super) struct EventProducerContext {
    pub(super) delivery_reports: Arc<DeliveryReports>,
    pub(super) connection: Arc<Connection>,
    pub(super) topic_cache: Arc<TopicCache>,
    pub(super) checkpoint_failure: CheckpointFailure,
    pub(super) grants: Arc<Grants>,
}

impl ClientContext for EventProducerContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // librdkafka reports no error for an unanswered request; it repeats it forever
        if facility == "REQTMOUT" {
            self.connection.failed(RDKafkaErrorCode::OperationTimedOut, "the broker does not answer");
        }
        if let Some(status) = token_status(facility, message) {
            self.connection.token_refused.store(is_refusal(status), Ordering::Relaxed);
            let mut server = self.connection.token_server.lock().unwrap_or_else(PoisonError::into_inner);
            *server = token_server(&shown_log_line(facility, message)).map(str::to_owned);
        }
        if let Some((topic, error)) = partition_not_added(facility, message) {
            self.not_added(topic, error);
        }
        log(level, facility, message);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        // only called if the user sets statistics.interval.ms
        tracing::debug!(target: "librdkafka", statistics = %String::from_utf8_lossy(statistics));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.connection.error(&error, reason);
    }
}

/// The topic and the broker's error in librdkafka's log line about a partition that could not be added to a transaction.
/// The transaction has then failed and its records are purged, but neither a delivery report nor an error gives the reason.
fn partition_not_added<'a>(facility: &str, message: &'a str) -> Option<(&'a str, &'a str)> {
    let (_, rest) = message.split_once("Failed to add partition \"").filter(|_| facility == "ADDPARTS")?;
    let (topic, rest) = rest.split_once('"')?;
    let (_, error) = rest.split_once(" to transaction: ")?;
    // this partition was skipped because of another, which has a log line of its own
    (error.trim() != NOT_ATTEMPTED).then_some((topic, error.trim()))
}

/// librdkafka's text for `OPERATION_NOT_ATTEMPTED`.
const NOT_ATTEMPTED: &str = "Broker: Operation not attempted";

/// librdkafka's text for `TOPIC_AUTHORIZATION_FAILED`.
const TOPIC_DENIED: &str = "Broker: Topic authorization failed";

impl EventProducerContext {
    /// The transaction failed because a partition of this topic could not be added to it.
    fn not_added(&self, topic: &str, error: &str) {
        let (reason, remedy) = if error == TOPIC_DENIED {
            let missing = self.grants.missing_on_topic("WRITE", topic);
            let reason = format!("{}: {}", RDKafkaErrorCode::TopicAuthorizationFailed, missing.what());
            self.topic_cache.stall_reason.set(format!("{reason}. {}", missing.remedy));
            (reason, missing.remedy)
        } else {
            (format!("the topic {topic} cannot be added to the transaction: {error}"), String::new())
        };
        self.delivery_reports.refused(Refusal::of_session(reason.clone(), &remedy));
        self.checkpoint_failure.partition_not_added(NotCommitted { reason, remedy });
    }

    /// The transaction failed because of its checkpoint. Its records may never be reported.
    fn checkpoint_failed(&self, code: RDKafkaErrorCode, topic: &str) {
        if let ErrorPolicy::Refused(remedy) = error_policy(code) {
            let reason = format!("the position cannot be written to the topic {topic}: {code}. {remedy}");
            self.delivery_reports.refused(Refusal::of_session(reason, remedy));
        }
        self.checkpoint_failure.failed(code, || self.grants.missing_for(code, topic));
    }

    /// Only an offset proves that the broker has written the record. librdkafka also reports a record as delivered when a
    /// later one of its partition was, which proves nothing: a broker that has no state for this producer accepts any
    /// sequence.
    fn delivered(&self, offset: i64, sequence: Sequence) {
        if offset >= 0 {
            return self.delivery_reports.delivered(sequence);
        }
        let what = "the broker accepted a record but not the one before it";
        let why = Unsendable::new(Reason::Refused, what, "");
        self.delivery_reports.refused(Refusal { last: sequence, transient: true, why });
    }
}

impl ProducerContext for EventProducerContext {
    /// The [`Sequence`] of the record.
    type DeliveryOpaque = usize;

    fn delivery(&self, report: &DeliveryResult<'_>, sequence: usize) {
        let is_checkpoint = sequence == CHECKPOINT_OPAQUE;
        let sequence = Sequence(sequence as u64);
        let (error, message) = match report {
            Ok(message) => {
                self.connection.set_down(false);
                // counts when its transaction is committed
                if is_checkpoint {
                    return;
                }
                return self.delivered(message.offset(), sequence);
            }
            Err(failed) => failed,
        };
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        if is_checkpoint {
            return self.checkpoint_failed(code, message.topic());
        }
        let (transient, reason, remedy) = match error_policy(code) {
            ErrorPolicy::Consequence => return,
            ErrorPolicy::Retry => (true, in_words(code), String::new()),
            ErrorPolicy::Denied => {
                let missing = self.grants.missing_for(code, message.topic());
                let reason = format!("{code}: {}", missing.reason());
                self.topic_cache.stall_reason.set(reason.clone());
                (true, reason, missing.remedy)
            }
            ErrorPolicy::Refused(remedy) => (false, code.to_string(), remedy.to_owned()),
        };
        let why = Unsendable::new(unsendable_reason(code), reason, remedy);
        self.delivery_reports.refused(Refusal { last: sequence, transient, why });
    }
}

/// The context of a consumer that only reads what the router itself needs to know. Errors are only logged for debugging: the
/// producer of events reports brokers that are down. With the text of that log line.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderContext(pub(super) &'static str);

impl ClientContext for ReaderContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(peer = "kafka", %error, reason = &*without_users_of_urls(reason), "{}", self.0);
    }
}

impl ConsumerContext for ReaderContext {}

pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    let message = shown_log_line(facility, message);
    let level = match facility {
        // librdkafka warns of enable.gapless.guarantee at every start, because it is marked experimental
        "CONFWARN" => RDKafkaLogLevel::Debug,
        // every failed connection or token request, which the error callback gets too, and every unanswered request
        "FAIL" | "REQTMOUT" | "OIDC" => RDKafkaLogLevel::Debug,
        // the session's error reports these
        "FATAL" | "TXNERR" | "ADDPARTS" => RDKafkaLogLevel::Debug,
        // normal while a broker starts
        "GETPID" if message.contains("retrying") => RDKafkaLogLevel::Debug,
        // from our own purge at the end of a session
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
            (
                "h:5432: Receive failed: Invalid response size 1157627904 (0..100000000): increase receive.message.max.bytes (after 0ms)",
                "h:5432: Receive failed: this is not a response of a Kafka broker; check the port and security.protocol",
            ),
        ] {
            assert_eq!(without_times(reason), expected);
        }
    }

    #[test]
    fn a_log_line_names_the_partition_that_was_not_added() {
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
            assert_eq!(status.is_some_and(is_refusal), refused, "{answer}");
        }
        assert_eq!(token_status("FAIL", &line("x (401)")), None);
        assert_eq!(token_server(&line("x (401)")), Some("http://t"));
        let connection = Connection::default();
        connection.failed(
            RDKafkaErrorCode::BrokerTransportFailure,
            &format!("{NO_TOKEN}SSL certificate problem: x"),
        );
        *connection.token_server.lock().unwrap() = Some("https://t".to_owned());
        let reason = connection.reason();
        assert!(
            reason.starts_with("no token comes from https://t: SSL") && reason.contains("https.ca"),
            "{reason}"
        );
        let reason = format!("{NO_TOKEN}x");
        let authentication = RDKafkaErrorCode::Authentication;
        assert_eq!(token_error_code(authentication, &reason, true), authentication);
        assert_eq!(
            token_error_code(authentication, &reason, false),
            RDKafkaErrorCode::BrokerTransportFailure
        );
        assert_eq!(token_error_code(authentication, "the broker says no", false), authentication);
    }
}
