//! `slot reset` and `slot advance`: show the effect, ask for confirmation, and move.
//!
//! An interruption must not leave the slot ahead of the stored position. So a reset first moves the slot back, in one message
//! to the server, and an advance first moves the stored position forward. After either step alone the router continues where
//! it was.

use std::sync::Arc;
use std::time::Duration;

use pg_logical::quoting::literal;
use pg_logical::session::Session;
use pg_logical::{Lsn, PgTimestamp};
use time::OffsetDateTime;

use super::count::{self, Count};
use super::no_bookmark;
use crate::advice::OrRemedy;
use crate::checkpoint::Replay;
use crate::cli::slot::MoveArgs;
use crate::commands::stored_position::Kept;
use crate::commands::{ANSWER_TIMEOUT, typed_out};
use crate::config::Config;
use crate::error::Error;
use crate::postgres::bookmarks::{self, REPLICATION};
use crate::postgres::slot_functions;
use crate::postgres::slot_lock;
use crate::progress::Position;
use crate::terminal;
use crate::utc::Utc;

/// How long a running router may take to let go of the slot.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is asked to let go.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Goes back to a bookmark.
pub(super) async fn reset(config: &Arc<Config>, to: &str, how: &MoveArgs) -> Result<(), Error> {
    let mut before = Kept::look(config).await?;
    let slot = &config.postgres.slot;
    let known = bookmarks::list(&mut before.session, slot).await?;
    let Some(bookmark) = bookmarks::find(&known, to, OffsetDateTime::now_utc()) else {
        return Err(no_bookmark(to, &known));
    };
    let Some(position) = bookmark.position.filter(|_| !bookmark.is_lost()) else {
        return Err(Error::refused(
            format!(
                "the bookmark {} is lost: Postgres has thrown away the log that it kept",
                bookmark.title()
            ),
            "Take a later one; max_slot_wal_keep_size says how far a slot may fall behind",
        ));
    };
    let back = Position { flush: position, partial: None };
    let now = before.position();
    if position > now.flush {
        return Err(Error::refused(
            format!(
                "the bookmark {} is at {position}, and the router at {}, before it",
                bookmark.title(),
                now.flush
            ),
            format!("Use `outbox-router slot advance --to {position}` to leave events out"),
        ));
    }
    let shard = before.shard(config).await?;
    let count = count::between(config, shard, &bookmark.slot, back, now).await?;
    let what = format!(
        "Back from {} to {position}, the bookmark {} made at {}: {count}.{}",
        now.flush,
        bookmark.title(),
        bookmark.made(),
        count.then("They are sent again")
    );
    if !confirmed(&what, how, &count)? {
        before.close().await;
        return Ok(());
    }

    before.open(config).await?;
    let mut locked = lock(config).await?;
    before.read().await?;
    let until = before.position();
    bookmarks::restore(&mut locked, &bookmark.slot, slot, before.slot().is_some()).await.map_err(again)?;
    let failover = before.allow_failover(slot).await;
    let mark = Utc(PgTimestamp::now().unix_micros()).to_string();
    let until = match before.remembered.as_ref().and_then(|known| known.replay.clone()) {
        // an earlier replay is still under way
        Some(replay) if !replay.is_over(until) => replay.until,
        _ => until,
    };
    // the router judges what it reads again as it did before
    let definition = before.remembered.as_ref().map(|known| known.definition.clone());
    let replay = Some(Replay { mark: mark.clone(), until });
    before.write(config, back, replay, definition).await.map_err(again)?;
    let header = if before.topic.is_some() {
        format!(" What is sent again bears the header outbox-router-replay: {mark}.")
    } else {
        " What is sent again bears no mark, for `[delivery] positions_topic` is switched off.".to_owned()
    };
    before.close().await;
    terminal::print(&format!(
        "The router goes on at {position}; one that runs does so by itself.{header}{failover}\n"
    ))
}

