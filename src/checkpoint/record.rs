//! The record of the positions topic: JSON, one per router name.

use pg_logical::{Lsn, PgTimestamp};
use serde::{Deserialize, Serialize};

use super::backfill::BackfillDone;
use super::stream_definition::StreamDefinition;
use crate::dead_letters::Key;
use crate::error::{ErrorCode, Remedy};
use crate::progress::{Landmark, Partial, Position};

/// The version of the format that this router writes.
const VERSION: u32 = 1;

/// What a router stores to resume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Grows with each session and each reset. A late record of an earlier epoch does not count.
    pub epoch: u64,
    /// The slot.
    pub slot: String,
    /// The cluster's system identifier.
    pub system_identifier: String,
    /// The timeline of the server's log.
    pub timeline: u32,
    /// The position: everything before it is acknowledged.
    pub position: Position,
    /// The fingerprint of the log before the position.
    pub fingerprint: LogFingerprint,
    /// The publication and tables of the stream.
    pub definition: StreamDefinition,
    /// The rest of a replay, if somebody has reset the position.
    pub replay: Option<Replay>,
    /// The end of the log after the rows of acknowledged parked events were committed, if the stream was not there yet. If the
    /// log of a later start ends before it, those rows are lost.
    pub parked: Option<Lsn>,
    /// Parked events that were sent but whose rows may still be in the table: they are not sent again.
    pub retried: Vec<Key>,
    /// How far the rows from before the slot are sent, until the stream begins.
    pub backfill: Option<BackfillDone>,
    /// Whether it was committed in one Kafka transaction with the events before it.
    pub exactly_once: bool,
    /// Why the router has stopped here, if going on could have lost events. Earlier versions ignore it.
    pub stopped: Option<Stopped>,
}

/// The error with which a router has stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Which error.
    pub code: ErrorCode,
    /// What was found.
    pub what: String,
    /// What to do about it.
    pub remedy: Remedy,
}

/// What is known of the log before a position, to recognize that log again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFingerprint {
    /// Nothing: an earlier version wrote the record, or other changes counted then.
    Unknown,
    /// There were no changes from `from` to the position.
    Quiet {
        /// The start of that range.
        from: Lsn,
    },
    /// The last transaction with changes.
    Landmark(Landmark),
}

/// A range of events that is sent again on request, with a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The header's value: the time of the reset.
    pub mark: String,
    /// The end of the range: the position at the time of the reset.
    pub until: Position,
}

/// A record of the positions topic that this version cannot read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReadable {
    /// Written by a later version.
    #[error("it has format version {0}, but this router reads version {VERSION}")]
    Later(u32),
    /// Not written by a router.
    #[error("it was not written by a router ({0})")]
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
    #[serde(rename = "reading")]
    definition: StreamDefinition,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replay: Option<JsonReplay>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parked_lsn: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    retried: Vec<Transaction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backfill: Option<BackfillDone>,
    #[serde(default, skip_serializing_if = "is_false")]
    exactly_once: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stopped: Option<serde_json::Value>,
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
    /// As in the stream: microseconds since 2000-01-01 00:00 UTC.
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
    /// In place of a checkpoint, for a loop that stores none.
    pub fn none() -> Checkpoint {
        Checkpoint {
            epoch: 0,
            slot: String::new(),
            system_identifier: String::new(),
            timeline: 0,
            position: Position::default(),
            fingerprint: LogFingerprint::Unknown,
            definition: StreamDefinition::default(),
            replay: None,
            parked: None,
            retried: Vec::new(),
            backfill: None,
            exactly_once: false,
            stopped: None,
        }
    }

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
        let (landmark, quiet_from_lsn) = match self.fingerprint {
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
            definition: self.definition.clone(),
            replay,
            parked_lsn: self.parked.map(|parked| parked.to_string()),
            retried: self.retried.iter().map(retried).collect(),
            backfill: self.backfill.clone(),
            exactly_once: self.exactly_once,
            stopped: self.stopped.as_ref().and_then(|stopped| serde_json::to_value(stopped).ok()),
        };
        // numbers and strings always serialize
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
        let fingerprint = match (json.landmark, json.quiet_from_lsn) {
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
            fingerprint,
            definition: json.definition,
            replay,
            parked: json.parked_lsn.map(|parked| lsn(&parked)).transpose()?,
            retried: retried.collect::<Result<_, _>>()?,
            backfill: json.backfill,
            exactly_once: json.exactly_once,
            // only a message: what another version has written may be left out
            stopped: json.stopped.and_then(|stopped| serde_json::from_value(stopped).ok()),
        })
    }

    /// The rest of a replay at `position`; `None` for another cluster or slot.
    pub fn replay_at(&self, position: Position, slot: &str, system_identifier: &str) -> Option<Replay> {
        let same = self.slot == slot && self.system_identifier == system_identifier;
        self.replay.clone().filter(|replay| same && !replay.is_over(position))
    }

    /// Which of two records counts: the one of the later epoch. Within an epoch a position only grows, so an earlier position
    /// belongs to a router that was suspended between reading the checkpoint and writing the same epoch as another router.
    pub fn later(before: Option<Self>, next: Self) -> Option<Self> {
        let order = |known: &Checkpoint| (known.epoch, known.position.flush, known.position.partial);
        match before {
            Some(before) if order(&before) > order(&next) => Some(before),
            _ => Some(next),
        }
    }

    /// The epoch of a session that resumes from this checkpoint.
    pub fn next_epoch(before: Option<&Self>) -> u64 {
        before.map_or(0, |before| before.epoch).saturating_add(1)
    }

    /// The epoch of a reset. It skips one, because a suspended router that has read this checkpoint may still write the next
    /// epoch.
    pub fn epoch_of_reset(&self) -> u64 {
        self.epoch.saturating_add(2)
    }
}

