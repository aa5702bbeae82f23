//! `inbox retry`, `discard` and `clear`: find the events, ask for confirmation, and leave a row in the audit table.

use pg_logical::session::Session;

use super::list::render;
use crate::cli::inbox::{ChooseArgs, EventArgs, HowArgs};
use crate::commands::table::TableStyle;
use crate::commands::{confirm_by_count, confirm_by_typing};
use crate::error::{Error, ErrorCode, Remedy, Step, shell_word};
use crate::postgres::inbox::events::{self, InboxEvent};
use crate::quantity::counted;
use crate::terminal::{self, on_one_line};

/// How many events are listed before the confirmation.
const SHOWN: usize = 20;

/// How many failed events one call with `--all` decides about, in one transaction.
const AT_ONCE: u32 = 5_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Retry,
    Discard,
    Clear,
}

impl Action {
    /// As the function `inbox_decide` calls it.
    fn name(self) -> &'static str {
        match self {
            Action::Retry => "retry",
            Action::Discard => "discard",
            Action::Clear => "clear",
        }
    }

    /// Whether it can be done with an event in this state. A leased one is refused with another error.
    fn fits(self, state: &str) -> bool {
        match self {
            Action::Retry => matches!(state, "waiting" | "failed"),
            Action::Discard => matches!(state, "waiting" | "failed" | "expired"),
            Action::Clear => matches!(state, "waiting" | "failed" | "expired" | "processed"),
        }
    }
}

/// Decides about one event, or about all failed ones.
pub(super) async fn chosen(
    session: &mut Session,
    action: Action,
    choose: &ChooseArgs,
    reason: Option<&str>,
    how: HowArgs,
    ask: bool,
) -> Result<(), Error> {
    let found = match &choose.id {
        Some(id) => {
            let wanted = EventArgs { id: id.clone(), consumer: choose.consumer.clone() };
            vec![one(session, action, &wanted).await?]
        }
        None => events::unprocessed(session, choose.consumer.as_deref(), Some("failed"), AT_ONCE).await?,
    };
    decide(session, action, &found, reason, how, ask).await
}

/// Forgets one event.
pub(super) async fn clear(
    session: &mut Session,
    wanted: &EventArgs,
    reason: &str,
    how: HowArgs,
    ask: bool,
) -> Result<(), Error> {
    let found = [one(session, Action::Clear, wanted).await?];
    decide(session, Action::Clear, &found, Some(reason), how, ask).await
}

async fn decide(
    session: &mut Session,
    action: Action,
    found: &[InboxEvent],
    reason: Option<&str>,
    how: HowArgs,
    ask: bool,
) -> Result<(), Error> {
    let HowArgs { dry_run, json } = how;
    if ask && json && !dry_run {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--json cannot ask for confirmation",
            "Add --yes to proceed without confirmation, or --dry-run to see what the command would do",
        ));
    }
    if found.is_empty() || (dry_run && json) {
        return if json { terminal::print_json(found) } else { terminal::print("No event has failed.\n") };
    }
    if dry_run || ask {
        let shown = found.get(..SHOWN).unwrap_or(found);
        let more = if found.len() > SHOWN { ", of which the first are shown" } else { "" };
        terminal::print(&render(shown, found.len(), more, &TableStyle::for_stdout()))?;
        if dry_run || !confirmed(action, found)? {
            return Ok(());
        }
    }
    let done = events::decide(session, found, action.name(), reason).await?;
    if json {
        return terminal::print_json(found);
    }
    let gone = found.len() as u64 - done.min(found.len() as u64);
    let mut rest = match gone {
        0 => String::new(),
        _ => format!(" {} ended meanwhile.", counted(gone, "event")),
    };
    if found.len() == AT_ONCE as usize {
        rest.push_str(" More may have failed: run the command again.");
    }
    let events = counted(done, "event");
    terminal::print(&match action {
        Action::Retry => format!("{events} will be taken by the next free worker.{rest}\n"),
        Action::Discard => format!("{events} discarded: nobody will process them.{rest}\n"),
        Action::Clear => format!("{events} forgotten: the next delivery is processed again.{rest}\n"),
    })
}

fn confirmed(action: Action, found: &[InboxEvent]) -> Result<bool, Error> {
    match (action, found) {
        (Action::Clear, [event]) => {
            let before = if event.state == "processed" {
                "The next delivery is processed again. "
            } else {
                "The event is deleted with its payload, and its next delivery is processed again. "
            };
            confirm_by_typing(before, "the id of the event", &on_one_line(&event.id))
        }
        _ => confirm_by_count(
            "They will count as processed, although no handler has done it. ",
            found.len() as u64,
        ),
    }
}

/// The event that is meant, if `action` can be done with it.
async fn one(session: &mut Session, action: Action, wanted: &EventArgs) -> Result<InboxEvent, Error> {
    let mut found = events::with_id(session, &wanted.id, wanted.consumer.as_deref()).await?;
    found.retain(|event| event.state != "forgotten");
    if found.len() > 1 {
        let consumers: Vec<String> = found.iter().map(|event| on_one_line(&event.consumer)).collect();
        return Err(Error::usage(
            ErrorCode::CommandLine,
            format!("{} consumers have the event {}", found.len(), on_one_line(&wanted.id)),
            format!("Add --consumer with one of {}", consumers.join(", ")),
        ));
    }
    let Some(event) = found.pop() else { return Err(unknown(wanted)) };
    if action.fits(&event.state) {
        return Ok(event);
    }
    let id = on_one_line(&event.id);
    if event.state == "leased" {
        let until = event.until.as_deref().unwrap_or_default();
        return Err(Error::refused(
            ErrorCode::InboxEventTaken,
            format!("the event {id} is under a lease until {until}"),
            "Wait until its worker has ended, or the lease",
        ));
    }
    let (what, remedy) = if event.state == "processed" {
        let clear = format!(
            "outbox-router inbox clear {} --consumer {} --reason WHY --url URL",
            shell_word(&event.id),
            shell_word(&event.consumer)
        );
        let step = Step::new("If its next delivery is to be processed again, forget it").typing(clear);
        ("is processed", Remedy::steps([step]))
    } else {
        let remedy = "Deliver it again: it is processed then. Or discard it";
        ("is not in the queue: its handler did not end under its lease", remedy.into())
    };
    Err(Error::refused(ErrorCode::InboxEventUnknown, format!("the event {id} {what}"), remedy))
}

pub(super) fn unknown(wanted: &EventArgs) -> Error {
    let of = match &wanted.consumer {
        Some(consumer) => format!("the consumer {}", on_one_line(consumer)),
        None => "any consumer".to_owned(),
    };
    Error::refused(
        ErrorCode::InboxEventUnknown,
        format!("no event {} of {of} is known", on_one_line(&wanted.id)),
        "Compare the id and the consumer with those that the application passes; `outbox-router inbox list` shows the events that are \
         not processed. An event that a transaction claims now is known when that has ended",
    )
}
