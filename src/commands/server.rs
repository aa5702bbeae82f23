//! The server's version and settings, and the remedies for those that the router cannot use.

use std::time::{SystemTime, UNIX_EPOCH};

use pg_logical::quoting::literal;
use pg_logical::session::Session;

use crate::error::Error;
use crate::postgres::slot_functions::BULK_READ_COPIES;

/// The oldest supported version: catalogues of earlier ones lack columns that the router reads.
pub(super) const OLDEST_POSTGRES: u32 = 140_000;

/// The first version in which standbys can keep a copy of a slot, and a slot has a flag for it.
pub(super) const FAILOVER_SLOTS: u32 = 170_000;

/// What to do about a server that is a standby.
pub(super) const STANDBY_REMEDY: &str =
    "Connect to the primary: add its host to the URL, or remove target_session_attrs";

/// The server's version and settings.
pub(super) struct Server {
    /// `server_version`
    pub(super) version: String,
    /// `server_version_num`
    pub(super) number: u32,
    pub(super) wal_level: String,
    pub(super) slots: Usage,
    pub(super) senders: Usage,
    /// The number of slots that are copies for bulk reads.
    pub(super) bulk_read_copies: u32,
    /// In bytes; `None` if there is no limit.
    pub(super) max_slot_wal_keep_size: Option<u64>,
    /// From Postgres 18 on, with the unit; `None` if there is no timeout.
    pub(super) idle_replication_slot_timeout: Option<String>,
    pub(super) standby: bool,
    /// How far its clock is ahead of this machine's, in seconds.
    pub(super) clock_offset: f64,
}

/// How much of a limited resource is in use.
pub(super) struct Usage {
    pub(super) used: u32,
    pub(super) max: u32,
}

impl Usage {
    pub(super) fn left(&self) -> u32 {
        self.max.saturating_sub(self.used)
    }

    pub(super) fn exhausted(&self) -> bool {
        self.left() == 0
    }
}

impl Server {
    pub(super) async fn query(session: &mut Session) -> Result<Self, Error> {
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
            slots: Usage { max: number(3), used: number(4) },
            senders: Usage { max: number(5), used: number(6) },
            bulk_read_copies: number(11),
            // -1 means no limit, and does not parse as u64
            max_slot_wal_keep_size: value(7).and_then(|text| text.parse().ok()),
            idle_replication_slot_timeout: value(8)
                .filter(|timeout| !matches!(*timeout, "" | "0"))
                .map(str::to_owned),
            standby: value(9) == Some("t"),
            clock_offset: there.map_or(0.0, |there| there - here),
        })
    }

    /// A message if the version is not supported.
    pub(super) fn too_old(&self) -> Option<String> {
        (self.number < OLDEST_POSTGRES)
            .then(|| format!("the server is Postgres {}, and the router needs 14 or later", self.version))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
