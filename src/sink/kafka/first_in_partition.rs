//! The first record of each partition is sent alone.
//!
//! A broker that has no state for a producer accepts any batch as the first. If it refused that first batch, it would
//! accept the next one, which may already be in flight, and the log would be out of order. Once it has acknowledged one
//! record of a partition, it refuses any gap in the sequence. It forgets producers that have not written to the partition
//! for long, so a partition that was quiet starts with a single record again, however busy the rest of its topic is.

use std::collections::HashMap;

use crate::progress::Sequence;

/// A broker forgets a producer that has not written to a partition for a day (`producer.id.expiration.ms`), or earlier if
/// retention has deleted its records. A minute is far below both.
const FORGOTTEN_AFTER_MS: i64 = 60_000;

/// Whether the leader of a partition has state for this producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProducerState {
    /// The first record is in flight.
    Pending,
    /// A record was acknowledged.
    Established,
}

/// A topic's number and a partition; `None` if the partition is not known in advance.
pub(super) type TopicPartition = (usize, Option<i32>);

/// The state of a partition after its first record.
#[derive(Debug, Clone, Copy)]
struct PartitionState {
    producer_state: ProducerState,
    /// When the last record was sent, in milliseconds since the Unix epoch.
    last_sent: i64,
}

/// Which partitions have had their first record.
#[derive(Debug, Default)]
pub(super) struct FirstRecords {
    /// By the topic's number, then by [`slot`]. Stays small: records for partitions that do not exist are never sent.
    targets: Vec<Vec<Option<PartitionState>>>,
    in_flight: HashMap<Sequence, TopicPartition>,
}

impl FirstRecords {
    /// The broker's state; `None` before the first record and after a long pause. The next record may then be sent, as a
    /// first one. While the state is [`ProducerState::Pending`], nothing else may be sent there.
    pub(super) fn producer_state(
        &self,
        (topic, partition): TopicPartition,
        now: i64,
    ) -> Option<ProducerState> {
        let partition_state = self.targets.get(topic)?.get(slot(partition)).copied().flatten()?;
        let forgotten = partition_state.producer_state == ProducerState::Established
            && partition_state.last_sent.saturating_add(FORGOTTEN_AFTER_MS) < now;
        (!forgotten).then_some(partition_state.producer_state)
    }

    /// A record was sent.
    pub(super) fn sent(&mut self, target: TopicPartition, sequence: Sequence, now: i64) {
        let producer_state = self.producer_state(target, now).unwrap_or_else(|| {
            self.in_flight.insert(sequence, target);
            ProducerState::Pending
        });
        let (topic, partition) = target;
        let slot = slot(partition);
        if self.targets.len() <= topic {
            self.targets.resize(topic + 1, Vec::new());
        }
        let Some(slots) = self.targets.get_mut(topic) else { return };
        if slots.len() <= slot {
            slots.resize(slot + 1, None);
        }
        if let Some(target) = slots.get_mut(slot) {
            *target = Some(PartitionState { producer_state, last_sent: now });
        }
    }

    /// A record is durable.
    pub(super) fn acknowledged(&mut self, sequence: Sequence) {
        if self.in_flight.is_empty() {
            return;
        }
        let Some((topic, partition)) = self.in_flight.remove(&sequence) else { return };
        let target = self.targets.get_mut(topic).and_then(|slots| slots.get_mut(slot(partition)));
        if let Some(Some(partition_state)) = target {
            partition_state.producer_state = ProducerState::Established;
        }
    }

    /// The brokers may have forgotten the producer in this topic. A first record in flight remains one.
    pub(super) fn forget(&mut self, topic: usize) {
        for target in self.targets.get_mut(topic).into_iter().flatten() {
            *target =
                target.filter(|partition_state| partition_state.producer_state == ProducerState::Pending);
        }
    }
}

/// Slot 0 is for an unknown partition; those of the partitions follow.
fn slot(partition: Option<i32>) -> usize {
    partition.and_then(|number| usize::try_from(number).ok()).map_or(0, |number| number + 1)
}

