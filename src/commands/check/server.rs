//! The server's settings.

use super::finding::Findings;
use crate::commands::server::{STANDBY_REMEDY, Server, Usage};
use crate::config::Config;
use crate::config::bookmarks::Bookmarks;
use crate::error::{Effect, Error, ErrorCode};
use crate::postgres::administrator;
use crate::postgres::catalog::Catalog;
use crate::quantity::bytes;

/// A clock difference that is worth a warning, in seconds.
const SKEW: f64 = 5.0;

pub(super) fn check_version(server: &Server, findings: &mut Findings) {
    if let Some(what) = server.too_old() {
        findings.error("postgres_version", ErrorCode::ServerUnsuitable, what, "Upgrade the server");
    }
    if server.standby {
        findings.warning(
            "postgres_standby",
            "the server is a standby: its slots are lost with it, and before Postgres 16 it has no logical slots",
            STANDBY_REMEDY,
        );
    }
    if server.clock_offset.abs() > SKEW {
        let direction = if server.clock_offset > 0.0 { "ahead of" } else { "behind" };
        findings.warning(
            "clock",
            format!(
                "the server's clock is {:.0} s {direction} this machine's, so the reported lag is wrong by as much",
                server.clock_offset.abs()
            ),
            "Synchronise the clocks of both machines",
        );
    }
}

pub(super) fn check_settings(server: &Server, config: &Config, catalog: &Catalog, findings: &mut Findings) {
    let hosts = &config.postgres.conninfo.hosts;
    findings.result(
        "wal_level",
        administrator::check_wal_level(&server.wal_level, hosts),
        "logical".to_owned(),
    );
    check_usage(server, catalog, config.bookmarks.as_ref(), findings);
    check_keep_size(server, findings);
    if let Some(timeout) = &server.idle_replication_slot_timeout {
        findings.warning(
            "idle_replication_slot_timeout",
            format!(
                "a router that is stopped for longer than {timeout} loses its slot, and every bookmark is lost at that age, because nobody \
                 reads bookmarks"
            ),
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
        );
    }
}

fn check_usage(server: &Server, catalog: &Catalog, bookmarks: Option<&Bookmarks>, findings: &mut Findings) {
    let Usage { used, max } = server.slots;
    let what = format!("{used} of max_replication_slots = {max} are in use");
    if catalog.slot.is_none() && server.slots.exhausted() {
        findings.error(
            "max_replication_slots",
            ErrorCode::NoFreeSlot,
            format!("{what}, and the router has none yet"),
            administrator::free_slot(),
        );
    } else {
        findings.ok("max_replication_slots", what);
    }
    // plus the router's own, and one that the router leaves free
    let wanted = bookmarks.map(|bookmarks| bookmarks.keep + 2);
    if let Some(wanted) = wanted.filter(|wanted| u32::try_from(*wanted).is_ok_and(|wanted| wanted > max)) {
        findings.warning(
            "bookmarks",
            format!(
                "max_replication_slots is {max}, and with `[bookmarks] keep` the router needs {wanted} slots: its own, one for each \
                 bookmark, and one that bookmarks leave free"
            ),
            "Raise max_replication_slots and restart Postgres, or lower `keep`: otherwise fewer bookmarks are created",
        );
    }
    let Usage { used, max } = server.senders;
    let what = format!("{used} of max_wal_senders = {max} are in use");
    if server.senders.exhausted() && !is_read(catalog) {
        let full = Error::refused(
            ErrorCode::NoFreeSlot,
            format!("{what}, and the router needs one"),
            "Raise max_wal_senders and restart Postgres, or stop another client: SELECT * FROM pg_stat_replication",
        );
        findings.failure(
            "max_wal_senders",
            full.meaning(Effect::Late, "they wait in the log until the router runs"),
            "",
        );
    } else {
        findings.ok("max_wal_senders", what);
    }
}

/// Whether the server has what bulk reads of this many shards need.
pub(super) fn check_bulk_reads(server: &Server, catalog: &Catalog, shards: usize, findings: &mut Findings) {
    if server.bulk_read_copies > 0 {
        return;
    }
    let shards = u32::try_from(shards).unwrap_or(u32::MAX);
    let slots = shards.saturating_add(u32::from(catalog.slot.is_none()));
    let senders = shards.saturating_add(u32::from(!is_read(catalog)));
    let each = if shards > 1 { " for each shard" } else { "" };
    for (setting, left, needed, what) in [
        ("max_replication_slots", server.slots.left(), slots, "slot for the copy that is read"),
        ("max_wal_senders", server.senders.left(), senders, "walsender while the router switches to them"),
    ] {
        if left < needed {
            findings.warning(
                "catch_up",
                format!(
                    "bulk reads (`catch_up = \"auto\"`) need one more {what}{each}, and too few are free: the router would stream the \
                     backlog"
                ),
                format!("Raise {setting} and restart Postgres, or set `catch_up = \"stream\"` under [postgres]"),
            );
        }
    }
}

fn check_keep_size(server: &Server, findings: &mut Findings) {
    match server.max_slot_wal_keep_size {
        None => findings.warning(
            "max_slot_wal_keep_size",
            "there is no limit: while the router is stopped, its slot retains all new log until the disk is full",
            "Monitor outbox_router_slot_retained_bytes, or set max_slot_wal_keep_size to what the disk has room for; a slot that \
             falls further behind is lost, and its events with it",
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
