//! What librdkafka calls back: delivery reports, errors of the connection, log lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};

use super::known::KnownTopics;
use super::verdict::{Verdict, denied, verdict};
use crate::progress::Sequence;
use crate::sink::{Outcomes, Refusal};

/// Whether the brokers can be reached, as librdkafka's threads see it.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// A broker has answered. Until then it is the supervisor that says why none does.
    reached: AtomicBool,
    down: AtomicBool,
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
    let ours = if lasting.contains("Too many open files") {
        "; raise the limit of this process (ulimit -n)"
    } else {
        ""
    };
    format!("{lasting}{ours}")
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

/// For the producer.
#[derive(Debug)]
pub(super) struct ProducerReports {
    pub(super) outcomes: Arc<Outcomes>,
    pub(super) connection: Arc<Connection>,
    pub(super) known: Arc<KnownTopics>,
}

impl ClientContext for ProducerReports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // a request that is not answered is no error to librdkafka; it is sent again for ever
        if facility == "REQTMOUT" {
            self.connection.failed(RDKafkaErrorCode::OperationTimedOut, "the broker does not answer");
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

impl ProducerReports {
    /// Only an offset proves that the broker has written the record. librdkafka also reports one as delivered because
    /// a later one of its partition was, which is no proof: a broker that knows no sequence of this producer takes any.
    fn delivered(&self, offset: i64, sequence: Sequence) {
        if offset >= 0 {
            return self.outcomes.delivered(sequence);
        }
        self.outcomes.refused(Refusal {
            last: sequence,
            transient: true,
            reason: "the broker took a record and not the one before it".to_owned(),
            remedy: String::new(),
        });
    }
}

impl ProducerContext for ProducerReports {
    /// The [`Sequence`] of the record.
    type DeliveryOpaque = usize;

    fn delivery(&self, report: &DeliveryResult<'_>, sequence: usize) {
        let sequence = Sequence(sequence as u64);
        let (error, message) = match report {
            Ok(message) => {
                self.connection.set_down(false);
                return self.delivered(message.offset(), sequence);
            }
            Err(failed) => failed,
        };
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        let (transient, reason, remedy) = match verdict(code) {
            Verdict::Consequence => return,
            Verdict::Again => (true, code.to_string(), ""),
            Verdict::Denied(remedy) => {
                let reason = denied(code, message.topic(), remedy);
                self.known.obstacle.met(reason.clone());
                (true, reason, remedy)
            }
            Verdict::Refused(remedy) => (false, code.to_string(), remedy),
        };
        self.outcomes.refused(Refusal { last: sequence, transient, reason, remedy: remedy.to_owned() });
    }
}

pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    let level = match facility {
        // librdkafka warns of enable.gapless.guarantee at every start, because it is marked experimental
        "CONFWARN" => RDKafkaLogLevel::Debug,
        // each attempt at a connection, of which the error callback hears too, and each request without an answer
        "FAIL" | "REQTMOUT" => RDKafkaLogLevel::Debug,
        // what the end of the session tells
        "FATAL" => RDKafkaLogLevel::Debug,
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
