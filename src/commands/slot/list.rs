//! `slot list`: the slot, its stored position, and its bookmarks.

use comfy_table::Cell;
use serde::Serialize;

use crate::commands::table::{TableStyle, align_right, bold, trimmed};
use crate::config::Config;
use crate::error::{Error, with_config_file};
use crate::postgres::bookmarks;
use crate::postgres::catalog::{Catalog, Slot};
use crate::quantity::bytes;
use crate::sink::kafka::checkpoint_topic;
use crate::terminal;

/// The members are keys of `slot list --json`.
#[derive(Debug, Serialize)]
struct Listed {
    slot: String,
    #[serde(skip)]
    being_created: bool,
    /// Null if there is no such slot.
    confirmed: Option<String>,
    wal_status: Option<String>,
    retained_bytes: Option<u64>,
    /// The position in the positions topic; null if it has none, or if it is switched off.
    remembered: Option<String>,
    /// Why the position is not known; null if it is known.
    not_known: Option<String>,
    bookmarks: Vec<ListedBookmark>,
}

#[derive(Debug, Serialize)]
struct ListedBookmark {
    name: String,
    made: String,
    slot: String,
    position: Option<String>,
    /// Why Postgres has invalidated it; null if the router can go back to it.
    lost: Option<String>,
    wal_status: String,
    retained_bytes: u64,
}

pub(super) async fn list(config: &Config, json: bool) -> Result<(), Error> {
    let listed = query(config).await?;
    if json {
        return terminal::print_json(&listed);
    }
    terminal::print(&render(&listed, &TableStyle::for_stdout()))
}

async fn query(config: &Config) -> Result<Listed, Error> {
    let mut session = super::session(config).await?;
    let catalog = Catalog::query_slot(&mut session, &config.postgres, &config.outbox).await?;
    let bookmarks = bookmarks::list(&mut session, &config.postgres.slot).await?;
    session.close().await;
    let slot = catalog.slot.as_ref();
    let confirmed = slot.and_then(|slot| slot.confirmed_flush_lsn);
    let remembered = checkpoint_topic::look_up(config, confirmed).await;
    Ok(Listed {
        slot: config.postgres.slot.clone(),
        being_created: slot.is_some_and(Slot::is_being_created),
        confirmed: confirmed.map(|lsn| lsn.to_string()),
        wal_status: slot.and_then(|slot| slot.wal_status.clone()),
        retained_bytes: slot.and_then(|slot| slot.retained_bytes),
        not_known: remembered.as_ref().err().map(ToString::to_string),
        remembered: remembered.ok().flatten().map(|remembered| remembered.position.flush.to_string()),
        bookmarks: bookmarks
            .into_iter()
            .map(|bookmark| ListedBookmark {
                name: bookmark.title(),
                made: bookmark.made(),
                lost: bookmark.is_lost().then(|| bookmark.cause().0.to_owned()),
                position: bookmark.position.map(|lsn| lsn.to_string()),
                slot: bookmark.slot,
                wal_status: bookmark.wal_status,
                retained_bytes: bookmark.retained_bytes,
            })
            .collect(),
    })
}

fn render(listed: &Listed, style: &TableStyle) -> String {
    let mut table = style.table();
    let unknown = || "unknown".to_owned();
    let mut row = |name: &str, value: String| {
        table.add_row([bold(name), Cell::new(value)]);
    };
    // without a slot both are missing
    match (&listed.confirmed, &listed.wal_status) {
        (None, None) => row("slot", format!("{} does not exist", listed.slot)),
        _ if listed.being_created => row("slot", format!("{} is still being created", listed.slot)),
        (confirmed, status) => row(
            "slot",
            format!(
                "{}, confirmed up to {}, {}, retains {}",
                listed.slot,
                confirmed.clone().unwrap_or_else(unknown),
                status.clone().unwrap_or_else(unknown),
                bytes(listed.retained_bytes.unwrap_or_default())
            ),
        ),
    }
    match (&listed.remembered, &listed.not_known) {
        (Some(position), _) => row("checkpoint", position.clone()),
        (None, Some(why)) => row("checkpoint", format!("unknown: {why}")),
        (None, None) => row("checkpoint", "none".to_owned()),
    }
    let mut text = trimmed(&table);
    if listed.bookmarks.is_empty() {
        return text + &with_config_file("\nNo bookmarks. `outbox-router slot bookmark NAME` creates one.\n");
    }
    let mut table = style.table_with_headings(["bookmark", "created", "position", "wal_status", "retains"]);
    for bookmark in &listed.bookmarks {
        table.add_row([
            &bookmark.name,
            &bookmark.made,
            bookmark.position.as_deref().unwrap_or("lost"),
            &bookmark.wal_status,
            &bytes(bookmark.retained_bytes),
        ]);
    }
    align_right(&mut table, &[4]);
    text.push('\n');
    text += &trimmed(&table);
    for bookmark in &listed.bookmarks {
        if let Some(cause) = &bookmark.lost {
            text += &format!("\n{} is lost: {cause}\n", bookmark.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_a_slot_with_bookmarks() {
        let bookmark = |name: &str, position: Option<&str>, wal_status: &str| ListedBookmark {
            name: name.into(),
            made: "2026-11-21T14:05:00.000Z".into(),
            slot: "outbox_router_bookmark_x".into(),
            lost: position.is_none().then(|| "idle_timeout: nobody read it".into()),
            position: position.map(Into::into),
            wal_status: wal_status.into(),
            retained_bytes: 5 << 20,
        };
        let mut listed = Listed {
            slot: "outbox_router".into(),
            being_created: false,
            confirmed: Some("16/B374D848".into()),
            wal_status: Some("reserved".into()),
            retained_bytes: Some(1024),
            remembered: Some("16/B374D900".into()),
            not_known: None,
            bookmarks: vec![
                bookmark("before_import", Some("16/B3700000"), "extended"),
                bookmark("2026-11-21T14:05:00.000Z", None, "lost"),
            ],
        };
        let style = TableStyle { colours: false, width: None };
        let full = render(&listed, &style);
        listed.being_created = true;
        let created = render(&listed, &style);
        listed.being_created = false;
        listed.bookmarks.clear();
        (listed.confirmed, listed.wal_status, listed.remembered) = (None, None, None);
        listed.not_known = Some("no Kafka broker answers".into());
        insta::assert_snapshot!(format!("{full}---\n{created}---\n{}", render(&listed, &style)));
    }
}
