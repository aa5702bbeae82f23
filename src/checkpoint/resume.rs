//! Where to start: at the remembered position, unless what is found says that events may be missing after it.

use pg_logical::Lsn;

use super::reading::Reading;
use super::record::Checkpoint;
use super::resume_check::OtherLog;
use super::slot_record::SlotRecord;
use super::start::Start;
use super::timeline::{Descent, System, descent};
use crate::error::Error;
use crate::progress::{Partial, Position};
use crate::shards::{self, Shard};

/// What a start finds.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The name of the router.
    pub router: &'a str,
    /// The name of the slot.
    pub slot: &'a str,
    /// Its `confirmed_flush_lsn`.
    pub confirmed: Lsn,
    /// The server.
    pub system: &'a System,
    /// The history file of its timeline, if that is not the remembered one.
    pub history: Option<&'a str>,
    /// What the stream is going to be made of.
    pub reading: &'a Reading,
    /// How to read what nothing published, ending in SQL.
    pub way_out: &'a str,
    /// What the last session found at the beginning of the stream, if it was not what was read before.
    pub other_log: Option<OtherLog>,
    /// What the router's schema says of the slot. `None`: events may come twice.
    pub record: Option<&'a SlotRecord>,
}

/// Events may be missing, or be told twice, in a way that a person has to know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeConflict {
    /// What was found.
    pub what: String,
    /// What to do, besides accepting it.
    pub remedy: String,
    /// Where the router would go on.
    pub go_on: Lsn,
    /// What was delivered of the transaction there, where that still means the same.
    pub partial: Option<Partial>,
    /// What to do before, if that is long.
    pub before: Option<String>,
}

impl ResumeConflict {
    /// As the failure that stops the router, or that of one shard.
    pub fn refusal(self, shard: Option<Shard>) -> Error {
        let remedy = self.how_to_go_on(shard);
        Error::not_safe(self.what, remedy)
    }

    /// What to do.
    pub fn how_to_go_on(&self, shard: Option<Shard>) -> String {
        let ResumeConflict { remedy, go_on, before, .. } = self;
        let accept = format!(
            "{remedy}. To go on at {go_on} as things are: `outbox-router run --accept-gap {go_on}{}`, once",
            shards::argument(shard)
        );
        match before {
            Some(before) => format!("{accept}. {before}"),
            None => accept,
        }
    }
}

/// Decides. `accepted` is what a person has said to go on at.
pub(super) fn judge(
    remembered: Option<&Checkpoint>,
    found: &Found<'_>,
    accepted: Option<Lsn>,
) -> Result<Start, ResumeConflict> {
    let (gap, start) = match remembered {
        None => {
            let gap =
                found.record.and_then(|record| not_new(found.router, found.slot, found.confirmed, record));
            (gap, Start::First(Position { flush: found.confirmed, partial: None }))
        }
        Some(remembered) => {
            let flush = remembered.position.flush;
            let position = Position { flush, partial: partial(remembered, found) };
            (gap(remembered, found), Start::Resumed(position))
        }
    };
    match gap {
        None => Ok(start),
        Some(gap) if accepted == Some(gap.go_on) => {
            Ok(Start::Accepted(Position { flush: gap.go_on, partial: gap.partial }))
        }
        Some(mut gap) => {
            if let Some(accepted) = accepted {
                gap.what = format!("{}; --accept-gap {accepted} does not fit", gap.what);
            }
            Err(gap)
        }
    }
}

/// Nothing is remembered, and the slot may hold what was delivered before: that would be sent again.
pub fn not_new(router: &str, slot: &str, confirmed: Lsn, record: &SlotRecord) -> Option<ResumeConflict> {
    if record.is_new(confirmed) {
        return None;
    }
    let (why, remedy) = match (&record.router, record.created_at) {
        (Some(other), _) if other != router => {
            (format!("the router {other} has read it"), format!("If `name` was changed by mistake, set it back to {other}"))
        }
        (Some(_), _) => (
            "this router has read it".to_owned(),
            "Either its position was deleted from the topic, or `[delivery] positions_topic` or `bootstrap.servers` was changed: \
             set that back"
                .to_owned(),
        ),
        (None, Some(created_at)) => (
            format!("`outbox-router init` created it at {created_at}, and it was moved since"),
            "Find out who reads it or has moved it".to_owned(),
        ),
        (None, None) => (
            format!("{} does not say that `outbox-router init` created it, or the role may not read and write that table", SlotRecord::TABLE),
            "If init created it, run `outbox-router init --role ROLE` as an administrator, which grants that. If nobody \
             has read it, or another program such as Debezium has, accept the gap"
                .to_owned(),
        ),
    };
    Some(ResumeConflict {
        what: format!(
            "no position is remembered for the router {router}, and the slot {slot}, confirmed up to {confirmed}, is not known to \
             be new: {why}; what was delivered from it after {confirmed} would be sent again"
        ),
        remedy,
        go_on: confirmed,
        partial: None,
        before: None,
    })
}

