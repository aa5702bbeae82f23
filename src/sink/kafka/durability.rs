//! How safe an acknowledged record is: on how many brokers it is at least.

/// A topic's settings that determine it, as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TopicDurability {
    /// The replicas of the partition with the fewest.
    pub replicas: Option<i64>,
    /// `min.insync.replicas`: with fewer replicas in sync, nothing is acknowledged.
    pub min_insync: Option<i64>,
    /// `unclean.leader.election.enable`: a replica that lags may become the leader.
    pub unclean: bool,
}

/// A setting that prevents acknowledgements, or that can lose acknowledged records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weakness {
    /// In snake case, the name of the finding in `check`.
    pub name: &'static str,
    /// A clause that follows the topic's name.
    pub what: String,
    /// What to do about it.
    pub remedy: &'static str,
    /// It prevents acknowledgements altogether.
    pub blocks: bool,
}

impl TopicDurability {
    /// All weaknesses of these settings.
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
                "one replica, so acknowledged records are lost with that broker's disk".to_owned(),
                "Use three replicas and min.insync.replicas = 2 where events matter",
            ),
            (_, Some(1)) => weak(
                "min_insync_replicas",
                "min.insync.replicas is 1, so an acknowledged record may be on one broker alone".to_owned(),
                "Set min.insync.replicas = 2",
            ),
            _ => {}
        }
        // with one replica there is none to elect
        if self.unclean && self.replicas.is_none_or(|replicas| replicas > 1) {
            found.push(Weakness {
                name: "unclean_leader_election",
                what: "unclean.leader.election.enable is true, so a broker that lacks acknowledged records may become \
                       the leader, and those records are lost"
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
        let durability = TopicDurability { replicas: Some(replicas), min_insync: Some(min_insync), unclean };
        durability.weaknesses().iter().map(|weakness| weakness.name).collect()
    }

    #[test]
    fn weaknesses_depend_on_replicas_and_settings() {
        assert_eq!(names(3, 2, false), [""; 0]);
        assert_eq!(names(1, 1, false), ["replication_factor"]);
        assert_eq!(names(1, 1, true), ["replication_factor"]);
        assert_eq!(names(3, 1, false), ["min_insync_replicas"]);
        assert_eq!(names(3, 2, true), ["unclean_leader_election"]);
        assert_eq!(names(3, 1, true), ["min_insync_replicas", "unclean_leader_election"]);
        assert_eq!(names(1, 2, false), ["min_insync_replicas"]);
        assert_eq!(TopicDurability::default().weaknesses(), [], "unknown is no fault");
    }

    #[test]
    fn more_replicas_in_sync_than_exist_block_acknowledgements() {
        let durability = TopicDurability { replicas: Some(2), min_insync: Some(3), unclean: false };
        assert!(durability.weaknesses()[0].blocks);
    }
}
