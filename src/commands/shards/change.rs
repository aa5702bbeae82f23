//! `shards change`: picks one position of the log. The old slots deliver up to it, and the new ones from it.
//!
//! After an interruption the next run finds one of two states. Either no position is recorded, and the old slots deliver on.
//! Or the position is recorded, and the run starts the remaining new shards there and drops the old slots.

use std::sync::Arc;

use pg_logical::connect::Startup;
use pg_logical::session::Session;
use pg_logical::{Lsn, quoting};
use serde::Serialize;

use super::drain::{self, SESSION_END_TIMEOUT};
use super::plan;
use crate::advice::OrRemedy;
use crate::checkpoint::{Checkpoint, Handover};
use crate::commands::stored_position::StoredPosition;
use crate::commands::{connect, log_end};
use crate::config::Config;
use crate::error::{Effect, Error, ErrorCode, Remedy, Step};
use crate::postgres::backfills::access::refuse_unfinished;
use crate::postgres::bookmarks;
use crate::postgres::catalog::{Catalog, FLUSH_LSN, Missing, check_shards};
use crate::postgres::dead_letters::sql as dead_letters;
use crate::postgres::slot_functions;
use crate::progress::Position;
use crate::quantity::counted;
use crate::sink::kafka::checkpoint_topic::look_up;
use crate::terminal;

/// The change, as `--json` prints it.
#[derive(Serialize)]
struct Report<'a> {
    from: u32,
    to: u32,
    /// Whether it was complete before.
    complete: bool,
    dry_run: bool,
    /// The position at which the new shards begin; null if it is not known yet.
    at: Option<String>,
    old_slots: Vec<OldSlot<'a>>,
    new_slots: Vec<&'a str>,
}

#[derive(Serialize)]
struct OldSlot<'a> {
    slot: &'a str,
    /// Its position before the change; null if it belongs to a new shard.
    delivered: Option<String>,
}

impl<'a> Report<'a> {
    fn new(from: u32, to: u32, old: &'a [Arc<Config>], new: &'a [Arc<Config>]) -> Self {
        let slot = |shard: &'a Arc<Config>| shard.postgres.slot.as_str();
        let old_slots = old.iter().map(|shard| OldSlot { slot: slot(shard), delivered: None }).collect();
        let new_slots = new.iter().map(slot).collect();
        Report { from, to, complete: false, dry_run: false, at: None, old_slots, new_slots }
    }
}

pub(super) async fn change(config: &Config, from: u32, dry_run: bool, json: bool) -> Result<(), Error> {
    let to = config.shards.count;
    let say = |text: &str| if json { Ok(()) } else { terminal::print(text) };
    if from == to {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            format!("--from {from} equals `[shards] count`"),
            "Set `[shards] count` to the new number, run `outbox-router init`, and give the old number with --from",
        ));
    }
    let shards = |config: &Config| config.every_shard().into_iter().map(Arc::new).collect::<Vec<_>>();
    let (old, new) = (shards(&config.with_shards(from)), shards(&config.with_shards(to)));
    let mut only = drain::lock_command(config).await?;
    let mut session = connect(config, "shards", Startup::default()).await?;
    check_new_shards(&mut session, &new).await?;
    let slots: Vec<String> = old.iter().map(|shard| shard.postgres.slot.clone()).collect();
    refuse_unfinished(&mut session, &slots, "the new shards have none of them").await?;
    let left = with_slot(&mut session, &old).await?;
    let decided = match plan::read(config).await? {
        Some(Handover::Done(at)) if left.is_empty() => {
            let text =
                format!("The change to {} is already complete; it began at {at}.\n", counted(to, "shard"));
            say(&text)?;
            let report =
                Report { complete: true, at: Some(at.to_string()), ..Report::new(from, to, &[], &new) };
            return if json { terminal::print_json(&report) } else { Ok(()) };
        }
        Some(Handover::Decided(at)) if left.is_empty() || any_has_begun(&new, at).await? => Some(at),
        // no position is recorded, or no new shard has begun there: the old shards may have delivered more since
        _ if left.is_empty() => {
            return Err(Error::refused(
                ErrorCode::ShardChangeRefused,
                format!("no slot of {} exists: {}", counted(from, "shard"), names(&old)),
                "Give the previous number of shards with --from; `outbox-router check` shows the existing slots",
            ));
        }
        _ if left.len() < old.len() => {
            return Err(Error::not_safe(
                ErrorCode::ShardChangeRefused,
                format!("of the slots {} only these exist: {}", names(&old), names(&left)),
                "Nothing was handed over, so events of the other slots may be missing in Kafka: compare the outbox table with the topics, \
                 then drop the remaining old slots and the new slots, and run `outbox-router init`",
            )
            .meaning(Effect::Lost, "those of the slots that are gone"));
        }
        _ => None,
    };
    let change = format!("{} -> {}", counted(from, "shard"), counted(to, "shard"));
    say(&format!("{}: {change}\n", config.name))?;
    let mut report = Report { dry_run, ..Report::new(from, to, &left, &new) };
    // only where it is shown: it takes a consumer for each shard, and the user waits to be told which routers to stop
    if dry_run || json {
        for (shard, old) in left.iter().zip(&mut report.old_slots) {
            old.delivered =
                drain::delivered(shard, &mut session).await?.map(|position| position.flush.to_string());
        }
    }
    if dry_run {
        report.at = decided.map(|at| at.to_string());
        say(&preview(&mut session, &left, &report, &new, decided).await?)?;
        check_nothing_parked(&mut session, &left).await?;
        return if json { terminal::print_json(&report) } else { Ok(()) };
    }
    let at = match decided {
        Some(at) => at,
        None => {
            let at = deliver(&mut session, &left, json).await?;
            // the lock is lost if the server has ended its session
            only.query("SELECT").await?;
            // the server may have ended the session, which was idle during the delivery
            session = connect(config, "shards", Startup::default()).await?;
            at
        }
    };
    let locks = lock_old_shards(&mut session, &left, at, decided.is_some()).await?;
    plan::write(config, at, false).await?;
    for shard in &new {
        begin_at(shard, at, left.first()).await?;
    }
    say(&format!("The new shards begin at {at}; all earlier events are delivered.\n"))?;
    for shard in &left {
        let slot = &shard.postgres.slot;
        session
            .query(&slot_functions::drop(slot))
            .await
            .map_err(|error| error.or_remedy(bookmarks::REPLICATION))?;
        say(&format!("dropped the slot {slot}\n"))?;
    }
    drain::unlock(locks).await;
    plan::write(config, at, true).await?;
    let next = next_steps(&mut session, &old, to).await;
    session.close().await;
    only.close().await;
    if json {
        report.at = Some(at.to_string());
        return terminal::print_json(&report);
    }
    terminal::print(&next?)
}

