//! The kinds of faults. To add one, write a function in one of these files or a new one, and add a line to [`KINDS`].

mod broker;
mod network;
mod postgres;
mod router;
mod rows;
mod slot;
mod topic;

pub(crate) use broker::{PRINCIPAL, grant};

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use outbox_router::monitor::StateKind;
use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::injected::{Injected, Left};
use crate::intake::Arrived;
use crate::nameserver::Nameserver;
use crate::proxy::Proxy;
use crate::replays::Replays;
use crate::services::Services;
use crate::source::Source;
use crate::stage::log_reader::LogReader;
use crate::stage::router::Router;
use crate::watch::Watch;
use crate::writers::{Ledger, connect};

/// `wal_sender_timeout` of the router's session; short, so that faults that exceed it are short too.
pub(crate) const WAL_SENDER_TIMEOUT: Duration = Duration::from_secs(3);
/// `message.max.bytes` of a router that cannot send every event, and of one that can.
pub(crate) const STRICT: u32 = 2_500;
const LENIENT: u32 = 1_000_000;

/// How long after a fault a router may still report the state from before it.
const SETTLED_AFTER: Duration = Duration::from_millis(300);

/// How long it may take until one of several routers is active.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// The router's slot.
pub(crate) const SLOT: &str = "outbox_router";

/// One kind of fault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// A description for `--list`.
    pub(crate) what: &'static str,
    pub(crate) need: Need,
    /// The only source with which it is possible; `None`: both.
    only: Option<Source>,
    inject: for<'g> fn(&'g mut Ground, StdRng) -> Injecting<'g>,
}

/// What a kind of fault needs. Kinds that need anything are injected only on request: they take special servers, or more than ten
/// seconds, so that the standstill needs a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Time,
    /// `--park`
    Parking,
    /// `--partitioned`
    Partitions,
    /// A broker with ACLs.
    Authorizer,
    /// A standby of `synchronized_standby_slots`.
    Standby,
    /// The campaign's own name server.
    Nameserver,
}

impl Need {
    /// Its name in the output of `--needs` and in `--without`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Need::Nothing => "nothing",
            Need::Time => "time",
            Need::Parking => "parking",
            Need::Partitions => "partitions",
            Need::Authorizer => "authorizer",
            Need::Standby => "standby",
            Need::Nameserver => "nameserver",
        }
    }

    /// A note for `--list`.
    pub(crate) fn note(self) -> &'static str {
        match self {
            Need::Nothing => "",
            Need::Time | Need::Authorizer => " (on request)",
            Need::Parking => " (on request, with --park)",
            Need::Partitions => " (with --partitioned)",
            Need::Standby => " (on request, from Postgres 17 on)",
            Need::Nameserver => " (on request, as root)",
        }
    }
}

type Injecting<'g> = Pin<Box<dyn Future<Output = anyhow::Result<Injected>> + Send + 'g>>;

