//! How safe an acknowledged record is: on how many brokers it is at least.

/// A topic's settings that determine it, as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TopicDurability {
    /// The replicas of the partition with the fewest.
    pub replicas: Option<i64>,
    /// `min.insync.replicas`: with fewer replicas in sync, nothing is acknowledged.
    pub min_insync: Option<i64>,
    /// Whether the brokers take the replication factor where `min.insync.replicas` is larger, see
    /// [`caps_min_insync`]; `None`: unknown.
    pub capped: Option<bool>,
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
    /// It prevents acknowledgements altogether; `None`: that depends on the brokers' version, which is unknown.
    pub blocks: Option<bool>,
}

/// Whether brokers take the smaller of `min.insync.replicas` and the replication factor, as from Kafka 3.7 on (KAFKA-15583;
/// 4.1 does). `version` is a broker's `inter.broker.protocol.version`, which Kafka 4.0 removed.
pub fn caps_min_insync(version: Option<&str>) -> bool {
    let Some(version) = version else { return true };
    let mut numbers = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0u32));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (3, 7)
}

impl TopicDurability {
    /// All weaknesses of these settings.
    pub fn weaknesses(&self) -> Vec<Weakness> {
        let mut found = Vec::new();
        let mut weak = |name, what: String, remedy| {
            found.push(Weakness { name, what, remedy, blocks: Some(false) });
        };
        match (self.replicas, self.min_insync) {
            (Some(replicas), Some(insync)) if insync > replicas && self.capped != Some(true) => {
                found.push(Weakness {
                    name: "min_insync_replicas",
                    what: format!(
                        "min.insync.replicas is {insync} and the replication factor {replicas}: brokers before Kafka 3.7 \
                         acknowledge nothing then"
                    ),
                    remedy: "Lower min.insync.replicas, or add replicas",
                    blocks: self.capped.map(|capped| !capped),
                });
            }
            (Some(replicas @ 2..), Some(insync)) if insync >= replicas => weak(
                "min_insync_replicas",
                format!(
                    "min.insync.replicas is {insync} and the replication factor {replicas}, so nothing is acknowledged while \
                     one of these brokers is down"
                ),
                "Use three replicas and min.insync.replicas = 2",
            ),
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
                blocks: Some(false),
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durability(replicas: i64, min_insync: i64) -> TopicDurability {
        TopicDurability {
            replicas: Some(replicas),
            min_insync: Some(min_insync),
            ..TopicDurability::default()
        }
    }

    fn names(replicas: i64, min_insync: i64, unclean: bool) -> Vec<&'static str> {
        let durability = TopicDurability { unclean, ..durability(replicas, min_insync) };
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
        assert_eq!(names(2, 2, false), ["min_insync_replicas"]);
        assert_eq!(TopicDurability::default().weaknesses(), [], "unknown is no fault");
    }

    #[test]
    fn more_replicas_in_sync_than_exist_block_acknowledgements_of_old_brokers() {
        let of = |replicas, capped| {
            let found = TopicDurability { capped, ..durability(replicas, 3) }.weaknesses();
            found.iter().map(|weakness| (weakness.name, weakness.blocks)).collect::<Vec<_>>()
        };
        assert_eq!(of(2, Some(false)), [("min_insync_replicas", Some(true))]);
        assert_eq!(of(2, None), [("min_insync_replicas", None)]);
        assert_eq!(of(2, Some(true)), [("min_insync_replicas", Some(false))]);
        assert_eq!(of(1, Some(true)), [("replication_factor", Some(false))]);
    }

    #[test]
    fn brokers_from_3_7_on_take_the_smaller_number() {
        for (version, capped) in [
            (None, true),
            (Some("3.7-IV4"), true),
            (Some("3.9-IV0"), true),
            (Some("3.6-IV2"), false),
            (Some("2.8"), false),
        ] {
            assert_eq!(caps_min_insync(version), capped, "{version:?}");
        }
    }
}
