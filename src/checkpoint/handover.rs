//! What shards write down when their number is changed, in a record of its own among those of the routers.

use pg_logical::Lsn;

use super::record::Checkpoint;

/// What precedes it once nothing is left to do.
const DONE: &str = "done:";

/// Where a change of the number of shards is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// The shards of this number begin at this position; whether they have, and whether the others are gone, is to be seen.
    Decided(Lsn),
    /// They have begun there, and the others are gone.
    Done(Lsn),
}

/// What stands for the slot in the record: the slots that it is about.
pub fn subject(slot: &str, shards: u32, done: bool) -> String {
    format!("{}{slot}_of_{shards}", if done { DONE } else { "" })
}

impl Handover {
    /// Reads the record, as far as it is about so many shards.
    pub fn to(record: Option<&Checkpoint>, slot: &str, shards: u32) -> Option<Handover> {
        let record = record?;
        let at = record.position.flush;
        if record.slot == subject(slot, shards, false) {
            return Some(Handover::Decided(at));
        }
        (record.slot == subject(slot, shards, true)).then_some(Handover::Done(at))
    }

    /// To how many shards the slots of this beginning were handed over last, if that is done.
    pub fn owner(record: Option<&Checkpoint>, slot: &str) -> Option<u32> {
        let of = record?.slot.strip_prefix(DONE)?.strip_prefix(slot)?;
        of.strip_prefix("_of_")?.parse().ok()
    }

    /// Whether one is under way, to whatever number.
    pub fn is_under_way(record: Option<&Checkpoint>) -> bool {
        record.is_some_and(|record| !record.slot.starts_with(DONE))
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::remembered;
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = |done| Checkpoint { slot: subject("outbox_router", 3, done), ..remembered() };
        let at = remembered().position.flush;
        assert_eq!(Handover::to(Some(&record(false)), "outbox_router", 3), Some(Handover::Decided(at)));
        assert_eq!(Handover::to(Some(&record(true)), "outbox_router", 3), Some(Handover::Done(at)));
        assert_eq!(Handover::to(Some(&record(false)), "outbox_router", 2), None);
        assert_eq!(Handover::owner(Some(&record(true)), "outbox_router"), Some(3));
        assert_eq!(Handover::owner(Some(&record(true)), "outbox"), None);
        assert_eq!(Handover::owner(Some(&record(false)), "outbox_router"), None);
        assert!(Handover::is_under_way(Some(&record(false))));
        assert!(!Handover::is_under_way(Some(&record(true))) && !Handover::is_under_way(None));
    }
}
