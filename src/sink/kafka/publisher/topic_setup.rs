//! Prepares what records need: topics that have to be created or checked, and producers with smaller batches if a topic
//! needs them.
//!
//! A record waits for its own topic only. Those of the records behind it are prepared meanwhile, in batches.

use std::collections::HashSet;
use std::sync::Arc;

use rdkafka::producer::Producer;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::PROBE_TIMEOUT;
use super::topic_progress::TopicProgress;
use super::{Admitted, Publisher, Topic};
use crate::error::{Definite, Error, Peer};
use crate::relay::NotSent;
use crate::sink::kafka::client::Client;
use crate::sink::kafka::record_limits::TopicLimits;
use crate::sink::kafka::topic_cache::TopicChange;
use crate::sink::kafka::topics::Prepared;
use crate::unsendable::{Reason, Unsendable};

/// How many topics are prepared at the same time.
const MAX_PENDING: usize = 1_000;

/// How many further topics are counted, and how many refused ones are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// Nothing is sent while a topic is needed or the producers are being replaced.
#[derive(Default)]
pub(in crate::sink::kafka) struct TopicSetup {
    /// The topic of the record that waits.
    needed: Option<String>,
    /// The topics to prepare next, in the order of their records.
    wanted: Vec<String>,
    /// These, and those that are being prepared.
    pending: HashSet<Box<str>>,
    /// Topics of later records, which are found again when there is room for them.
    later: HashSet<Box<str>>,
    batches: JoinSet<Batch>,
    progress: TopicProgress,
    /// The topic that cannot be used, until its next record gets the error.
    failed: Option<(String, Unsendable)>,
    /// Topics that were refused together with others. A broker may refuse a request for its size, so each is asked for
    /// again alone, when one of its records is next.
    alone: HashSet<Box<str>>,
    /// A topic accepts only smaller batches than the producers make.
    rebuild: bool,
    rebuilding: Option<AbortOnDropHandle<Result<(), Error>>>,
}

/// Topics that were prepared together. Some may have no result yet.
struct Batch {
    topics: Vec<String>,
    prepared: Vec<Prepared>,
}

enum Done {
    Topics(Batch),
    Producers(Result<(), Error>),
}

impl TopicSetup {
    /// Cancel-safe.
    async fn done(&mut self) -> Result<Done, Error> {
        let lost = |what: &str, error| Error::transient(Peer::Kafka, format!("{what}: {error}"));
        let TopicSetup { batches, rebuild, rebuilding, .. } = self;
        let replaced = async {
            match rebuilding {
                Some(task) => task.await.unwrap_or_else(|error| Err(lost("replacing the producers", error))),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(batch) = batches.join_next() => {
                batch.map(Done::Topics).map_err(|error| lost("preparing topics", error))
            }
            made = replaced => {
                (*rebuilding, *rebuild) = (None, false);
                Ok(Done::Producers(made))
            }
        }
    }

    /// How many topics are known that are not ready.
    fn missing(&self) -> usize {
        self.pending.len() + self.later.len()
    }

    fn want(&mut self, topic: &str) {
        if self.pending.insert(topic.into()) {
            self.wanted.push(topic.to_owned());
        }
    }

    fn refused_with_others(&mut self, topic: String) {
        if self.alone.len() >= MAX_REMEMBERED {
            self.alone.clear();
        }
        self.alone.insert(topic.into());
    }
}

impl Publisher {
    /// Whether nothing can be sent now.
    pub(in crate::sink::kafka) fn is_setting_up(&self) -> bool {
        self.setup.needed.is_some() || self.setup.rebuild
    }

    /// Whether the producers can be used, at least for a checkpoint.
    pub(in crate::sink::kafka) fn has_producers(&self) -> bool {
        self.setup.rebuilding.is_none()
    }

