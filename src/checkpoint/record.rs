//! The record of the positions topic: JSON, one per router name.

use std::collections::BTreeMap;

use pg_logical::{Lsn, PgTimestamp};
use serde::{Deserialize, Serialize};

use crate::dead_letters::Key;
use crate::progress::{Landmark, Partial, Position};

/// The form of the record that this version writes.
const VERSION: u32 = 1;

/// What one router remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Grows with each session and each reset. A record of an earlier one that arrives late means nothing.
    pub epoch: u64,
    /// The slot that it was read from.
    pub slot: String,
    /// The cluster's system identifier.
    pub system_identifier: String,
    /// The timeline of the server's log.
    pub timeline: u32,
    /// What is acknowledged.
    pub position: Position,
    /// What the log holds before it.
    pub tail: LogFingerprint,
    /// What the stream was made of.
    pub reading: Reading,
    /// Until when events are sent again, because somebody has reset the position.
    pub replay: Option<Replay>,
    /// The end of the log after the commits of parked events that the position is past, if the stream was not there yet: where
    /// the log does not hold that, their rows are lost.
    pub parked: Option<Lsn>,
    /// Parked events that were sent again, and whose rows may still be in the table: they are not sent once more.
    pub retried: Vec<Key>,
    /// Whether it was committed in one transaction with the events before it.
    pub exactly_once: bool,
}

/// What is known of the stretch of the log before a position, by which that log is known again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFingerprint {
    /// Nothing: an earlier version wrote the record, or other changes counted then.
    Unknown,
    /// No changes from there on.
    Quiet {
        /// Where.
        from: Lsn,
    },
    /// The last transaction with changes.
    Landmark(Landmark),
}

/// Events that are sent again on purpose, and say so in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// What the header says: when the position was reset.
    pub mark: String,
    /// What had been acknowledged by then.
    pub until: Position,
}

/// What decides which changes a stream holds. After another one, numbers of changes and the log between are doubtful.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reading {
    /// Identity of the publication's catalogue row.
    pub publication: Option<String>,
    /// Of each outbox table, and of what makes it a part of the publication.
    #[serde(default)]
    pub tables: BTreeMap<String, String>,
    /// `[outbox] message_prefix`: whether messages count as changes.
    pub message_prefix: Option<String>,
    /// Of each outbox table, what tells that it left the publication and came back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub traces: BTreeMap<String, Traces>,
}

/// What a table leaves in the catalogues when it leaves a publication and comes back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traces {
    /// The transaction that put it into its schema, where it is published as one of that schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The file of its rows, of which each rewrite makes a new one. A partitioned table has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The rows of `pg_publication_rel` that name it, of any publication: as long as there is one, Postgres refuses to make the
    /// table unlogged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named_by: Vec<String>,
}

/// The record of the topic is none that this version can go by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReadable {
    /// Written by a later version.
    #[error("it has the form {0}, and this version of the router knows form {VERSION}")]
    Later(u32),
    /// Not what a router writes.
    #[error("it is not what a router writes ({0})")]
    Foreign(String),
}

#[derive(Serialize, Deserialize)]
struct Json {
    version: u32,
    epoch: u64,
    slot: String,
    system_identifier: String,
    timeline: u32,
    flush_lsn: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transaction: Option<Transaction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    landmark: Option<JsonLandmark>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quiet_from_lsn: Option<String>,
    reading: Reading,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replay: Option<JsonReplay>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parked_lsn: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    retried: Vec<Transaction>,
    #[serde(default, skip_serializing_if = "is_false")]
    exactly_once: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Serialize, Deserialize)]
struct JsonReplay {
    mark: String,
    until_lsn: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until_transaction: Option<Transaction>,
}

#[derive(Serialize, Deserialize)]
struct JsonLandmark {
    final_lsn: String,
    xid: u32,
    /// As the stream has it: microseconds since 2000-01-01 00:00 UTC.
    commit_time: i64,
}

