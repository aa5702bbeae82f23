//! The two ways in which a router reads the outbox, and what each means for the campaign.
//!
//! A router that reads the log has a slot, positions and standbys. One that polls the table has rows with a status, which it claims
//! under a lease, and others work at the same time.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;
use tokio_postgres::Client;

use crate::allowance::{self, Allowed, Seen};
use crate::faults::{SLOT, WAL_SENDER_TIMEOUT};
use crate::injected::Injected;
use crate::positions::Positions;
use crate::row_allowance;

/// `source.lease` of a router that polls: the shortest that it accepts.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// The name of routers that poll, which is the `application_name` of their sessions.
const POLLER: &str = "chaos-poller";

/// In milliseconds, how much longer than it has to be a router is frozen.
const FROZEN_LONGER_MS: std::ops::Range<u64> = 200..2_000;

/// What the router reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// The write-ahead log, through a slot.
    Log,
    /// The outbox table.
    Poll,
}

/// Options that only one of the sources may have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) exactly_once: bool,
    pub(crate) park: bool,
    pub(crate) bulk_reads: bool,
    pub(crate) partitioned: bool,
}

/// How long the router is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Freeze {
    pub(crate) time: Duration,
    /// So long that other routers take its rows over.
    pub(crate) outlasts_lease: bool,
}

impl Source {
    /// Why a campaign with these options is impossible.
    pub(crate) fn refusal(self, options: Options) -> Option<&'static str> {
        match self {
            Source::Log => None,
            Source::Poll if options.exactly_once => Some(
                "--mode exactly-once commits the position together with the events, and a router that polls has no position",
            ),
            Source::Poll if options.park => Some(
                "--park needs a dead-letter table, and a router that polls leaves refused events in the outbox",
            ),
            Source::Poll if options.bulk_reads => {
                Some("--bulk-reads is about a slot that lags, and a router that polls has no slot")
            }
            Source::Poll if options.partitioned => {
                Some("--partitioned is not possible with a table that is polled")
            }
            Source::Poll => None,
        }
    }

    /// Why kinds of faults are left out that are only for the other source.
    pub(crate) fn lacks(self) -> &'static str {
        match self {
            Source::Log => "which need a router that polls (--source poll)",
            Source::Poll => "which need a slot, a walsender or a standby (--source log)",
        }
    }

    /// Lines of the router's configuration.
    pub(crate) fn settings(self) -> String {
        match self {
            Source::Log => {
                format!("postgres.wal_sender_timeout = \"{}ms\"\n", WAL_SENDER_TIMEOUT.as_millis())
            }
            Source::Poll => format!(
                "name = \"{POLLER}\"\nsource.mode = \"poll\"\nsource.lease = \"{}s\"\n",
                LEASE.as_secs()
            ),
        }
    }

    /// Whether routers beside the active one wait until it ends.
    pub(crate) fn has_standbys(self) -> bool {
        self == Source::Log
    }

    /// Whether there are figures of a slot, and repetitions on request.
    pub(crate) fn has_slot(self) -> bool {
        self == Source::Log
    }

    /// Whether refused events wait until somebody retries them.
    pub(crate) fn needs_retries(self, park: bool) -> bool {
        park || self == Source::Poll
    }

    /// The statement that ends the sessions with which routers read the outbox.
    pub(crate) fn terminate_sessions(self) -> String {
        match self {
            Source::Log => format!(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
            ),
            Source::Poll => format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{POLLER}'"
            ),
        }
    }

    /// Whether a row has to arrive that was deleted by the transaction that inserted it.
    pub(crate) fn sees_never_visible(self) -> bool {
        self == Source::Log
    }

    /// How long a router may go on without an answer from Postgres.
    pub(crate) fn without_answer(self) -> Duration {
        match self {
            Source::Log => WAL_SENDER_TIMEOUT,
            Source::Poll => LEASE,
        }
    }

    /// Chooses how long to freeze the router. `others`: whether others could take over what it has claimed.
    pub(crate) fn freeze(self, random: &mut StdRng, others: bool) -> Freeze {
        let longer = Duration::from_millis(random.random_range(FROZEN_LONGER_MS));
        let outlasts_lease = self == Source::Poll && others && random.random_bool(0.5);
        let least = if outlasts_lease { LEASE } else { WAL_SENDER_TIMEOUT };
        Freeze { time: least + longer, outlasts_lease }
    }

    /// Follows the positions of the router, if it has any.
    pub(crate) fn follow_positions(self, brokers: &str) -> anyhow::Result<Option<Positions>> {
        self.has_slot().then(|| Positions::follow(brokers)).transpose()
    }

    /// How many repetitions a fault may cause.
    pub(crate) fn allowed(self, injected: &Injected, seen: Seen<'_>, until: Instant) -> Allowed {
        match self {
            Source::Log => allowance::allowed(injected, seen, until),
            Source::Poll => row_allowance::allowed(injected, seen, until),
        }
    }

    /// What the table says to have been left undone: how many rows have another status than `PUBLISHED`, for each status.
    pub(crate) async fn left_undone(self, postgres: &Client) -> anyhow::Result<Vec<String>> {
        if self == Source::Log {
            return Ok(Vec::new());
        }
        let sql = "SELECT status, count(*), min(position) FROM outbox WHERE status <> 'PUBLISHED' GROUP BY status ORDER BY status";
        let rows = postgres.query(sql, &[]).await?;
        let of = |row: &tokio_postgres::Row| {
            let (status, count, first): (String, i64, i64) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            anyhow::Ok(format!("{count} rows are {status} at the end; the first has the position {first}"))
        };
        rows.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_router_that_polls_refuses_what_needs_a_position_or_a_slot() {
        let none = Options::default();
        let options = [
            (none, None),
            (Options { exactly_once: true, ..none }, Some("--mode exactly-once")),
            (Options { park: true, ..none }, Some("--park")),
            (Options { bulk_reads: true, ..none }, Some("--bulk-reads")),
        ];
        for (options, named) in options {
            assert_eq!(Source::Log.refusal(options), None);
            let why = Source::Poll.refusal(options);
            assert_eq!(why.is_some(), named.is_some(), "{why:?}");
            assert!(why.unwrap_or_default().starts_with(named.unwrap_or_default()), "{why:?}");
        }
    }

    #[test]
    fn only_one_of_several_routers_that_poll_is_frozen_for_longer_than_its_lease() {
        let freezes = |source: Source, others| {
            let mut random = StdRng::seed_from_u64(1);
            (0..50).map(|_| source.freeze(&mut random, others)).collect::<Vec<_>>()
        };
        for (source, others) in [(Source::Log, false), (Source::Log, true), (Source::Poll, false)] {
            let freezes = freezes(source, others);
            assert!(freezes.iter().all(|freeze| !freeze.outlasts_lease && freeze.time < LEASE / 2));
        }
        let freezes = freezes(Source::Poll, true);
        assert!(freezes.iter().all(|freeze| freeze.outlasts_lease == (freeze.time > LEASE)));
        let long = freezes.iter().filter(|freeze| freeze.outlasts_lease).count();
        assert!((10..40).contains(&long), "{long}");
    }

    #[test]
    fn refused_events_are_retried_where_they_are_kept() {
        let cases = [(Source::Log, false, false), (Source::Log, true, true), (Source::Poll, false, true)];
        for (source, park, retried) in cases {
            assert_eq!(source.needs_retries(park), retried, "{source:?} {park}");
        }
    }
}