/// What was delivered of the transaction at the position: numbered otherwise, its changes cannot be skipped by their number.
fn partial(remembered: &Checkpoint, found: &Found<'_>) -> Option<Partial> {
    let same = found.reading.message_prefix == remembered.reading.message_prefix;
    remembered.position.partial.filter(|_| same)
}

/// All that was found, as one: who accepts it has read all of it. The catalogues that another slot was read by tell nothing of
/// this one's, which may be of another database.
fn gap(remembered: &Checkpoint, found: &Found<'_>) -> Option<ResumeConflict> {
    if is_of_another_slot(remembered, found) {
        return moved(remembered, found);
    }
    let Some(altered) = altered(remembered, found) else { return moved(remembered, found) };
    match moved(remembered, found) {
        None => Some(altered),
        Some(moved) => Some(ResumeConflict {
            what: format!("{}; and {}", moved.what, altered.what),
            remedy: format!("{}. {}", moved.remedy, altered.remedy),
            go_on: moved.go_on,
            partial: None,
            before: altered.before,
        }),
    }
}

/// Slots of two clusters are two, whatever they are called.
fn is_of_another_slot(remembered: &Checkpoint, found: &Found<'_>) -> bool {
    remembered.slot != found.slot || remembered.system_identifier != found.system.identifier
}

/// What the stream is made of is not what it was.
fn altered(remembered: &Checkpoint, found: &Found<'_>) -> Option<ResumeConflict> {
    let (ours, Found { slot, confirmed, .. }) = (remembered.position.flush, *found);
    found.reading.altered_since(&remembered.reading).then(|| ResumeConflict {
        what: format!(
            "the publication, or an outbox table, was altered, or dropped and made again, after the router stopped at \
             {ours}; the slot {slot} is confirmed up to {confirmed}"
        ),
        remedy: "Whatever was committed while the publication was away is not in the stream".to_owned(),
        go_on: ours,
        partial: None,
        before: Some(found.way_out.to_owned()),
    })
}