#[derive(Serialize, Deserialize)]
struct Transaction {
    final_lsn: String,
    changes: u64,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Checkpoint {
    /// The record's value.
    pub fn encode(&self) -> Vec<u8> {
        let transaction = |position: &Position| {
            let Partial { final_lsn, changes } = position.partial?;
            Some(Transaction { final_lsn: final_lsn.to_string(), changes })
        };
        let retried = |key: &Key| Transaction { final_lsn: key.final_lsn.to_string(), changes: key.change };
        let replay = self.replay.as_ref().map(|replay| JsonReplay {
            mark: replay.mark.clone(),
            until_lsn: replay.until.flush.to_string(),
            until_transaction: transaction(&replay.until),
        });
        let (landmark, quiet_from_lsn) = match self.tail {
            LogFingerprint::Unknown => (None, None),
            LogFingerprint::Quiet { from } => (None, Some(from.to_string())),
            LogFingerprint::Landmark(Landmark { final_lsn, xid, commit_time }) => (
                Some(JsonLandmark { final_lsn: final_lsn.to_string(), xid, commit_time: commit_time.0 }),
                None,
            ),
        };
        let json = Json {
            version: VERSION,
            epoch: self.epoch,
            slot: self.slot.clone(),
            system_identifier: self.system_identifier.clone(),
            timeline: self.timeline,
            flush_lsn: self.position.flush.to_string(),
            transaction: transaction(&self.position),
            landmark,
            quiet_from_lsn,
            reading: self.reading.clone(),
            replay,
            parked_lsn: self.parked.map(|parked| parked.to_string()),
            retried: self.retried.iter().map(retried).collect(),
            exactly_once: self.exactly_once,
        };
        // numbers and texts only: there is nothing that JSON could not hold
        serde_json::to_vec(&json).unwrap_or_default()
    }

    /// Reads a record's value.
    pub fn decode(value: &[u8]) -> Result<Self, NotReadable> {
        let foreign = |error: &dyn ToString| NotReadable::Foreign(error.to_string());
        let Version { version } = serde_json::from_slice(value).map_err(|error| foreign(&error))?;
        if version != VERSION {
            return Err(NotReadable::Later(version));
        }
        let json: Json = serde_json::from_slice(value).map_err(|error| foreign(&error))?;
        let lsn = |text: &str| text.parse::<Lsn>().map_err(|error| foreign(&error));
        let position = |flush: &str, transaction: Option<Transaction>| {
            let partial = transaction.map(|Transaction { final_lsn, changes }| {
                Ok(Partial { final_lsn: lsn(&final_lsn)?, changes })
            });
            Ok(Position { flush: lsn(flush)?, partial: partial.transpose()? })
        };
        let tail = match (json.landmark, json.quiet_from_lsn) {
            (Some(JsonLandmark { final_lsn, xid, commit_time }), _) => {
                let commit_time = PgTimestamp(commit_time);
                LogFingerprint::Landmark(Landmark { final_lsn: lsn(&final_lsn)?, xid, commit_time })
            }
            (None, Some(from)) => LogFingerprint::Quiet { from: lsn(&from)? },
            (None, None) => LogFingerprint::Unknown,
        };
        let replay = match json.replay {
            Some(JsonReplay { mark, until_lsn, until_transaction }) => {
                Some(Replay { mark, until: position(&until_lsn, until_transaction)? })
            }
            None => None,
        };
        let retried = json.retried.into_iter().map(|Transaction { final_lsn, changes }| {
            Ok(Key { final_lsn: lsn(&final_lsn)?, change: changes })
        });
        Ok(Checkpoint {
            epoch: json.epoch,
            slot: json.slot,
            system_identifier: json.system_identifier,
            timeline: json.timeline,
            position: position(&json.flush_lsn, json.transaction)?,
            tail,
            reading: json.reading,
            replay,
            parked: json.parked_lsn.map(|parked| lsn(&parked)).transpose()?,
            retried: retried.collect::<Result<_, _>>()?,
            exactly_once: json.exactly_once,
        })
    }

    /// What is left of a replay at `position`. Of another cluster or slot it means nothing.
    pub fn replay_at(&self, position: Position, slot: &str, system_identifier: &str) -> Option<Replay> {
        let same = self.slot == slot && self.system_identifier == system_identifier;
        self.replay.clone().filter(|replay| same && !replay.is_over(position))
    }

    /// Which of two records counts: that of the later epoch. Within one epoch a position only goes forward, so one that lies
    /// before is of a router that had stood still between reading what counts and beginning its epoch, while another began
    /// the same.
    pub fn later(before: Option<Self>, next: Self) -> Option<Self> {
        let order = |known: &Checkpoint| (known.epoch, known.position.flush, known.position.partial);
        match before {
            Some(before) if order(&before) > order(&next) => Some(before),
            _ => Some(next),
        }
    }

    /// The epoch of a session that goes on from here.
    pub fn next_epoch(before: Option<&Self>) -> u64 {
        before.map_or(0, |before| before.epoch).saturating_add(1)
    }

    /// The epoch of a reset: a router that stands still, having read the same, may yet begin the next one.
    pub fn epoch_of_reset(&self) -> u64 {
        self.epoch.saturating_add(2)
    }
}

impl Replay {
    /// Whether everything was sent again by now.
    pub fn is_over(&self, position: Position) -> bool {
        let again = |done: Partial| {
            position.flush > done.final_lsn || position.partial.is_some_and(|partial| partial >= done)
        };
        position.flush >= self.until.flush && self.until.partial.is_none_or(again)
    }
}

impl Reading {
    /// Whether it is the publication of before, altered or not: one that was made anew may bear another name, and is not known to the
    /// log before it.
    pub fn same_publication(&self, before: &Reading) -> bool {
        let oid = |reading: &Reading| reading.publication.as_ref()?.split('/').next().map(str::to_owned);
        oid(self) == oid(before)
    }

