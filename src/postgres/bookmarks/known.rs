//! What became of bookmarks while the process runs. A bookmark that is lost or dropped is missed only when somebody wants to go back
//! to it, which is too late.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use time::OffsetDateTime;

use super::Bookmark;
use crate::error::with_config_file;

/// The bookmarks at the last look, in this session or an earlier one. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct KnownBookmarks(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    last: Vec<Bookmark>,
    /// When the newest was made that this router has dropped; it drops its own, the oldest first.
    dropped_until: Option<OffsetDateTime>,
}

/// What became of a bookmark.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// Postgres has invalidated it.
    Lost(Bookmark),
    /// It no longer exists, and this router has not dropped it.
    Gone(Bookmark),
}

impl KnownBookmarks {
    /// These exist now. Logs what has become of others, and returns it as sentences without a full stop.
    pub fn look(&self, now: Vec<Bookmark>) -> Vec<String> {
        let changes = self.lock().look(now);
        let told = changes.iter().map(|change| {
            let (what, remedy) = change.describe();
            tracing::warn!(peer = "postgres", remedy, "{what}");
            what
        });
        told.collect()
    }

    /// This router is about to drop one of its own.
    pub fn drops(&self, bookmark: &Bookmark) {
        let mut known = self.lock();
        known.dropped_until = known.dropped_until.max(Some(bookmark.made));
    }

    /// How many can be gone back to, and how many are lost.
    pub fn counts(&self) -> (u64, u64) {
        let known = self.lock();
        let lost = known.last.iter().filter(|bookmark| bookmark.is_lost()).count();
        ((known.last.len() - lost) as u64, lost as u64)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// What has changed since the last look.
    fn look(&mut self, now: Vec<Bookmark>) -> Vec<Change> {
        let was_lost = |slot: &str| self.last.iter().any(|known| known.slot == slot && known.is_lost());
        let lost = now.iter().filter(|bookmark| bookmark.is_lost() && !was_lost(&bookmark.slot));
        let dropped = |bookmark: &Bookmark| {
            bookmark.name.is_empty() && self.dropped_until.is_some_and(|until| bookmark.made <= until)
        };
        let gone = self
            .last
            .iter()
            .filter(|known| !dropped(known) && now.iter().all(|bookmark| bookmark.slot != known.slot));
        let changes = lost.cloned().map(Change::Lost).chain(gone.cloned().map(Change::Gone)).collect();
        self.last = now;
        changes
    }
}

impl Change {
    /// What has happened, and what to do about it.
    fn describe(&self) -> (String, String) {
        match self {
            Change::Lost(bookmark) => {
                let (cause, prevention) = bookmark.cause();
                let what = format!(
                    "the bookmark {} is lost, and the router cannot go back to it: Postgres has invalidated the slot {} ({cause})",
                    bookmark.title(),
                    bookmark.slot
                );
                (what, prevention.to_owned())
            }
            Change::Gone(bookmark) => {
                let what = format!(
                    "the bookmark {} is gone, and this router has not dropped it: a person, a failover or a cluster manager has removed \
                     the slot {}",
                    bookmark.title(),
                    bookmark.slot
                );
                let remedy = "Make another one with `outbox-router slot bookmark`. `outbox-router check` says if a cluster manager drops slots";
                (what, with_config_file(remedy))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::bookmark;
    use super::*;

    fn lost(slot: &str, reason: &str) -> Bookmark {
        Bookmark { wal_status: "lost".into(), invalidation_reason: Some(reason.into()), ..bookmark(slot) }
    }

    #[test]
    fn what_becomes_of_a_bookmark_is_told_once() {
        let (own, mine) = ("shop_bookmark_20261121140500", "shop_bookmark_mine_20261121150500");
        let bookmarks = KnownBookmarks::default();
        let look = |now| bookmarks.lock().look(now);
        assert_eq!(look(vec![bookmark(own), bookmark(mine)]), []);
        let timed_out = lost(mine, "idle_timeout");
        assert_eq!(look(vec![bookmark(own), timed_out.clone()]), [Change::Lost(timed_out.clone())]);
        assert_eq!(bookmarks.counts(), (1, 1));
        assert_eq!(look(vec![bookmark(own), timed_out.clone()]), []);
        assert_eq!(look(vec![bookmark(own)]), [Change::Gone(timed_out)]);
        assert_eq!(look(vec![]), [Change::Gone(bookmark(own))]);
        assert_eq!((look(vec![]), bookmarks.counts()), (vec![], (0, 0)));
        // a start finds one that was lost before
        assert_eq!(
            Known::default().look(vec![lost(own, "wal_removed")]),
            [Change::Lost(lost(own, "wal_removed"))]
        );
    }

    #[test]
    fn a_bookmark_that_the_router_drops_is_not_missed() {
        let [first, second, mine] = [
            "shop_bookmark_20261121140500",
            "shop_bookmark_20261121150500",
            "shop_bookmark_mine_20261121140000",
        ]
        .map(bookmark);
        let bookmarks = KnownBookmarks::default();
        let look = |now| bookmarks.lock().look(now);
        look(vec![first.clone(), second.clone(), mine.clone()]);
        bookmarks.drops(&first);
        // another look may come first
        assert_eq!(look(vec![first, second.clone(), mine.clone()]), []);
        assert_eq!(look(vec![second.clone(), mine.clone()]), []);
        assert_eq!(look(vec![second.clone()]), [Change::Gone(mine)]);
        assert_eq!(look(vec![]), [Change::Gone(second)]);
    }

    #[test]
    fn the_servers_reason_is_told_with_its_prevention() {
        let slot = "shop_bookmark_mine_20261121150500";
        for (change, reason, act) in [
            (Change::Lost(lost(slot, "idle_timeout")), "idle_timeout", "idle_replication_slot_timeout = 0"),
            (Change::Lost(lost(slot, "wal_removed")), "wal_removed", "max_slot_wal_keep_size"),
            (
                Change::Lost(Bookmark { invalidation_reason: None, ..lost(slot, "") }),
                "does not say why",
                "log",
            ),
            (Change::Gone(bookmark(slot)), "cluster manager", "outbox-router check"),
        ] {
            let (what, remedy) = change.describe();
            assert!(what.starts_with("the bookmark mine is ") && what.contains(reason), "{what}");
            assert!(remedy.contains(act), "{remedy}");
        }
    }
}
