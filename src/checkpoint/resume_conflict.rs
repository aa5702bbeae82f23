//! What stands in the way of resuming at the checkpoint, and the ways out.

use pg_logical::Lsn;

use crate::error::{Effect, Error, ErrorCode, Events, Remedy, Step};
use crate::progress::Partial;
use crate::shards::{self, Shard};

/// Events may be missing or be sent twice, and an operator has to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeConflict {
    /// Which conflict.
    pub code: ErrorCode,
    /// What was found.
    pub what: String,
    /// What it means for events.
    pub events: Events,
    /// What to do other than accepting it.
    pub remedy: Remedy,
    /// Where the router would resume.
    pub resume_at: Lsn,
    /// The delivered part of the transaction there, if its numbers still mean the same.
    pub partial: Option<Partial>,
    /// When to accept it.
    pub(super) accept: Accept,
}

/// When to accept a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accept {
    /// To go on.
    ToGoOn,
    /// To go on, or to change the router's name.
    NewName,
    /// To go on, or if the slots belong to other routers.
    OtherRouters,
}

impl Accept {
    /// The name of the way.
    fn name(self, effect: Effect) -> &'static str {
        match (self, effect) {
            (Accept::ToGoOn, Effect::Lost) => "To go on without the events that may be missing",
            (Accept::ToGoOn, _) => "To go on",
            (Accept::NewName, _) => {
                "To change the name if nothing is missing, or to go on without the events that may be missing"
            }
            (Accept::OtherRouters, _) => {
                "If these slots belong to other routers, or to go on without the events that may be missing"
            }
        }
    }
}

/// The way that sends rows of the table again.
pub(super) const FROM_TABLE: &str = "To send missing events again that are still in the table; rows that are still in the slot are sent twice";

/// What is left to do without a table.
pub(super) const IN_NO_TABLE: &str =
    "Logical messages are stored in no table: what is missing, the applications have to write again";

/// Another reader that sent the events is the usual reason for a slot ahead of the checkpoint.
const NOTHING_MISSING: &str = "If Debezium read the slot since and sent its events, or this router ran with another `[delivery] \
     positions_topic` or none, nothing is missing. Then, or to go on without missing events";
const MAY_BE_MISSING: &str = "Otherwise events may be missing";

impl ResumeConflict {
    /// The same with what it means for events in this case.
    pub(super) fn meaning(mut self, effect: Effect, which: String) -> Self {
        self.events = Events { effect, which: which.into() };
        self
    }

    /// The same if these events are not in the slot. `rows` are the steps that send rows of the table again.
    pub(super) fn losing(self, which: String, rows: Option<&[Step]>) -> Self {
        self.meaning(Effect::Lost, which).or_from_table(rows)
    }

    /// The same with the steps that send rows of the table again.
    pub(super) fn or_from_table(mut self, rows: Option<&[Step]>) -> Self {
        self.remedy = match rows {
            Some(rows) => self.remedy.or(FROM_TABLE, rows.to_vec()),
            None => self.remedy.or("If events are missing", [Step::new(IN_NO_TABLE)]),
        };
        self
    }

    /// What was found, with what its code says about events.
    pub(super) fn new(code: ErrorCode, what: String, remedy: impl Into<Remedy>, resume_at: Lsn) -> Self {
        ResumeConflict {
            code,
            what,
            events: code.into(),
            remedy: remedy.into(),
            resume_at,
            partial: None,
            accept: Accept::ToGoOn,
        }
    }

    /// The error that stops the router, or one shard.
    pub fn refusal(self, shard: Option<Shard>) -> Error {
        let ResumeConflict { code, what, events, remedy, resume_at, accept, .. } = self;
        let start = |when: &str| {
            [Step::new(format!("Start once with this option: the router resumes at {resume_at}{when}"))
                .typing(format!("outbox-router run --accept-gap {resume_at}{}", shards::argument(shard)))]
        };
        let remedy = match (code, events.effect) {
            (ErrorCode::SlotAhead, _) => {
                Remedy::default().or(NOTHING_MISSING, start("")).and(MAY_BE_MISSING, remedy)
            }
            (ErrorCode::AlteredWhileAway, _) => remedy.or(
                "If no rows are missing, or to go on without them",
                start(". On Postgres 17 and earlier this fails if the publication did not exist"),
            ),
            (_, effect) => remedy.or(accept.name(effect), start("")),
        };
        Error::not_safe(code, what, remedy).meaning(events.effect, events.which)
    }
}