    /// Whether rows may have been written that the stream does not hold: the publication, or a table that both know,
    /// was altered or made again.
    pub fn altered_since(&self, before: &Reading) -> bool {
        let table = |(name, identity): (&String, &String)| {
            before.tables.get(name).is_some_and(|known| known != identity)
        };
        let traces = |(name, traces): (&String, &Traces)| {
            before.traces.get(name).is_some_and(|known| traces.left_since(known))
        };
        self.publication != before.publication
            || self.tables.iter().any(table)
            || self.traces.iter().any(traces)
    }

    /// The tables that were rewritten while nothing kept them from being unlogged for a time: whether they were, nobody can tell.
    pub fn rewritten_since<'a>(&'a self, before: &'a Reading) -> impl Iterator<Item = &'a str> {
        let rewritten = |(name, traces): (&'a String, &'a Traces)| {
            let known = before.traces.get(name)?;
            traces.rewritten_since(known).then_some(name.as_str())
        };
        self.traces.iter().filter_map(rewritten)
    }
}

impl Traces {
    /// Whether rows may have been written while the table was not published. A version that did not record a trace says
    /// nothing.
    fn left_since(&self, before: &Traces) -> bool {
        differ(&self.schema, &before.schema)
            // nobody can tell what was done after the last publication that named it was dropped
            || (differ(&self.file, &before.file) && before.is_named() && !self.is_named_since(before))
    }

    /// Whether it was rewritten while nothing kept it from being unlogged for a time.
    fn rewritten_since(&self, before: &Traces) -> bool {
        differ(&self.file, &before.file) && !before.is_named()
    }

    /// Whether Postgres refuses to make it unlogged.
    pub fn is_named(&self) -> bool {
        !self.named_by.is_empty()
    }

