//! Prepares what records need: a topic that has to be created or checked, and producers with smaller batches if a topic
//! needs them.

use std::sync::Arc;

use rdkafka::producer::Producer;
use tokio_util::task::AbortOnDropHandle;

use super::PROBE_TIMEOUT;
use super::{Admitted, Publisher, Topic};
use crate::error::{Definite, Error, Peer};
use crate::relay::NotSent;
use crate::sink::kafka::client::Client;
use crate::sink::kafka::record_limits::TopicLimits;
use crate::sink::kafka::topic_cache::TopicChange;
use crate::unsendable::{Reason, Unsendable};

/// Nothing is sent while any of this is under way.
#[derive(Default)]
pub(in crate::sink::kafka) struct TopicSetup {
    topic: Option<(String, AbortOnDropHandle<Result<TopicLimits, Error>>)>,
    /// The topic that cannot be used, until its next record gets the error.
    failed: Option<(String, Unsendable)>,
    /// A topic accepts only smaller batches than the producers make.
    rebuild: bool,
    rebuilding: Option<AbortOnDropHandle<Result<(), Error>>>,
}

enum Done {
    Topic(String, Result<TopicLimits, Error>),
    Producers(Result<(), Error>),
}

impl TopicSetup {
    fn is_under_way(&self) -> bool {
        self.topic.is_some() || self.rebuild
    }

    /// Cancel-safe.
    async fn done(&mut self) -> Done {
        let lost = |what: &str, error| Error::transient(Peer::Kafka, format!("{what}: {error}"));
        if let Some((topic, task)) = &mut self.topic {
            let what = || format!("preparing the topic {topic}");
            let limits = task.await.unwrap_or_else(|error| Err(lost(&what(), error)));
            if let Some((topic, _)) = self.topic.take() {
                return Done::Topic(topic, limits);
            }
        }
        if let Some(task) = &mut self.rebuilding {
            let made = task.await.unwrap_or_else(|error| Err(lost("replacing the producers", error)));
            (self.rebuilding, self.rebuild) = (None, false);
            return Done::Producers(made);
        }
        std::future::pending().await
    }
}

impl Publisher {
    /// Whether nothing can be sent now.
    pub(in crate::sink::kafka) fn is_setting_up(&self) -> bool {
        self.setup.is_under_way()
    }

    /// Whether the producers can be used, at least for a checkpoint.
    pub(in crate::sink::kafka) fn has_producers(&self) -> bool {
        self.setup.rebuilding.is_none()
    }

    /// Waits until a topic or the producers are ready, forever if neither is being prepared. Cancel-safe.
    ///
    /// # Errors
    /// The session has to end. If a topic cannot be used, the next record for it gets the error instead.
    pub(in crate::sink::kafka) async fn set_up(&mut self) -> Result<Option<Admitted>, Error> {
        match self.setup.done().await {
            Done::Topic(topic, Ok(limits)) => Ok(Some(self.admit(topic, limits))),
            Done::Topic(topic, Err(Error::Definite(Definite { what, remedy, .. }))) => {
                self.setup.failed = Some((topic, Unsendable::new(Reason::Topic, what, remedy.to_string())));
                Ok(None)
            }
            Done::Topic(_, Err(transient)) => Err(transient),
            Done::Producers(made) => made.map(|()| None),
        }
    }

    /// Call this when nothing is in flight or uncommitted. Replaces the producers if that is due.
    ///
    /// # Errors
    /// They cannot be created.
    pub(in crate::sink::kafka) fn settled(&mut self) -> Result<(), Error> {
        if self.setup.rebuild && self.setup.rebuilding.is_none() {
            let task = tokio::spawn(self.replace_producers()?);
            self.setup.rebuilding = Some(AbortOnDropHandle::new(task));
        }
        Ok(())
    }

    /// A record's topic is not ready. Starts preparing it, unless that has just failed.
    pub(in crate::sink::kafka) fn set_up_topic(&mut self, topic: &str) -> NotSent {
        if let Some((_, why)) = self.setup.failed.take_if(|(failed, _)| failed == topic) {
            return NotSent::Impossible(why);
        }
        let task = tokio::spawn(self.prepare(topic.to_owned()));
        self.setup.topic = Some((topic.to_owned(), AbortOnDropHandle::new(task)));
        NotSent::Later
    }

    /// Makes sure that a topic exists. Waits while no broker answers; an error is definite.
    fn prepare(&self, topic: String) -> impl Future<Output = Result<TopicLimits, Error>> + Send + 'static {
        let looked_up = Arc::clone(&self.keeper).prepare(topic.clone());
        let met = self.numbers.contains_key(topic.as_str());
        let producers: Vec<_> = self.producers.all().filter(|_| met).cloned().map(Client::new).collect();
        async move {
            let limits = looked_up.await?;
            for producer in producers {
                // by itself the producer learns of new partitions minutes later; a failure here will also hit the next
                // record
                let topic = topic.clone();
                let producer = (*producer).clone();
                let refreshed = move || producer.client().fetch_metadata(Some(&topic), PROBE_TIMEOUT).is_ok();
                let _ = tokio::task::spawn_blocking(refreshed).await;
            }
            Ok(limits)
        }
    }

    fn admit(&mut self, topic: String, limits: TopicLimits) -> Admitted {
        // librdkafka does not split a batch that the broker refuses as too large
        self.setup.rebuild |= limits.max_message_bytes.is_some_and(|limit| self.batch_bytes > limit);
        self.batch_bytes =
            limits.max_message_bytes.map_or(self.batch_bytes, |limit| limit.min(self.batch_bytes));
        let grown = self.topic_cache.update(&topic, &limits) == TopicChange::Grown;
        let name: Box<str> = topic.as_str().into();
        let fresh = Topic { name: name.clone(), limits, checked_for: None, stale: false };
        let number = match self.numbers.get(&name) {
            Some(&number) => {
                if let Some(topic_cache) = self.topics.get_mut(number) {
                    *topic_cache = Topic { checked_for: topic_cache.checked_for, ..fresh };
                }
                number
            }
            None => {
                self.numbers.insert(name, self.topics.len());
                self.topics.push(fresh);
                self.topics.len() - 1
            }
        };
        // the brokers may have forgotten the producer, and a key's partition may have changed
        self.first.forget(number);
        Admitted { topic: number, name: topic, grown }
    }
}