/// The server, its log or the slot is not where it was.
fn moved(remembered: &Checkpoint, found: &Found<'_>) -> Option<ResumeConflict> {
    let ours = remembered.position.flush;
    // the commit of a transaction under way was seen too
    let seen = remembered
        .position
        .partial
        .map_or(ours, |partial| ours.max(Lsn(partial.final_lsn.0.saturating_add(1))));
    let Found { router, slot, confirmed, system, .. } = *found;
    let gap = |what: String, remedy: &str, go_on: Lsn| {
        Some(ResumeConflict { what, remedy: remedy.to_owned(), go_on, partial: None, before: None })
    };
    if system.identifier != remembered.system_identifier {
        return gap(
            format!(
                "the server is another database cluster (system identifier {}) than the one whose position {ours} is \
                 remembered for the router {router} (system identifier {}); the slot {slot} is confirmed up to {confirmed}",
                system.identifier, remembered.system_identifier
            ),
            "Either two routers share one name and one Kafka: give each its own `name`. Or `[postgres] url` leads to another \
             cluster than before: correct it. If the cluster was replaced on purpose, events that the old one still \
             held are not in the new one's log: compare the outbox table with the topics",
            confirmed,
        );
    }
    if slot != remembered.slot {
        return gap(
            format!(
                "the position {ours} that is remembered for the router {router} is of the slot {}, and the configured \
                 slot {slot} is confirmed up to {confirmed}",
                remembered.slot
            ),
            "Either two routers share one name: give each its own `name`. Or `[postgres] slot` was changed: what was committed \
             between the two positions is then sent again, or not at all",
            confirmed,
        );
    }
    let descends = found.history.map(|text| descent(text, remembered.timeline, seen));
    let gone = "Decide what consumers do about the events that they saw and that Postgres no longer has";
    match descends {
        Some(Descent::LeftBefore { timeline, switch }) => {
            return gap(
                format!(
                    "the server went over from timeline {timeline} to another one at {switch}, {} before the router's \
                     position {seen}: it is a standby that was behind, or was restored to a point in time; what was \
                     committed and sent to Kafka between {switch} and {seen} no longer exists in Postgres; the slot {slot} \
                     is confirmed up to {confirmed}",
                    distance(switch, seen)
                ),
                gone,
                switch.max(confirmed),
            );
        }
        Some(Descent::Unrelated) => {
            return gap(
                format!(
                    "the server is on timeline {}, which does not come from timeline {}, where the router's position {ours} \
                     is: it is a former primary, or another standby was promoted before; the slot {slot} is confirmed up to \
                     {confirmed}",
                    system.timeline, remembered.timeline
                ),
                "Point `[postgres] url` to the present primary. If it is this one, decide what consumers do about the events \
                 that they saw and that Postgres no longer has",
                confirmed,
            );
        }
        Some(Descent::Holds) | None => {}
    }
    if seen > system.flush {
        return gap(
            format!(
                "the server's log ends at {}, {} before the router's position {seen}: it was restored from a backup, or is \
                 a standby that was behind; what was sent after the end no longer exists in Postgres; the slot {slot} is \
                 confirmed up to {confirmed}",
                system.flush,
                distance(system.flush, seen)
            ),
            "Decide what consumers do about the events that they saw and that Postgres no longer has. What was committed \
             between the slot's position and the end of the log is sent again",
            confirmed,
        );
    }
    if confirmed > ours {
        return gap(
            format!(
                "the slot {slot} was moved by another, or dropped and made again: it is confirmed up to {confirmed}, and the \
                 router has delivered up to {ours}, {} before that",
                distance(ours, confirmed)
            ),
            "Nothing is missing if it was this router, which ran meanwhile with `[delivery] positions_topic` empty or another. \
             Else events committed between the two positions may be missing in Kafka: compare the outbox table with the \
             topics, or, if `outbox-router slot list` shows a bookmark from before, go back to it with `outbox-router slot \
             reset`. Find out who moved it (the server's log shows each START_REPLICATION, and with log_statement = 'all' each \
             pg_replication_slot_advance)",
            confirmed,
        );
    }
    let last = found.record.and_then(|record| record.router.as_deref());
    if let Some(other) = last.filter(|last| *last != router) {
        let read = gap(
            format!(
                "the router {router} has delivered up to {ours}, and the router {other} has read the slot {slot} since, which is \
                 confirmed up to {confirmed}: what {other} delivered after {ours} would be sent again"
            ),
            "If `name` was changed by mistake, set it back",
            ours,
        );
        // the log is the same up to here
        return read.map(|read| ResumeConflict { partial: partial(remembered, found), ..read });
    }
    if let Some(parked) = remembered.parked {
        let parted = found.history.map(|text| descent(text, remembered.timeline, parked));
        let end = match parted {
            Some(Descent::LeftBefore { switch, .. }) => Some(switch),
            _ => (parked > system.flush).then_some(system.flush),
        };
        if let Some(end) = end {
            let lost = gap(
                format!(
                    "parked events are lost: their rows were committed up to {parked}, and of that log the server has what is before \
                     {end}: it is a standby that was behind, or was restored. The router's position {ours} is past them"
                ),
                "Find them where the application keeps what it has written: in the outbox table, if its rows are not deleted, they are \
                 those whose ids are neither in a topic nor in outbox_router.dead_letters. Insert them again",
                ours,
            );
            // the log is the same up to here
            return lost.map(|lost| ResumeConflict { partial: partial(remembered, found), ..lost });
        }
    }
    let other = found.other_log?;
    gap(
        format!(
            "the server's log is not the one that was delivered up to {ours}: {other}. Most likely the data directory was put \
             back from a copy or a snapshot, and has grown past that position since. What was sent to Kafka after the copy was made no \
             longer exists in Postgres; the slot {slot} is confirmed up to {confirmed}"
        ),
        "Decide what consumers do about the events that they saw and that Postgres no longer has. What was committed after \
         the slot's position is sent again, and what is new is sent",
        confirmed,
    )
}

/// `1.2 MiB`
fn distance(from: Lsn, to: Lsn) -> String {
    crate::quantity::bytes(to.bytes_since(from))
}

#[cfg(test)]
mod tests;
