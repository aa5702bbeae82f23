//! The first record of each partition travels alone.
//!
//! A broker that knows nothing of a producer takes any batch of it as the first one. Were that first batch refused, the
//! one behind it, which may be on its way already, would be taken: a reordered log. Once a broker has acknowledged one
//! record of a partition, it refuses whatever does not follow on it.

use std::collections::HashMap;

use crate::progress::Sequence;

/// What the broker that leads a partition knows of this producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// A first record is under way.
    NotYet,
    /// One was acknowledged.
    Established,
}

/// A topic's number and a partition; `None` stands for all, where the partition cannot be told beforehand.
pub(super) type Place = (usize, Option<i32>);

/// Which partitions have had their first record.
#[derive(Debug, Default)]
pub(super) struct FirstRecords {
    /// By the topic's number, then by [`slot`]. Small: what is for a partition that the topic lacks comes to no sending.
    places: Vec<Vec<Option<Known>>>,
    under_way: HashMap<Sequence, Place>,
}

impl FirstRecords {
    /// What the broker knows there; `None` before the first record, which may be sent now. No other may while that is
    /// [`Known::NotYet`].
    pub(super) fn known(&self, (topic, partition): Place) -> Option<Known> {
        self.places.get(topic)?.get(slot(partition)).copied().flatten()
    }

    fn set(&mut self, (topic, partition): Place, known: Known) {
        let slot = slot(partition);
        if self.places.len() <= topic {
            self.places.resize(topic + 1, Vec::new());
        }
        let Some(slots) = self.places.get_mut(topic) else { return };
        if slots.len() <= slot {
            slots.resize(slot + 1, None);
        }
        if let Some(place) = slots.get_mut(slot) {
            *place = Some(known);
        }
    }

    /// The first record was sent there.
    pub(super) fn sent(&mut self, place: Place, sequence: Sequence) {
        self.set(place, Known::NotYet);
        self.under_way.insert(sequence, place);
    }

    /// A record is durable.
    pub(super) fn acknowledged(&mut self, sequence: Sequence) {
        if self.under_way.is_empty() {
            return;
        }
        if let Some(place) = self.under_way.remove(&sequence) {
            self.set(place, Known::Established);
        }
    }

    /// The brokers may have forgotten the producer in this topic, to which nothing is under way.
    pub(super) fn forget(&mut self, topic: usize) {
        for place in self.places.get_mut(topic).into_iter().flatten() {
            *place = place.filter(|known| *known == Known::NotYet);
        }
    }
}

/// The place of a topic as a whole is the first, and those of its partitions follow.
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
    // lengths beyond 32 bits are no keys
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

    /// Of Kafka's own test of the function.
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
        assert_eq!(first.known(a), None);
        first.sent(a, Sequence(7));
        assert_eq!((first.known(a), first.known(b)), (Some(Known::NotYet), None));
        first.sent(b, Sequence(8));
        first.acknowledged(Sequence(9));
        assert_eq!((first.known(a), first.known(b)), (Some(Known::NotYet), Some(Known::NotYet)));
        first.acknowledged(Sequence(7));
        assert_eq!((first.known(a), first.known(b)), (Some(Known::Established), Some(Known::NotYet)));
        first.forget(0);
        assert_eq!(
            (first.known(a), first.known(b)),
            (None, Some(Known::NotYet)),
            "the one under way is not forgotten"
        );
    }
}
