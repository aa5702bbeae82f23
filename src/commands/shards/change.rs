//! `shards change`: picks one position of the log. The old slots deliver up to it, and the new ones from it.
//!
//! An interruption leaves one of two states, which the next run tells apart. Either no position is decided and the old slots
//! continue to deliver, or it is decided and the new shards have yet to begin there and the old slots to be dropped.

use std::sync::Arc;

use pg_logical::connect::Startup;
use pg_logical::session::Session;
use pg_logical::{Lsn, quoting};

use super::drain::{self, LET_GO};
use super::plan;
use crate::advice::OrRemedy;
use crate::checkpoint::{Checkpoint, Handover};
use crate::commands::connect;
use crate::commands::stored_position::Kept;
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::postgres::bookmarks;
use crate::postgres::catalog::{Catalog, FLUSH_LSN, Missing, check_shards};
use crate::postgres::dead_letters::sql as dead_letters;
use crate::postgres::slot_functions;
use crate::progress::Position;
use crate::quantity::counted;
use crate::sink::kafka::checkpoint_topic::look_up;
use crate::terminal;

pub(super) async fn change(config: &Config, from: u32, dry_run: bool) -> Result<(), Error> {
    let to = config.shards.count;
    if from == to {
        return Err(Error::usage(
            format!("--from {from} is the number of shards that the configuration says"),
            "Set `[shards] count` to the new number and run `outbox-router init`, then name the old one with --from",
        ));
    }
    let shards = |config: &Config| config.every_shard().into_iter().map(Arc::new).collect::<Vec<_>>();
    let (old, new) = (shards(&config.with_shards(from)), shards(&config.with_shards(to)));
    let mut session = connect(config, "shards", Startup::default()).await?;
    ready(&mut session, &new).await?;
    let left = existing(&mut session, &old).await?;
    let decided = match plan::read(config).await? {
        Some(Handover::Done(at)) if left.is_empty() => {
            let text = format!("The {} have begun at {at}; nothing is left to do.\n", counted(to, "shard"));
            return terminal::print(&text);
        }
        Some(Handover::Decided(at)) if left.is_empty() || any_has_begun(&new, at).await? => Some(at),
        // nothing was decided, or no new shard began: the old shards may have continued since
        _ if left.is_empty() => {
            return Err(Error::refused(
                format!("there is no slot of {}: {}", counted(from, "shard"), names(&old)),
                "Name the number that there was with --from; `outbox-router check` shows what slots there are",
            ));
        }
        _ if left.len() < old.len() => {
            return Err(Error::not_safe(
                format!("of the slots {} only these are there: {}", names(&old), names(&left)),
                "Nothing was handed over, so what the others held may be missing in Kafka: compare the outbox table with the topics, then \
                 drop the rest and the new slots, and run `outbox-router init`",
            ));
        }
        _ => None,
    };
    let change = format!("{} -> {}", counted(from, "shard"), counted(to, "shard"));
    terminal::print(&format!("{}: {change}\n", config.name))?;
    if dry_run {
        return preview(&mut session, &left, &new, decided).await;
    }
    let at = match decided {
        Some(at) => at,
        None => {
            let at = deliver(&mut session, &left).await?;
            // delivery may take long, and an idle session may have been closed meanwhile
            session = connect(config, "shards", Startup::default()).await?;
            at
        }
    };
    let locks = locked_at(&mut session, &left, at, decided.is_some()).await?;
    plan::write(config, at, false).await?;
    for shard in &new {
        begin_at(shard, at, left.first()).await?;
    }
    terminal::print(&format!("The new shards begin at {at}, before which everything is delivered.\n"))?;
    for shard in &left {
        let slot = &shard.postgres.slot;
        session
            .query(&slot_functions::drop(slot))
            .await
            .map_err(|error| error.or_remedy(bookmarks::REPLICATION))?;
        terminal::print(&format!("dropped the slot {slot}\n"))?;
    }
    drain::unlock(locks).await;
    plan::write(config, at, true).await?;
    let done = say_what_is_next(&mut session, &old, to).await;
    session.close().await;
    done
}

