//! Events that have arrived and wait for their batch, by partition.

use std::collections::{HashMap, VecDeque};

use super::assignment::Partition;
use super::event::Event;

/// A batch ends with the event that reaches this many bytes.
const MAX_BYTES: usize = 16 << 20;

/// Events of a partition, in their order.
pub(super) struct Batch {
    pub(super) partition: Partition,
    /// In which it arrived.
    pub(super) assignment: u64,
    /// At least one.
    pub(super) events: Vec<Event>,
}

/// One batch of a partition is processed at a time.
pub(super) struct Buffers {
    max_events: usize,
    partitions: HashMap<Partition, Buffer>,
    last_turn: u64,
}

#[derive(Default)]
struct Buffer {
    assignment: u64,
    events: VecDeque<Event>,
    bytes: usize,
    /// Its place among those that wait for their turn.
    turn: u64,
    /// A batch is processed.
    busy: bool,
    paused: bool,
    /// It was paused since it was empty, so it is paused again as soon as it is full.
    slow: bool,
}

impl Buffer {
    fn is_full(&self, max_events: usize) -> bool {
        self.events.len() >= max_events || self.bytes >= MAX_BYTES
    }
}

impl Buffers {
    pub(super) fn new(max_events: usize) -> Self {
        Buffers { max_events, partitions: HashMap::new(), last_turn: 0 }
    }

    /// Adds an event that has arrived in this assignment, and returns whether its partition is full.
    pub(super) fn add(&mut self, partition: Partition, assignment: u64, event: Event) -> bool {
        let buffer = self.partitions.entry(partition).or_default();
        if buffer.assignment != assignment {
            // they arrive again
            buffer.events.clear();
            (buffer.assignment, buffer.bytes) = (assignment, 0);
        }
        if buffer.events.is_empty() {
            self.last_turn += 1;
            buffer.turn = self.last_turn;
        }
        buffer.bytes += event.size();
        buffer.events.push_back(event);
        buffer.is_full(self.max_events)
    }

    /// Drops the events of partitions that are no longer assigned, or were assigned again.
    pub(super) fn forget_lost(&mut self, assignment: impl Fn(&Partition) -> Option<u64>) {
        self.partitions.retain(|partition, buffer| {
            if assignment(partition) == Some(buffer.assignment) {
                return true;
            }
            buffer.events.clear();
            buffer.bytes = 0;
            // until its batch has ended, and it was resumed
            buffer.busy || buffer.paused
        });
    }

    /// The next batch: of the partition that has waited longest.
    pub(super) fn take(&mut self) -> Option<Batch> {
        let ready =
            self.partitions.iter_mut().filter(|(_, buffer)| !buffer.busy && !buffer.events.is_empty());
        let (partition, buffer) = ready.min_by_key(|(_, buffer)| buffer.turn)?;
        let (mut events, mut bytes) = (Vec::new(), 0);
        while events.len() < self.max_events && bytes < MAX_BYTES {
            let Some(event) = buffer.events.pop_front() else {
                break;
            };
            bytes += event.size();
            events.push(event);
        }
        buffer.bytes -= bytes;
        self.last_turn += 1;
        (buffer.turn, buffer.busy) = (self.last_turn, true);
        buffer.slow &= !buffer.events.is_empty() || buffer.paused;
        Some(Batch { partition: partition.clone(), assignment: buffer.assignment, events })
    }

    /// The batch of this partition has ended.
    pub(super) fn end(&mut self, partition: &Partition) {
        if let Some(buffer) = self.partitions.get_mut(partition) {
            buffer.busy = false;
        }
    }

    /// Whether a partition has as many events as its next batch can take, and is not paused.
    pub(super) fn is_full(&self) -> bool {
        self.partitions.values().any(|buffer| !buffer.paused && buffer.is_full(self.max_events))
    }

    /// Marks those that are full as paused: the slow ones, or all.
    pub(super) fn pause(&mut self, all: bool) -> Vec<Partition> {
        let max_events = self.max_events;
        let full = self
            .partitions
            .iter_mut()
            .filter(|(_, buffer)| !buffer.paused && buffer.is_full(max_events) && (all || buffer.slow));
        full.map(|(partition, buffer)| {
            (buffer.paused, buffer.slow) = (true, true);
            partition.clone()
        })
        .collect()
    }

