//! The server's settings.

use std::time::{SystemTime, UNIX_EPOCH};

use pg_logical::quoting::literal;
use pg_logical::session::Session;

use super::finding::Findings;
use crate::commands::init::{OLDEST_POSTGRES, WAL_LEVEL_REMEDY};
use crate::config::bookmarks::Bookmarks;
use crate::config::{CatchUp, Config};
use crate::error::Error;
use crate::postgres::catalog::Catalog;
use crate::postgres::slot_functions::BULK_READ_COPIES;
use crate::quantity::bytes;

/// A clock difference that is worth a warning, in seconds.
const SKEW: f64 = 5.0;

/// What the server says about itself.
pub(super) struct Server {
    /// `server_version`
    pub(super) version: String,
    /// `server_version_num`
    pub(super) number: u32,
    wal_level: String,
    slots: Places,
    senders: Places,
    /// How many slots are copies for bulk reads.
    copies: u32,
    /// `max_slot_wal_keep_size` in bytes; `None`: no limit.
    keep_bytes: Option<u64>,
    /// `idle_replication_slot_timeout`, from 18 on, as the server writes it.
    idle_timeout: Option<String>,
    standby: bool,
    /// How far its clock is ahead of ours, in seconds.
    ahead: f64,
}

/// How many there may be, and how many are in use.
struct Places {
    taken: u32,
    max: u32,
}

impl Places {
    fn left(&self) -> u32 {
        self.max.saturating_sub(self.taken)
    }

    fn none_left(&self) -> bool {
        self.left() == 0
    }
}

impl Server {
    pub(super) async fn look(session: &mut Session) -> Result<Self, Error> {
        let before = now();
        let rows = session
            .query(&format!(
                "SELECT current_setting('server_version'), current_setting('server_version_num'), \
                 current_setting('wal_level'), current_setting('max_replication_slots'), \
                 (SELECT count(*) FROM pg_catalog.pg_replication_slots), current_setting('max_wal_senders'), \
                 (SELECT count(*) FROM pg_catalog.pg_stat_replication), \
                 (SELECT setting::bigint * 1048576 FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'), \
                 current_setting('idle_replication_slot_timeout', true), pg_catalog.pg_is_in_recovery(), \
                 extract(epoch FROM pg_catalog.clock_timestamp()), \
                 (SELECT count(*) FROM pg_catalog.pg_replication_slots s WHERE s.temporary AND starts_with(s.slot_name::text, {}))",
                literal(BULK_READ_COPIES)
            ))
            .await?;
        let here = (before + now()) / 2.0;
        let value = |index| rows.first().and_then(|row| row.get(index));
        let text = |index| value(index).unwrap_or_default().to_owned();
        let number = |index| value(index).and_then(|text| text.parse().ok()).unwrap_or_default();
        let there: Option<f64> = value(10).and_then(|text| text.parse().ok());
        Ok(Server {
            version: text(0),
            number: number(1),
            wal_level: text(2),
            slots: Places { max: number(3), taken: number(4) },
            senders: Places { max: number(5), taken: number(6) },
            copies: number(11),
            // -1 means no limit, and does not parse as u64
            keep_bytes: value(7).and_then(|text| text.parse().ok()),
            idle_timeout: value(8).filter(|timeout| !matches!(*timeout, "" | "0")).map(str::to_owned),
            standby: value(9) == Some("t"),
            ahead: there.map_or(0.0, |there| there - here),
        })
    }

    /// Whether another replication connection would be refused.
    pub(super) fn no_sender_left(&self) -> bool {
        self.senders.none_left()
    }

    pub(super) fn judge_version(&self, findings: &mut Findings) {
        if self.number < OLDEST_POSTGRES {
            let what = format!("the server is Postgres {}, and the router needs 14 or later", self.version);
            findings.error("postgres_version", what, "Upgrade the server");
        }
        if self.standby {
            findings.warning(
                "postgres_standby",
                "the server is a standby: a slot there falls with the standby, and before Postgres 16 it has none",
                "Connect to the primary: name it in the URL too, or take target_session_attrs out",
            );
        }
        if self.ahead.abs() > SKEW {
            let direction = if self.ahead > 0.0 { "ahead of" } else { "behind" };
            findings.warning(
                "clock",
                format!(
                    "the server's clock is {:.0} s {direction} this machine's, and lag is the difference of the two",
                    self.ahead.abs()
                ),
                "Have both machines synchronise their clocks",
            );
        }
    }

    pub(super) fn judge_settings(&self, config: &Config, catalog: &Catalog, findings: &mut Findings) {
        match self.wal_level.as_str() {
            "logical" => findings.ok("wal_level", "logical"),
            other => findings.error(
                "wal_level",
                format!("wal_level is {other}, and logical replication needs logical"),
                WAL_LEVEL_REMEDY,
            ),
        }
        self.judge_places(catalog, config.bookmarks.as_ref(), findings);
        if config.postgres.catch_up == CatchUp::Auto {
            self.judge_bulk_reads(catalog, findings);
        }
        self.judge_keep_size(findings);
        if let Some(timeout) = &self.idle_timeout {
            findings.warning(
                "idle_replication_slot_timeout",
                format!("a router that is stopped for longer than {timeout} loses its slot"),
                "Set idle_replication_slot_timeout = 0, or make sure that the router is never stopped for so long",
            );
        }
    }

    fn judge_places(&self, catalog: &Catalog, bookmarks: Option<&Bookmarks>, findings: &mut Findings) {
        let Places { taken, max } = self.slots;
        let used = format!("{taken} of max_replication_slots = {max} are taken");
        if catalog.slot.is_none() && self.slots.none_left() {
            findings.error(
                "max_replication_slots",
                format!("{used}, and the router has none yet"),
                "Raise max_replication_slots and restart Postgres, or drop a slot that nobody needs: \
                 SELECT slot_name, active FROM pg_replication_slots",
            );
        } else {
            findings.ok("max_replication_slots", used);
        }
        // plus the router's own
        let wanted = bookmarks.map(|bookmarks| bookmarks.keep + 1);
        if let Some(wanted) = wanted.filter(|wanted| u32::try_from(*wanted).is_ok_and(|wanted| wanted > max))
        {
            findings.warning(
                "bookmarks",
                format!(
                    "max_replication_slots is {max}, and with `[bookmarks] keep` the router has {wanted} slots: each \
                     bookmark is one"
                ),
                "Raise max_replication_slots and restart Postgres, or keep fewer: without a free slot no bookmark is made",
            );
        }
        let Places { taken, max } = self.senders;
        let used = format!("{taken} of max_wal_senders = {max} are taken");
        let running = catalog.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some());
        if self.senders.none_left() && !running {
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
    fn judge_bulk_reads(&self, catalog: &Catalog, findings: &mut Findings) {
        if self.copies > 0 {
            return;
        }
        let running = catalog.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some());
        let (slots, senders) = (u32::from(catalog.slot.is_none()) + 1, u32::from(!running) + 1);
        for (setting, left, needed, what) in [
            ("max_replication_slots", self.slots.left(), slots, "slot for the copy that is read"),
            ("max_wal_senders", self.senders.left(), senders, "walsender while the router goes over"),
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

    fn judge_keep_size(&self, findings: &mut Findings) {
        match self.keep_bytes {
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
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
