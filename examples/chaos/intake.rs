//! The consumer's records as they come: kept small, counted, and looked through for the first sign of life after a fault.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::event::{Arrival, Id};
use crate::stage::consumer::Reading;

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Everything that has arrived.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) records: Vec<Arrival>,
    topics: Vec<String>,
    counts: HashMap<String, u64>,
}

impl Arrived {
    /// How many records a topic has got.
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

/// When the first record that was committed at or after `began` arrived at or after `back`. `records`: as they have arrived.
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

/// The consumer at work. Dropped, it ends.
pub(crate) struct Intake {
    arrived: Arc<Mutex<Arrived>>,
    reading: Arc<Mutex<Option<Reading>>>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Intake {
    pub(crate) fn start(reading: Reading) -> Self {
        let arrived = Arc::new(Mutex::new(Arrived::default()));
        let reading = Arc::new(Mutex::new(Some(reading)));
        let (into, from) = (Arc::clone(&arrived), Arc::clone(&reading));
        let task = tokio::spawn(async move {
            loop {
                match lock(&from).as_mut() {
                    Some(reading) => take(reading, &mut lock(&into))?,
                    None => return Ok(()),
                }
                sleep(LOOK_EVERY).await;
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
    /// It has ended by itself.
    pub(crate) async fn is_well(&mut self) -> anyhow::Result<()> {
        if self.task.is_finished() {
            (&mut self.task).await??;
        }
        Ok(())
    }

    /// Reads to the end of every partition, and returns all records. Call it when nobody writes any more.
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

fn take(reading: &mut Reading, arrived: &mut Arrived) -> anyhow::Result<()> {
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
