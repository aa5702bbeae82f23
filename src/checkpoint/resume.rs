//! Decides where to start: at the checkpoint, unless events after it may be missing.

use pg_logical::Lsn;

use super::record::Checkpoint;
use super::resume_check::LogMismatch;
use super::resume_conflict::{FROM_TABLE, ResumeConflict};
use super::slot_record::SlotRecord;
use super::start::Start;
use super::stream_definition::StreamDefinition;
use super::timeline::{Descent, System, descent};
use crate::error::{Effect, ErrorCode, Remedy, Step};
use crate::progress::{Partial, Position};

/// What a start knows about the server.
#[derive(Debug, Clone, Copy)]
pub struct StartFacts<'a> {
    /// The name of the router.
    pub router: &'a str,
    /// The name of the slot.
    pub slot: &'a str,
    /// The slot's `confirmed_flush_lsn`.
    pub confirmed: Lsn,
    /// The server.
    pub system: &'a System,
    /// The history file of the server's timeline, if the checkpoint is on another timeline.
    pub history: Option<&'a str>,
    /// The publication and tables that the stream would have now.
    pub definition: &'a StreamDefinition,
    /// The steps that send rows which were not published.
    pub recovery: &'a Remedy,
    /// The mismatch that the last session's resume check found.
    pub log_mismatch: Option<LogMismatch>,
    /// The slot's row in the router's schema; `None` if it could not be read, or without a positions topic.
    pub record: Option<&'a SlotRecord>,
    /// Whether the delivery is exactly-once.
    pub exactly_once: bool,
    /// The command that goes back to the last bookmark before the position of the router, if there is one.
    pub bookmark: Option<&'a str>,
    /// The steps that send rows of the outbox tables again.
    pub rows: Option<&'a [Step]>,
}

/// Decides where to resume. `accepted` is the position of `--accept-gap`.
pub(super) fn decide(
    checkpoint: Option<&Checkpoint>,
    found: &StartFacts<'_>,
    accepted: Option<Lsn>,
) -> Result<Start, ResumeConflict> {
    let (gap, start) = match checkpoint {
        None => {
            let gap = found.record.and_then(|record| not_new(found, record));
            (gap, Start::First(Position { flush: found.confirmed, partial: None }))
        }
        Some(checkpoint) => {
            let flush = checkpoint.position.flush;
            let position = Position { flush, partial: partial(checkpoint, found) };
            (gap(checkpoint, found), Start::Resumed(position))
        }
    };
    match gap {
        None => Ok(start),
        Some(gap) if accepted == Some(gap.resume_at) => {
            Ok(Start::Accepted(Position { flush: gap.resume_at, partial: gap.partial }))
        }
        Some(mut gap) => {
            if let Some(accepted) = accepted {
                gap.what = format!("{}; --accept-gap {accepted} does not match it", gap.what);
            }
            Err(gap)
        }
    }
}

/// Why the slot is not known to be new, and what to do about it; `None` if it is.
fn not_known_to_be_new(found: &StartFacts<'_>, record: &SlotRecord) -> Option<(String, String)> {
    if record.is_new(found.confirmed) {
        return None;
    }
    Some(match (&record.router, record.created_at) {
        (Some(other), _) if other != found.router => (
            format!("the router {other} has read it"),
            format!("If `name` was changed by mistake, set it back to {other}"),
        ),
        (Some(_), _) => (
            "this router has read it".to_owned(),
            "Either its checkpoint was deleted from the topic, or `[delivery] positions_topic` or `bootstrap.servers` was changed: \
             set that back. Nothing is missing if the router ran without checkpoints until now (`positions_topic` was false), or \
             if nobody else has moved the slot"
                .to_owned(),
        ),
        (None, Some(created_at)) => (
            format!("`outbox-router init` created it at {created_at}, and it was moved since"),
            "Find out who reads it or has moved it".to_owned(),
        ),
        (None, None) => record.unknown(),
    })
}

/// The conflict if no checkpoint is stored and the slot may have been read before. In at-least-once mode, only a slot that this
/// router has read itself is one: the checkpoint is lost.
fn not_new(found: &StartFacts<'_>, record: &SlotRecord) -> Option<ResumeConflict> {
    let (why, advice) = not_known_to_be_new(found, record)?;
    let StartFacts { router, slot, confirmed, .. } = *found;
    let read_by_this = record.router.as_deref() == Some(router);
    if !found.exactly_once && !read_by_this {
        return None;
    }
    let mut what = format!(
        "no checkpoint is stored for the router {router}, and the slot {slot}, confirmed up to {confirmed}, is not known to \
         be new: {why}; events delivered from it after {confirmed} would be sent again"
    );
    let mut remedy = Remedy::from(advice);
    if read_by_this {
        what.push_str(
            ", and earlier ones are missing in Kafka if another client has moved the slot. Nor can the router tell whether the \
             publication was altered meanwhile",
        );
        if let Some(bookmark) = found.bookmark {
            let go_back = Step::new("Go back to the last bookmark").typing(bookmark);
            remedy = remedy.or("To send everything again from the last bookmark on", [go_back]);
        }
    } else if record.router.is_none() {
        remedy = remedy.then(Step::new(
            "If nobody has read the slot, or another program such as Debezium has, run the --accept-gap command below",
        ));
    }
    Some(ResumeConflict::new(ErrorCode::CheckpointLost, what, remedy, confirmed))
}

