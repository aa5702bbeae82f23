//! The record of a change of the number of shards, stored next to the routers' checkpoints.

use pg_logical::Lsn;

use super::record::Checkpoint;

/// The prefix of the subject once the change is complete.
const DONE: &str = "done:";

/// How far a change of the number of shards is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// The new shards start at this position; it is unknown which of them have a checkpoint, and whether the old slots are gone.
    Decided(Lsn),
    /// The new shards have checkpoints there, and the old slots are gone.
    Done(Lsn),
}

/// The record's `slot` field: the slots that the change is about.
pub fn subject(slot: &str, shards: u32, done: bool) -> String {
    format!("{}{slot}_of_{shards}", if done { DONE } else { "" })
}

impl Handover {
    /// Reads the record; `None` unless it is about this number of shards.
    pub fn to(record: Option<&Checkpoint>, slot: &str, shards: u32) -> Option<Handover> {
        let record = record?;
        let at = record.position.flush;
        if record.slot == subject(slot, shards, false) {
            return Some(Handover::Decided(at));
        }
        (record.slot == subject(slot, shards, true)).then_some(Handover::Done(at))
    }

    /// The number of shards to which the slots with this base name were handed over last; `None` unless that is complete.
    pub fn owner(record: Option<&Checkpoint>, slot: &str) -> Option<u32> {
        let of = record?.slot.strip_prefix(DONE)?.strip_prefix(slot)?;
        of.strip_prefix("_of_")?.parse().ok()
    }

    /// The number of shards to which the slots with this base name are being handed over.
    pub fn target(record: Option<&Checkpoint>, slot: &str) -> Option<u32> {
        record?.slot.strip_prefix(slot)?.strip_prefix("_of_")?.parse().ok()
    }

    /// Whether a change is in progress, to any number.
    pub fn is_under_way(record: Option<&Checkpoint>) -> bool {
        record.is_some_and(|record| !record.slot.starts_with(DONE))
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::sample_checkpoint;
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = |done| Checkpoint { slot: subject("outbox_router", 3, done), ..sample_checkpoint() };
        let at = sample_checkpoint().position.flush;
        assert_eq!(Handover::to(Some(&record(false)), "outbox_router", 3), Some(Handover::Decided(at)));
        assert_eq!(Handover::to(Some(&record(true)), "outbox_router", 3), Some(Handover::Done(at)));
        assert_eq!(Handover::to(Some(&record(false)), "outbox_router", 2), None);
        assert_eq!(Handover::owner(Some(&record(true)), "outbox_router"), Some(3));
        assert_eq!(Handover::owner(Some(&record(true)), "outbox"), None);
        assert_eq!(Handover::owner(Some(&record(false)), "outbox_router"), None);
        assert_eq!(Handover::target(Some(&record(false)), "outbox_router"), Some(3));
        assert_eq!(Handover::target(Some(&record(true)), "outbox_router"), None);
        assert!(Handover::is_under_way(Some(&record(false))));
        assert!(!Handover::is_under_way(Some(&record(true))) && !Handover::is_under_way(None));
    }
}
