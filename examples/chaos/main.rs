//! The campaign: writers, the router, a consumer, an independent reader, and faults of all kinds at random times; then what
//! was committed is compared with what arrived.
//!
//! `scripts/chaos` brings up the servers and runs it; its `--help` says the rest.

mod accounts;
mod allowance;
mod campaign;
mod decode;
mod event;
mod faults;
mod injected;
mod intake;
mod judgement;
mod nameserver;
mod picture;
mod plan;
mod positions;
mod progress;
mod proxy;
mod reader;
mod report;
mod services;
#[allow(dead_code, reason = "each program uses its part of it")]
#[path = "../stage/mod.rs"]
mod stage;
mod standstill;
mod table;
mod watch;
mod writers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use outbox_router::terminal;

use crate::campaign::Setup;
use crate::faults::{KINDS, Kind, Need};
use crate::services::Services;
use crate::stage::program;

/// Breaks servers, network and the router itself at random while rows are written, and compares what arrived with what was
/// committed.
///
/// Exit code 0: nothing was lost, reordered or outside of what is allowed, and nothing stood still without a reason. 1:
/// something did, or it could not be done.
#[derive(Debug, Parser)]
struct Cli {
    /// Postgres, with rights to create tables and slots; nothing else has run there
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true, default_value = "")]
    postgres: String,

    /// Where the programs of Postgres are
    #[arg(long, env = "TEST_POSTGRES_BIN", default_value = ".")]
    postgres_programs: PathBuf,

    /// Kafka
    #[arg(long, env = "TEST_KAFKA", default_value = "")]
    kafka: String,

    /// The broker's listener for the proxy
    #[arg(long, env = "TEST_KAFKA_EXTRA", default_value = "")]
    kafka_behind_proxy: String,

    /// Where the broker says that this listener is
    #[arg(long, default_value_t = 0)]
    kafka_proxy_port: u16,

    /// Where the broker writes what it says
    #[arg(long, env = "TEST_KAFKA_LOG", default_value = ".")]
    kafka_log: PathBuf,

    /// Kafka's own tools
    #[arg(long, env = "TEST_KAFKA_CLASSPATH", default_value = "")]
    kafka_classpath: String,

    /// The instance with the standby that synchronized_standby_slots names
    #[arg(long)]
    standby: Option<String>,

    /// What ends and starts the servers
    #[arg(long, default_value = "scripts/services")]
    services: PathBuf,

    /// Whose servers they are
    #[arg(long, default_value = "chaos")]
    instance: String,

    /// How long faults are injected
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,

    /// Rows a second that are committed, besides large transactions
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,

    /// Makes the same choices again
    #[arg(long)]
    seed: Option<u64>,

    /// Only these kinds of faults; by default all that do not come on request only
    #[arg(long, value_delimiter = ',', value_parser = kind)]
    faults: Vec<&'static Kind>,

    /// Says what kinds there are
    #[arg(long)]
    list: bool,

    /// Says what servers and settings the chosen kinds need, a line for each
    #[arg(long)]
    needs: bool,

    /// Leaves out the kinds that need this
    #[arg(long, value_name = "NEED")]
    without: Vec<String>,

    /// What the router promises
    #[arg(long, default_value = "at-least-once", value_parser = ["at-least-once", "exactly-once"])]
    mode: String,

    /// So many routers wait beside the active one, all the time
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=5))]
    standbys: u8,

    /// Some events cannot be sent by every other router that is started: they are parked, and sent again
    #[arg(long)]
    park: bool,

    /// A slot that lags by more than so many bytes of log is read in bulk; 1: it goes over and back all the time
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    bulk_reads: Option<u64>,

    /// Prints JSON
    #[arg(long)]
    json: bool,

    /// Draws the campaign into this file, as SVG
    #[arg(long)]
    picture: Option<PathBuf>,

    /// The other way round: exit code 0 only if a guarantee did not hold, for a router that was broken on purpose
    #[arg(long)]
    must_find: bool,

    /// The router; by default the one that was built with this program
    #[arg(long)]
    router: Option<PathBuf>,

    /// For settings, logs and the report
    #[arg(long, default_value = ".services/chaos/campaign")]
    folder: PathBuf,
}

fn kind(name: &str) -> Result<&'static Kind, String> {
    let found = KINDS.iter().find(|kind| kind.name == name);
    found.ok_or_else(|| "there is no such kind of fault; --list names them".to_owned())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    program::run("chaos", run(Cli::parse())).await
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    if cli.list {
        let width = KINDS.iter().map(|kind| kind.name.len()).max().unwrap_or_default();
        let lines: Vec<String> = KINDS
            .iter()
            .map(|kind| format!("{:width$}  {}{}\n", kind.name, kind.what, kind.need.told()))
            .collect();
        terminal::print(&lines.concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    let seed = cli.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    let usual = || KINDS.iter().filter(|kind| kind.need == Need::Nothing).collect();
    let mut kinds: Vec<&Kind> = if cli.faults.is_empty() { usual() } else { cli.faults };
    if cli.needs {
        let needs: Vec<String> =
            kinds.iter().map(|kind| format!("{} {}\n", kind.need.name(), kind.name)).collect();
        terminal::print(&needs.concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    kinds.retain(|kind| !cli.without.iter().any(|need| need == kind.need.name()));
    if !cli.park {
        kinds.retain(|kind| kind.need != Need::Parking);
    }
    // with standbys each end of a router is one
    kinds.retain(|kind| cli.standbys == 0 || kind.name != "router-handover");
    anyhow::ensure!(!kinds.is_empty(), "none of these kinds of faults can be tried here");
    eprintln!("--seed {seed} makes the same choices again; {} kinds of faults", kinds.len());
    let setup = Setup {
        program: match cli.router {
            Some(program) => program,
            None => program::router_beside()?,
        },
        folder: cli.folder.clone(),
        services: Services {
            script: cli.services,
            instance: cli.instance,
            postgres: cli.postgres,
            kafka_log: cli.kafka_log,
            brokers: cli.kafka.clone(),
            kafka_classpath: cli.kafka_classpath,
            standby: cli.standby,
        },
        programs: cli.postgres_programs,
        brokers: cli.kafka,
        behind_proxy: cli.kafka_behind_proxy,
        proxy_port: cli.kafka_proxy_port,
        kinds,
        exactly_once: cli.mode == "exactly-once",
        standbys: cli.standbys.into(),
        park: cli.park,
        bulk_reads: cli.bulk_reads,
        span: Duration::try_from_secs_f64(cli.minutes * 60.0).context("--minutes")?,
        rate: cli.rate,
        seed,
    };
    let report = campaign::run(setup).await?;
    let json = format!("{:#}\n", report.json());
    let file = cli.folder.join("report.json");
    std::fs::write(&file, &json).with_context(|| format!("write {}", file.display()))?;
    if let Some(file) = &cli.picture {
        std::fs::write(file, picture::draw(&report)).with_context(|| format!("write {}", file.display()))?;
    }
    terminal::print(&if cli.json { json } else { table::render(&report) })?;
    let as_expected = if cli.must_find { report.guarantee_broken } else { report.is_good() };
    Ok(if as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