    fn is_named_since(&self, before: &Traces) -> bool {
        self.named_by.iter().any(|row| before.named_by.contains(row))
    }
}

fn differ(now: &Option<String>, before: &Option<String>) -> bool {
    now.is_some() && before.is_some() && now != before
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn remembered() -> Checkpoint {
        Checkpoint {
            epoch: 3,
            slot: "outbox_router".into(),
            system_identifier: "7423".into(),
            timeline: 1,
            position: Position { flush: Lsn(0x1000), partial: None },
            tail: LogFingerprint::Unknown,
            reading: Reading {
                publication: Some("16400/742".into()),
                tables: BTreeMap::from([("public.outbox".into(), "16385 16401/743; ".into())]),
                message_prefix: None,
                traces: BTreeMap::new(),
            },
            replay: None,
            parked: None,
            retried: Vec::new(),
            exactly_once: false,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            epoch: u64, timeline: u32, flush: u64, partial: Option<(u64, u64)>, slot: String, prefix: Option<String>,
            mark: Option<String>, landmark in prop::option::of((any::<u64>(), prop_oneof![Just(0), any::<u32>()], any::<i64>()))
        ) {
            let mut expected = remembered();
            (expected.epoch, expected.timeline, expected.slot) = (epoch, timeline, slot);
            expected.reading.message_prefix = prefix;
            let partial = partial.map(|(lsn, changes)| Partial { final_lsn: Lsn(lsn), changes });
            expected.position = Position { flush: Lsn(flush), partial };
            expected.tail = match landmark {
                Some((from, 0, _)) => LogFingerprint::Quiet { from: Lsn(from) },
                Some((final_lsn, xid, time)) => {
                    LogFingerprint::Landmark(Landmark { final_lsn: Lsn(final_lsn), xid, commit_time: PgTimestamp(time) })
                }
                None => LogFingerprint::Unknown,
            };
            expected.exactly_once = mark.is_some();
            expected.parked = partial.map(|done| done.final_lsn);
            expected.retried = partial.iter().map(|done| Key { final_lsn: done.final_lsn, change: done.changes }).collect();
            expected.replay = mark.map(|mark| Replay { mark, until: expected.position });
            prop_assert_eq!(Checkpoint::decode(&expected.encode()), Ok(expected));
        }

        #[test]
        fn whatever_is_in_the_topic_is_no_reason_to_panic(value: Vec<u8>) {
            let _ = Checkpoint::decode(&value);
        }
    }

    #[test]
    fn a_replay_covers_what_was_acknowledged_before_and_no_more() {
        let partial = |final_lsn, changes| Some(Partial { final_lsn: Lsn(final_lsn), changes });
        let at = |flush, partial| Position { flush: Lsn(flush), partial };
        let replay = Replay { mark: "then".into(), until: at(0x100, partial(0x140, 3)) };
        for (final_lsn, ordinal, covered) in
            [(0xF0, 9, true), (0x100, 1, false), (0x140, 3, true), (0x140, 4, false), (0x180, 1, false)]
        {
            assert_eq!(replay.until.covers(Lsn(final_lsn), ordinal), covered, "{final_lsn:X} {ordinal}");
        }
        for (position, over) in [
            (at(0xFF, None), false),
            (at(0x100, None), false),
            (at(0x100, partial(0x140, 2)), false),
            (at(0x100, partial(0x140, 3)), true),
            (at(0x148, None), true),
        ] {
            assert_eq!(replay.is_over(position), over, "{position:?}");
        }
    }

    #[test]
    fn a_replay_ends_with_its_slot_and_its_cluster() {
        let until = Position { flush: Lsn(0x2000), partial: None };
        let replay = Some(Replay { mark: "then".into(), until });
        let remembered = Checkpoint { replay: replay.clone(), ..remembered() };
        let at = |position, slot, system| remembered.replay_at(position, slot, system);
        assert_eq!(at(remembered.position, "outbox_router", "7423"), replay);
        assert_eq!(at(until, "outbox_router", "7423"), None);
        assert_eq!(at(remembered.position, "another", "7423"), None);
        assert_eq!(at(remembered.position, "outbox_router", "7424"), None);
    }

    #[test]
    fn a_record_of_a_later_version_is_not_guessed_at() {
        let later =
            String::from_utf8(remembered().encode()).unwrap().replace("\"version\":1", "\"version\":2");
        assert_eq!(Checkpoint::decode(later.as_bytes()), Err(NotReadable::Later(2)));
        assert!(matches!(Checkpoint::decode(b"7"), Err(NotReadable::Foreign(_))));
        assert!(matches!(Checkpoint::decode(br#"{"version":1}"#), Err(NotReadable::Foreign(_))));
    }

    #[test]
    fn a_late_record_of_an_earlier_epoch_does_not_count() {
        let (old, new) = (Checkpoint { epoch: 4, ..remembered() }, Checkpoint { epoch: 5, ..remembered() });
        let mut newer = new.clone();
        newer.position.flush = Lsn(0x2000);
        let counts = [new, old, newer.clone()].into_iter().fold(None, Checkpoint::later);
        assert_eq!(counts, Some(newer.clone()));
        let late = Checkpoint { epoch: 4, ..remembered() };
        assert_eq!(Checkpoint::later(counts, late), Some(newer));
    }

    #[test]
    fn a_late_beginning_of_the_same_epoch_does_not_count() {
        let at = |flush, partial: Option<u64>| {
            let partial = partial.map(|changes| Partial { final_lsn: Lsn(0x3000), changes });
            Checkpoint { position: Position { flush: Lsn(flush), partial }, ..remembered() }
        };
        for (before, next, counts) in [
            (at(0x2000, None), at(0x1000, None), at(0x2000, None)),
            (at(0x2000, Some(5)), at(0x2000, None), at(0x2000, Some(5))),
            (at(0x2000, Some(5)), at(0x2000, Some(4)), at(0x2000, Some(5))),
            (at(0x2000, Some(5)), at(0x2000, Some(6)), at(0x2000, Some(6))),
            (at(0x2000, Some(5)), at(0x3010, None), at(0x3010, None)),
        ] {
            assert_eq!(Checkpoint::later(Some(before), next), Some(counts));
        }
        // at one position, what is written later tells more
        let sent = Checkpoint { retried: vec![Key { final_lsn: Lsn(1), change: 1 }], ..remembered() };
        assert_eq!(Checkpoint::later(Some(remembered()), sent.clone()), Some(sent));
    }

    #[test]
    fn another_table_in_the_list_is_no_alteration_and_another_publication_is() {
        let before = remembered().reading;
        let mut now = before.clone();
        now.tables.insert("public.more".into(), "9 1/2; ".into());
        now.message_prefix = Some("outbox".into());
        assert!(!now.altered_since(&before));
        assert!(!before.altered_since(&now));
        now.tables.insert("public.outbox".into(), "16385 16409/800; ".into());
        assert!(now.altered_since(&before));
        now = Reading { publication: Some("16400/800".into()), ..before.clone() };
        assert!(now.altered_since(&before));
    }

    #[test]
    fn a_table_that_came_back_to_its_schema_is_an_alteration_unless_an_earlier_version_did_not_record_it() {
        let put_there_by = |xid: &str| {
            let traces = Traces { schema: Some(xid.into()), ..Traces::default() };
            Reading { traces: [("public.outbox".into(), traces)].into(), ..remembered().reading }
        };
        assert!(!put_there_by("745").altered_since(&put_there_by("745")));
        assert!(put_there_by("800").altered_since(&put_there_by("745")));
        assert!(!put_there_by("800").altered_since(&remembered().reading));
    }

    #[test]
    fn a_table_that_is_rewritten_was_not_unlogged_as_long_as_a_publication_names_it() {
        let of = |file: &str, named_by: &[&str]| {
            let named_by = named_by.iter().map(|&row| row.to_owned()).collect();
            let traces = Traces { schema: None, file: Some(file.into()), named_by };
            Reading { traces: [("public.outbox".into(), traces)].into(), ..remembered().reading }
        };
        let told = |now: &Reading, before: &Reading| {
            (now.altered_since(before), now.rewritten_since(before).count())
        };
        assert_eq!(
            told(&of("2", &["7/740", "8/750"]), &of("1", &["7/740"])),
            (false, 0),
            "named all the time"
        );
        assert_eq!(told(&of("1", &[]), &of("1", &["7/740"])), (false, 0), "not rewritten");
        assert_eq!(told(&of("2", &["9/760"]), &of("1", &["7/740"])), (true, 0), "named anew");
        assert_eq!(told(&of("2", &[]), &of("1", &["7/740"])), (true, 0), "no longer named");
        assert_eq!(told(&of("2", &["7/740"]), &of("1", &[])), (false, 1), "nobody can tell");
        assert_eq!(told(&of("2", &[]), &remembered().reading), (false, 0), "not recorded");
    }
}
