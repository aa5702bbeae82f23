//! `replay`: counts rows of the outbox table, asks for confirmation, and sends them again.

mod arguments;
mod count;
mod delivered;
mod list;
mod selected;
mod sending;

use std::sync::Arc;
use std::time::Duration;

use pg_logical::session::Session;
use tokio::time::sleep;

use crate::cli::replay::ReplayArgs;
use crate::commands::{Completion, connect_for_long};
use crate::config::Config;
use crate::contracts::Contracts;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::postgres::replays::lease::{self, Lease};
use crate::postgres::replays::{self, Replay};
use crate::utc::Utc;
use selected::Selected;
use sending::Sending;

/// How often a replay whose process may be gone is tried.
const RETRY: Duration = Duration::from_millis(500);

/// Runs the command.
///
/// # Errors
/// The arguments select nothing that can be sent, or more than is allowed; a server refuses, or cannot be reached.
pub(super) async fn replay(config: &Config, args: &ReplayArgs) -> Result<Completion, Error> {
    // the router goes on, or does not, whatever becomes of this
    perform(config, args).await.map_err(Error::without_router)
}

async fn perform(config: &Config, args: &ReplayArgs) -> Result<Completion, Error> {
    let mut session = open(config).await?;
    if args.list {
        let replays = replays::list(&mut session, &config.name, None).await?;
        session.close().await;
        return list::show(&replays, args.json).map(|()| Completion::Success);
    }
    if args.json && !args.dry_run && !args.yes && args.resume.is_none() {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--json needs --dry-run, --yes, --resume or --list",
            "Add one of them",
        ));
    }
    if !args.dry_run {
        replays::verify(&mut session).await?;
    }
    let contracts = Contracts::configured(config)?.map(Arc::new);
    if let Some(id) = args.resume {
        let Replay { request, done, .. } = unfinished(&mut session, config, id).await?;
        let selected = Selected::again(&mut session, config, contracts, &request).await?;
        let lease = take_over(&mut session, config, id, &request.outbox).await?;
        let sending =
            Sending::new(config, selected, lease, args.rate.or(request.rate), request.rows, args.json);
        return sending.from(done).run(session).await;
    }
    let selected = Selected::of(&mut session, config, contracts, args).await?;
    let counted = count::count(config, &selected, args.json).await?;
    if !count::confirmed(&mut session, config, &selected, &counted, args).await? {
        session.close().await;
        return Ok(count::completion(&counted));
    }
    let request = counted.request(&selected, args.rate);
    let per_day = config.replay.max_events_per_day;
    let Some(lease) = lease::begin(&mut session, &config.name, &user(), &request, per_day).await? else {
        count::check_limits(&mut session, config, &counted, args).await?;
        return Err(is_running(&mut session, config, &request.outbox).await?);
    };
    Sending::new(config, selected, lease, args.rate, request.rows, args.json).run(session).await
}

/// The user of this machine, for the table of replays.
fn user() -> String {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "somebody".to_owned())
}

/// A session that may read for long.
async fn open(config: &Config) -> Result<Session, Error> {
    connect_for_long(config, "replay").await
}

/// Takes a replay over, once the lease of a process that is gone has expired.
async fn take_over(session: &mut Session, config: &Config, id: u64, outbox: &str) -> Result<Lease, Error> {
    for attempt in 0..=lease::SECONDS * 2 {
        if let Some(lease) = lease::take_over(session, id).await? {
            return Ok(lease);
        }
        if attempt == 0 {
            tracing::info!(
                "another process may still be sending rows of {outbox}; waiting for up to {} s",
                lease::SECONDS
            );
        }
        sleep(RETRY).await;
    }
    Err(is_running(session, config, outbox).await?)
}

/// Two replays at once could send the events of an aggregate out of order.
async fn is_running(session: &mut Session, config: &Config, outbox: &str) -> Result<Error, Error> {
    let running = replays::list(session, &config.name, None).await?;
    let running = running.iter().find(|replay| replay.runs && replay.request.outbox == outbox);
    let what = match running {
        Some(replay) => {
            let (by, at) = (&replay.requested_by, Utc(replay.requested_at));
            format!("another replay of {outbox} is running: {}, requested by {by} at {at}", replay.id)
        }
        None => format!("another replay or a prune of {outbox} is running"),
    };
    Ok(Error::refused(
        ErrorCode::ReplayRunning,
        what,
        Remedy::steps([Step::new("Wait until it has ended").typing("outbox-router replay --list")]),
    ))
}

async fn unfinished(session: &mut Session, config: &Config, id: u64) -> Result<Replay, Error> {
    let found = replays::list(session, &config.name, Some(id)).await?;
    let why = match found.into_iter().next() {
        Some(replay) if replay.finished_at.is_none() => return Ok(replay),
        Some(replay) => format!("replay {id} is complete: {} rows are done", replay.done.rows),
        None => format!("the router {} has no replay {id}", config.name),
    };
    Err(Error::refused(
        ErrorCode::ReplayUnknown,
        why,
        Remedy::steps([Step::new("See which ones are not complete").typing("outbox-router replay --list")]),
    ))
}