/// All kinds, in the order of the list and the report.
#[rustfmt::skip]
pub(crate) const KINDS: &[Kind] = &[
    kind("router-kill", "the router is killed with SIGKILL and restarted", |g, r| Box::pin(router::kill(g, r))),
    kind("router-kill-large", "the same while it sends a large transaction", |g, r| Box::pin(router::kill_in_large_transaction(g, r))),
    kind("router-kill-broker-frozen", "the same while the broker does not answer", |g, r| Box::pin(router::kill_while_broker_is_frozen(g, r))),
    kind("router-kill-broker-slow", "the same while the broker's answers are slow", |g, r| Box::pin(network::kafka_slow_and_router_killed(g, r))),
    only(Source::Log, kind("router-handover", "the router is killed while a standby waits for the slot", |g, r| Box::pin(router::handover(g, r)))),
    kind("router-stop", "the router is stopped with SIGTERM and restarted", |g, r| Box::pin(router::stop(g, r))),
    kind("router-freeze", "the router is frozen with SIGSTOP for longer than wal_sender_timeout or sometimes, if there are others, its lease, and continues", |g, r| Box::pin(router::freeze(g, r))),
    kind("postgres-fast", "Postgres is restarted with a fast shutdown", |g, r| Box::pin(postgres::fast(g, r))),
    kind("postgres-immediate", "Postgres is restarted with an immediate shutdown, without a checkpoint", |g, r| Box::pin(postgres::immediate(g, r))),
    kind("postgres-kill", "all processes of Postgres are killed with SIGKILL, and it is restarted", |g, r| Box::pin(postgres::kill(g, r))),
    kind("machine-kill", "Postgres and the router are killed with SIGKILL, as in a crash of their machine", |g, r| Box::pin(postgres::kill_with_router(g, r))),
    only(Source::Log, kind("walsender-terminated", "pg_terminate_backend() on the router's walsender", |g, r| Box::pin(postgres::terminate_sessions(g, r)))),
    only(Source::Log, kind("walsender-terminated-broker-away", "the same while the broker is unreachable", |g, r| Box::pin(network::kafka_away_and_session_lost(g, r)))),
    only(Source::Poll, kind("session-terminated", "pg_terminate_backend() on the sessions of all routers", |g, r| Box::pin(postgres::terminate_sessions(g, r)))),
    only(Source::Poll, kind("session-terminated-broker-away", "the same while the broker is unreachable", |g, r| Box::pin(network::kafka_away_and_session_lost(g, r)))),
    only(Source::Log, kind("slot-reset", "`outbox-router slot reset` to a bookmark while the router runs", |g, r| Box::pin(slot::reset(g, r)))),
    kind("checkpoint", "CHECKPOINT, which removes WAL and saves slots", |g, r| Box::pin(postgres::checkpoint(g, r))),
    kind("column-added", "ALTER TABLE outbox ADD COLUMN while rows are written", |g, r| Box::pin(postgres::add_column(g, r))),
    kind("large-transaction", "no fault, but a transaction of up to 20,000 rows", |g, r| Box::pin(postgres::large_transaction(g, r))),
    kind("broker-kill", "the broker is killed with SIGKILL and restarted", |g, r| Box::pin(broker::kill(g, r))),
    kind("broker-restart", "the broker is shut down and restarted", |g, r| Box::pin(broker::restart(g, r))),
    kind("broker-freeze", "the broker is frozen with SIGSTOP, and continues", |g, r| Box::pin(broker::freeze(g, r))),
    kind("topic-small", "max.message.bytes of one topic is lowered to 2,000 for a while", |g, r| Box::pin(topic::small(g, r))),
    kind("postgres-hole", "nothing passes between router and Postgres for a while, without a reset", |g, r| Box::pin(network::postgres_hole(g, r))),
    kind("postgres-slow", "everything between router and Postgres is delayed", |g, r| Box::pin(network::postgres_slow(g, r))),
    kind("postgres-cut", "the router's connections to Postgres are reset in the middle of a message", |g, r| Box::pin(network::postgres_cut(g, r))),
    kind("postgres-away", "the router's connections to Postgres are reset, and new ones too, for a while", |g, r| Box::pin(network::postgres_away(g, r))),
    kind("kafka-hole", "nothing passes between router and broker for a while, without a reset", |g, r| Box::pin(network::kafka_hole(g, r))),
    kind("kafka-slow", "everything between router and broker is delayed", |g, r| Box::pin(network::kafka_slow(g, r))),
    kind("kafka-cut", "the router's connections to the broker are reset in the middle of a message", |g, r| Box::pin(network::kafka_cut(g, r))),
    kind("kafka-away", "the router's connections to the broker are reset, and new ones too, for a while", |g, r| Box::pin(network::kafka_away(g, r))),
    kind("postgres-server-cut", "a proxy between router and Postgres closes the connections to the server and keeps those to the router open", |g, r| Box::pin(network::postgres_server_cut(g, r))),
    kind("postgres-server-cut-broker-hole", "the same while nothing passes between that router and the broker, after a large transaction", |g, r| Box::pin(network::postgres_server_cut_broker_hole(g, r))),
    only(Source::Poll, kind("router-isolated", "nothing passes between a router and both servers for longer than its lease, during a large transaction", |g, r| Box::pin(network::router_isolated(g, r)))),
    only(Source::Poll, kind("rows-locked", "an application locks due rows for 2 to 5 s", |g, r| Box::pin(rows::locked(g, r)))),
    only(Source::Poll, kind("rows-refused", "max.message.bytes of one topic is so low that rows are refused, while `dead-letters retry --all` runs again and again", |g, r| Box::pin(rows::refused(g, r)))),
    kind("rows-pruned", "`outbox-router prune` deletes rows that were delivered a second ago", |g, r| Box::pin(rows::pruned(g, r))),
    kind("rows-pruned-broker-frozen", "the same while the broker does not answer, and then the router is killed and restarted", |g, r| Box::pin(rows::pruned_while_broker_is_frozen(g, r))),
    kind("rows-replayed", "`outbox-router replay` sends the rows of the last minute again, while other faults happen", |g, r| Box::pin(rows::replayed(g, r))),
    only(Source::Log, needs(Need::Partitions, "partition-dropped", "rows of an old day are written, and prune drops their partition as soon as they are delivered", |g, r| Box::pin(rows::partition_dropped(g, r)))),
    only(Source::Poll, kind("rows-deleted", "published rows are deleted, and the table is vacuumed", |g, r| Box::pin(rows::deleted(g, r)))),
    needs(Need::Time, "router-stderr-unread", "nobody reads the router's standard error, and the pipe is full", |g, r| Box::pin(router::stderr_unread(g, r))),
    needs(Need::Time, "producer-quota", "a quota limits producers to 10 to 40 kB/s", |g, r| Box::pin(broker::producer_quota(g, r))),
    needs(Need::Authorizer, "acls-removed", "the router's right to write to one topic or all is revoked", |g, r| Box::pin(broker::acls_removed(g, r))),
    only(Source::Log, needs(Need::Parking, "dead-letters-locked", "the dead-letter table is locked in ACCESS EXCLUSIVE mode", |g, r| Box::pin(postgres::dead_letters_locked(g, r)))),
    only(Source::Log, needs(Need::Standby, "standby-away", "the standby that synchronized_standby_slots names is stopped", |g, r| Box::pin(postgres::standby_away(g, r)))),
    needs(Need::Nameserver, "dns-hangs", "the name server answers after 20 s, while the broker is unreachable and the router loses its session", |g, r| Box::pin(network::dns_hangs(g, r))),
];