impl Replay {
    /// Whether the whole range has been sent again.
    pub fn is_over(&self, position: Position) -> bool {
        let again = |done: Partial| {
            position.flush > done.final_lsn || position.partial.is_some_and(|partial| partial >= done)
        };
        position.flush >= self.until.flush && self.until.partial.is_none_or(again)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    pub(crate) fn sample_checkpoint() -> Checkpoint {
        Checkpoint {
            epoch: 3,
            slot: "outbox_router".into(),
            system_identifier: "7423".into(),
            timeline: 1,
            position: Position { flush: Lsn(0x1000), partial: None },
            fingerprint: LogFingerprint::Unknown,
            definition: StreamDefinition {
                publication: Some("16400/742".into()),
                tables: BTreeMap::from([("public.outbox".into(), "16385 16401/743; ".into())]),
                message_prefix: None,
                traces: BTreeMap::new(),
            },
            replay: None,
            parked: None,
            retried: Vec::new(),
            backfill: None,
            exactly_once: false,
            stopped: None,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            epoch: u64, timeline: u32, flush: u64, partial: Option<(u64, u64)>, slot: String, prefix: Option<String>,
            mark: Option<String>, landmark in prop::option::of((any::<u64>(), prop_oneof![Just(0), any::<u32>()], any::<i64>()))
        ) {
            let mut expected = sample_checkpoint();
            (expected.epoch, expected.timeline, expected.slot) = (epoch, timeline, slot);
            expected.definition.message_prefix = prefix;
            let partial = partial.map(|(lsn, changes)| Partial { final_lsn: Lsn(lsn), changes });
            expected.position = Position { flush: Lsn(flush), partial };
            expected.fingerprint = match landmark {
                Some((from, 0, _)) => LogFingerprint::Quiet { from: Lsn(from) },
                Some((final_lsn, xid, time)) => {
                    LogFingerprint::Landmark(Landmark { final_lsn: Lsn(final_lsn), xid, commit_time: PgTimestamp(time) })
                }
                None => LogFingerprint::Unknown,
            };
            expected.exactly_once = mark.is_some();
            expected.stopped = mark.as_ref().map(|what| Stopped { code: ErrorCode::EventTopic, what: what.clone(), remedy: what.into() });
            expected.parked = partial.map(|done| done.final_lsn);
            expected.retried = partial.iter().map(|done| Key { final_lsn: done.final_lsn, change: done.changes }).collect();
            expected.replay = mark.map(|mark| Replay { mark, until: expected.position });
            prop_assert_eq!(Checkpoint::decode(&expected.encode()), Ok(expected));
        }

        #[test]
        fn no_content_of_the_topic_causes_a_panic(value: Vec<u8>) {
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
        let remembered = Checkpoint { replay: replay.clone(), ..sample_checkpoint() };
        let at = |position, slot, system| remembered.replay_at(position, slot, system);
        assert_eq!(at(remembered.position, "outbox_router", "7423"), replay);
        assert_eq!(at(until, "outbox_router", "7423"), None);
        assert_eq!(at(remembered.position, "another", "7423"), None);
        assert_eq!(at(remembered.position, "outbox_router", "7424"), None);
    }

    #[test]
    fn a_record_of_a_later_version_is_refused() {
        let later = String::from_utf8(sample_checkpoint().encode())
            .unwrap()
            .replace("\"version\":1", "\"version\":2");
        assert_eq!(Checkpoint::decode(later.as_bytes()), Err(NotReadable::Later(2)));
        assert!(matches!(Checkpoint::decode(b"7"), Err(NotReadable::Foreign(_))));
        assert!(matches!(Checkpoint::decode(br#"{"version":1}"#), Err(NotReadable::Foreign(_))));
    }

    #[test]
    fn a_late_record_of_an_earlier_epoch_does_not_count() {
        let (old, new) =
            (Checkpoint { epoch: 4, ..sample_checkpoint() }, Checkpoint { epoch: 5, ..sample_checkpoint() });
        let mut newer = new.clone();
        newer.position.flush = Lsn(0x2000);
        let counts = [new, old, newer.clone()].into_iter().fold(None, Checkpoint::later);
        assert_eq!(counts, Some(newer.clone()));
        let late = Checkpoint { epoch: 4, ..sample_checkpoint() };
        assert_eq!(Checkpoint::later(counts, late), Some(newer));
    }

    #[test]
    fn a_late_beginning_of_the_same_epoch_does_not_count() {
        let at = |flush, partial: Option<u64>| {
            let partial = partial.map(|changes| Partial { final_lsn: Lsn(0x3000), changes });
            Checkpoint { position: Position { flush: Lsn(flush), partial }, ..sample_checkpoint() }
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
        // at the same position the later record has more information
        let sent = Checkpoint { retried: vec![Key { final_lsn: Lsn(1), change: 1 }], ..sample_checkpoint() };
        assert_eq!(Checkpoint::later(Some(sample_checkpoint()), sent.clone()), Some(sent));
    }
}