/// Skips events.
pub(super) async fn advance(config: &Arc<Config>, to: Lsn, how: &MoveArgs) -> Result<(), Error> {
    let mut before = Kept::look(config).await?;
    let slot = &config.postgres.slot;
    before.catalog.check_slot(config.source())?;
    let (now, ahead) = (before.position(), Position { flush: to, partial: None });
    let flush = before.system.flush;
    if to > flush {
        return Err(Error::refused(
            format!("{to} is beyond the end of the server's log, {flush}"),
            "Take a position of the log, as a message of the router or pg_current_wal_flush_lsn() gives it",
        ));
    }
    if to <= now.flush {
        return Err(Error::refused(
            format!("the router is past {to} already, at {}", now.flush),
            "There is nothing to leave out. To go back, `outbox-router slot reset` takes a bookmark",
        ));
    }
    let confirmed_lsn = before.slot().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default();
    // what lies before the slot's own position can no longer be read
    let readable =
        if confirmed_lsn > now.flush { Position { flush: confirmed_lsn, partial: None } } else { now };
    let mut unknown = Vec::new();
    if readable != now {
        unknown.push(format!(
            "what was committed between {} and {confirmed_lsn}: the slot is past it",
            now.flush
        ));
    }
    let counted = match before.shard(config).await {
        Ok(shard) if readable.flush < to => count::between(config, shard, slot, readable, ahead).await,
        Ok(_) => Ok(Count::default()),
        Err(error) => Err(error),
    };
    let count = match counted {
        Ok(count) => count,
        // advancing is also the way past log that the server cannot decode
        Err(Error::Definite(unreadable)) => {
            unknown.push(format!("the stretch up to {to}: {}", unreadable.what));
            Count::default()
        }
        Err(error) => return Err(error),
    };
    let unknown = if unknown.is_empty() {
        String::new()
    } else {
        format!(" Not counted is {}.", unknown.join("; and "))
    };
    let what =
        format!("Ahead from {} to {to}: {count}.{}{unknown}", now.flush, count.then("They are never sent"));
    if !confirmed(&what, how, &count)? {
        before.close().await;
        return Ok(());
    }
    before.open(config).await?;
    let mut locked = lock(config).await?;
    before.read().await?;
    if before.position().flush > to {
        return Err(Error::refused(
            format!("the router has gone past {to} meanwhile, to {}", before.position().flush),
            "There is nothing to leave out any more",
        ));
    }
    // events that are still to be sent again keep their mark
    let replay =
        before.remembered.as_ref().and_then(|known| known.replay_at(ahead, slot, &before.system.identifier));
    // an altered publication is left behind as well
    before.write(config, ahead, replay, None).await?;
    if confirmed_lsn < to {
        let sql = slot_functions::advance(slot, to);
        // the server reads all log up to there
        locked.set_answer_timeout(None);
        locked.query(&sql).await.map_err(|error| again(error.or_remedy(REPLICATION)))?;
    }
    locked.close().await;
    before.close().await;
    terminal::print(&format!("The router goes on at {to}; one that runs does so by itself.\n"))
}

/// Prints the effect, and returns whether to go on.
fn confirmed(what: &str, how: &MoveArgs, count: &Count) -> Result<bool, Error> {
    terminal::print(&format!("{what}\n"))?;
    if how.dry_run {
        return Ok(false);
    }
    if how.yes {
        return Ok(true);
    }
    typed_out("", count.events)
}

/// Takes the lock of the slot in a new session. A running router lets go of it when its walsender is terminated, and then
/// waits for it.
async fn lock(config: &Config) -> Result<Session, Error> {
    let slot = &config.postgres.slot;
    let (mut session, mut other) = (super::session(config).await?, super::session(config).await?);
    // the answer comes when the lock is free
    session.set_answer_timeout(None);
    let asked = async {
        loop {
            if let Some(pid) = slot_lock::holder(&mut other, slot).await? {
                // Other commands that hold the lock are waited for. The view also shows walsenders of other roles, which the
                // server may refuse to terminate.
                let sql = format!(
                    "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_replication WHERE pid = {pid}"
                );
                other.query(&sql).await.map_err(|error| {
                    error.or_remedy("Connect as the role that the router runs as, or stop the router")
                })?;
            }
            tokio::time::sleep(ASK_AGAIN).await;
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
            let holder = holder.map_or_else(|| "another".to_owned(), |(_, holder)| holder);
            return Err(Error::refused(
                format!("the lock of the slot {slot} is not given up by {holder}"),
                "Look what it does; if it is another `slot` command, let it end or stop it",
            ));
        }
    }
    session.set_answer_timeout(Some(ANSWER_TIMEOUT));
    other.close().await;
    free(config, &mut session).await?;
    Ok(session)
}

/// Waits until nobody reads the slot, because a terminated walsender takes a moment to end.
async fn free(config: &Config, session: &mut Session) -> Result<(), Error> {
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
                format!("the slot {slot} is read by {holder}, which is no router"),
                "Stop it first",
            ));
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
    Ok(())
}

/// The error of a move that is half done.
fn again(error: Error) -> Error {
    match error {
        Error::Transient(transient) => Error::transient(
            transient.peer,
            format!(
                "half of it is done, and nothing is lost; run the same command again: {}",
                transient.what
            ),
        ),
        Error::Definite(definite) => Error::refused(
            format!("half of it is done, and nothing is lost: {}", definite.what),
            format!("{}, and run the same command again", definite.remedy),
        ),
    }
}