const fn kind(
    name: &'static str,
    what: &'static str,
    inject: for<'g> fn(&'g mut Ground, StdRng) -> Injecting<'g>,
) -> Kind {
    needs(Need::Nothing, name, what, inject)
}

const fn needs(
    need: Need,
    name: &'static str,
    what: &'static str,
    inject: for<'g> fn(&'g mut Ground, StdRng) -> Injecting<'g>,
) -> Kind {
    Kind { name, what, need, only: None, inject }
}

/// A kind that is possible only with this source.
const fn only(source: Source, kind: Kind) -> Kind {
    Kind { only: Some(source), ..kind }
}

impl Kind {
    /// Whether it is possible with this source.
    pub(crate) fn fits(&self, source: Source) -> bool {
        self.only.is_none_or(|only| only == source)
    }

    /// A note for `--list`.
    pub(crate) fn note(&self) -> String {
        let only = match self.only {
            Some(Source::Log) => " (not with --source poll)",
            Some(Source::Poll) => " (with --source poll)",
            None => "",
        };
        format!("{}{only}", self.need.note())
    }

    pub(crate) async fn inject(&self, ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
        (self.inject)(ground, random).await
    }
}

/// The servers, routers and observers of a campaign.
pub(crate) struct Ground {
    pub(crate) source: Source,
    pub(crate) router: Router,
    /// Reads the standard error of all routers.
    pub(crate) log: Arc<LogReader>,
    pub(crate) services: Services,
    /// The URL of Postgres without the proxy.
    pub(crate) postgres: String,
    pub(crate) brokers: String,
    pub(crate) to_postgres: Proxy,
    pub(crate) to_kafka: Proxy,
    pub(crate) nameserver: Option<Nameserver>,
    pub(crate) watch: Watch,
    pub(crate) arrived: Arc<Mutex<Arrived>>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) replays: Replays,
    /// The routers other than the active one; other active ones if they poll.
    pub(crate) standbys: Vec<Router>,
    /// Whether every second router started cannot send large events.
    pub(crate) park: bool,
    /// Whether the router started last can send them.
    pub(crate) lenient: bool,
}

