//! A start for which no checkpoint is stored: whether the slot is new, and whether the router has read another one before.

use super::resume_conflict::{Accept, ResumeConflict};
use super::slot_record::SlotRecord;
use super::start_facts::StartFacts;
use crate::error::{Effect, ErrorCode, Remedy, Step};

/// The conflict if the slot may have been read before, or the router may have read another one.
pub(super) fn conflict(found: &StartFacts<'_>) -> Option<ResumeConflict> {
    let record = found.record?;
    not_new(found, record).or_else(|| beside_other_slots(found, record))
}

/// Why the slot is not known to be new, and what to do about it; `None` if it is.
fn not_known_to_be_new(found: &StartFacts<'_>, record: &SlotRecord) -> Option<(String, String)> {
    if record.is_new(found.confirmed) {
        return None;
    }
    Some(match (&record.router, record.created_at) {
        (Some(other), _) if other != found.router => (
            format!("the router {other} has read it"),
            format!(
                "In the configuration set name = \"{}\" as before, and start the router: it compares the checkpoint of that name with the \
                 slot and the publication, and says how to send what is missing. If it starts, nothing is missing: to change the name, \
                 stop it, and take the last way",
                without_shard(other)
            ),
        ),
        (Some(_), _) => (
            "this router has read it".to_owned(),
            "Either its checkpoint was deleted from the topic, or `[delivery] positions_topic` or `bootstrap.servers` was changed: \
             set that back. Nothing is missing if the router ran without checkpoints until now (`positions_topic` was false), or \
             if nobody else has moved the slot and the table was always published"
                .to_owned(),
        ),
        (None, Some(created_at)) => (
            format!("`outbox-router init` created it at {created_at}, and it was moved since"),
            "Find out who reads it or has moved it".to_owned(),
        ),
        (None, None) => record.unknown(),
    })
}

/// The conflict if the slot may have been read before. In at-least-once mode, only a slot that a router has read is one: its checkpoint
/// is lost, or stored under another name.
fn not_new(found: &StartFacts<'_>, record: &SlotRecord) -> Option<ResumeConflict> {
    let (why, advice) = not_known_to_be_new(found, record)?;
    let StartFacts { router, slot, confirmed, .. } = *found;
    let reader = record.router.as_deref();
    if !found.exactly_once && reader.is_none() {
        return None;
    }
    let mut what = format!(
        "no checkpoint is stored for the router {router}, and the slot {slot}, confirmed up to {confirmed}, is not known to \
         be new: {why}; events delivered from it after {confirmed} would be sent again"
    );
    if reader.is_some() {
        what.push_str(
            ", and earlier ones are missing in Kafka if another client has moved the slot, or if the table was not published for a time",
        );
    }
    let conflict =
        |remedy: Remedy| ResumeConflict::new(ErrorCode::CheckpointLost, what.clone(), remedy, confirmed);
    let advice = Step::new(advice);
    Some(match reader {
        Some(reader) if reader != router => {
            let start = advice.typing(found.run);
            let conflict = conflict(Remedy::steps([start]));
            ResumeConflict { accept: Accept::NewName, ..conflict }
        }
        Some(_) => {
            let mut remedy = Remedy::steps([advice]);
            if let Some(bookmark) = found.bookmark {
                let go_back = Step::new("Go back to the last bookmark").typing(bookmark);
                remedy = remedy.or("To send everything again from the last bookmark on", [go_back]);
            }
            conflict(remedy).or_from_table(found.rows)
        }
        None => {
            let accept = Step::new(
                "If nobody has read the slot, or another program such as Debezium has, run the --accept-gap command below",
            );
            let conflict = conflict(Remedy::steps([advice, accept]));
            // `init` settles it
            if record.usable { conflict.or_from_table(found.rows) } else { conflict }
        }
    })
}

/// The conflict if the router may have read another slot before, under the name that followed from that slot.
fn beside_other_slots(found: &StartFacts<'_>, record: &SlotRecord) -> Option<ResumeConflict> {
    let StartFacts { router, slot, confirmed, .. } = *found;
    // the shards of one router start one after the other
    let is_shard = |other: &str| other != router && without_shard(other) == without_shard(router);
    let others: Vec<&(String, String)> = record.others.iter().filter(|(_, other)| !is_shard(other)).collect();
    let restore = match others[..] {
        [] => return None,
        [(slot, router)] if !router.contains('/') => {
            format!(
                "In the configuration set name = \"{router}\", and under `[postgres]` slot = \"{slot}\", as before"
            )
        }
        _ => "In the configuration set `name`, and under `[postgres]` the slot, as before".to_owned(),
    };
    let list: Vec<String> =
        others.iter().map(|(slot, router)| format!("{slot} (read by {router})")).collect();
    let what = format!(
        "no checkpoint is stored for the router {router}, whose slot {slot} no router has read, and nobody reads these slots of the \
         database, which routers have read: {}. If `[postgres] slot` was changed, the events that only the former slot has are missing, and so \
         are rows that were not published for a time",
        list.join(", ")
    );
    let back = Step::new(format!(
        "{restore}, and start the router: it goes on, or says how to send what is missing"
    ))
    .typing(found.run);
    let remedy = Remedy::default().or("If `[postgres] slot` was changed", [back]);
    let conflict = ResumeConflict::new(ErrorCode::AnotherSlot, what, remedy, confirmed)
        .meaning(
            Effect::Lost,
            "those that only the former slot has, if `[postgres] slot` was changed".to_owned(),
        )
        .or_from_table(found.rows);
    Some(ResumeConflict { accept: Accept::OtherRouters, ..conflict })
}

/// The name of a router without the number of its shard.
fn without_shard(router: &str) -> &str {
    match router.rsplit_once('/') {
        Some((name, number)) if number.parse::<u32>().is_ok() => name,
        _ => router,
    }
}

/// The warning for a start that takes the slot's position although the slot is not known to be new: what it means, and what to
/// do.
pub(super) fn unknown_slot(found: &StartFacts<'_>) -> Option<(String, String)> {
    let record = found.record?;
    let StartFacts { router, slot, confirmed, .. } = *found;
    let (why, remedy) = not_known_to_be_new(found, record)?;
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
