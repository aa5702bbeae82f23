//! A set of numbers that fills up from below: one bit for each number after the longest complete prefix.

use std::collections::VecDeque;

/// Accepts numbers in any order and returns the first missing one.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    /// Bit `n` of word `w` stands for the number `64 * (words_done + w) + n`.
    words: VecDeque<u64>,
    words_done: u64,
}

impl Acknowledged {
    /// Adds `number`; false if it was already there.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let Some(word) = (number / 64).checked_sub(self.words_done) else {
            return false;
        };
        let index = word as usize;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        let bit = 1 << (number % 64);
        let added = match self.words.get_mut(index) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                true
            }
            _ => false,
        };
        while self.words.front() == Some(&u64::MAX) {
            self.words.pop_front();
            self.words_done += 1;
        }
        added
    }

    /// Whether all numbers from `first` to `end`, exclusive, are in the set.
    pub(super) fn has_all(&self, first: u64, end: u64) -> bool {
        (first.max(self.prefix())..end).all(|number| {
            let word =
                usize::try_from(number / 64 - self.words_done).ok().and_then(|index| self.words.get(index));
            word.is_some_and(|word| word & (1 << (number % 64)) != 0)
        })
    }

    /// The smallest missing number; all lower ones are in the set.
    pub(super) fn prefix(&self) -> u64 {
        let in_first = self.words.front().map_or(0, |word| u64::from(word.trailing_ones()));
        self.words_done * 64 + in_first
    }
}