/// When the fault began, and when the router was dead.
struct Dead {
    began: Instant,
    died: Instant,
}

impl Ground {
    /// Starts the router, and watches it.
    pub(crate) fn start_router(&mut self) -> anyhow::Result<()> {
        if self.park {
            let (strict, lenient) = (STRICT.to_string(), LENIENT.to_string());
            let (from, to) = if self.lenient { (&lenient, &strict) } else { (&strict, &lenient) };
            self.router.replace_setting(from, to)?;
            self.lenient = !self.lenient;
        }
        let process = self.router.start()?;
        self.watch.follow(process, self.router.admin());
        Ok(())
    }

    /// With standbys, waits for an active router. One that has taken over becomes `router`.
    pub(crate) async fn follow_the_active(&mut self, injected: &mut Injected) -> anyhow::Result<()> {
        if self.standbys.is_empty() || !self.source.has_standbys() {
            return Ok(());
        }
        // a router that has just lost its session may still report that it is active
        sleep(SETTLED_AFTER).await;
        let deadline = Instant::now() + TAKEOVER_TIMEOUT;
        let before = self.router.admin();
        while self.router.state().await != Some(StateKind::Active) && !self.find_active().await? {
            ensure!(Instant::now() < deadline, "none of the {} routers is active", self.standbys.len() + 1);
            sleep(Duration::from_millis(20)).await;
        }
        if self.router.admin() != before {
            injected.left = Left::Position { died: injected.began, restarted: Instant::now() };
        }
        Ok(())
    }

    /// If one of the standbys is active, makes it `router`.
    pub(crate) async fn find_active(&mut self) -> anyhow::Result<bool> {
        for standby in &mut self.standbys {
            if standby.state().await == Some(StateKind::Active) {
                std::mem::swap(standby, &mut self.router);
                let process = self.router.process().context("the active router has no process")?;
                self.watch.follow(process, self.router.admin());
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// # Errors
    /// A router ended by itself.
    pub(crate) fn check_running(&mut self) -> anyhow::Result<()> {
        self.standbys.iter_mut().chain([&mut self.router]).try_for_each(Router::check_running)
    }

    async fn kill_router(&mut self) -> anyhow::Result<Dead> {
        self.watch.before_end();
        let began = Instant::now();
        self.router.kill().await?;
        Ok(Dead { began, died: Instant::now() })
    }

    /// Restarts the dead router. The fault is over when it is started and the servers are back, which was at `servers`.
    fn revive(&mut self, dead: Dead, servers: Option<Instant>, what: String) -> anyhow::Result<Injected> {
        let restarted = Instant::now();
        self.start_router()?;
        let back = servers.map_or(restarted, |servers| servers.max(restarted));
        let left = Left::Position { died: dead.died, restarted };
        Ok(Injected { left, ..survived(dead.began, back, what) })
    }

    async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        let client = connect(&self.postgres).await?;
        client.batch_execute(sql).await.with_context(|| sql.to_owned())
    }
}

/// A fault that the router's process survives.
pub(crate) fn survived(began: Instant, back: Instant, what: String) -> Injected {
    Injected {
        began,
        back,
        left: Left::Process,
        on_its_way: true,
        broker_late: None,
        outlasted_lease: false,
        kept_locked: 0,
        asked: None,
        withheld: None,
        names: &[],
        recovers_within: None,
        overlaps: false,
        what,
    }
}

/// Waits, four times out of five longer than a standstill may last without a reason; returns how long.
async fn pause_for_a_reason(random: &mut StdRng) -> Duration {
    let long = random.random_ratio(4, 5);
    pause(random, if long { 13_000..16_000 } else { 1_000..5_000 }).await
}

/// Waits for a random time in this range; returns how long.
async fn pause(random: &mut StdRng, milliseconds: std::ops::Range<u64>) -> Duration {
    let time = Duration::from_millis(random.random_range(milliseconds));
    sleep(time).await;
    time
}
