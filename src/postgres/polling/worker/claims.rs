//! The claims of a session, and what is known of their rows.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::super::messages::RowResult;
use crate::progress::Sequence;

/// The claims with rows about which something is still to be found out or stored, oldest first.
#[derive(Debug, Default)]
pub(super) struct Claims {
    claims: VecDeque<Claim>,
    /// The number of the next row.
    next: u64,
}

/// Rows that were claimed together.
#[derive(Debug)]
pub(super) struct Claim {
    id: i64,
    /// The session ends if rows are not acknowledged by then.
    deadline: Instant,
    /// The number of its first row.
    first: u64,
    rows: Vec<ClaimedPosition>,
    /// How many rows are neither stored nor released.
    left: usize,
    /// The indexes of published rows that are not marked.
    published: Vec<usize>,
    refused: Vec<Refused>,
    bytes: usize,
}

#[derive(Debug)]
struct ClaimedPosition {
    position: i64,
    /// It was refused before, or waited behind such a row.
    retried: bool,
    /// Something is known of it.
    known: bool,
}

/// A row that was refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) number: Sequence,
    pub(super) position: i64,
    pub(super) reason: String,
}

/// Published rows of one claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToMark {
    pub(super) positions: Vec<i64>,
    /// The claim has no other rows.
    pub(super) last: bool,
    pub(super) retried: bool,
}

impl Claim {
    pub(super) fn new(id: i64, deadline: Instant) -> Self {
        let (rows, published, refused) = (Vec::new(), Vec::new(), Vec::new());
        Claim { id, deadline, first: 0, rows, left: 0, published, refused, bytes: 0 }
    }

    pub(super) fn add(&mut self, position: i64, retried: bool, bytes: usize) {
        self.rows.push(ClaimedPosition { position, retried, known: false });
        self.left += 1;
        self.bytes += bytes;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn unknown(&self) -> usize {
        self.rows.iter().filter(|row| !row.known).count()
    }
}

impl Claims {
    pub(super) fn add(&mut self, mut claim: Claim) {
        claim.first = self.next;
        self.next += claim.rows.len() as u64;
        self.claims.push_back(claim);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    pub(super) fn ids(&self) -> Vec<i64> {
        self.claims.iter().map(|claim| claim.id).collect()
    }

    /// How many rows are neither stored nor released, and how many bytes of values they may have.
    pub(super) fn in_flight(&self) -> usize {
        self.claims.iter().map(|claim| claim.left).sum()
    }

    pub(super) fn bytes(&self) -> usize {
        self.claims.iter().map(|claim| claim.bytes).sum()
    }

    /// Of how many rows something is known that is not stored.
    pub(super) fn known(&self) -> usize {
        self.claims.iter().map(|claim| claim.published.len() + claim.refused.len()).sum()
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.claims.front().map(|claim| claim.deadline)
    }

    /// The deadline of the first claim with rows of which nothing is known.
    pub(super) fn unacknowledged_until(&self) -> Option<Instant> {
        self.claims.iter().find(|claim| claim.rows.iter().any(|row| !row.known)).map(|claim| claim.deadline)
    }

    /// The claims whose deadline has passed.
    pub(super) fn past(&self, now: Instant) -> Vec<i64> {
        self.claims.iter().filter(|claim| claim.deadline <= now).map(|claim| claim.id).collect()
    }

    fn claim(&mut self, id: i64) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|claim| claim.id == id)
    }

    /// Of how many rows of a claim nothing is known.
    pub(super) fn unknown(&self, id: i64) -> usize {
        self.claims.iter().find(|claim| claim.id == id).map_or(0, Claim::unknown)
    }

    /// The rows of which nothing is known.
    pub(super) fn unknown_positions(&self) -> Vec<i64> {
        let rows = self.claims.iter().flat_map(|claim| &claim.rows);
        rows.filter(|row| !row.known).map(|row| row.position).collect()
    }

    /// Remembers what has become of a row. False if that was known.
    pub(super) fn apply(&mut self, result: RowResult) -> bool {
        let (RowResult::Published(number) | RowResult::Refused(number, _) | RowResult::NotSent(number)) =
            result;
        let of = self.claims.partition_point(|claim| claim.first <= number.0);
        let Some(claim) = of.checked_sub(1).and_then(|of| self.claims.get_mut(of)) else { return false };
        let index = number.0.checked_sub(claim.first).and_then(|index| usize::try_from(index).ok());
        let Some((index, row)) = index.and_then(|index| Some((index, claim.rows.get_mut(index)?))) else {
            return false;
        };
        if std::mem::replace(&mut row.known, true) {
            return false;
        }
        match result {
            RowResult::Published(_) => claim.published.push(index),
            RowResult::NotSent(_) => claim.left -= 1,
            RowResult::Refused(number, reason) => {
                claim.refused.push(Refused { number, position: row.position, reason });
                claim.left -= 1;
            }
        }
        true
    }

