//! Compares the speed of the router, its peers, and a bare reader as the bound that Postgres sets. They run alternately and
//! repeatedly, so that other load on the machine affects all alike.
//!
//! `scripts/bench` starts the servers and runs this program; see its `--help`.

mod arrivals;
mod bare_producer;
mod bare_reader;
mod case;
mod chart;
#[allow(dead_code, reason = "scripts/parity compares with it")]
#[path = "../parity/connect.rs"]
mod connect;
mod contestant;
mod debezium;
mod live;
#[allow(dead_code, reason = "each program uses only some of it")]
#[path = "../measure/mod.rs"]
mod measure;
mod new_topics;
mod overview;
mod peers;
mod plots;
mod polling_loop;
mod report;
#[allow(dead_code, reason = "each program uses only some of it")]
#[path = "../stage/mod.rs"]
mod stage;
mod topics;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand};
use outbox_router::config::DeliveryMode;
use outbox_router::terminal;

use crate::case::Case;
use crate::connect::Installation;
use crate::contestant::{Contestant, Place, SHARDS, Transport, bulk_pairs};
use crate::debezium::Debezium;
use crate::measure::ground::Ground;
use crate::measure::machine::Machine;
use crate::measure::progress::Progress;
use crate::measure::writers::{Load, Writers};
use crate::polling_loop::Poll;
use crate::report::{COMPARED, Grown, Measured, Part, Report, Settings};
use crate::stage::program;
use crate::topics::Topics;

/// Compares the speed of the router, its peers, and a bare reader of Postgres.
///
/// Exit code 0: measured. 1: a measurement failed.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measures, prints tables, writes JSON
    Measure(Box<Measure>),
    /// Draws the plots of README.md and docs/performance.md from the JSON
    Draw {
        /// The JSON file that `measure` wrote
        report: PathBuf,
        /// Folder for the plots
        folder: PathBuf,
    },
    /// Runs the polling loop of the comparison until it is killed
    #[command(hide = true)]
    Poll(Poll),
}

#[derive(Debug, Args)]
struct Measure {
    /// URL of a Postgres whose outbox nothing else has used, with rights to create tables and slots
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true)]
    postgres: String,
    /// Port of the same server
    #[arg(long, env = "TEST_POSTGRES_PORT")]
    postgres_port: u16,
    /// Folder of its Unix socket
    #[arg(long, env = "TEST_POSTGRES_SOCKET")]
    postgres_socket: PathBuf,
    #[arg(long, env = "TEST_KAFKA")]
    kafka: String,
    /// Kafka's version, for the report
    #[arg(long, default_value = "unknown")]
    kafka_version: String,
    #[arg(long)]
    router: PathBuf,
    #[arg(long, default_value = "pg_recvlogical")]
    pg_recvlogical: PathBuf,
    /// Folder for configuration and logs
    #[arg(long, default_value = ".services/bench/bench")]
    folder: PathBuf,
    /// Measures only this; may be repeated [default: all but peers]
    #[arg(long)]
    part: Vec<Part>,
    /// Compares only contestants over this transport; may be repeated [default: all]
    #[arg(long)]
    transport: Vec<Transport>,
    /// Rows of the backlog that all contestants catch up with [default: 500000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    rows: Option<u64>,
    /// In bulk-reads, cases and growth measures only cases whose name contains this; may be repeated [default: all]
    #[arg(long)]
    case: Vec<String>,
    /// Rounds of each contestant [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_ROUNDS)))]
    rounds: Option<u32>,
    /// Rows of the backlogs of cases and growth, unless a case sets its own [default: 200000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    case_rows: Option<u64>,
    /// Rounds of each of these [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_ROUNDS)))]
    case_rounds: Option<u32>,
    /// Seconds of each latency measurement [default: 10]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Rounds of each load [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_ROUNDS)))]
    latency_rounds: Option<u32>,
    /// The largest backlog of the growth [default: 10000000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    backlog: Option<u64>,
    /// All contestants with 100000 rows and 1000 transactions/s, one round each
    #[arg(long)]
    quick: bool,
    /// File for the measurements, as JSON
    #[arg(long, default_value = "bench.json")]
    json: PathBuf,
    /// Java for Debezium, which the part `peers` needs
    #[arg(long, requires_all = ["connect_classpath", "plugins"])]
    java: Option<PathBuf>,
    /// Classpath of Kafka Connect
    #[arg(long)]
    connect_classpath: Option<String>,
    /// Folder of Debezium's plugin
    #[arg(long)]
    plugins: Option<PathBuf>,
    /// Logging configuration of Connect
    #[arg(long, default_value = "scripts/lib/debezium/log4j2.properties")]
    log_settings: PathBuf,
}

