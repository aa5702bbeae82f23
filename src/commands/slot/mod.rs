//! `slot`: shows and moves the position, and manages bookmarks.

mod count;
mod list;
mod moving;

use std::sync::Arc;

use pg_logical::connect::Startup;
use pg_logical::session::Session;
use serde::Serialize;

use crate::cli::slot::{SlotArgs, SlotCommand};
use crate::commands::{chosen_shards, confirm_by_typing, connect, heading};
use crate::config::Config;
use crate::error::{Error, ErrorCode, with_config_file};
use crate::postgres::bookmarks::{self, Bookmark};
use crate::postgres::catalog::Catalog;
use crate::quantity::bytes;
use crate::terminal;

/// Runs the subcommand.
///
/// # Errors
/// A server refuses or cannot be reached, or the request is impossible.
pub async fn slot(config: &Config, args: &SlotArgs) -> Result<(), Error> {
    let shards = chosen_shards(config, &args.shards)?;
    if shards.len() > 1 && matches!(args.command, SlotCommand::Advance { .. }) {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "`slot advance` applies to one shard, because the other shards would skip events too",
            "Add --shard with the number of the shard that the position is for",
        ));
    }
    for shard in shards {
        // the JSON output names the slot itself
        if !args.command.json() {
            heading(&shard)?;
        }
        of_one(Arc::new(shard), args).await?;
    }
    Ok(())
}

async fn of_one(config: Arc<Config>, args: &SlotArgs) -> Result<(), Error> {
    match &args.command {
        SlotCommand::List { json } => list::list(&config, *json).await,
        SlotCommand::Bookmark { name, json } => bookmark(&config, name, *json).await,
        SlotCommand::Drop { name, yes, json } => drop_bookmark(&config, name, !yes, *json).await,
        SlotCommand::Reset { to, how } => moving::reset(&config, to, how).await,
        SlotCommand::Advance { to, how } => moving::advance(&config, *to, how).await,
    }
}

/// An ordinary session, named after this command.
async fn session(config: &Config) -> Result<Session, Error> {
    connect(config, "slot", Startup::default()).await
}

/// A bookmark that was created or dropped, as `--json` prints it.
#[derive(Serialize)]
struct Changed<'a> {
    slot: &'a str,
    bookmark: &'a str,
    bookmark_slot: &'a str,
    /// Null if it is lost.
    position: Option<String>,
}

async fn bookmark(config: &Config, name: &str, json: bool) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "A bookmark needs a name",
            "Use lower-case letters, digits and underscores",
        ));
    }
    let mut session = session(config).await?;
    Catalog::query_slot(&mut session, &config.postgres, &config.outbox).await?.check_slot(config.source())?;
    let known = bookmarks::list(&mut session, &config.postgres.slot).await?;
    if let Some(known) = known.iter().find(|known| known.name == name) {
        return Err(Error::refused(
            ErrorCode::PositionUnusable,
            format!("the bookmark {name} already exists, created at {}", known.made()),
            format!("Use another name, or drop it first: outbox-router slot drop {name}"),
        ));
    }
    let slot = bookmarks::make(&mut session, &config.postgres.slot, name).await?;
    let made = bookmarks::list(&mut session, &config.postgres.slot).await?;
    let made = made.into_iter().find(|bookmark| bookmark.slot == slot);
    let position = made.as_ref().and_then(|made| made.position).unwrap_or_default();
    session.close().await;
    if json {
        let position = Some(position.to_string());
        let changed = Changed { slot: &config.postgres.slot, bookmark: name, bookmark_slot: &slot, position };
        return terminal::print_json(&changed);
    }
    let drop = with_config_file(format!("outbox-router slot drop {name}"));
    terminal::print(&format!(
        "bookmark {name} created at {position}. It is the slot {slot}, for which Postgres retains the log from there on. To drop it: \
         {drop}\n"
    ))
}

async fn drop_bookmark(config: &Config, name: &str, asks: bool, json: bool) -> Result<(), Error> {
    let mut session = session(config).await?;
    let known = bookmarks::list(&mut session, &config.postgres.slot).await?;
    let found = known.iter().find(|known| known.title() == name || known.slot == name);
    let Some(found) = found else { return Err(no_bookmark(name, &known)) };
    let title = found.title();
    let consequence = format!(
        "After this nobody can go back to {title}, for which Postgres retains {} of log. ",
        bytes(found.retained_bytes)
    );
    if asks && !confirm_by_typing(&consequence, "the name of the bookmark", &title)? {
        return Ok(());
    }
    bookmarks::drop_slot(&mut session, &found.slot).await?;
    session.close().await;
    if json {
        let position = found.position.map(|position| position.to_string());
        let (slot, bookmark_slot) = (&config.postgres.slot, &found.slot);
        return terminal::print_json(&Changed { slot, bookmark: &title, bookmark_slot, position });
    }
    terminal::print(&format!(
        "bookmark {} dropped; it retained {} of log\n",
        title,
        bytes(found.retained_bytes)
    ))
}

fn no_bookmark(name: &str, known: &[Bookmark]) -> Error {
    let titles: Vec<String> = known.iter().map(Bookmark::title).collect();
    let remedy = if titles.is_empty() {
        "There are no bookmarks: `outbox-router slot bookmark NAME` creates one for the next time, and with `[bookmarks] every` the \
         router creates them"
            .to_owned()
    } else {
        format!("Use one of these: {}", titles.join(", "))
    };
    Error::refused(ErrorCode::BookmarkUnknown, format!("the bookmark {name} does not exist"), remedy)
}