/// The warning for a start that takes the slot's position although the slot is not known to be new: what it means, and what to
/// do.
pub(super) fn unknown_slot(found: &StartFacts<'_>) -> Option<(String, String)> {
    let record = found.record?;
    let StartFacts { router, slot, confirmed, .. } = *found;
    let Some((why, remedy)) = not_known_to_be_new(found, record) else {
        return beside_other_slots(found, record);
    };
    Some((
        format!(
            "no checkpoint is stored for the router {router}, and the slot {slot} is not known to be new: {why}. The router starts at \
             the slot's position {confirmed}: events delivered from it after that are sent again, and earlier ones that nobody has \
             delivered are not sent"
        ),
        format!(
            "{remedy}. Nothing is wrong if the slot was taken over from Debezium, or was created by hand"
        ),
    ))
}

/// The warning for a new slot if the router may have read another one before, under the name that followed from that slot.
fn beside_other_slots(found: &StartFacts<'_>, record: &SlotRecord) -> Option<(String, String)> {
    let others: Vec<String> = record
        .others
        .iter()
        .filter(|(_, router)| !found.router.starts_with(&format!("{router}/")))
        .map(|(slot, router)| format!("{slot} (read by {router})"))
        .collect();
    if others.is_empty() {
        return None;
    }
    Some((
        format!(
            "the router {} starts with the new slot {}, and this database has slots that routers have read: {}. If `[postgres] slot` was \
             changed, the events that only the former slot has are not sent",
            found.router,
            found.slot,
            others.join(", ")
        ),
        "If it was changed, set the former name again. Nothing is wrong if these slots belong to other routers".to_owned(),
    ))
}

/// The delivered part of the transaction at the position. If messages counted differently then, changes cannot be skipped by
/// number.
fn partial(checkpoint: &Checkpoint, found: &StartFacts<'_>) -> Option<Partial> {
    let same = found.definition.message_prefix == checkpoint.definition.message_prefix;
    checkpoint.position.partial.filter(|_| same)
}

/// All findings as one conflict, so that accepting it accepts all of them. The catalogues of another slot do not count: they may
/// belong to another database.
fn gap(checkpoint: &Checkpoint, found: &StartFacts<'_>) -> Option<ResumeConflict> {
    if is_of_another_slot(checkpoint, found) {
        return moved(checkpoint, found);
    }
    let Some(altered) = altered(checkpoint, found) else { return moved(checkpoint, found) };
    match moved(checkpoint, found) {
        None => Some(altered),
        // without a bookmark its steps are about all rows of the table, published or not
        Some(moved)
            if moved.code == ErrorCode::SlotAhead && found.bookmark.is_none() && found.rows.is_some() =>
        {
            Some(ResumeConflict { what: format!("{}; and {}", moved.what, altered.what), ..moved })
        }
        // a reset keeps the former definition, so the next start finds the alteration and prints its steps
        Some(moved) if moved.code == ErrorCode::SlotAhead && found.bookmark.is_some() => {
            Some(ResumeConflict { what: format!("{}; and {}", moved.what, altered.what), ..moved })
        }
        Some(moved) => {
            // the worse one
            let (code, events) = match moved.events.effect < altered.events.effect {
                true => (altered.code, altered.events),
                false => (moved.code, moved.events),
            };
            let what = format!("{}; and {}", moved.what, altered.what);
            let remedy = moved.remedy.and("For the rows that were not published", altered.remedy);
            Some(ResumeConflict { events, ..ResumeConflict::new(code, what, remedy, moved.resume_at) })
        }
    }
}

/// Whether the checkpoint belongs to another slot. Slots of two clusters are different, even if their names are equal.
fn is_of_another_slot(checkpoint: &Checkpoint, found: &StartFacts<'_>) -> bool {
    checkpoint.slot != found.slot || checkpoint.system_identifier != found.system.identifier
}