    /// Marks those that were paused and have room as not paused.
    pub(super) fn resume(&mut self) -> Vec<Partition> {
        let max_events = self.max_events;
        let paused =
            self.partitions.iter_mut().filter(|(_, buffer)| buffer.paused && !buffer.is_full(max_events));
        paused
            .map(|(partition, buffer)| {
                buffer.paused = false;
                partition.clone()
            })
            .collect()
    }

    /// Whether no event waits.
    pub(super) fn is_empty(&self) -> bool {
        self.partitions.values().all(|buffer| buffer.events.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(offset: i64, bytes: usize) -> Event {
        Event {
            id: offset.to_string(),
            topic: "t".to_owned(),
            partition: 0,
            offset,
            key: None,
            value: Some(vec![0; bytes]),
            headers: Vec::new(),
        }
    }

    fn partition(n: i32) -> Partition {
        ("t".to_owned(), n)
    }

    /// Its partition and offsets.
    fn take(buffers: &mut Buffers) -> Option<(i32, Vec<i64>)> {
        let batch = buffers.take()?;
        Some((batch.partition.1, batch.events.iter().map(|event| event.offset).collect()))
    }

    #[test]
    fn a_partition_has_one_batch_at_a_time_and_the_one_that_has_waited_longest_is_next() {
        let mut buffers = Buffers::new(2);
        for offset in 0..3 {
            buffers.add(partition(0), 1, event(offset, 1));
        }
        buffers.add(partition(1), 1, event(0, 1));
        assert_eq!(take(&mut buffers), Some((0, vec![0, 1])));
        assert_eq!(take(&mut buffers), Some((1, vec![0])));
        buffers.add(partition(1), 1, event(1, 1));
        assert_eq!(take(&mut buffers), None);
        buffers.end(&partition(1));
        assert_eq!(take(&mut buffers), Some((1, vec![1])));
        buffers.end(&partition(0));
        assert_eq!(take(&mut buffers), Some((0, vec![2])));
        assert!(buffers.is_empty());
    }

    #[test]
    fn a_batch_ends_at_its_number_of_events_or_bytes() {
        let mut buffers = Buffers::new(3);
        buffers.add(partition(0), 1, event(0, MAX_BYTES - 1));
        assert!(!buffers.is_full());
        for offset in 1..3 {
            buffers.add(partition(0), 1, event(offset, MAX_BYTES));
        }
        assert!(buffers.is_full());
        assert_eq!(buffers.pause(true), [partition(0)]);
        assert!(!buffers.is_full() && buffers.pause(true).is_empty());
        assert_eq!(take(&mut buffers), Some((0, vec![0, 1])));
        assert!(buffers.resume().is_empty(), "the last one fills a batch");
        buffers.end(&partition(0));
        assert_eq!(take(&mut buffers), Some((0, vec![2])));
        assert_eq!(buffers.resume(), [partition(0)]);
        buffers.end(&partition(0));
        assert!(buffers.pause(false).is_empty());
        buffers.add(partition(0), 1, event(3, MAX_BYTES));
        assert_eq!(buffers.pause(false), [partition(0)], "it was slow before");
        let mut buffers = Buffers::new(3);
        for offset in 0..7 {
            buffers.add(partition(0), 1, event(offset, 1));
        }
        for expected in [vec![0, 1, 2], vec![3, 4, 5], vec![6]] {
            assert_eq!(take(&mut buffers), Some((0, expected)));
            buffers.end(&partition(0));
        }
    }

    #[test]
    fn events_of_an_assignment_that_has_ended_are_dropped() {
        let mut buffers = Buffers::new(2);
        for n in 0..2 {
            buffers.add(partition(n), 1, event(5, 1));
        }
        buffers.forget_lost(|partition| (partition.1 == 1).then_some(1));
        assert_eq!(take(&mut buffers), Some((1, vec![5])));
        // assigned again while its batch is processed
        buffers.add(partition(1), 1, event(6, 1));
        buffers.add(partition(1), 1, event(7, 1));
        assert_eq!(buffers.pause(true), [partition(1)]);
        buffers.add(partition(1), 2, event(5, 1));
        assert_eq!(buffers.resume(), [partition(1)]);
        assert_eq!(take(&mut buffers), None);
        buffers.end(&partition(1));
        let batch = buffers.take().unwrap();
        assert_eq!((batch.assignment, batch.events.len(), batch.events[0].offset), (2, 1, 5));
        // it stays until its batch has ended
        buffers.forget_lost(|_| None);
        assert_eq!(buffers.partitions.len(), 1);
        buffers.end(&partition(1));
        buffers.forget_lost(|_| None);
        assert!(buffers.partitions.is_empty());
    }
}
