//! The fault campaign: runs writers, the router, a consumer and an independent reader of the log, and injects faults at random
//! times. At the end it compares what was committed with what arrived.
//!
//! `scripts/chaos` starts the servers and runs this program; see its `--help`.

mod admin_probe;
mod allowance;
mod campaign;
mod caught_up;
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
mod replays;
mod report;
mod row_allowance;
mod services;
mod source;
#[allow(dead_code, reason = "each program uses only some of it")]
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
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use outbox_router::terminal;

use crate::campaign::Setup;
use crate::faults::{KINDS, Kind, Need};
use crate::services::Services;
use crate::source::{Options, Source};
use crate::stage::program;

/// Breaks the servers, the network and the router at random while rows are written, and compares what arrived with what was
/// committed.
///
/// Exit code 0: nothing was lost or reordered, duplicates were within the allowance, and every standstill had a reason. 1: one of
/// these failed, or the campaign could not be run.
#[derive(Debug, Parser)]
struct Cli {
    /// URL of a Postgres that nothing else has used, with rights to create tables and slots
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true, default_value = "")]
    postgres: String,

    /// Folder of the Postgres programs
    #[arg(long, env = "TEST_POSTGRES_BIN", default_value = ".")]
    postgres_programs: PathBuf,

    /// Bootstrap servers of Kafka
    #[arg(long, env = "TEST_KAFKA", default_value = "")]
    kafka: String,

    /// Address of the broker's listener that the proxy connects to
    #[arg(long, env = "TEST_KAFKA_EXTRA", default_value = "")]
    kafka_behind_proxy: String,

    /// Port that the broker advertises for that listener: the proxy's
    #[arg(long, default_value_t = 0)]
    kafka_proxy_port: u16,

    /// Log file of the broker
    #[arg(long, env = "TEST_KAFKA_LOG", default_value = ".")]
    kafka_log: PathBuf,

    /// Classpath of Kafka's command-line tools
    #[arg(long, env = "TEST_KAFKA_CLASSPATH", default_value = "")]
    kafka_classpath: String,

    /// Instance of the Postgres standby that synchronized_standby_slots names
    #[arg(long)]
    standby: Option<String>,

    /// Script that stops and starts the servers
    #[arg(long, default_value = "scripts/services")]
    services: PathBuf,

    /// Instance of that script
    #[arg(long, default_value = "chaos")]
    instance: String,

    /// How long to inject faults
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,

    /// Rows committed per second, besides large transactions
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,

    /// Makes the same choices as an earlier run with this seed
    #[arg(long)]
    seed: Option<u64>,

    /// Only these kinds of faults; default: all except those on request
    #[arg(long, value_delimiter = ',', value_parser = kind)]
    faults: Vec<&'static Kind>,

    /// Lists the kinds of faults
    #[arg(long)]
    list: bool,

    /// Lists what servers and settings the chosen kinds need, a line for each
    #[arg(long)]
    needs: bool,

    /// Leaves out the kinds with this need
    #[arg(long, value_name = "NEED")]
    without: Vec<String>,

    /// Delivery mode of the router
    #[arg(long, default_value = "at-least-once", value_parser = ["at-least-once", "exactly-once"])]
    mode: String,

    /// What the router reads: the log, or the table by polling
    #[arg(long, value_enum, default_value_t = Source::Log)]
    source: Source,

    /// Number of standby routers; with --source poll of further routers, which work at the same time
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=5))]
    standbys: u8,

    /// Every second router started cannot send some events: it parks them, and the next one sends them
    #[arg(long)]
    park: bool,

    /// Partitions the outbox, whose partitions prune drops
    #[arg(long)]
    partitioned: bool,

    /// Reads a slot in bulk if it lags by more than this; with 1 the router switches all the time
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    bulk_reads: Option<u64>,

    /// Prints the report as JSON
    #[arg(long)]
    json: bool,

    /// Draws the campaign to this file, as SVG
    #[arg(long)]
    picture: Option<PathBuf>,

    /// Inverts the exit code, for a router that is broken on purpose: 0 only if a guarantee was violated
    #[arg(long)]
    must_find: bool,

    /// Router to test; default: the one built with this program
    #[arg(long)]
    router: Option<PathBuf>,

    /// Folder for configuration, logs and the report
    #[arg(long, default_value = ".services/chaos/campaign")]
    folder: PathBuf,
}

fn kind(name: &str) -> Result<&'static Kind, String> {
    let found = KINDS.iter().find(|kind| kind.name == name);
    found.ok_or_else(|| "unknown kind of fault; --list shows all kinds".to_owned())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    program::run("chaos", run(Cli::parse())).await
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let options = Options {
        exactly_once: cli.mode == "exactly-once",
        park: cli.park,
        bulk_reads: cli.bulk_reads.is_some(),
        partitioned: cli.partitioned,
    };
    if let Some(why) = cli.source.refusal(options) {
        Cli::command().error(ErrorKind::ArgumentConflict, why).exit();
    }
    if cli.list {
        let width = KINDS.iter().map(|kind| kind.name.len()).max().unwrap_or_default();
        let lines: Vec<String> = KINDS
            .iter()
            .map(|kind| format!("{:width$}  {}{}\n", kind.name, kind.what, kind.note()))
            .collect();
        terminal::print(&lines.concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    let seed = cli.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    // who polls is told which of the usual kinds are left out
    let is_usual = |kind: &&Kind| {
        (kind.need == Need::Nothing || kind.need == Need::Partitions)
            && (kind.fits(Source::Log) || kind.fits(cli.source))
    };
    let chosen = if cli.faults.is_empty() { KINDS.iter().filter(is_usual).collect() } else { cli.faults };
    let (mut kinds, left_out): (Vec<&Kind>, Vec<&Kind>) =
        chosen.into_iter().partition(|kind| kind.fits(cli.source));
    if cli.needs {
        let needs: Vec<String> =
            kinds.iter().map(|kind| format!("{} {}\n", kind.need.name(), kind.name)).collect();
        terminal::print(&needs.concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|kind| kind.name).collect();
        eprintln!("skipped: {}, {}", names.join(" "), cli.source.lacks());
    }
    kinds.retain(|kind| !cli.without.iter().any(|need| need == kind.need.name()));
    if !cli.park {
        kinds.retain(|kind| kind.need != Need::Parking);
    }
    if !cli.partitioned {
        kinds.retain(|kind| kind.need != Need::Partitions);
    }
    // with standbys, every end of a router is a handover
    kinds.retain(|kind| cli.standbys == 0 || kind.name != "router-handover");
    anyhow::ensure!(!kinds.is_empty(), "none of these kinds of faults can be injected here");
    eprintln!("{} kinds of faults; --seed {seed} makes the same choices again", kinds.len());
    let setup = Setup {
        program: match cli.router {
            Some(program) => program,
            None => program::built_router()?,
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
        source: cli.source,
        exactly_once: cli.mode == "exactly-once",
        standbys: cli.standbys.into(),
        park: cli.park,
        partitioned: cli.partitioned,
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
