//! The comparison with Debezium: the same rows go through Debezium in Kafka Connect and through the router, and what
//! both made of them is compared record by record.
//!
//! `scripts/parity` fetches Debezium, brings up the servers and runs it; its `--help` says the rest.

mod case;
mod connect;
mod database;
mod debezium;
mod record;
mod topics;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::case::Case;
use crate::connect::{Installation, Worker};
use crate::database::Server;
use crate::debezium::Outcome;
use crate::topics::Broker;

/// Compares the router with Debezium, case by case.
///
/// Exit code 0: no case differs. 1: one does, or the comparison could not be done.
#[derive(Debug, Parser)]
struct Cli {
    /// Postgres, with rights to create databases
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true)]
    postgres: String,

    /// Kafka, with no topics but its own: all others are taken for a case's, and deleted
    #[arg(long, env = "TEST_KAFKA")]
    kafka: String,

    #[command(flatten)]
    connect: Installation,

    /// The folder of the cases
    #[arg(long, default_value = "examples/parity/cases")]
    cases: PathBuf,

    /// For settings and logs
    #[arg(long, default_value = ".services/parity")]
    folder: PathBuf,

    /// Only writes what Debezium makes, a file of JSON lines for each case, into this folder
    #[arg(long)]
    debezium_only: Option<PathBuf>,

    /// Only cases whose name begins so
    case: Vec<String>,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("parity failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // dropped by a signal, it ends the processes that it started
    tokio::select! {
        code = compare_all(cli) => code,
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
    }
}

async fn compare_all(cli: Cli) -> anyhow::Result<ExitCode> {
    let mut cases = case::read_all(&cli.cases)?;
    if !cli.case.is_empty() {
        cases.retain(|case| cli.case.iter().any(|begin| case.name.starts_with(begin.as_str())));
        anyhow::ensure!(!cases.is_empty(), "no case's name begins with {}", cli.case.join(" or "));
    }
    let server = Server::new(&cli.postgres)?;
    let broker = Broker::new(&cli.kafka)?;
    let target = cli.debezium_only.context("the comparison itself is not there yet: give --debezium-only")?;
    std::fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
    // a worker without tracing, and one with it: it is a matter of what lies on the class path
    for tracing in [false, true] {
        let of_worker: Vec<&Case> = cases.iter().filter(|case| case.tracing == tracing).collect();
        if of_worker.is_empty() {
            continue;
        }
        let mut worker = Worker::start(&cli.connect, tracing, &cli.folder, &cli.kafka).await?;
        for case in of_worker {
            let started = Instant::now();
            let outcome = debezium_alone(case, &server, &broker, &mut worker).await;
            let outcome = outcome.with_context(|| format!("case {}", case.name))?;
            let file = target.join(format!("{}.jsonl", case.name));
            std::fs::write(&file, outcome.json_lines(case)?)
                .with_context(|| format!("write {}", file.display()))?;
            let seconds = started.elapsed().as_secs_f32();
            eprintln!("{}: {} ({seconds:.1} s)", case.name, outcome.summary());
        }
        worker.end().await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn debezium_alone(
    case: &Case,
    server: &Server,
    broker: &Broker,
    worker: &mut Worker,
) -> anyhow::Result<Outcome> {
    let database = server.create(case).await?;
    let outcome = debezium::run(case, &database, broker, worker).await;
    broker.clear().await?;
    database.drop().await?;
    outcome
}
