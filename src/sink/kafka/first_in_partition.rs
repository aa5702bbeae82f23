//! The first record of each partition travels alone.
//!
//! A broker that knows nothing of a producer takes any batch of it as the first one. Were that first batch refused, the
//! one behind it, which may be on its way already, would be taken: a reordered log. Once a broker has acknowledged one
//! record of a partition, it refuses whatever does not follow on it. It forgets the producer where it has not written for
//! long, so a partition that was quiet starts with a lone record again, however busy the rest of its topic is.

use std::collections::HashMap;

use crate::progress::Sequence;

/// A broker forgets a producer that has not written to a partition for a day (`producer.id.expiration.ms`), or sooner,
/// when retention has deleted what it wrote. A minute is far below either.
const FORGOTTEN_AFTER_MS: i64 = 60_000;

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

/// The state of a partition after its first record.
#[derive(Debug, Clone, Copy)]
struct Begun {
    known: Known,
    /// When the last record was sent, in milliseconds since the Unix epoch.
    last_sent: i64,
}

/// Which partitions have had their first record.
#[derive(Debug, Default)]
pub(super) struct FirstRecords {
    /// By the topic's number, then by [`slot`]. Small: what is for a partition that the topic lacks comes to no sending.
    places: Vec<Vec<Option<Begun>>>,
    under_way: HashMap<Sequence, Place>,
}

impl FirstRecords {
    /// What the broker knows there; `None` before the first record and after a long pause: the next record may be sent now, as
    /// a first one. No other may while that is [`Known::NotYet`].
    pub(super) fn known(&self, (topic, partition): Place, now: i64) -> Option<Known> {
        let begun = self.places.get(topic)?.get(slot(partition)).copied().flatten()?;
        let forgotten =
            begun.known == Known::Established && begun.last_sent.saturating_add(FORGOTTEN_AFTER_MS) < now;
        (!forgotten).then_some(begun.known)
    }

    /// A record was sent there.
    pub(super) fn sent(&mut self, place: Place, sequence: Sequence, now: i64) {
        let known = self.known(place, now).unwrap_or_else(|| {
            self.under_way.insert(sequence, place);
            Known::NotYet
        });
        let (topic, partition) = place;
        let slot = slot(partition);
        if self.places.len() <= topic {
            self.places.resize(topic + 1, Vec::new());
        }
        let Some(slots) = self.places.get_mut(topic) else { return };
        if slots.len() <= slot {
            slots.resize(slot + 1, None);
        }
        if let Some(place) = slots.get_mut(slot) {
            *place = Some(Begun { known, last_sent: now });
        }
    }

    /// A record is durable.
    pub(super) fn acknowledged(&mut self, sequence: Sequence) {
        if self.under_way.is_empty() {
            return;
        }
        let Some((topic, partition)) = self.under_way.remove(&sequence) else { return };
        let place = self.places.get_mut(topic).and_then(|slots| slots.get_mut(slot(partition)));
        if let Some(Some(begun)) = place {
            begun.known = Known::Established;
        }
    }

    /// The brokers may know nothing of the producer in this topic. A first record that is under way remains one.
    pub(super) fn forget(&mut self, topic: usize) {
        for place in self.places.get_mut(topic).into_iter().flatten() {
            *place = place.filter(|begun| begun.known == Known::NotYet);
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
        assert_eq!(first.known(a, 0), None);
        first.sent(a, Sequence(7), 0);
        assert_eq!((first.known(a, 0), first.known(b, 0)), (Some(Known::NotYet), None));
        first.sent(b, Sequence(8), 0);
        first.acknowledged(Sequence(9));
        assert_eq!((first.known(a, 0), first.known(b, 0)), (Some(Known::NotYet), Some(Known::NotYet)));
        first.acknowledged(Sequence(7));
        assert_eq!((first.known(a, 0), first.known(b, 0)), (Some(Known::Established), Some(Known::NotYet)));
        first.forget(0);
        assert_eq!(
            (first.known(a, 0), first.known(b, 0)),
            (None, Some(Known::NotYet)),
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
            assert_eq!(first.known(busy, now), Some(Known::Established), "busy after {} ms", now - start);
            first.sent(busy, Sequence(sequence), now);
        }
        assert_eq!(first.known(quiet, limit), Some(Known::Established), "quiet, at the limit");

        let now = limit + 1;
        assert_eq!(first.known(busy, now), Some(Known::Established), "busy, after the limit");
        assert_eq!(first.known(quiet, now), None, "quiet, after the limit");
        first.sent(quiet, Sequence(1000), now);
        assert_eq!(first.known(quiet, now), Some(Known::NotYet), "nothing may follow the lone record yet");
        first.acknowledged(Sequence(1000));
        assert_eq!(first.known(quiet, now), Some(Known::Established), "records flow again");
        first.sent(quiet, Sequence(1001), now);
        assert_eq!(first.known(quiet, now), Some(Known::Established), "and back to back");
    }

    #[test]
    fn a_first_record_under_way_is_waited_for_however_long_it_takes() {
        let mut first = FirstRecords::default();
        let place = (0, Some(0));
        first.sent(place, Sequence(1), 0);
        assert_eq!(first.known(place, 10 * FORGOTTEN_AFTER_MS), Some(Known::NotYet));
    }
}
