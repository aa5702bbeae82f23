//! The order and times of the faults, which depend only on the seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// Time between two faults, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 300..1800;

/// One fault in this many begins before the router has caught up after the previous one.
const OVERLAP_ONE_IN: u32 = 4;

/// The next fault.
#[derive(Debug)]
pub(crate) struct Next {
    /// The index of its kind.
    pub(crate) kind: usize,
    /// How long to wait before it.
    pub(crate) pause: Duration,
    /// Whether to inject it before the router has caught up.
    pub(crate) overlaps: bool,
    /// For the fault's own choices.
    pub(crate) random: StdRng,
}

/// An endless sequence of faults. Each kind comes once before any comes twice.
#[derive(Debug)]
pub(crate) struct Plan {
    kinds: usize,
    random: StdRng,
    round: Vec<usize>,
}

impl Plan {
    /// The same `seed` and number of kinds yield the same plan.
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
            pause: Duration::from_millis(self.random.random_range(PAUSE_MS)),
            overlaps: self.random.random_ratio(1, OVERLAP_ONE_IN),
            random: StdRng::seed_from_u64(self.random.random()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(seed: u64) -> Vec<(usize, Duration, u64)> {
        Plan::new(seed, 7).take(50).map(|mut next| (next.kind, next.pause, next.random.random())).collect()
    }

    #[test]
    fn same_seed_makes_same_choices() {
        assert_eq!(chosen(1), chosen(1));
        assert_ne!(chosen(1), chosen(2));
    }

    #[test]
    fn every_kind_comes_once_before_any_comes_twice() {
        for round in chosen(3).as_chunks::<7>().0 {
            let mut kinds: Vec<_> = round.iter().map(|next| next.0).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [0, 1, 2, 3, 4, 5, 6]);
        }
    }
}
