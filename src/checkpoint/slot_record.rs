//! The row for a slot in the router's schema: where `init` created the slot, and which router last began to read it. With it a
//! start without checkpoint distinguishes a new slot from one that was read before.

use pg_logical::Lsn;

/// The row of one slot, as far as the role may read it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotRecord {
    /// The slot's first position, if `init` created it.
    pub created_at: Option<Lsn>,
    /// The router that last began to read it.
    pub router: Option<String>,
    /// Other slots of this database that routers have read and that no router reads now, each with the router.
    pub others: Vec<(String, String)>,
    /// Whether the role may read and write the table.
    pub usable: bool,
    /// The role.
    pub role: String,
}

impl SlotRecord {
    /// The table of these rows.
    pub const TABLE: &str = "outbox_router.slots";

    /// The privileges that the router needs on it.
    pub const REQUIRED_PRIVILEGES: [&str; 3] = ["SELECT", "INSERT", "UPDATE"];

    /// Whether no router has read the slot, which is confirmed up to `confirmed`.
    pub fn is_new(&self, confirmed: Lsn) -> bool {
        self.usable && self.router.is_none() && self.created_at == Some(confirmed)
    }

    /// Why the table does not show whether a router has read the slot, and what to do about it.
    pub(super) fn unknown(&self) -> (String, String) {
        if self.usable {
            return (
                format!("{} does not say that `outbox-router init` created it", Self::TABLE),
                "Find out who created it".to_owned(),
            );
        }
        (
            format!(
                "the role {} cannot read and write {}, which says whether the slot is new",
                self.role,
                Self::TABLE
            ),
            format!(
                "As an administrator run `outbox-router init --url ... --role {}`, which creates the table and grants that",
                self.role
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_new_only_where_everything_says_so() {
        let new = SlotRecord { created_at: Some(Lsn(0x800)), usable: true, ..SlotRecord::default() };
        assert!(new.is_new(Lsn(0x800)));
        assert!(!new.is_new(Lsn(0x801)), "it was moved");
        assert!(!SlotRecord { router: Some("shop".into()), ..new.clone() }.is_new(Lsn(0x800)));
        assert!(!SlotRecord { created_at: None, ..new.clone() }.is_new(Lsn(0x800)));
        // a router that cannot record its claim would find the slot new again
        assert!(!SlotRecord { usable: false, ..new }.is_new(Lsn(0x800)));
    }
}
