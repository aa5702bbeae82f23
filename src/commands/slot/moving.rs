//! `slot reset` and `slot advance`: show the effect, ask for confirmation, and move.
//!
//! An interruption must not leave the slot ahead of the checkpoint. So a reset moves the slot back first, in one message to
//! the server, and an advance moves the checkpoint forward first. After the first step alone the router resumes where it was.

use std::sync::Arc;
use std::time::Duration;

use pg_logical::quoting::literal;
use pg_logical::session::Session;
use pg_logical::{Lsn, PgTimestamp};
use serde::Serialize;
use time::OffsetDateTime;

use super::count::{self, Count, Counted};
use super::no_bookmark;
use crate::advice::OrRemedy;
use crate::checkpoint::Replay;
use crate::cli::slot::MoveArgs;
use crate::commands::stored_position::StoredPosition;
use crate::commands::{ANSWER_TIMEOUT, confirm_by_count};
use crate::config::Config;
use crate::error::{Definite, Error, ErrorCode, Exit, Remedy, Step};
use crate::postgres::backfills::access::refuse_unfinished;
use crate::postgres::bookmarks::{self, Bookmark, REPLICATION};
use crate::postgres::slot_functions;
use crate::postgres::slot_lock;
use crate::progress::Position;
use crate::terminal;
use crate::utc::Utc;

/// How long a running router may take to release the slot's lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// How often its walsender is terminated, and the slot is checked.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Goes back to a bookmark.
pub(super) async fn reset(config: &Arc<Config>, to: &str, how: &MoveArgs) -> Result<(), Error> {
    check_confirmable(how)?;
    let mut before = StoredPosition::load(config).await?;
    let slot = &config.postgres.slot;
    let slots = std::slice::from_ref(slot);
    refuse_unfinished(&mut before.session, slots, "they end where the slot begins").await?;
    if let Some(known) = before.slot() {
        known.check_database(slot)?;
    }
    let known = bookmarks::list(&mut before.session, slot).await?;
    let Some(bookmark) = bookmarks::find(&known, to, OffsetDateTime::now_utc()) else {
        return Err(nothing_to_go_back_to(to, &known));
    };
    let Some(position) = bookmark.position.filter(|_| !bookmark.is_lost()) else {
        let (cause, prevention) = bookmark.cause();
        return Err(Error::refused(
            ErrorCode::PositionUnusable,
            format!("the bookmark {} is lost: Postgres has invalidated it ({cause})", bookmark.title()),
            Remedy::steps([Step::new("Use another bookmark")])
                .or("To prevent this in future", [Step::new(prevention)]),
        ));
    };
    let back = Position { flush: position, partial: None };
    let now = before.position();
    if position > now.flush {
        return Err(Error::refused(
            ErrorCode::PositionUnusable,
            format!(
                "the bookmark {} is at {position}, ahead of the router, which is at {}",
                bookmark.title(),
                now.flush
            ),
            format!("To skip events, use `outbox-router slot advance --to {position}`"),
        ));
    }
    let shard = before.shard(config).await?;
    let tables = &before.catalog.tables;
    let counted = count::between(config, tables, shard, &bookmark.slot, back, now, how.json).await;
    let mut unknown = Vec::new();
    let count = count_or_reason(counted, now.flush, &mut unknown)?;
    let what = format!(
        "Back from {} to {position}, the bookmark {} created at {}: {}",
        now.flush,
        bookmark.title(),
        bookmark.made(),
        described(&count, "sent again", &unknown)
    );
    let title = bookmark.title();
    let mut moved = Move::new(slot, now.flush, position, &count, unknown);
    moved.bookmark = Some(&title);
    if !confirmed(&what, how, &moved)? {
        before.close().await;
        return Ok(());
    }

    before.open(config).await?;
    let mut locked = lock(config).await?;
    before.read_again().await?;
    let until = before.position();
    bookmarks::restore(&mut locked, &bookmark.slot, slot, before.slot().is_some())
        .await
        .map_err(half_done)?;
    let failover = before.allow_failover(slot).await;
    let mark = Utc(PgTimestamp::now().unix_micros()).to_string();
    let until = match before.checkpoint.as_ref().and_then(|known| known.replay.clone()) {
        // an earlier replay is still under way
        Some(replay) if !replay.is_over(until) => replay.until,
        _ => until,
    };
    // the events were written under the old publication, so the resume check compares with that
    let definition = before.checkpoint.as_ref().map(|known| known.definition.clone());
    let replay = Some(Replay { mark: mark.clone(), until });
    before.write(config, back, replay, definition).await.map_err(half_done)?;
    let header = if before.topic.is_some() {
        format!(" Events that are sent again carry the header outbox-router-replay: {mark}.")
    } else {
        " Events that are sent again do not carry a replay header, because `[delivery] positions_topic` is false.".to_owned()
    };
    let replay_header = before.topic.is_some().then_some(mark);
    before.close().await;
    if how.json {
        if !failover.is_empty() {
            tracing::warn!("{}", failover.trim_start());
        }
        return terminal::print_json(&Move { moved: true, replay_header, ..moved });
    }
    terminal::print(&format!(
        "The router resumes at {position}; a running router does so without a restart.{header}{failover}\n"
    ))
}

