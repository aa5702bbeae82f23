//! What happens when: decided by the seed alone.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// How long all may be well between two faults.
const CALM: std::ops::Range<u64> = 300..1800;

/// One fault in so many comes while what the one before it has held up is still being sent.
const OVERLAPS: u32 = 4;

/// The next fault.
#[derive(Debug)]
pub(crate) struct Next {
    /// Which of the kinds.
    pub(crate) kind: usize,
    /// How long to wait before it.
    pub(crate) calm: Duration,
    /// Whether the router need not have caught up before.
    pub(crate) overlaps: bool,
    /// For its own choices.
    pub(crate) random: StdRng,
}

/// The faults, one after the other, without end. Each kind comes once before any comes twice.
#[derive(Debug)]
pub(crate) struct Plan {
    kinds: usize,
    random: StdRng,
    round: Vec<usize>,
}

impl Plan {
    /// The same `seed` and number of kinds make the same plan.
    pub(crate) fn new(seed: u64, kinds: usize) -> Self {
        Plan { kinds, random: StdRng::seed_from_u64(seed), round: Vec::new() }
    }
}

impl Iterator for Plan {
    type Item = Next;

    fn next(&mut self) -> Option<Next> {
        if self.round.is_empty() {
            self.round = (0..self.kinds).collect();
            self.round.shuffle(&mut self.random);
        }
        Some(Next {
            kind: self.round.pop()?,
            calm: Duration::from_millis(self.random.random_range(CALM)),
            overlaps: self.random.random_ratio(1, OVERLAPS),
            random: StdRng::seed_from_u64(self.random.random()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(seed: u64) -> Vec<(usize, Duration, u64)> {
        Plan::new(seed, 7).take(50).map(|mut next| (next.kind, next.calm, next.random.random())).collect()
    }

    #[test]
    fn a_seed_repeats_its_choices_and_another_makes_others() {
        assert_eq!(chosen(1), chosen(1));
        assert_ne!(chosen(1), chosen(2));
    }

    #[test]
    fn every_kind_comes_before_any_comes_twice() {
        for round in chosen(3).as_chunks::<7>().0 {
            let mut kinds: Vec<_> = round.iter().map(|next| next.0).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [0, 1, 2, 3, 4, 5, 6]);
        }
    }
}
