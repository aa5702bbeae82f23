//! The server's settings.

use super::finding::Findings;
use crate::commands::server::{Places, SLOTS_REMEDY, STANDBY_REMEDY, Server, WAL_LEVEL_REMEDY};
use crate::config::bookmarks::Bookmarks;
use crate::config::{CatchUp, Config};
use crate::postgres::catalog::Catalog;
use crate::quantity::bytes;

/// A clock difference that is worth a warning, in seconds.
const SKEW: f64 = 5.0;

pub(super) fn judge_version(server: &Server, findings: &mut Findings) {
    if let Some(what) = server.too_old() {
        findings.error("postgres_version", what, "Upgrade the server");
    }
    if server.standby {
        findings.warning(
            "postgres_standby",
            "the server is a standby: a slot there falls with the standby, and before Postgres 16 it has none",
            STANDBY_REMEDY,
        );
    }
    if server.ahead.abs() > SKEW {
        let direction = if server.ahead > 0.0 { "ahead of" } else { "behind" };
        findings.warning(
            "clock",
            format!(
                "the server's clock is {:.0} s {direction} this machine's, and lag is the difference of the two",
                server.ahead.abs()
            ),
            "Have both machines synchronise their clocks",
        );
    }
}

pub(super) fn judge_settings(server: &Server, config: &Config, catalog: &Catalog, findings: &mut Findings) {
    match server.wal_level.as_str() {
        "logical" => findings.ok("wal_level", "logical"),
        other => findings.error(
            "wal_level",
            format!("wal_level is {other}, and logical replication needs logical"),
            WAL_LEVEL_REMEDY,
        ),
    }
    judge_places(server, catalog, config.bookmarks.as_ref(), findings);
    if config.postgres.catch_up == CatchUp::Auto {
        judge_bulk_reads(server, catalog, findings);
    }
    judge_keep_size(server, findings);
    if let Some(timeout) = &server.idle_timeout {
        findings.warning(
            "idle_replication_slot_timeout",
            format!("a router that is stopped for longer than {timeout} loses its slot"),
            "Set idle_replication_slot_timeout = 0, or make sure that the router is never stopped for so long",
        );
    }
}

fn judge_places(server: &Server, catalog: &Catalog, bookmarks: Option<&Bookmarks>, findings: &mut Findings) {
    let Places { taken, max } = server.slots;
    let used = format!("{taken} of max_replication_slots = {max} are taken");
    if catalog.slot.is_none() && server.slots.none_left() {
        findings.error("max_replication_slots", format!("{used}, and the router has none yet"), SLOTS_REMEDY);
    } else {
        findings.ok("max_replication_slots", used);
    }
    // plus the router's own
    let wanted = bookmarks.map(|bookmarks| bookmarks.keep + 1);
    if let Some(wanted) = wanted.filter(|wanted| u32::try_from(*wanted).is_ok_and(|wanted| wanted > max)) {
        findings.warning(
            "bookmarks",
            format!(
                "max_replication_slots is {max}, and with `[bookmarks] keep` the router has {wanted} slots: each \
                 bookmark is one"
            ),
            "Raise max_replication_slots and restart Postgres, or keep fewer: without a free slot no bookmark is made",
        );
    }
    let Places { taken, max } = server.senders;
    let used = format!("{taken} of max_wal_senders = {max} are taken");
    if server.senders.none_left() && !is_read(catalog) {
        findings.error(
            "max_wal_senders",
            format!("{used}, and the router needs one"),
            "Raise max_wal_senders and restart Postgres, or stop what streams from it: SELECT * FROM \
             pg_stat_replication",
        );
    } else {
        findings.ok("max_wal_senders", used);
    }
}

/// Whether the server has what bulk reads need.
fn judge_bulk_reads(server: &Server, catalog: &Catalog, findings: &mut Findings) {
    if server.copies > 0 {
        return;
    }
    let (slots, senders) = (u32::from(catalog.slot.is_none()) + 1, u32::from(!is_read(catalog)) + 1);
    for (setting, left, needed, what) in [
        ("max_replication_slots", server.slots.left(), slots, "slot for the copy that is read"),
        ("max_wal_senders", server.senders.left(), senders, "walsender while the router goes over"),
    ] {
        if left < needed {
            findings.warning(
                "catch_up",
                format!(
                    "bulk reads (`catch_up = \"auto\"`) take one more {what}, and there is no room for it: the router would stream what it is behind"
                ),
                format!("Raise {setting} and restart Postgres, or set `catch_up = \"stream\"` under [postgres]"),
            );
        }
    }
}

fn judge_keep_size(server: &Server, findings: &mut Findings) {
    match server.keep_bytes {
        None => findings.warning(
            "max_slot_wal_keep_size",
            "there is no limit: while the router is stopped its slot keeps all new log, until the disk is full",
            "Watch outbox_router_slot_retained_bytes, or set max_slot_wal_keep_size to what the disk has room \
             for; a slot that falls further behind is lost, and events with it",
        ),
        Some(limit) => findings.ok(
            "max_slot_wal_keep_size",
            format!(
                "{}: a router that is stopped while more log than that is written loses its slot",
                bytes(limit)
            ),
        ),
    }
}

/// Whether a router reads the slot.
pub(super) fn is_read(catalog: &Catalog) -> bool {
    catalog.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some())
}
