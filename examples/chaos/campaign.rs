//! The campaign from its first row to the verdict.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::time::sleep;

use crate::event::{Event, Id};
use crate::faults::{Ground, Kind, Need, PRINCIPAL, SLOT, STRICT, WAL_SENDER_TIMEOUT, grant};
use crate::injected::{Asked, Injected};
use crate::intake::{Intake, first_after, lock};
use crate::judgement::judge;
use crate::nameserver::Nameserver;
use crate::plan::Plan;
use crate::positions::Positions;
use crate::progress::Progress;
use crate::proxy::Proxy;
use crate::reader::Reader;
use crate::report::{Evidence, Report};
use crate::services::Services;
use crate::stage::consumer::Reading;
use crate::stage::outbox_table::{committed_rows, topic_of};
use crate::stage::router::{Decider, Router};
use crate::watch::Watch;
use crate::writers::{self, ALL_TYPES, Ledger, Writers, large};

/// An event that is committed after a fault has to arrive by then, or the campaign ends.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
/// A deadline without any record, not for all of them.
const NOTHING_ARRIVES_FOR: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const OPENING_ROWS: u64 = 1_000;
const DECIDES_EVERY: Duration = Duration::from_secs(1);

/// Where everything is, and what is to be done.
pub(crate) struct Setup {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) services: Services,
    /// Where the programs of Postgres are.
    pub(crate) programs: PathBuf,
    pub(crate) brokers: String,
    /// The listener of the broker that its proxy leads to, and the port where the broker expects that proxy.
    pub(crate) behind_proxy: String,
    pub(crate) proxy_port: u16,
    pub(crate) kinds: Vec<&'static Kind>,
    pub(crate) exactly_once: bool,
    /// How many routers wait beside the active one.
    pub(crate) standbys: usize,
    /// Whether some events cannot be sent by every other router that is started.
    pub(crate) park: bool,
    /// From how many bytes of log on a slot that lags is read in bulk; `None`: never.
    pub(crate) bulk_reads: Option<u64>,
    pub(crate) span: Duration,
    pub(crate) rate: u64,
    pub(crate) seed: u64,
}

impl Setup {
    fn needs(&self, need: Need) -> bool {
        self.kinds.iter().any(|kind| kind.need == need)
    }
}

/// One fault that happened, and which of the kinds it was.
pub(crate) type Happened = (usize, Injected);