/// The publication or a table was altered.
fn altered(checkpoint: &Checkpoint, found: &StartFacts<'_>) -> Option<ResumeConflict> {
    let (ours, StartFacts { slot, confirmed, .. }) = (checkpoint.position.flush, *found);
    let renamed = match found.definition.same_publication(&checkpoint.definition) {
        true => "",
        false => ", or the configuration names another publication than before",
    };
    found.definition.altered_since(&checkpoint.definition).then(|| {
        ResumeConflict::new(
            ErrorCode::AlteredWhileAway,
            format!(
                "the publication or an outbox table was altered, or dropped and created again, after the router stopped at \
                 {ours}{renamed}; the slot {slot} is confirmed up to {confirmed}. The stream lacks rows that were committed while the table was \
                 not published"
            ),
            found.recovery.clone(),
            ours,
        )
    })
}

/// The server, its log or the slot's position is not as expected.
fn moved(checkpoint: &Checkpoint, found: &StartFacts<'_>) -> Option<ResumeConflict> {
    let ours = checkpoint.position.flush;
    // the router has seen the commit of a partly delivered transaction too
    let seen = checkpoint
        .position
        .partial
        .map_or(ours, |partial| ours.max(Lsn(partial.final_lsn.0.saturating_add(1))));
    let StartFacts { router, slot, confirmed, system, .. } = *found;
    let gap = |code: ErrorCode, what: String, remedy: &str, resume_at: Lsn| {
        Some(ResumeConflict::new(code, what, remedy, resume_at))
    };
    if system.identifier != checkpoint.system_identifier {
        return gap(
            ErrorCode::AnotherCluster,
            format!(
                "the server belongs to another database cluster (system identifier {}) than the checkpoint {ours} of the router \
                 {router} (system identifier {}); the slot {slot} is confirmed up to {confirmed}",
                system.identifier, checkpoint.system_identifier
            ),
            "Either two routers share one name and one Kafka: give each its own `name`. Or `[postgres] url` points to another \
             cluster than before: correct it. If the cluster was replaced on purpose, the new one's log lacks events that \
             the old one had not sent: compare the outbox table with the topics",
            confirmed,
        );
    }
    if slot != checkpoint.slot {
        return Some(another_slot(checkpoint, found));
    }
    let descends = found.history.map(|text| descent(text, checkpoint.timeline, seen));
    let advice = "Decide what consumers do about events that Postgres no longer has";
    match descends {
        Some(Descent::LeftBefore { timeline, switch }) => {
            let conflict = gap(
                ErrorCode::TimelineLeftBefore,
                format!(
                    "the server switched from timeline {timeline} to another one at {switch}, {} before the router's \
                     position {seen}: it is a standby that was behind, or was restored to a point in time; events \
                     committed and sent to Kafka between {switch} and {seen} no longer exist in Postgres; the slot {slot} \
                     is confirmed up to {confirmed}",
                    distance(switch, seen)
                ),
                advice,
                switch.max(confirmed),
            );
            return conflict.map(|conflict| match confirmed > switch {
                true => conflict.losing(
                    format!(
                        "those committed on this server between {switch} and {confirmed}, which the slot does not have; and Kafka has events \
                         that Postgres no longer has"
                    ),
                    found.rows,
                ),
                false => conflict.meaning(
                    Effect::Late,
                    format!(
                        "those committed on this server after {switch} wait in its log; and Kafka has events that Postgres no longer has"
                    ),
                ),
            });
        }
        Some(Descent::Unrelated) => {
            return gap(
                ErrorCode::TimelineUnrelated,
                format!(
                    "the server is on timeline {}, which does not descend from timeline {} of the router's position {ours}: it is \
                     a former primary, or another standby was promoted before; the slot {slot} is confirmed up to {confirmed}",
                    system.timeline, checkpoint.timeline
                ),
                "Point `[postgres] url` to the current primary. If it is this one, decide what consumers do about events that \
                 Postgres no longer has",
                confirmed,
            )
            .map(|conflict| {
                let lost = format!(
                    "those committed on this server before {confirmed}, which the slot does not have; and Kafka may have events that Postgres \
                     no longer has"
                );
                conflict.losing(lost, found.rows)
            });
        }
        Some(Descent::Holds) | None => {}
    }
    if seen > system.flush {
        return gap(
            ErrorCode::LogEndsBefore,
            format!(
                "the server's log ends at {}, {} before the router's position {seen}: it was restored from a backup, or is \
                 a standby that was behind; events sent after that no longer exist in Postgres; the slot {slot} is \
                 confirmed up to {confirmed}",
                system.flush,
                distance(system.flush, seen)
            ),
            "Decide what consumers do about events that Postgres no longer has. Events committed between the slot's position \
             and the end of the log are sent again",
            confirmed,
        );
    }
    if confirmed > ours {
        return Some(ahead(found, ours));
    }
    let last = found.record.filter(|_| found.exactly_once).and_then(|record| record.router.as_deref());
    if let Some(other) = last.filter(|last| *last != router) {
        let read = gap(
            ErrorCode::ReadByAnotherRouter,
            format!(
                "the router {router} has delivered up to {ours}, and the router {other} has read the slot {slot} since, which is \
                 confirmed up to {confirmed}: events that {other} delivered after {ours} would be sent again"
            ),
            &format!("If `name` was changed by mistake, set it back to {other}"),
            ours,
        );
        // the log is the same up to here
        return read.map(|read| ResumeConflict { partial: partial(checkpoint, found), ..read });
    }
    if let Some(parked) = checkpoint.parked {
        let parted = found.history.map(|text| descent(text, checkpoint.timeline, parked));
        let end = match parted {
            Some(Descent::LeftBefore { switch, .. }) => Some(switch),
            _ => (parked > system.flush).then_some(system.flush),
        };
        if let Some(end) = end {
            let lost = gap(
                ErrorCode::DeadLettersLost,
                format!(
                    "parked events are lost: their rows were committed up to {parked}, but the server's log contains that only up to \
                     {end}: it is a standby that was behind, or was restored. The router's position {ours} is past them"
                ),
                "Recover them from the application's data. In an outbox table whose rows are not deleted, they are the rows whose \
                 ids are neither in a topic nor in outbox_router.dead_letters. Insert them again",
                ours,
            );
            // the log is the same up to here
            return lost.map(|lost| ResumeConflict { partial: partial(checkpoint, found), ..lost });
        }
    }
    let other = found.log_mismatch?;
    gap(
        ErrorCode::LogMismatch,
        format!(
            "the server's log is not the one that the router delivered up to {ours}: {other}. Most likely the data directory was \
             restored from a copy or a snapshot, and its log has grown past that position since. Events sent to Kafka after the \
             copy no longer exist in Postgres; the slot {slot} is confirmed up to {confirmed}"
        ),
        "Decide what consumers do about events that Postgres no longer has. Events committed after the slot's position are \
         sent again, together with new ones",
        confirmed,
    )
}