    /// Whether a refusal of a claim is not stored.
    pub(super) fn has_refused(&self, id: i64) -> bool {
        self.claims.iter().any(|claim| claim.id == id && !claim.refused.is_empty())
    }

    /// The rows of a claim that were refused.
    pub(super) fn take_refused(&mut self, id: i64) -> Vec<Refused> {
        self.claim(id).map_or_else(Vec::new, |claim| std::mem::take(&mut claim.refused))
    }

    /// A refusal could not be stored.
    pub(super) fn put_back(&mut self, id: i64, refused: Refused) {
        if let Some(claim) = self.claim(id) {
            claim.refused.push(refused);
        }
    }

    /// The published rows of a claim; `None` if there is nothing to do.
    pub(super) fn to_mark(&self, id: i64) -> Option<ToMark> {
        let claim = self.claims.iter().find(|claim| claim.id == id)?;
        let last = claim.left == claim.published.len() && claim.refused.is_empty();
        if claim.published.is_empty() && !last {
            return None;
        }
        let rows = || claim.published.iter().filter_map(|index| claim.rows.get(*index));
        Some(ToMark {
            positions: rows().map(|row| row.position).collect(),
            last,
            retried: rows().any(|row| row.retried),
        })
    }

    /// These rows of a claim are marked. `gone`: the others that were published do not exist any more.
    pub(super) fn marked(&mut self, id: i64, positions: Vec<i64>, gone: bool) {
        let Some(Claim { published, rows, left, .. }) = self.claim(id) else { return };
        let before = published.len();
        let marked: std::collections::HashSet<i64> = positions.into_iter().collect();
        published
            .retain(|index| !gone && rows.get(*index).is_some_and(|row| !marked.contains(&row.position)));
        *left -= before - published.len();
    }

    pub(super) fn remove(&mut self, id: i64) {
        self.claims.retain(|claim| claim.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        let now = Instant::now();
        let mut claims = Claims::default();
        for (id, positions) in [(7, [10, 11, 12]), (8, [20, 21, 22])] {
            let mut claim = Claim::new(id, now);
            positions.into_iter().for_each(|position| claim.add(position, position == 21, 100));
            claims.add(claim);
        }
        claims
    }

    fn published(number: u64) -> RowResult {
        RowResult::Published(Sequence(number))
    }

    #[test]
    fn a_claim_ends_with_the_last_of_its_rows() {
        let mut claims = claims();
        assert_eq!((claims.in_flight(), claims.bytes(), claims.next_number()), (6, 600, 6));
        assert!(claims.to_mark(7).is_none());
        assert!(claims.apply(published(2)) && !claims.apply(published(2)) && !claims.apply(published(6)));
        assert_eq!(claims.to_mark(7), Some(ToMark { positions: vec![12], last: false, retried: false }));
        claims.marked(7, vec![12], false);
        assert!(claims.to_mark(7).is_none());
        assert!(claims.apply(RowResult::Refused(Sequence(0), "too large".into())));
        assert!(claims.apply(RowResult::NotSent(Sequence(1))));
        // not before the refusal is stored
        assert!(claims.to_mark(7).is_none());
        let refused = claims.take_refused(7);
        assert_eq!(refused, [Refused { number: Sequence(0), position: 10, reason: "too large".into() }]);
        assert_eq!(claims.to_mark(7), Some(ToMark { positions: vec![], last: true, retried: false }));
        claims.remove(7);
        assert!(claims.apply(published(4)) && !claims.apply(published(1)));
        assert_eq!(claims.to_mark(8), Some(ToMark { positions: vec![21], last: false, retried: true }));
        assert_eq!((claims.unknown(8), claims.unknown_positions()), (2, vec![20, 22]));
    }

    #[test]
    fn a_claim_of_which_everything_is_known_has_no_deadline() {
        let first = Instant::now();
        let second = first + std::time::Duration::from_secs(1);
        let mut claims = Claims::default();
        assert_eq!(claims.unacknowledged_until(), None);
        for (id, deadline) in [(7, first), (8, second)] {
            let mut claim = Claim::new(id, deadline);
            (0..2).for_each(|position| claim.add(position, false, 100));
            claims.add(claim);
        }
        for (number, expected) in [(0, Some(first)), (1, Some(second)), (3, Some(second)), (2, None)] {
            claims.apply(published(number));
            assert_eq!(claims.unacknowledged_until(), expected, "{number}");
        }
    }

    #[test]
    fn rows_that_are_gone_do_not_keep_a_claim() {
        let mut claims = claims();
        (0..3).for_each(|number| assert!(claims.apply(published(number))));
        // one of them was changed or deleted meanwhile
        claims.marked(7, vec![10, 12], false);
        assert_eq!(claims.to_mark(7), Some(ToMark { positions: vec![11], last: true, retried: false }));
        claims.marked(7, vec![], true);
        assert_eq!(claims.to_mark(7), Some(ToMark { positions: vec![], last: true, retried: false }));
    }
}