fn names(shards: &[Arc<Config>]) -> String {
    let names: Vec<&str> = shards.iter().map(|shard| shard.postgres.slot.as_str()).collect();
    names.join(", ")
}

/// Checks that everything `init` creates for the new number of shards exists.
async fn check_new_shards(session: &mut Session, new: &[Arc<Config>]) -> Result<(), Error> {
    let mut catalogs = Vec::new();
    for shard in new {
        let catalog = Catalog::query(session, &shard.postgres, &shard.outbox).await?;
        if catalog.slot.is_none() {
            return Err(Error::refused(
                ErrorCode::ShardChangeRefused,
                format!("the slot {} does not exist yet", shard.postgres.slot),
                Remedy::steps([Step::new("Set the new `[shards] count`, and create the slots")
                    .typing("outbox-router init")]),
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

/// The shards of `old` whose slots exist.
async fn with_slot(session: &mut Session, old: &[Arc<Config>]) -> Result<Vec<Arc<Config>>, Error> {
    let mut existing = Vec::new();
    for shard in old {
        let catalog = Catalog::query(session, &shard.postgres, &shard.outbox).await?;
        if catalog.slot.is_some() {
            existing.push(Arc::clone(shard));
        }
    }
    Ok(existing)
}

/// Whether a new shard has a checkpoint at `at` or later.
async fn any_has_begun(new: &[Arc<Config>], at: Lsn) -> Result<bool, Error> {
    for shard in new {
        if look_up(shard, Some(at)).await?.is_some_and(|known| has_begun(shard, &known, at)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the checkpoint belongs to this change: one from an earlier time with this number of shards is before `at`.
fn has_begun(shard: &Config, known: &Checkpoint, at: Lsn) -> bool {
    known.slot == shard.postgres.slot && known.position.flush >= at
}

async fn preview(
    session: &mut Session,
    old: &[Arc<Config>],
    report: &Report<'_>,
    new: &[Arc<Config>],
    decided: Option<Lsn>,
) -> Result<String, Error> {
    let mut text = String::new();
    match decided {
        Some(at) => text += &format!("an earlier run has recorded that the new shards begin at {at}\n"),
        None => {
            let end = session.query_one(FLUSH_LSN).await?.unwrap_or_default();
            text += &format!("would deliver all events up to the end of the log, now {end}, from\n");
            for (shard, OldSlot { slot, delivered }) in old.iter().zip(&report.old_slots) {
                let position = delivered.as_deref().unwrap_or("0/0");
                text += &format!("  {} (slot {slot}), delivered up to {position}\n", shard.name);
            }
            text += "would continue there with\n";
            for shard in new {
                text += &format!("  {} (slot {})\n", shard.name, shard.postgres.slot);
            }
        }
    }
    text += &format!("would drop the slots {}\n", names(old));
    Ok(text)
}

/// Delivers the events of the old slots up to the end of the log, and returns that position.
async fn deliver(session: &mut Session, old: &[Arc<Config>], quiet: bool) -> Result<Lsn, Error> {
    check_nothing_parked(session, old).await?;
    // wait for running routers to stop, because they deliver until then
    drain::unlock(drain::lock(old, None).await?).await;
    let at = log_end(session).await?;
    drain::deliver(old, at, quiet).await?;
    Ok(at)
}

/// Takes the locks of the old slots, and checks that each old shard has delivered exactly up to `at`. Once the change is
/// `decided`, the checkpoint of an old shard's name may belong to a new shard.
async fn lock_old_shards(
    session: &mut Session,
    old: &[Arc<Config>],
    at: Lsn,
    decided: bool,
) -> Result<Vec<Session>, Error> {
    // at most sessions that were just closed still hold them
    let locks = drain::lock(old, Some(SESSION_END_TIMEOUT)).await?;
    for shard in old {
        let position = match drain::delivered(shard, session).await? {
            None if decided => continue,
            position => position.unwrap_or_default(),
        };
        if position == (Position { flush: at, partial: None }) {
            continue;
        }
        let what =
            format!("the router {} has delivered up to {}, not up to {at}", shard.name, position.flush);
        if !decided {
            return Err(Error::refused(
                ErrorCode::ShardChangeRefused,
                what,
                "A router with the old number of shards has run in the meantime: stop it, and run this command again; nothing was handed over",
            ));
        }
        return Err(Error::not_safe(
            ErrorCode::ShardChangeRefused,
            what,
            Remedy::steps([
                Step::new(
                    "An earlier run handed over at that position, and a router with the old number of shards has run since: stop it",
                ),
                Step::new("Drop its slot, and run this command again")
                    .sql(slot_functions::drop(&shard.postgres.slot)),
            ]),
        )
        .meaning(Effect::Doubled, "the new shards send again what that router has delivered since"));
    }
    // an event may have been parked in the meantime
    check_nothing_parked(session, old).await?;
    Ok(locks)
}

/// Starts a new shard at `at`. The checkpoint is written before the slot is moved, because a router can start with a slot that
/// is behind its checkpoint.
async fn begin_at(shard: &Arc<Config>, at: Lsn, old: Option<&Arc<Config>>) -> Result<(), Error> {
    let mut stored = StoredPosition::load(shard).await?;
    let confirmed = stored.slot().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default();
    if stored.checkpoint.as_ref().is_some_and(|known| has_begun(shard, known, at)) {
        stored.close().await;
        return Ok(());
    }
    if confirmed > at {
        let Some(old) = old else {
            return Err(Error::not_safe(
                ErrorCode::ShardChangeRefused,
                format!("the slot {} is already at {confirmed}, past {at}", shard.postgres.slot),
                "It was recreated after the old slots were dropped, so no slot has the events committed in between: compare the outbox \
                 table with the topics, and continue with `outbox-router slot advance`",
            )
            .meaning(Effect::Lost, "those committed in between"));
        };
        // the slot was created after `at`, and an old slot still has the log in between
        let slot = &shard.postgres.slot;
        let statements = [slot_functions::drop(slot), slot_functions::copy(&old.postgres.slot, slot, false)];
        for sql in statements {
            stored.session.query(&sql).await.map_err(|error| error.or_remedy(bookmarks::REPLICATION))?;
        }
        let warning = stored.allow_failover(slot).await;
        if !warning.is_empty() {
            tracing::warn!("{}", warning.trim_start());
        }
    }
    stored.open(shard).await?;
    stored.read_again().await?;
    stored.write(shard, Position { flush: at, partial: None }, None, None).await?;
    if confirmed != at {
        // the server reads all log up to there
        stored.session.set_answer_timeout(None);
        let sql = slot_functions::advance(&shard.postgres.slot, at);
        stored.session.query(&sql).await.map_err(|error| error.or_remedy(bookmarks::REPLICATION))?;
    }
    stored.close().await;
    Ok(())
}

/// Refuses while events are parked: they belong to an old shard, and later events of their aggregates could go to another.
async fn check_nothing_parked(session: &mut Session, old: &[Arc<Config>]) -> Result<(), Error> {
    if session.query_one(dead_letters::READABLE).await?.as_deref() != Some("t") {
        return Ok(());
    }
    for shard in old {
        let count = session.query_one(&dead_letters::count(&shard.name, "true")).await?.unwrap_or_default();
        let count: u64 = count.parse().unwrap_or_default();
        if count > 0 {
            let parked = counted(count, "parked event");
            return Err(Error::not_safe(
                ErrorCode::ShardChangeRefused,
                format!(
                    "{} has {parked}, and later events of the same aggregates would be sent first",
                    shard.name
                ),
                "Start the routers with the old number of shards, retry or discard what is parked (outbox-router dead-letters list), and \
                 run this command again when nothing is left",
            ));
        }
    }
    Ok(())
}

async fn next_steps(session: &mut Session, old: &[Arc<Config>], to: u32) -> Result<String, Error> {
    let publications: Vec<String> =
        old.iter().map(|shard| quoting::identifier(&shard.postgres.publication)).collect();
    let mut text = format!(
        "\nNext:\n  start the routers with `[shards] count = {to}`\n  DROP PUBLICATION IF EXISTS {};\n",
        publications.join(", ")
    );
    for shard in old {
        for bookmark in bookmarks::list(session, &shard.postgres.slot).await? {
            text += &format!(
                "  {};   a bookmark of the old slot, which retains log\n",
                slot_functions::drop(&bookmark.slot)
            );
        }
    }
    Ok(text)
}