fn names(shards: &[Arc<Config>]) -> String {
    let names: Vec<&str> = shards.iter().map(|shard| shard.postgres.slot.as_str()).collect();
    names.join(", ")
}

/// Checks that everything `init` creates for the new number of shards exists.
async fn ready(session: &mut Session, new: &[Arc<Config>]) -> Result<(), Error> {
    let mut catalogs = Vec::new();
    for shard in new {
        let catalog = Catalog::query(session, &shard.postgres, &shard.outbox).await?;
        if catalog.slot.is_none() {
            return Err(Error::refused(
                format!("the slot {} does not exist yet", shard.postgres.slot),
                "Run `outbox-router init` with the new `[shards] count`",
            ));
        }
        catalog.check(shard.source(), Missing::AtStart)?;
        catalogs.push(catalog);
    }
    if let [_] = new {
        return Ok(());
    }
    let found: Vec<_> = new.iter().map(|shard| shard.source()).zip(&catalogs).collect();
    check_shards(session, &found, Missing::AtStart).await.map(drop)
}

async fn existing(session: &mut Session, old: &[Arc<Config>]) -> Result<Vec<Arc<Config>>, Error> {
    let mut existing = Vec::new();
    for shard in old {
        let catalog = Catalog::query(session, &shard.postgres, &shard.outbox).await?;
        if catalog.slot.is_some() {
            existing.push(Arc::clone(shard));
        }
    }
    Ok(existing)
}

