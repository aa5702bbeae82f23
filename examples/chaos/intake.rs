//! Takes the consumer's records as they arrive, reduces them to what is compared, and counts them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::event::{Arrival, Id};
use crate::stage::consumer::TopicReader;

const POLL_EVERY: Duration = Duration::from_millis(5);

/// All records that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) records: Vec<Arrival>,
    topics: Vec<String>,
    counts: HashMap<String, u64>,
}

impl Arrived {
    /// The number of records that arrived in a topic.
    pub(crate) fn count(&self, topic: &str) -> u64 {
        self.counts.get(topic).copied().unwrap_or_default()
    }

    fn take(&mut self, received: crate::stage::consumer::Received) {
        let topic = match self.topics.iter().position(|topic| *topic == received.topic) {
            Some(number) => number,
            None => {
                self.topics.push(received.topic.clone());
                self.topics.len() - 1
            }
        };
        self.records.push(Arrival::of_record(&received, topic));
        *self.counts.entry(received.topic).or_default() += 1;
    }
}

/// When the first record that was committed at or after `began` arrived at or after `back`. `records` are in the order of
/// arrival.
pub(crate) fn first_after(
    records: &[Arrival],
    began: Instant,
    back: Instant,
    committed: &HashMap<Id, Instant>,
) -> Option<Instant> {
    let from = records.partition_point(|arrival| arrival.at < back);
    let mut later = records.get(from..).unwrap_or_default().iter();
    let is_new = |id: &Id| committed.get(id).is_some_and(|at| *at >= began);
    later.find(|arrival| arrival.id.as_ref().is_some_and(is_new)).map(|arrival| arrival.at)
}

/// The running consumer; dropping it ends it.
pub(crate) struct Intake {
    arrived: Arc<Mutex<Arrived>>,
    reading: Arc<Mutex<Option<TopicReader>>>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Intake {
    pub(crate) fn start(reading: TopicReader) -> Self {
        let arrived = Arc::new(Mutex::new(Arrived::default()));
        let reading = Arc::new(Mutex::new(Some(reading)));
        let (into, from) = (Arc::clone(&arrived), Arc::clone(&reading));
        let task = tokio::spawn(async move {
            loop {
                match lock(&from).as_mut() {
                    Some(reading) => take(reading, &mut lock(&into))?,
                    None => return Ok(()),
                }
                sleep(POLL_EVERY).await;
            }
        });
        Intake { arrived, reading, task }
    }

    pub(crate) fn arrived(&self) -> MutexGuard<'_, Arrived> {
        lock(&self.arrived)
    }

    pub(crate) fn shared(&self) -> Arc<Mutex<Arrived>> {
        Arc::clone(&self.arrived)
    }

    /// # Errors
    /// The consumer ended by itself.
    pub(crate) async fn check(&mut self) -> anyhow::Result<()> {
        if self.task.is_finished() {
            (&mut self.task).await??;
        }
        Ok(())
    }

    /// Reads to the end of every partition, and returns all records. Call it after the last writer has ended.
    pub(crate) fn finish(self) -> anyhow::Result<Vec<Arrival>> {
        let mut records = Vec::new();
        if let Some(reading) = lock(&self.reading).take() {
            tokio::task::block_in_place(|| reading.finish(&mut records))?;
        }
        let mut arrived = lock(&self.arrived);
        for received in records {
            arrived.take(received);
        }
        Ok(std::mem::take(&mut arrived.records))
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn take(reading: &mut TopicReader, arrived: &mut Arrived) -> anyhow::Result<()> {
    let mut records = Vec::new();
    reading.take(&mut records)?;
    for received in records {
        arrived.take(received);
    }
    Ok(())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