/// Runs it.
pub(crate) async fn run(setup: Setup) -> anyhow::Result<Report> {
    let postgres = setup.services.postgres.clone();
    let client = writers::connect(&postgres).await?;
    writers::create_table(&client).await?;
    let to_postgres = Proxy::start(0, place_of(&postgres)?).await?;
    let to_kafka = Proxy::start(setup.proxy_port, setup.behind_proxy.clone()).await?;
    let through = postgres.replace(&place_of(&postgres)?, &to_postgres.address().to_string());
    let timeout = format!("postgres.wal_sender_timeout = \"{}ms\"\n", WAL_SENDER_TIMEOUT.as_millis());
    let kafka = to_kafka.address().to_string();
    let more = configured(&setup);
    if setup.needs(Need::Authorizer) {
        grant(&setup.services).await?;
    }
    let nameserver = if setup.needs(Need::Nameserver) { Some(Nameserver::start().await?) } else { None };
    let program = match &nameserver {
        Some(nameserver) => nameserver.in_front_of(&setup.program, &setup.folder)?,
        None => setup.program.clone(),
    };
    let mut router = Router::new(&program, &setup.folder, &through, &kafka, &format!("{timeout}{more}"))?;
    let log = router.with_pipe();
    router.init().await?;
    let reader = Reader::start(&client, &postgres, &setup.folder, &setup.programs).await?;
    // it does not survive the first restart
    drop(client);

    let mut intake = Intake::start(Reading::begin(&setup.brokers, ALL_TYPES.map(topic_of).to_vec())?);
    let ledger = Arc::new(Ledger::default());
    let mut ground = Ground {
        watch: Watch::start(router.admin(), router.log(), &postgres, SLOT),
        log: Arc::clone(&log),
        router,
        services: setup.services,
        postgres: postgres.clone(),
        brokers: setup.brokers.clone(),
        to_postgres,
        to_kafka,
        nameserver,
        arrived: intake.shared(),
        ledger: Arc::clone(&ledger),
        standbys: Vec::new(),
        park: setup.park,
        lenient: false,
    };
    let progress = Progress::new(setup.span);
    progress.doing("beginning");
    ground.start_router()?;
    ground.router.ready().await?;
    for _ in 0..setup.standbys {
        let mut standby = ground.router.beside()?;
        standby.start()?;
        ground.standbys.push(standby);
    }
    let mut writers = Writers::start(&postgres, &ledger, setup.rate, setup.seed, setup.park);
    large(&postgres, &ledger, OPENING_ROWS, setup.seed).await?;
    all_topics_are_there(&intake, &mut ground).await?;
    let positions = Positions::follow(&setup.brokers)?;

    let decider = ground.router.decider();
    let start = Instant::now();
    let mut happened: Vec<Happened> = Vec::new();
    let mut stopped = None;
    {
        let arrived = intake.shared();
        let acts = async {
            for next in Plan::new(setup.seed, setup.kinds.len()) {
                if start.elapsed() + next.calm > setup.span {
                    break;
                }
                if !next.overlaps && !happened.is_empty() {
                    progress.doing("the router catches up");
                    if let Err(error) = catches_up(&mut ground).await {
                        stopped = Some(format!("{error:#}"));
                        break;
                    }
                }
                progress.doing("all is well");
                sleep(next.calm).await;
                let Some(kind) = setup.kinds.get(next.kind) else { break };
                progress.doing(kind.name);
                let injected = kind.inject(&mut ground, next.random).await;
                let mut injected = injected.with_context(|| format!("the fault {}", kind.name))?;
                if let Err(error) = ground.follow_the_active(&mut injected).await {
                    stopped = Some(format!("{error:#}"));
                    break;
                }
                let recovered = recovers(&injected, &intake, &ledger, &mut ground).await;
                let tail = match &recovered {
                    Ok(after) => format!("{} ms until events flow", after.as_millis()),
                    Err(error) => format!("{error:#}"),
                };
                let what =
                    if injected.what.is_empty() { String::new() } else { format!(", {}", injected.what) };
                progress.say(&format!("{}{what}; {tail}", kind.name));
                injected.overlaps = next.overlaps;
                happened.push((next.kind, injected));
                intake.is_well().await?;
                writers.are_well()?;
                if let Err(error) = recovered {
                    stopped = Some(format!("{error:#}"));
                    break;
                }
            }
            anyhow::Ok(())
        };
        let showing = async {
            loop {
                progress.show(ledger.rows(), lock(&arrived).records.len() as u64);
                sleep(Duration::from_millis(100)).await;
            }
        };
        let deciding = decide(setup.park.then(|| decider.clone()));
        tokio::select! {
            end = acts => end?,
            () = showing => bail!("the display ended"),
            () = deciding => bail!("nobody decides any more"),
        }
    }

    progress.doing("the writers end");
    writers.finish().await?;
    let end = Instant::now();
    progress.doing("everything arrives");
    if setup.park && stopped.is_none() {
        // a standby of the strict configuration must not take over now
        for mut standby in std::mem::take(&mut ground.standbys) {
            standby.stop().await?;
        }
        ground.router.stop().await?;
        ground.lenient = false;
        ground.start_router()?;
    }
    let mut deciding = tokio::spawn(decide(setup.park.then_some(decider)));
    // one that does not recover may yet catch up; one that has ended by itself has said so
    let rest = everything_arrives(&intake, &ledger, &mut ground).await;
    stopped = stopped.or_else(|| rest.err().map(|error| format!("{error:#}")));
    deciding.abort();
    // it has been told to end
    let _ = (&mut deciding).await;
    if stopped.is_none() {
        for router in ground.standbys.iter_mut().chain([&mut ground.router]) {
            router.stop().await?;
        }
    }
    progress.doing("the records are read to their end");
    let arrivals = intake.finish()?;
    progress.doing("the independent reader reads to the end of the log");
    let client = writers::connect(&postgres).await?;
    let committed = reader.finish(&client).await?;
    progress.doing("comparing");
    let table = committed_rows(&client).await?;
    let table: Option<Vec<Event>> = table.iter().map(Event::of_row).collect();
    let table = table.context("the table holds an id that is no uuid")?;
    let seen = ground.watch.finish();
    let written = std::mem::take(&mut *ledger.lock());
    let positions = positions.finish()?;
    let asked: Vec<Asked> = happened.iter().filter_map(|(_, injected)| injected.asked.clone()).collect();
    let withheld: Vec<_> = happened.iter().filter_map(|(_, injected)| injected.withheld).collect();
    let judgement = judge(&committed, &written.committed, &arrivals, &asked, &withheld);
    Ok(Report::new(Evidence {
        seed: setup.seed,
        exactly_once: setup.exactly_once,
        standbys: setup.standbys > 0,
        kinds: setup.kinds,
        start,
        end,
        happened,
        stopped,
        written,
        log: log.said(),
        committed,
        table,
        arrivals,
        seen,
        positions,
        judgement,
    }))
}