/// Skips events.
pub(super) async fn advance(config: &Arc<Config>, to: Lsn, how: &MoveArgs) -> Result<(), Error> {
    check_confirmable(how)?;
    let mut before = StoredPosition::load(config).await?;
    let slot = &config.postgres.slot;
    let slots = std::slice::from_ref(slot);
    refuse_unfinished(&mut before.session, slots, "they end where the slot begins").await?;
    before.catalog.check_slot(config.source())?;
    let (now, ahead) = (before.position(), Position { flush: to, partial: None });
    let flush = before.system.flush;
    if to > flush {
        return Err(Error::refused(
            ErrorCode::PositionUnusable,
            format!("{to} is beyond the end of the server's log, {flush}"),
            "Use a position from a message of the router or from pg_current_wal_flush_lsn()",
        ));
    }
    if to <= now.flush {
        return Err(Error::refused(
            ErrorCode::PositionUnusable,
            format!("the router is already past {to}, at {}", now.flush),
            "There is nothing to skip. To go back to a bookmark, use `outbox-router slot reset`",
        ));
    }
    let confirmed_lsn = before.slot().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default();
    // changes before the slot's confirmed position can no longer be read
    let readable =
        if confirmed_lsn > now.flush { Position { flush: confirmed_lsn, partial: None } } else { now };
    let mut unknown = Vec::new();
    if readable != now {
        unknown.push(format!(
            "the events committed between {} and {confirmed_lsn}, which the slot is already past",
            now.flush
        ));
    }
    let counted = match before.shard(config).await {
        Ok(shard) if readable.flush < to => {
            count::between(config, &before.catalog.tables, shard, slot, readable, ahead, how.json).await
        }
        Ok(_) => Ok(Count::default()),
        Err(error) => Err(error),
    };
    let count = count_or_reason(counted, to, &mut unknown)?;
    let what = format!("Ahead from {} to {to}: {}", now.flush, described(&count, "never sent", &unknown));
    let moved = Move::new(slot, now.flush, to, &count, unknown);
    if !confirmed(&what, how, &moved)? {
        before.close().await;
        return Ok(());
    }
    before.open(config).await?;
    let mut locked = lock(config).await?;
    before.read_again().await?;
    if before.position().flush > to {
        return Err(Error::refused(
            ErrorCode::PositionUnusable,
            format!("the router has passed {to} in the meantime, and is at {}", before.position().flush),
            "There is nothing left to skip",
        ));
    }
    // events that are still to be sent again keep their mark
    let replay =
        before.checkpoint.as_ref().and_then(|known| known.replay_at(ahead, slot, &before.system.identifier));
    // the checkpoint gets the present definition, so an altered publication is accepted
    before.write(config, ahead, replay, None).await?;
    if confirmed_lsn < to {
        let sql = slot_functions::advance(slot, to);
        // the server reads all log up to there
        locked.set_answer_timeout(None);
        locked.query(&sql).await.map_err(|error| half_done(error.or_remedy(REPLICATION)))?;
    }
    locked.close().await;
    before.close().await;
    if how.json {
        return terminal::print_json(&Move { moved: true, ..moved });
    }
    terminal::print(&format!("The router resumes at {to}; a running router does so without a restart.\n"))
}

/// The error if `--to` names no bookmark, and no bookmark was created by that time.
fn nothing_to_go_back_to(to: &str, known: &[Bookmark]) -> Error {
    let missing = no_bookmark(to, known);
    // a bookmark's name has only letters, digits and underscores
    if !to.contains([':', '-']) {
        return missing;
    }
    let now = OffsetDateTime::now_utc();
    let what = match bookmarks::parse_time(to, now) {
        Some(time) if bookmarks::is_in_future(time, now) => format!("{to} (UTC) is in the future"),
        Some(time) => format!("no bookmark that was created by {} can be used", Utc::from(time)),
        None => {
            format!("{to} is neither a time, such as 14:05 or 2026-11-21T14:05, nor the name of a bookmark")
        }
    };
    match missing {
        Error::Definite(definite) => Error::refused(definite.code, what, definite.remedy),
        other => other,
    }
}

/// The count, or none if the server cannot decode the log up to `to`: then the reason becomes part of `unknown`. A position may be
/// moved because of that, so it is no obstacle.
fn count_or_reason(
    counted: Result<Count, Error>,
    to: Lsn,
    unknown: &mut Vec<String>,
) -> Result<Count, Error> {
    match counted {
        Err(Error::Definite(unreadable)) => {
            unknown.push(format!("the events up to {to}, because {}", unreadable.what));
            Ok(Count::default())
        }
        counted => counted,
    }
}