impl Measure {
    fn debezium(&self) -> Option<Debezium> {
        let installation = Installation {
            java: self.java.clone()?,
            connect_classpath: self.connect_classpath.clone()?,
            plugins: self.plugins.clone()?,
            // no measurement uses tracing
            plugins_with_tracing: self.plugins.clone()?,
            log_settings: self.log_settings.clone(),
        };
        Some(Debezium { installation, folder: self.folder.join("debezium") })
    }

    fn settings(&self) -> Settings {
        let (rows, rounds, seconds, latency_rounds) =
            if self.quick { (100_000, 1, 4, 1) } else { (500_000, 5, 10, 3) };
        let of_quick = [Part::Compare, Part::Latency];
        let all = [Part::Compare, Part::BulkReads, Part::Cases, Part::Latency, Part::Growth, Part::NewTopics];
        let parts = match (self.part.as_slice(), self.quick) {
            ([], true) => &of_quick,
            ([], false) => &all[..],
            (some, _) => some,
        };
        Settings {
            rows: self.rows.unwrap_or(rows),
            rounds: self.rounds.unwrap_or(rounds),
            case_rows: self.case_rows.unwrap_or(200_000),
            case_rounds: self.case_rounds.unwrap_or(if self.quick { 1 } else { 3 }),
            seconds: self.seconds.unwrap_or(seconds),
            latency_rounds: self.latency_rounds.unwrap_or(latency_rounds),
            backlog: self.backlog.unwrap_or(10_000_000),
            parts: parts.to_vec(),
            transports: if self.transport.is_empty() {
                Transport::ALL.to_vec()
            } else {
                self.transport.clone()
            },
            only: self.case.clone(),
        }
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    program::run("bench", run(Cli::parse())).await
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.what {
        What::Measure(cli) => measure_and_report(&cli).await,
        What::Draw { report, folder } => draw(&report, &folder),
        What::Poll(poll) => polling_loop::run(&poll).await.map(|()| ExitCode::SUCCESS),
    }
}

fn draw(report: &Path, folder: &Path) -> anyhow::Result<ExitCode> {
    let text = fs::read_to_string(report).with_context(|| format!("read {}", report.display()))?;
    // by way of a value: flattened members cannot be read from text where numbers have arbitrary precision
    let read = serde_json::from_str::<serde_json::Value>(&text).and_then(serde_json::from_value);
    let report: Report = read.with_context(|| format!("parse {}", report.display()))?;
    let drawn = plots::draw(&report, folder)?;
    ensure!(drawn > 0, "the report has no figures to draw");
    eprintln!("{drawn} plots drawn in {}", folder.display());
    Ok(ExitCode::SUCCESS)
}

async fn measure_and_report(cli: &Measure) -> anyhow::Result<ExitCode> {
    let mut measured = Measured::default();
    let (machine, outcome) = measure(cli, &mut measured).await?;
    let program_bytes = fs::metadata(&cli.router).context("read the size of the router")?.len();
    // write the measurements made before a failure too
    let report = Report { machine: machine.at_the_end(), settings: cli.settings(), program_bytes, measured };
    terminal::print(&report.render())?;
    let json = serde_json::to_string_pretty(&report).context("write the figures as JSON")?;
    fs::write(&cli.json, json + "\n").with_context(|| format!("write {}", cli.json.display()))?;
    eprintln!("every single measurement is in {}", cli.json.display());
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Returns the machine, and the result of the parts.
async fn measure(cli: &Measure, measured: &mut Measured) -> anyhow::Result<(Machine, anyhow::Result<()>)> {
    let ground = Ground::prepare(&cli.router, &cli.folder, &cli.postgres, &cli.kafka).await?;
    let machine = Machine::look(&ground, &cli.kafka_version).await?;
    let (port, socket) = (cli.postgres_port, cli.postgres_socket.display());
    let place = Place {
        topics: Topics::of(&cli.kafka)?,
        ground,
        tcp: format!("127.0.0.1:{port}"),
        unix: format!("{socket}/.s.PGSQL.{port}"),
        tcp_url: format!("{}?sslmode=disable", cli.postgres),
        unix_url: format!("host={socket} port={port} user=postgres dbname=postgres"),
        pg_recvlogical: cli.pg_recvlogical.clone(),
        debezium: cli.debezium(),
        warmed_up: AtomicU64::new(0),
    };
    let outcome = parts(&place, cli, measured).await;
    Ok((machine, outcome))
}

async fn parts(place: &Place, cli: &Measure, measured: &mut Measured) -> anyhow::Result<()> {
    let settings = cli.settings();
    let progress = Progress::new(steps(&settings));
    let is_wanted = |part| settings.parts.contains(&part);
    if is_wanted(Part::Compare) {
        compare(place, &settings, &progress, measured).await?;
    }
    if is_wanted(Part::BulkReads) {
        let contestants: Vec<Contestant> = bulk_pairs(&settings.transports).concat();
        for case in settings.bulk_cases() {
            // the largest takes minutes, in which short disturbances do not matter
            let rounds = if case.rows > 2_000_000 { 1 } else { settings.rounds };
            of_case(place, case.clone(), &contestants, rounds, &progress, measured).await?;
            measured.bulk_cases.push(case);
        }
    }
    if is_wanted(Part::Cases) {
        let rounds = settings.case_rounds;
        for case in settings.varied_cases() {
            of_case(place, case.clone(), &Contestant::OF_CASES, rounds, &progress, measured).await?;
            measured.cases.push(case);
        }
    }
    if is_wanted(Part::Latency) {
        live::measure(place, &settings, cli.quick, &progress, measured).await?;
    }
    if is_wanted(Part::Growth) {
        growth(place, &settings, &progress, measured).await?;
    }
    if is_wanted(Part::Peers) {
        peers::measure(place, &settings, &progress, measured).await?;
    }
    if is_wanted(Part::NewTopics) {
        new_topics::measure(place, &settings, &progress, &mut measured.new_topics).await?;
    }
    Ok(())
}

/// The approximate number of measurements.
fn steps(settings: &Settings) -> u64 {
    let of = |part, count: usize| if settings.parts.contains(&part) { count as u64 } else { 0 };
    let compared = settings.contestants().len();
    let (rounds, of_cases) = (settings.rounds as usize, settings.case_rounds as usize);
    of(Part::Compare, compared * rounds)
        + of(Part::BulkReads, settings.bulk_cases().len() * 2 * settings.transports.len() * rounds)
        + of(Part::Cases, settings.varied_cases().len() * Contestant::OF_CASES.len() * of_cases)
        + of(Part::Latency, 9 * settings.latency_rounds as usize)
        + of(Part::Growth, settings.growing_cases().len() * of_cases)
        + of(Part::Peers, peers::steps(settings))
        + of(Part::NewTopics, new_topics::steps(settings))
}

async fn compare(
    place: &Place,
    settings: &Settings,
    progress: &Progress,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    place.ground.prepare_shards(SHARDS).await?;
    let case = Case { payload: 286, ..Case::plain(COMPARED, settings.rows) };
    of_case(place, case.clone(), &settings.contestants(), settings.rounds, progress, measured).await?;
    measured.cases.push(case);
    Ok(())
}

/// All contestants alternately; each round begins with another one.
async fn of_case(
    place: &Place,
    case: Case,
    contestants: &[Contestant],
    rounds: u32,
    progress: &Progress,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let backlog = begin(place, &case, progress).await?;
    let writers = match case.writers {
        0 => None,
        count => {
            let load = Load { rate: count, rows: 1 };
            Some(Writers::start_many(&place.ground.url, &backlog, load, count).await?)
        }
    };
    for round in 1..=rounds {
        let first = round as usize - 1;
        for contestant in contestants.iter().cycle().skip(first % contestants.len()).take(contestants.len()) {
            let found = contestant::catch_up(place, &case, *contestant, round, progress).await?;
            progress.say(&found.to_string());
            measured.catch_up.push(found);
            progress.step();
        }
    }
    if let Some(writers) = writers {
        let _ledger = writers.stop().await?;
    }
    end(place, &case, &backlog).await
}

async fn growth(
    place: &Place,
    settings: &Settings,
    progress: &Progress,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let router = Contestant::Router(Transport::Tls, DeliveryMode::AtLeastOnce);
    for (what, size, case) in settings.growing_cases() {
        let backlog = begin(place, &case, progress).await?;
        // short disturbances do not matter in a measurement of minutes
        let rounds = if case.rows > 2_000_000 { 1 } else { settings.case_rounds };
        for round in 1..=rounds {
            let measurement = contestant::catch_up(place, &case, router, round, progress).await?;
            progress.say(&measurement.to_string());
            measured.growth.push(Grown { what: what.to_owned(), size, measurement });
            progress.step();
        }
        end(place, &case, &backlog).await?;
    }
    Ok(())
}

/// The largest number of rounds.
const MOST_ROUNDS: u32 = 1000;

/// Writes the backlog, and returns the slot before it. Also warms up the broker: creates the topics, and at first sends enough
/// events for its JVM to compile its code.
async fn begin(place: &Place, case: &Case, progress: &Progress) -> anyhow::Result<String> {
    const WARM: u64 = 2_000_000;
    const AT_MOST: u32 = 3;
    let backlog = case.backlog();
    backlog.write(&place.ground, progress).await?;
    // a router resumes from the checkpoint of its name, so each gets its own number
    for number in 1..=AT_MOST {
        let is_warm = place.warmed_up.load(Ordering::Relaxed) >= WARM;
        if is_warm && (number > 1 || case.rows > WARM) {
            break;
        }
        for mode in DeliveryMode::ALL {
            let router = Contestant::Router(Transport::Tls, mode);
            contestant::catch_up(place, case, router, MOST_ROUNDS + number, progress).await?;
            place.warmed_up.fetch_add(case.rows, Ordering::Relaxed);
        }
    }
    Ok(backlog.name)
}

/// Removes everything of a measurement, so that it does not slow down the next.
async fn end(place: &Place, case: &Case, slot: &str) -> anyhow::Result<()> {
    place.ground.drop_slot(slot).await?;
    place.ground.client.batch_execute("TRUNCATE outbox; CHECKPOINT").await?;
    place.topics.delete_like(&case.id()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(more: &[&str]) -> Settings {
        let arguments = [
            "bench",
            "measure",
            "--postgres",
            "a",
            "--postgres-port",
            "1",
            "--postgres-socket",
            "s",
            "--kafka",
            "b",
            "--router",
            "c",
        ];
        match Cli::parse_from(arguments.iter().chain(more)).what {
            What::Measure(cli) => cli.settings(),
            What::Draw { .. } | What::Poll(_) => panic!(),
        }
    }

    #[test]
    fn explicit_options_override_quick() {
        let settings = parsed(&["--quick", "--rows", "70000", "--part", "growth"]);
        assert_eq!((settings.rows, settings.rounds, settings.parts), (70_000, 1, vec![Part::Growth]));
        assert_eq!(parsed(&["--quick"]).parts, [Part::Compare, Part::Latency]);
        assert_eq!(parsed(&[]).parts.len(), 6);
    }
}
