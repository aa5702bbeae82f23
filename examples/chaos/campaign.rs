//! Runs the campaign from the first row to the report.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::time::sleep;

use crate::caught_up::wait_until_caught_up;
use crate::event::{Event, Id};
use crate::faults::{Ground, Kind, Need, PRINCIPAL, SLOT, STRICT, grant};
use crate::injected::{Asked, Injected};
use crate::intake::{Intake, first_after, lock};
use crate::judgement::judge;
use crate::nameserver::Nameserver;
use crate::plan::Plan;
use crate::positions::Positions;
use crate::progress::Progress;
use crate::proxy::Proxy;
use crate::reader::{Committed, Reader};
use crate::replays::{self, Replays};
use crate::report::{Evidence, Report};
use crate::services::Services;
use crate::source::Source;
use crate::stage::consumer::TopicReader;
use crate::stage::outbox_table::{committed_rows, topic_of};
use crate::stage::router::{AdminCommands, Router};
use crate::watch::Watch;
use crate::writers::{self, ALL_TYPES, Ledger, Writers, large};

/// If no event committed after a fault arrives within this time, the campaign ends.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
/// The end of the campaign gives up waiting for missing events when no record has arrived for this long.
const NOTHING_ARRIVES_FOR: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(20);
const OPENING_ROWS: u64 = 1_000;
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// The servers and options of a campaign.
pub(crate) struct Setup {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) services: Services,
    /// The folder of the Postgres programs.
    pub(crate) programs: PathBuf,
    pub(crate) brokers: String,
    /// The broker's listener behind the proxy, and the port that the broker advertises for it, which is the proxy's.
    pub(crate) behind_proxy: String,
    pub(crate) proxy_port: u16,
    pub(crate) kinds: Vec<&'static Kind>,
    pub(crate) source: Source,
    pub(crate) exactly_once: bool,
    /// The number of further routers.
    pub(crate) standbys: usize,
    /// Whether every second router started cannot send some events.
    pub(crate) park: bool,
    /// Whether the outbox has partitions.
    pub(crate) partitioned: bool,
    /// The lag in bytes from which the slot is read in bulk; `None`: the default.
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

/// One injected fault, and the index of its kind.
pub(crate) type Happened = (usize, Injected);