/// Another slot is configured than before. Positions in two slots of one cluster can be compared.
fn another_slot(checkpoint: &Checkpoint, found: &StartFacts<'_>) -> ResumeConflict {
    let (ours, StartFacts { router, slot, confirmed, .. }) = (checkpoint.position.flush, *found);
    let what = format!(
        "the checkpoint {ours} of the router {router} belongs to the slot {}, but the configured slot {slot} is confirmed up to {confirmed}",
        checkpoint.slot
    );
    let either =
        "Either two routers share one name: give each its own `name`. Or `[postgres] slot` was changed";
    let conflict = |then: &str| {
        ResumeConflict::new(ErrorCode::AnotherSlot, what.clone(), format!("{either}{then}"), confirmed)
    };
    if confirmed <= ours {
        return conflict(": then nothing is missing").meaning(
            Effect::Doubled,
            format!("those committed between {confirmed} and {ours}, if only `[postgres] slot` was changed; none is missing"),
        );
    }
    conflict("").losing(
        format!("those committed between {ours} and {confirmed}, which the new slot does not have"),
        found.rows,
    )
}

/// The slot is ahead of the checkpoint.
fn ahead(found: &StartFacts<'_>, ours: Lsn) -> ResumeConflict {
    let StartFacts { router, slot, confirmed, bookmark, rows, .. } = *found;
    let find_out = Step::new(
        "If Kafka's data was restored to an earlier state, the events committed between the two positions are missing. If another client moved \
         the slot or created it again, find out who (the server's log shows each START_REPLICATION, and with log_statement = 'all' each \
         pg_replication_slot_advance)",
    );
    let remedy = match (bookmark, rows) {
        (Some(bookmark), _) => Remedy::steps([
            find_out,
            Step::new("To send them again, go back to a bookmark instead of accepting this").typing(bookmark),
        ]),
        (None, Some(rows)) => {
            Remedy::steps([find_out]).or(format!("There is no bookmark. {FROM_TABLE}"), rows.to_vec())
        }
        (None, None) => Remedy::steps([find_out]),
    };
    let what = format!(
        "the slot {slot} is ahead of the checkpoint of the router {router}: the slot is confirmed up to {confirmed}, and the \
         checkpoint is at {ours}, {} before that. The slot was moved by another client, or dropped and created again, or \
         the checkpoint is old because Kafka's data was restored to an earlier state",
        distance(ours, confirmed)
    );
    ResumeConflict::new(ErrorCode::SlotAhead, what, remedy, confirmed)
}

/// `1.2 MiB`
fn distance(from: Lsn, to: Lsn) -> String {
    crate::quantity::bytes(to.bytes_since(from))
}

#[cfg(test)]
mod tests;