/// Whether the position of a new shard was written.
async fn any_has_begun(new: &[Arc<Config>], at: Lsn) -> Result<bool, Error> {
    for shard in new {
        if look_up(shard, Some(at)).await?.is_some_and(|known| has_begun(shard, &known, at)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A position from an earlier time with this number of shards is before `at`.
fn has_begun(shard: &Config, known: &Checkpoint, at: Lsn) -> bool {
    known.slot == shard.postgres.slot && known.position.flush >= at
}

async fn preview(
    session: &mut Session,
    old: &[Arc<Config>],
    new: &[Arc<Config>],
    decided: Option<Lsn>,
) -> Result<(), Error> {
    let mut text = String::new();
    match decided {
        Some(at) => text += &format!("was decided by an earlier run: the new shards begin at {at}\n"),
        None => {
            let end = session.query_one(FLUSH_LSN).await?.unwrap_or_default();
            text += &format!("would deliver, up to the end of the log, now {end}, from\n");
            for shard in old {
                let position = drain::delivered(shard, session).await?.unwrap_or_default().flush;
                text +=
                    &format!("  {} (slot {}), delivered up to {position}\n", shard.name, shard.postgres.slot);
            }
            text += "would go on there with\n";
            for shard in new {
                text += &format!("  {} (slot {})\n", shard.name, shard.postgres.slot);
            }
        }
    }
    text += &format!("would drop the slots {}\n", names(old));
    terminal::print(&text)?;
    nothing_parked(session, old).await
}

/// Delivers what the old slots hold up to the end of the log, and returns that position.
async fn deliver(session: &mut Session, old: &[Arc<Config>]) -> Result<Lsn, Error> {
    nothing_parked(session, old).await?;
    // what running routers deliver meanwhile need not be delivered here
    drain::unlock(drain::lock(old, None).await?).await;
    // Where the next record of the log begins: a position within a record would end a shard behind the commit that it sends.
    // The statement gets a transaction id so that its commit is written and the log before it is flushed soon.
    let end = session
        .query("SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_xact_id()")
        .await?;
    let end = end.first().and_then(|row| row.get(0)?.parse().ok());
    let at: Lsn = end.ok_or_else(|| Error::transient(Peer::Postgres, "the end of the log cannot be read"))?;
    drain::deliver(old, at).await?;
    Ok(at)
}

/// Takes the locks of the old slots, if each has delivered exactly what lies before `at`. Once the change is `decided`, an
/// old shard's name may belong to a new shard.
async fn locked_at(
    session: &mut Session,
    old: &[Arc<Config>],
    at: Lsn,
    decided: bool,
) -> Result<Vec<Session>, Error> {
    // only sessions that were just closed may still hold them
    let locks = drain::lock(old, Some(LET_GO)).await?;
    for shard in old {
        let position = match drain::delivered(shard, session).await? {
            None if decided => continue,
            position => position.unwrap_or_default(),
        };
        if position == (Position { flush: at, partial: None }) {
            continue;
        }
        let what =
            format!("the router {} has delivered up to {}, and not up to {at}", shard.name, position.flush);
        if !decided {
            return Err(Error::refused(
                what,
                "One with the old number of shards has run meanwhile: stop it, and run this again; nothing was handed over",
            ));
        }
        return Err(Error::not_safe(
            what,
            format!(
                "An earlier run has handed over there, and a router with the old number of shards has run since: stop it. What it delivered \
                 since then comes a second time from the new shards once you go on: SELECT pg_drop_replication_slot('{}'), and run this \
                 again",
                shard.postgres.slot
            ),
        ));
    }
    // an event may have been parked in the meantime
    nothing_parked(session, old).await?;
    Ok(locks)
}

/// Writes the position before it moves the slot: a start in between finds the slot behind the position, as usual.
async fn begin_at(shard: &Arc<Config>, at: Lsn, old: Option<&Arc<Config>>) -> Result<(), Error> {
    let mut kept = Kept::look(shard).await?;
    let confirmed = kept.slot().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default();
    if kept.remembered.as_ref().is_some_and(|known| has_begun(shard, known, at)) {
        kept.close().await;
        return Ok(());
    }
    if confirmed > at {
        let Some(old) = old else {
            return Err(Error::not_safe(
                format!("the slot {} is at {confirmed} already, beyond {at}", shard.postgres.slot),
                "It was made again after the old slots were gone, so what was committed in between is in no slot: compare the outbox table \
                 with the topics, and go on with `outbox-router slot advance`",
            ));
        };
        // the slot was created later than `at`; an old one still has the log in between
        let slot = &shard.postgres.slot;
        let statements = [slot_functions::drop(slot), slot_functions::copy(&old.postgres.slot, slot, false)];
        for sql in statements {
            kept.session.query(&sql).await.map_err(|error| error.or_remedy(bookmarks::REPLICATION))?;
        }
        let told = kept.allow_failover(slot).await;
        if !told.is_empty() {
            terminal::print(&format!("{}\n", told.trim_start()))?;
        }
    }
    kept.open(shard).await?;
    kept.read().await?;
    kept.write(shard, Position { flush: at, partial: None }, None, None).await?;
    if confirmed != at {
        // the server reads all log up to there
        kept.session.set_answer_timeout(None);
        let sql = slot_functions::advance(&shard.postgres.slot, at);
        kept.session.query(&sql).await.map_err(|error| error.or_remedy(bookmarks::REPLICATION))?;
    }
    kept.close().await;
    Ok(())
}

/// Refuses while events are parked: they belong to an old shard, and later events of their aggregates could go to another.
async fn nothing_parked(session: &mut Session, old: &[Arc<Config>]) -> Result<(), Error> {
    if session.query_one(dead_letters::READABLE).await?.as_deref() != Some("t") {
        return Ok(());
    }
    for shard in old {
        let count = session.query_one(&dead_letters::count(&shard.name, "true")).await?.unwrap_or_default();
        if count != "0" {
            return Err(Error::not_safe(
                format!(
                    "events of {} are parked ({count}), and later ones of their aggregates would be sent past them",
                    shard.name
                ),
                "Start the routers with the old number of shards, decide what becomes of these events (outbox-router dead-letters \
                 list), and run this again when none is left",
            ));
        }
    }
    Ok(())
}

async fn say_what_is_next(session: &mut Session, old: &[Arc<Config>], to: u32) -> Result<(), Error> {
    let publications: Vec<String> =
        old.iter().map(|shard| quoting::name(&shard.postgres.publication)).collect();
    let mut text = format!(
        "\nNext:\n  start the routers with `[shards] count = {to}`\n  DROP PUBLICATION IF EXISTS {};\n",
        publications.join(", ")
    );
    for shard in old {
        for bookmark in bookmarks::list(session, &shard.postgres.slot).await? {
            text += &format!(
                "  {};   a bookmark of the old slot, which keeps log\n",
                slot_functions::drop(&bookmark.slot)
            );
        }
    }
    terminal::print(&text)
}