    /// Waits until topics or the producers are ready, forever if neither are being prepared. Cancel-safe.
    ///
    /// # Errors
    /// The session has to end. If a topic cannot be used, the next record for it gets the error instead.
    pub(in crate::sink::kafka) async fn set_up(&mut self) -> Result<Vec<Admitted>, Error> {
        let Batch { topics, prepared } = match self.setup.done().await? {
            Done::Topics(batch) => batch,
            Done::Producers(made) => return made.map(|()| Vec::new()),
        };
        for topic in &topics {
            self.setup.pending.remove(topic.as_str());
        }
        self.setup.needed.take_if(|needed| topics.contains(needed));
        let mut admitted = Vec::with_capacity(prepared.len());
        for (topic, limits) in prepared {
            match limits {
                Ok(limits) => admitted.push(self.admit(topic, limits)),
                Err(_) if topics.len() > 1 => self.setup.refused_with_others(topic),
                Err(Error::Definite(Definite { what, remedy, .. })) => {
                    self.setup.failed =
                        Some((topic, Unsendable::new(Reason::Topic, what, remedy.to_string())));
                }
                Err(transient) => return Err(transient),
            }
        }
        if !admitted.is_empty() {
            self.setup.progress.ready(admitted.len());
            self.setup.progress.log(self.keeper.is_creating());
        }
        Ok(admitted)
    }

    /// How far the preparation of several topics is, while a record waits for one.
    pub(in crate::sink::kafka) fn setup_progress(&self) -> Option<String> {
        let waits = self.setup.needed.is_some();
        waits.then(|| self.setup.progress.text(self.keeper.is_creating())).flatten()
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

    /// A record's topic is not ready. It will be prepared, unless that has just failed.
    pub(in crate::sink::kafka) fn set_up_topic(&mut self, topic: &str) -> NotSent {
        if let Some((_, why)) = self.setup.failed.take_if(|(failed, _)| failed == topic) {
            return NotSent::Impossible(why);
        }
        self.setup.later = HashSet::new();
        self.setup.want(topic);
        self.setup.needed = Some(topic.to_owned());
        NotSent::Later
    }

    /// Whether the topics of records behind the one that waits can be prepared.
    pub(in crate::sink::kafka) fn takes_more_topics(&self) -> bool {
        let TopicSetup { needed, alone, later, .. } = &self.setup;
        needed.as_ref().is_some_and(|needed| !alone.contains(needed.as_str())) && later.len() < MAX_REMEMBERED
    }

    /// A record behind the one that waits is for this topic. It is prepared too if it is not ready.
    pub(in crate::sink::kafka) fn set_up_too(&mut self, topic: &str) {
        let setup = &mut self.setup;
        if self.numbers.contains_key(topic) || setup.alone.contains(topic) || setup.pending.contains(topic) {
            return;
        }
        if setup.pending.len() < MAX_PENDING {
            setup.want(topic);
        } else if !setup.later.contains(topic) {
            setup.later.insert(topic.into());
        }
    }

    /// Begins to prepare the topics that are wanted, if any.
    pub(in crate::sink::kafka) fn start_setup(&mut self) {
        let mut wanted = std::mem::take(&mut self.setup.wanted);
        if wanted.is_empty() {
            return;
        }
        if self.setup.progress.begin(self.setup.missing()) {
            self.keeper.forget_created();
        }
        let is_alone = |topic: &String| self.setup.alone.contains(topic.as_str());
        let alone = wanted.extract_if(.., |topic| is_alone(topic)).map(|topic| vec![topic]);
        let mut batches: Vec<_> = alone.collect();
        batches.extend(wanted.chunks(self.keeper.batch()).map(<[String]>::to_vec));
        for topics in batches {
            let needed = topics.first() == self.setup.needed.as_ref();
            let prepared = self.prepare(topics.clone(), needed);
            self.setup.batches.spawn(async { Batch { topics, prepared: prepared.await } });
        }
    }

    /// Makes sure that topics exist, see [`TopicKeeper::prepare`].
    ///
    /// [`TopicKeeper::prepare`]: crate::sink::kafka::topics::TopicKeeper::prepare
    fn prepare(
        &self,
        topics: Vec<String>,
        needed: bool,
    ) -> impl Future<Output = Vec<Prepared>> + Send + 'static {
        let met = topics.iter().filter(|topic| self.numbers.contains_key(topic.as_str()));
        let met: Vec<_> = met.cloned().collect();
        let producers: Vec<_> =
            self.producers.all().filter(|_| !met.is_empty()).cloned().map(Client::new).collect();
        let prepared = Arc::clone(&self.keeper).prepare(topics, needed);
        async move {
            let prepared = prepared.await;
            for producer in producers {
                // by itself the producer learns of new partitions minutes later; a failure here will also hit the next
                // record
                let (met, producer) = (met.clone(), (*producer).clone());
                let refresh = move || {
                    met.iter()
                        .all(|topic| producer.client().fetch_metadata(Some(topic), PROBE_TIMEOUT).is_ok())
                };
                let _ = tokio::task::spawn_blocking(refresh).await;
            }
            prepared
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