/// What happens to which events, as sentences.
fn described(count: &Count, what: &str, unknown: &[String]) -> String {
    match unknown {
        [] => format!("{count}.{}", count.if_any(what)),
        _ if count.events == 0 => format!("some may be {what}. Not counted: {}.", unknown.join("; ")),
        _ => format!("{count}.{} Not counted: {}.", count.if_any(what), unknown.join("; ")),
    }
}

/// A move, as `--json` prints it.
#[derive(Serialize)]
struct Move<'a> {
    slot: &'a str,
    /// Null if the position skips events.
    bookmark: Option<&'a str>,
    from: String,
    to: String,
    #[serde(flatten)]
    count: Counted,
    /// What could not be counted, as clauses.
    not_counted: Vec<String>,
    /// False with `--dry-run`.
    moved: bool,
    /// The value of the header of events that are sent again.
    replay_header: Option<String>,
}

impl<'a> Move<'a> {
    fn new(slot: &'a str, from: Lsn, to: Lsn, count: &Count, not_counted: Vec<String>) -> Self {
        let (from, to, count) = (from.to_string(), to.to_string(), Counted::from(count));
        Move { slot, bookmark: None, from, to, count, not_counted, moved: false, replay_header: None }
    }
}

/// Refuses to ask beside JSON, before the log is read.
fn check_confirmable(how: &MoveArgs) -> Result<(), Error> {
    if how.json && !how.yes && !how.dry_run {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "Cannot ask for confirmation with --json",
            "Add --yes to proceed without confirmation, or --dry-run to see what the command would do",
        ));
    }
    Ok(())
}

/// Prints the effect, and returns whether to go on.
fn confirmed(what: &str, how: &MoveArgs, moved: &Move<'_>) -> Result<bool, Error> {
    if how.json && how.dry_run {
        terminal::print_json(moved)?;
    } else if !how.json {
        terminal::print(&format!("{what}\n"))?;
    }
    if how.dry_run {
        return Ok(false);
    }
    if how.yes {
        return Ok(true);
    }
    confirm_by_count("", moved.count.events)
}

/// Takes the slot's lock in a new session. A running router releases it when its walsender is terminated, and then waits for
/// it.
async fn lock(config: &Config) -> Result<Session, Error> {
    let slot = &config.postgres.slot;
    let (mut session, mut other) = (super::session(config).await?, super::session(config).await?);
    // the answer comes when the lock is free
    session.set_answer_timeout(None);
    let asked = async {
        loop {
            if let Some(pid) = slot_lock::holder(&mut other, slot).await? {
                // pg_stat_replication lists only walsenders, so a command that holds the lock is not terminated. It also lists
                // walsenders of other roles, which the server may refuse to terminate.
                let sql = format!(
                    "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_replication WHERE pid = {pid}"
                );
                other.query(&sql).await.map_err(|error| {
                    error.or_remedy("Connect as the role that the router runs as, or stop the router")
                })?;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    };
    let taken = async {
        tokio::select! {
            // the lock is requested first, so that nobody gets it in between
            biased;
            taken = slot_lock::take(&mut session, slot) => taken.map_err(Error::from),
            failed = asked => failed,
        }
    };
    match tokio::time::timeout(LOCK_TIMEOUT, taken).await {
        Ok(taken) => taken?,
        Err(_) => {
            let holder = slot_lock::named_holder(&mut other, slot).await?;
            let holder = holder.map_or_else(|| "another session".to_owned(), |(_, holder)| holder);
            return Err(Error::refused(
                ErrorCode::PositionUnusable,
                format!("{holder} does not release the lock of the slot {slot}"),
                "If it is another `slot` command, wait until it ends, or stop it",
            ));
        }
    }
    session.set_answer_timeout(Some(ANSWER_TIMEOUT));
    other.close().await;
    wait_until_inactive(config, &mut session).await?;
    Ok(session)
}

/// Waits until the slot is inactive, because a terminated walsender takes a moment to end.
async fn wait_until_inactive(config: &Config, session: &mut Session) -> Result<(), Error> {
    let slot = &config.postgres.slot;
    let sql = format!(
        "SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = {} AND active",
        literal(slot)
    );
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while let Some(pid) = session.query_one(&sql).await? {
        if tokio::time::Instant::now() >= deadline {
            let holder = match pid.parse() {
                Ok(pid) => crate::postgres::catalog::holder(session, pid).await?,
                Err(_) => format!("server process {pid}"),
            };
            return Err(Error::refused(
                ErrorCode::PositionUnusable,
                format!("{holder} reads the slot {slot}, and is not a router"),
                "Stop it, and run the command again",
            ));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    Ok(())
}

/// The error of a move that was interrupted after its first step.
fn half_done(error: Error) -> Error {
    match error {
        Error::Transient(transient) => Error::transient(
            transient.peer,
            format!(
                "the move is half done, and nothing is lost; run the same command again: {}",
                transient.what
            ),
        ),
        Error::Definite(definite) => Definite {
            exit: Exit::Refused,
            what: format!("the move is half done, and nothing is lost: {}", definite.what),
            remedy: definite.remedy.then(Step::new("Run the same command again")),
            ..definite
        }
        .into(),
    }
}