/// What the router's configuration has besides.
fn configured(setup: &Setup) -> String {
    let mode = if setup.exactly_once { "exactly-once" } else { "at-least-once" };
    let park = if setup.park {
        format!("dead_letters.policy = \"park\"\nkafka.\"message.max.bytes\" = {STRICT}\n")
    } else {
        String::new()
    };
    let bulk_reads = match setup.bulk_reads {
        Some(lag) => format!("postgres.catch_up = \"auto\"\npostgres.catch_up_lag = {lag}\n"),
        None => String::new(),
    };
    let login = if setup.needs(Need::Authorizer) {
        format!(
            "kafka.\"security.protocol\" = \"sasl_plaintext\"\nkafka.\"sasl.mechanism\" = \"PLAIN\"\n\
             kafka.\"sasl.username\" = \"{PRINCIPAL}\"\nkafka.\"sasl.password\" = \"secret\"\n"
        )
    } else {
        String::new()
    };
    format!("delivery.mode = \"{mode}\"\n{park}{bulk_reads}{login}")
}

/// Has what is parked sent again, for ever.
async fn decide(decider: Option<Decider>) {
    let Some(decider) = decider else { return std::future::pending().await };
    loop {
        sleep(DECIDES_EVERY).await;
        // Postgres may be away; there is a next time
        let _ = decider.runs(&["dead-letters", "retry", "--all"]).await;
    }
}

/// Host and port of a URL.
fn place_of(url: &str) -> anyhow::Result<String> {
    let config: tokio_postgres::Config = url.parse().context("the URL of Postgres")?;
    match (config.get_hosts().first(), config.get_ports().first()) {
        (Some(tokio_postgres::config::Host::Tcp(host)), Some(port)) => Ok(format!("{host}:{port}")),
        _ => bail!("the URL of Postgres has to name a host and a port"),
    }
}

async fn all_topics_are_there(intake: &Intake, ground: &mut Ground) -> anyhow::Result<()> {
    let deadline = Instant::now() + RECOVERS_WITHIN;
    while ALL_TYPES.iter().any(|kind| intake.arrived().count(&topic_of(kind)) == 0) {
        ground.router.still_runs()?;
        if Instant::now() > deadline {
            bail!("no event arrives, though nothing has been broken yet");
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Waits for the first event that was committed after the fault; returns how long after its end it arrived.
async fn recovers(
    injected: &Injected,
    intake: &Intake,
    ledger: &Ledger,
    ground: &mut Ground,
) -> anyhow::Result<Duration> {
    let deadline = Instant::now() + RECOVERS_WITHIN;
    loop {
        let first =
            first_after(&intake.arrived().records, injected.began, injected.back, &ledger.lock().committed);
        if let Some(at) = first {
            return Ok(at.saturating_duration_since(injected.back));
        }
        ground.router.still_runs()?;
        if Instant::now() > deadline {
            bail!("no event has arrived {} s after the fault was over", RECOVERS_WITHIN.as_secs());
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Waits until all is acknowledged and remembered that was in the log when it began to: what comes twice has come then.
async fn catches_up(ground: &mut Ground) -> anyhow::Result<()> {
    let deadline = Instant::now() + RECOVERS_WITHIN;
    let end = ground.watch.end_of_log();
    while ground.watch.remembered() < end {
        ground.find_active().await?;
        ground.router.still_runs()?;
        if Instant::now() > deadline {
            bail!("the router has not caught up {} s after the fault was over", RECOVERS_WITHIN.as_secs());
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Waits until every committed event was read, and gives up only when nothing more arrives; what is missing then is for the
/// judgement to name.
async fn everything_arrives(intake: &Intake, ledger: &Ledger, ground: &mut Ground) -> anyhow::Result<()> {
    let mut missing: HashSet<Id> = ledger.lock().committed.keys().copied().collect();
    let mut looked_at = 0;
    let mut last_arrival = Instant::now();
    loop {
        {
            let arrived = intake.arrived();
            for arrival in arrived.records.iter().skip(looked_at) {
                arrival.id.map(|id| missing.remove(&id));
            }
            if arrived.records.len() > looked_at {
                looked_at = arrived.records.len();
                last_arrival = Instant::now();
            }
        }
        if missing.is_empty() || last_arrival.elapsed() > NOTHING_ARRIVES_FOR {
            return Ok(());
        }
        ground.router.still_runs()?;
        sleep(LOOK_EVERY).await;
    }
}
