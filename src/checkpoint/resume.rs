//! Decides where to start: at the checkpoint, unless events after it may be missing.

use pg_logical::Lsn;

use super::record::Checkpoint;
use super::resume_conflict::{FROM_TABLE, IN_NO_TABLE, ResumeConflict};
use super::start::Start;
use super::start_facts::StartFacts;
use super::stream_definition::{Alteration, LeftOut};
use super::timeline::{Descent, descent};
use super::without_checkpoint;
use crate::error::{Effect, ErrorCode, Remedy, Step};
use crate::progress::{Partial, Position};

/// Decides where to resume. `accepted` is the position of `--accept-gap`.
pub(super) fn decide(
    checkpoint: Option<&Checkpoint>,
    found: &StartFacts<'_>,
    accepted: Option<Lsn>,
) -> Result<Start, ResumeConflict> {
    let (gap, start) = match checkpoint {
        None => (
            without_checkpoint::conflict(found),
            Start::First(Position { flush: found.confirmed, partial: None }),
        ),
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
    rows_may_be_missing(checkpoint, found).then(|| {
        let missing = found.definition.missing_since(&checkpoint.definition, found.left_out);
        ResumeConflict::new(
            ErrorCode::AlteredWhileAway,
            format!(
                "the publication or an outbox table was altered, or dropped and created again, after the router stopped at \
                 {ours}{renamed}; the slot {slot} is confirmed up to {confirmed}{}",
                match missing.as_str() {
                    "" => "; the stream lacks rows that were committed while the table was not published",
                    missing => missing,
                }
            ),
            found.recovery.clone(),
            ours,
        )
    })
}

/// Whether the publication or a table was altered, and rows may be missing for that reason.
fn rows_may_be_missing(checkpoint: &Checkpoint, found: &StartFacts<'_>) -> bool {
    match (found.definition.alteration_since(&checkpoint.definition), found.left_out) {
        (Alteration::None, _) | (Alteration::Renamed | Alteration::Touched, Some(LeftOut::None)) => false,
        // most likely it was another alteration of the table, or of its schema
        (Alteration::Renamed, Some(LeftOut::Unknown(_)) | None) => false,
        (Alteration::Renamed, Some(LeftOut::Rows { .. }))
        | (Alteration::Touched | Alteration::Replaced, _) => true,
    }
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
             cluster than before: correct it. Or the cluster was replaced on purpose: the new one's log lacks events that \
             the old one had not sent",
            confirmed,
        )
        .map(|conflict| {
            let lost = "those the former cluster had not sent, and those committed on this one before the slot's position";
            conflict.losing(lost.to_owned(), found.rows)
        });
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
        )
        .map(|conflict| at_new_slot(conflict, found));
    }
    if confirmed > ours {
        return Some(ahead(found, ours));
    }
    let last = found.record.and_then(|record| record.router.as_deref());
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
    .map(|conflict| at_new_slot(conflict, found))
}

/// A backup has no slots: one that was created after the restore lacks what was committed before it.
fn at_new_slot(conflict: ResumeConflict, found: &StartFacts<'_>) -> ResumeConflict {
    let confirmed = found.confirmed;
    if !found.record.is_some_and(|record| record.is_new(confirmed)) {
        return conflict;
    }
    let lost = format!(
        "those committed on this server before {confirmed}, which the new slot does not have; and Kafka has events that Postgres no longer has"
    );
    conflict.losing(lost, found.rows)
}

/// Another slot is configured than before. Positions in two slots of one cluster can be compared, and so can the catalogues if both
/// slots are of one database.
fn another_slot(checkpoint: &Checkpoint, found: &StartFacts<'_>) -> ResumeConflict {
    let (ours, StartFacts { router, slot, confirmed, .. }) = (checkpoint.position.flush, *found);
    let (now, before) = (found.definition, &checkpoint.definition);
    let altered = now.has_table_of(before) && rows_may_be_missing(checkpoint, found);
    let mut what = format!(
        "the checkpoint {ours} of the router {router} belongs to the slot {}, but the configured slot {slot} is confirmed up to {confirmed}",
        checkpoint.slot
    );
    if altered {
        what.push_str(
            "; and the publication or an outbox table was altered or created again since, or the configuration names another publication",
        );
    }
    let either =
        "Either two routers share one name: give each its own `name`. Or `[postgres] slot` was changed";
    let conflict = |then: &str| {
        ResumeConflict::new(ErrorCode::AnotherSlot, what.clone(), format!("{either}{then}"), confirmed)
    };
    if altered {
        let mut lost = "those committed while the table was not published".to_owned();
        if confirmed > ours {
            lost.push_str(&format!(
                ", and those committed between {ours} and {confirmed}, which the new slot does not have"
            ));
        }
        return conflict("").losing(lost, found.rows);
    }
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
        (None, None) => Remedy::steps([find_out, Step::new(IN_NO_TABLE)]),
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
