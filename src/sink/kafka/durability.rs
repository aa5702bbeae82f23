//! What an acknowledgement is worth: on how many brokers the record is then, at least.

/// What decides it of a topic, as far as that is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Durability {
    /// The replicas of the partition that has the fewest.
    pub replicas: Option<i64>,
    /// `min.insync.replicas`: without so many nothing is acknowledged.
    pub min_insync: Option<i64>,
    /// `unclean.leader.election.enable`: a replica that is behind may become the leader.
    pub unclean: bool,
}

/// Why nothing is acknowledged, or what was acknowledged may be lost all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weakness {
    /// In snake case, as a finding of `check` is called.
    pub name: &'static str,
    /// A part of a sentence; the topic stands before it.
    pub what: String,
    /// What to do about it.
    pub remedy: &'static str,
    /// Not a risk: nothing is acknowledged at all.
    pub blocks: bool,
}

impl Durability {
    /// All there is to say against them.
    pub fn weaknesses(&self) -> Vec<Weakness> {
        let mut found = Vec::new();
        let mut weak = |name, what: String, remedy| {
            found.push(Weakness { name, what, remedy, blocks: false });
        };
        match (self.replicas, self.min_insync) {
            (Some(replicas), Some(insync)) if insync > replicas => found.push(Weakness {
                name: "min_insync_replicas",
                what: format!(
                    "min.insync.replicas is {insync} and the replication factor {replicas}, so nothing is acknowledged"
                ),
                remedy: "Lower min.insync.replicas, or add replicas",
                blocks: true,
            }),
            (Some(..2), _) => weak(
                "replication_factor",
                "one replica, so what was acknowledged is lost with that broker's disk".to_owned(),
                "Use three replicas and min.insync.replicas = 2 where events matter",
            ),
            (_, Some(1)) => weak(
                "min_insync_replicas",
                "min.insync.replicas is 1, so an acknowledged record may be on one broker alone".to_owned(),
                "Set min.insync.replicas = 2",
            ),
            _ => {}
        }
        // with one replica there is nobody to elect
        if self.unclean && self.replicas.is_none_or(|replicas| replicas > 1) {
            found.push(Weakness {
                name: "unclean_leader_election",
                what: "unclean.leader.election.enable is true, so a broker that lacks acknowledged records may become \
                       the leader, and they are gone"
                    .to_owned(),
                remedy: "Set unclean.leader.election.enable = false",
                blocks: false,
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(replicas: i64, min_insync: i64, unclean: bool) -> Vec<&'static str> {
        let copies = Durability { replicas: Some(replicas), min_insync: Some(min_insync), unclean };
        copies.weaknesses().iter().map(|weakness| weakness.name).collect()
    }

    #[test]
    fn an_acknowledgement_is_worth_what_the_fewest_copies_are() {
        assert_eq!(names(3, 2, false), [""; 0]);
        assert_eq!(names(1, 1, false), ["replication_factor"]);
        assert_eq!(names(1, 1, true), ["replication_factor"]);
        assert_eq!(names(3, 1, false), ["min_insync_replicas"]);
        assert_eq!(names(3, 2, true), ["unclean_leader_election"]);
        assert_eq!(names(3, 1, true), ["min_insync_replicas", "unclean_leader_election"]);
        assert_eq!(names(1, 2, false), ["min_insync_replicas"]);
        assert_eq!(Durability::default().weaknesses(), [], "unknown is no fault");
    }

    #[test]
    fn with_more_in_sync_than_there_are_nothing_is_acknowledged() {
        let copies = Durability { replicas: Some(2), min_insync: Some(3), unclean: false };
        assert!(copies.weaknesses()[0].blocks);
    }
}
