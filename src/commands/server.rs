//! What commands have to know about the server, and what they advise where it lacks something.

use std::time::{SystemTime, UNIX_EPOCH};

use pg_logical::quoting::literal;
use pg_logical::session::Session;

use crate::error::Error;
use crate::postgres::slot_functions::BULK_READ_COPIES;

/// The catalogues of earlier versions lack what the router asks for.
pub(super) const OLDEST_POSTGRES: u32 = 140_000;

/// The first version in which standbys can keep a copy of a slot, and a slot has a flag for it.
pub(super) const FAILOVER_SLOTS: u32 = 170_000;

/// How `wal_level` is set.
pub(super) const WAL_LEVEL_REMEDY: &str = "Run ALTER SYSTEM SET wal_level = logical and restart Postgres. On Amazon RDS \
     and Aurora set rds.logical_replication = 1 in the parameter group, on Cloud SQL the flag \
     cloudsql.logical_decoding, and reboot";

/// What to do if there is no room for one more slot.
pub(super) const SLOTS_REMEDY: &str = "Raise max_replication_slots and restart Postgres, or drop a slot that nobody needs: \
     SELECT slot_name, active FROM pg_replication_slots";

/// What to do about a server that is a standby.
pub(super) const STANDBY_REMEDY: &str =
    "Connect to the primary: name it in the URL too, or take target_session_attrs out";

/// What the server says about itself.
pub(super) struct Server {
    /// `server_version`
    pub(super) version: String,
    /// `server_version_num`
    pub(super) number: u32,
    pub(super) wal_level: String,
    pub(super) slots: Places,
    pub(super) senders: Places,
    /// How many slots are copies for bulk reads.
    pub(super) copies: u32,
    /// `max_slot_wal_keep_size` in bytes; `None`: no limit.
    pub(super) keep_bytes: Option<u64>,
    /// `idle_replication_slot_timeout`, from 18 on, as the server writes it.
    pub(super) idle_timeout: Option<String>,
    pub(super) standby: bool,
    /// How far its clock is ahead of ours, in seconds.
    pub(super) ahead: f64,
}

/// How many there may be, and how many are in use.
pub(super) struct Places {
    pub(super) taken: u32,
    pub(super) max: u32,
}

impl Places {
    pub(super) fn left(&self) -> u32 {
        self.max.saturating_sub(self.taken)
    }

    pub(super) fn none_left(&self) -> bool {
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
                 (SELECT count(*) FROM pg_catalog.pg_replication_slots s WHERE s.temporary AND pg_catalog.strpos(s.slot_name, {}) = 1)",
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

    /// What is wrong if it is too old.
    pub(super) fn too_old(&self) -> Option<String> {
        (self.number < OLDEST_POSTGRES)
            .then(|| format!("the server is Postgres {}, and the router needs 14 or later", self.version))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