/// Runs the campaign.
pub(crate) async fn run(setup: Setup) -> anyhow::Result<Report> {
    let postgres = setup.services.postgres.clone();
    let client = writers::connect(&postgres).await?;
    writers::create_table(&client).await?;
    let to_postgres = Proxy::start(0, host_and_port(&postgres)?).await?;
    let to_kafka = Proxy::start(setup.proxy_port, setup.behind_proxy.clone()).await?;
    let through = postgres.replace(&host_and_port(&postgres)?, &to_postgres.address().to_string());
    let kafka = to_kafka.address().to_string();
    let settings = router_settings(&setup);
    if setup.needs(Need::Authorizer) {
        grant(&setup.services).await?;
    }
    let nameserver = if setup.needs(Need::Nameserver) { Some(Nameserver::start().await?) } else { None };
    let program = match &nameserver {
        Some(nameserver) => nameserver.write_wrapper(&setup.program, &setup.folder)?,
        None => setup.program.clone(),
    };
    let mut router = Router::new(&program, &setup.folder, &through, &kafka, &settings)?;
    let log = router.with_pipe();
    if setup.partitioned {
        router.init_partitioned().await?;
    } else {
        router.init().await?;
    }
    let reader = Reader::start(&client, &postgres, &setup.folder, &setup.programs).await?;
    // it would not survive the first restart of Postgres
    drop(client);

    let mut intake = Intake::start(TopicReader::start(&setup.brokers, ALL_TYPES.map(topic_of).to_vec())?);
    let ledger = Arc::new(Ledger::default());
    let mut ground = Ground {
        source: setup.source,
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
        replays: Replays::default(),
        standbys: Vec::new(),
        park: setup.park,
        lenient: false,
    };
    let progress = Progress::new(setup.span);
    progress.doing("starting");
    ground.start_router()?;
    ground.router.wait_until_ready().await?;
    for _ in 0..setup.standbys {
        let mut standby = ground.router.sibling()?;
        standby.start()?;
        ground.standbys.push(standby);
    }
    let mut writers = Writers::start(&postgres, &ledger, setup.rate, setup.seed, setup.park);
    large(&postgres, &ledger, OPENING_ROWS, setup.seed).await?;
    wait_for_all_topics(&intake, &mut ground).await?;
    let positions = setup.source.follow_positions(&setup.brokers)?;

    let retries = setup.source.needs_retries(setup.park).then(|| ground.router.admin_commands());
    let start = Instant::now();
    let mut happened: Vec<Happened> = Vec::new();
    let mut stopped = None;
    {
        let arrived = intake.shared();
        let acts = async {
            for next in Plan::new(setup.seed, setup.kinds.len()) {
                if start.elapsed() + next.pause > setup.span {
                    break;
                }
                if !next.overlaps && !happened.is_empty() {
                    progress.doing("waiting for the router to catch up");
                    if let Err(error) = wait_until_caught_up(&mut ground).await {
                        stopped = Some(format!("{error:#}"));
                        break;
                    }
                }
                progress.doing("no fault");
                sleep(next.pause).await;
                let Some(kind) = setup.kinds.get(next.kind) else { break };
                progress.doing(kind.name);
                let injected = kind.inject(&mut ground, next.random).await;
                let mut injected = injected.with_context(|| format!("the fault {}", kind.name))?;
                if let Err(error) = ground.follow_the_active(&mut injected).await {
                    stopped = Some(format!("{error:#}"));
                    break;
                }
                let recovered = wait_for_recovery(&injected, &intake, &ledger, &mut ground).await;
                let tail = match &recovered {
                    Ok(after) => format!("events flow after {} ms", after.as_millis()),
                    Err(error) => format!("{error:#}"),
                };
                let what =
                    if injected.what.is_empty() { String::new() } else { format!(", {}", injected.what) };
                progress.say(&format!("{}{what}; {tail}", kind.name));
                injected.overlaps = next.overlaps;
                happened.push((next.kind, injected));
                intake.check().await?;
                writers.check()?;
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
        let retrying = retry_refused(retries.clone());
        tokio::select! {
            end = acts => end?,
            () = showing => bail!("the display ended"),
            () = retrying => bail!("the retries of refused events ended"),
        }
    }

    progress.doing("waiting for the writers to end");
    writers.finish().await?;
    let end = Instant::now();
    progress.doing("waiting for the last events");
    if setup.park && stopped.is_none() {
        // no standby may take over now: it could not send every event
        for mut standby in std::mem::take(&mut ground.standbys) {
            standby.stop().await?;
        }
        ground.router.stop().await?;
        ground.lenient = false;
        ground.start_router()?;
    }
    let mut retrying = tokio::spawn(retry_refused(retries));
    // a router that did not recover in time may still catch up; one that ended by itself was reported above
    let rest = wait_for_all_events(&intake, &ledger, &mut ground).await;
    stopped = stopped.or_else(|| rest.err().map(|error| format!("{error:#}")));
    if stopped.is_none() && !setup.source.has_slot() {
        // the rows of a router that was killed wait for its lease, although their events may have arrived
        stopped = wait_until_caught_up(&mut ground).await.err().map(|error| format!("{error:#}"));
    }
    progress.doing("waiting for the last replay");
    ground.replays.finish().await;
    retrying.abort();
    // it always fails with a cancellation
    let _ = (&mut retrying).await;
    if stopped.is_none() {
        for router in ground.standbys.iter_mut().chain([&mut ground.router]) {
            router.stop().await?;
        }
    }
    progress.doing("reading the last records");
    let arrivals = intake.finish()?;
    progress.doing("waiting for the independent reader");
    let client = writers::connect(&postgres).await?;
    let Committed { events: committed, never_visible } = reader.finish(&client).await?;
    progress.doing("comparing");
    let table = committed_rows(&client).await?;
    let table: Option<Vec<Event>> = table.iter().map(Event::of_row).collect();
    let table = table.context("an id in the table is not a uuid")?;
    let seen = ground.watch.finish();
    let left_undone = setup.source.left_undone(&client).await?;
    let written = std::mem::take(&mut *ledger.lock());
    let positions = positions.map(Positions::finish).transpose()?.unwrap_or_default();
    let asked: Vec<Asked> = happened.iter().filter_map(|(_, injected)| injected.asked.clone()).collect();
    let replays = replays::marks(&client).await?;
    let withheld: Vec<_> = happened.iter().filter_map(|(_, injected)| injected.withheld).collect();
    let mut expected = committed.clone();
    expected.retain(|event| setup.source.sees_never_visible() || !never_visible.contains(&event.id));
    let judgement = judge(&expected, &written.committed, &arrivals, &asked, &replays, &withheld);
    Ok(Report::new(Evidence {
        seed: setup.seed,
        source: setup.source,
        exactly_once: setup.exactly_once,
        standbys: setup.standbys > 0,
        kinds: setup.kinds,
        start,
        end,
        happened,
        stopped,
        written,
        log: log.summary(),
        committed,
        expected: expected.len(),
        table,
        left_undone,
        arrivals,
        seen,
        positions,
        judgement,
    }))
}

/// The lines of the router's configuration that depend on the campaign's options.
fn router_settings(setup: &Setup) -> String {
    let mode = if setup.exactly_once { "exactly-once" } else { "at-least-once" };
    let park = if setup.park {
        format!("dead_letters.policy = \"park\"\nkafka.\"message.max.bytes\" = {STRICT}\n")
    } else {
        String::new()
    };
    let bulk_reads = match setup.bulk_reads {
        Some(lag) => format!("postgres.catch_up_lag = {lag}\n"),
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
    let source = setup.source.settings();
    format!("delivery.mode = \"{mode}\"\n{source}{park}{bulk_reads}{login}")
}

/// Retries all events that were refused at intervals, without end.
async fn retry_refused(commands: Option<AdminCommands>) {
    let Some(commands) = commands else { return std::future::pending().await };
    loop {
        sleep(RETRY_EVERY).await;
        // it fails while Postgres is down
        let _ = commands.run(&["dead-letters", "retry", "--all"]).await;
    }
}

/// The host and port of a Postgres URL.
fn host_and_port(url: &str) -> anyhow::Result<String> {
    let config: tokio_postgres::Config = url.parse().context("the URL of Postgres")?;
    match (config.get_hosts().first(), config.get_ports().first()) {
        (Some(tokio_postgres::config::Host::Tcp(host)), Some(port)) => Ok(format!("{host}:{port}")),
        _ => bail!("the URL of Postgres needs a host and a port"),
    }
}

async fn wait_for_all_topics(intake: &Intake, ground: &mut Ground) -> anyhow::Result<()> {
    let deadline = Instant::now() + RECOVERS_WITHIN;
    while ALL_TYPES.iter().any(|kind| intake.arrived().count(&topic_of(kind)) == 0) {
        ground.check_running()?;
        if Instant::now() > deadline {
            bail!("no event arrives, even before the first fault");
        }
        sleep(POLL_EVERY).await;
    }
    Ok(())
}

/// Waits for the first event committed after the fault began; returns how long after the end of the fault it arrived.
async fn wait_for_recovery(
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
        ground.check_running()?;
        if Instant::now() > deadline {
            bail!("no event arrived within {} s after the fault", RECOVERS_WITHIN.as_secs());
        }
        sleep(POLL_EVERY).await;
    }
}

/// Waits until every committed event was read, and gives up only when no more records arrive. The judgement then names the
/// missing events.
async fn wait_for_all_events(intake: &Intake, ledger: &Ledger, ground: &mut Ground) -> anyhow::Result<()> {
    let mut missing: HashSet<Id> = ledger.lock().committed.keys().copied().collect();
    missing.retain(|id| ground.source.sees_never_visible() || !ledger.lock().never_visible.contains(id));
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
        ground.check_running()?;
        sleep(POLL_EVERY).await;
    }
}
