//! What records wait for before they can be sent: a topic that has to be made or looked at, and producers that make smaller
//! batches because a topic takes only those.

use pg_logical::stream::Transport;
use tokio_util::task::AbortOnDropHandle;

use super::Relay;
use super::ending::Outcome;
use super::parking::Unsendable;
use super::sending::{Waiting, without_topic};
use crate::dead_letters::Reason;
use crate::error::{Definite, Error, Peer};
use crate::sink::kafka::TopicLimits;

/// Nothing is sent while there is any of it.
#[derive(Default)]
pub(super) struct Preparing {
    topic: Option<(Waiting, AbortOnDropHandle<Result<TopicLimits, Error>>)>,
    /// A topic takes smaller batches than the producers make.
    rebuild: bool,
    rebuilding: Option<AbortOnDropHandle<Result<(), Error>>>,
}

/// What has come to an end.
pub(super) enum Prepared {
    Topic(Waiting, Result<TopicLimits, Error>),
    Producers(Result<(), Error>),
}

impl Preparing {
    /// Whether nothing may be sent.
    pub(super) fn is_under_way(&self) -> bool {
        self.topic.is_some() || self.rebuild
    }

    /// Whether the producers are not to be used at all, not for a position either.
    pub(super) fn has_no_producers(&self) -> bool {
        self.rebuilding.is_some()
    }

    /// Waits for it, for ever if there is none. May be dropped at any await.
    pub(super) async fn done(&mut self) -> Prepared {
        let lost = |what: &str, error| Error::transient(Peer::Kafka, format!("{what}: {error}"));
        if let Some((waiting, task)) = &mut self.topic {
            let what = || format!("preparing the topic {}", waiting.topic);
            let limits = task.await.unwrap_or_else(|error| Err(lost(&what(), error)));
            if let Some((waiting, _)) = self.topic.take() {
                return Prepared::Topic(waiting, limits);
            }
        }
        if let Some(task) = &mut self.rebuilding {
            let made = task.await.unwrap_or_else(|error| Err(lost("replacing the producers", error)));
            (self.rebuilding, self.rebuild) = (None, false);
            return Prepared::Producers(made);
        }
        std::future::pending().await
    }
}

impl<S: Transport> Relay<S> {
    pub(super) fn prepare(&mut self, waiting: Waiting) {
        let task = tokio::spawn(self.sending.sink.prepare(waiting.topic.clone()));
        self.preparing.topic = Some((waiting, AbortOnDropHandle::new(task)));
    }

    /// Replaces the producers if they have to be, and nothing depends on them any more.
    pub(super) fn rebuild_if_due(&mut self) -> Result<(), Error> {
        if !self.preparing.rebuild || self.preparing.rebuilding.is_some() {
            return Ok(());
        }
        if self.sending.is_settled() && self.remembering.is_settled() {
            let task = tokio::spawn(self.sending.sink.rebuild()?);
            self.preparing.rebuilding = Some(AbortOnDropHandle::new(task));
        }
        Ok(())
    }

    pub(super) fn prepared(&mut self, prepared: Prepared) -> Result<(), Error> {
        let (waiting, limits) = match prepared {
            Prepared::Topic(waiting, limits) => (waiting, limits),
            Prepared::Producers(made) => return made,
        };
        match limits {
            Ok(limits) => {
                let admitted = self.sending.sink.admit(&waiting.topic, limits);
                // topics are numbered as they are admitted; one that was looked at again has its number
                if admitted.topic == self.counters.len() {
                    self.counters.push(self.monitor.topic_counters(&waiting.topic));
                }
                self.preparing.rebuild |= admitted.rebuild_first;
                if admitted.grown {
                    self.monitor.partitions_grown(1);
                }
            }
            Err(error) => match (error, &mut self.sending.parking) {
                (Error::Definite(Definite { what, remedy, .. }), Some(parking)) => {
                    let why = Unsendable { reason: Reason::Topic, what, remedy };
                    match waiting.event {
                        Some(event) => parking.refuse(event, why),
                        None => parking.failed(&why),
                    }
                }
                (error, _) => self.end_intake(Outcome::Failed(without_topic(&waiting, error))),
            },
        }
        Ok(())
    }
}