/// The partition that a Java producer, and librdkafka's `murmur2`, choose for a key.
pub(super) fn partition_of(key: &[u8], partitions: usize) -> Option<i32> {
    let positive = murmur2(key) & 0x7fff_ffff;
    i32::try_from(usize::try_from(positive).ok()?.checked_rem(partitions)?).ok()
}

/// Austin Appleby's MurmurHash2 with Kafka's seed (`org.apache.kafka.common.utils.Utils`).
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let mix = |k: u32| {
        let k = k.wrapping_mul(M);
        (k ^ (k >> 24)).wrapping_mul(M)
    };
    // no key is longer than 32 bits can count
    let mut hash = SEED ^ data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        hash = hash.wrapping_mul(M) ^ mix(u32::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        for (n, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * n);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Kafka's own test of the function.
    #[test]
    fn hashes_are_those_of_java() {
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), hash as u32, "{key}");
        }
        assert_eq!(partition_of(b"abc", 0), None);
        assert_eq!(partition_of(b"abc", 1), Some(0));
    }

    #[test]
    fn nothing_follows_a_first_record_before_it_is_acknowledged() {
        let mut first = FirstRecords::default();
        let (a, b) = ((0, Some(1)), (0, Some(2)));
        assert_eq!(first.producer_state(a, 0), None);
        first.sent(a, Sequence(7), 0);
        assert_eq!(
            (first.producer_state(a, 0), first.producer_state(b, 0)),
            (Some(ProducerState::Pending), None)
        );
        first.sent(b, Sequence(8), 0);
        first.acknowledged(Sequence(9));
        assert_eq!(
            (first.producer_state(a, 0), first.producer_state(b, 0)),
            (Some(ProducerState::Pending), Some(ProducerState::Pending))
        );
        first.acknowledged(Sequence(7));
        assert_eq!(
            (first.producer_state(a, 0), first.producer_state(b, 0)),
            (Some(ProducerState::Established), Some(ProducerState::Pending))
        );
        first.forget(0);
        assert_eq!(
            (first.producer_state(a, 0), first.producer_state(b, 0)),
            (None, Some(ProducerState::Pending)),
            "the one under way is not forgotten"
        );
    }

    #[test]
    fn a_quiet_partition_of_a_busy_topic_starts_with_a_lone_record_again() {
        let start = 1_700_000_000_000;
        let (quiet, busy) = ((0, Some(0)), (0, Some(1)));
        let mut first = FirstRecords::default();
        first.sent(quiet, Sequence(1), start);
        first.sent(busy, Sequence(2), start);
        first.acknowledged(Sequence(1));
        first.acknowledged(Sequence(2));

        let limit = start + FORGOTTEN_AFTER_MS;
        for (sequence, now) in (3..).zip((start..=limit).step_by(1000)) {
            assert_eq!(
                first.producer_state(busy, now),
                Some(ProducerState::Established),
                "busy after {} ms",
                now - start
            );
            first.sent(busy, Sequence(sequence), now);
        }
        assert_eq!(
            first.producer_state(quiet, limit),
            Some(ProducerState::Established),
            "quiet, at the limit"
        );

        let now = limit + 1;
        assert_eq!(
            first.producer_state(busy, now),
            Some(ProducerState::Established),
            "busy, after the limit"
        );
        assert_eq!(first.producer_state(quiet, now), None, "quiet, after the limit");
        first.sent(quiet, Sequence(1000), now);
        assert_eq!(
            first.producer_state(quiet, now),
            Some(ProducerState::Pending),
            "nothing may follow the lone record yet"
        );
        first.acknowledged(Sequence(1000));
        assert_eq!(first.producer_state(quiet, now), Some(ProducerState::Established), "records flow again");
        first.sent(quiet, Sequence(1001), now);
        assert_eq!(first.producer_state(quiet, now), Some(ProducerState::Established), "and back to back");
    }

    #[test]
    fn a_first_record_in_flight_never_expires() {
        let mut first = FirstRecords::default();
        let target = (0, Some(0));
        first.sent(target, Sequence(1), 0);
        assert_eq!(first.producer_state(target, 10 * FORGOTTEN_AFTER_MS), Some(ProducerState::Pending));
    }
}
