//! The comparison with Debezium: sends the same rows through Debezium in Kafka Connect and through the router, and compares the
//! records.
//!
//! `scripts/parity` fetches Debezium, starts the servers and runs this program; see its `--help`.

mod case;
mod comparison;
#[allow(dead_code, reason = "scripts/bench measures with it too")]
mod connect;
mod database;
mod debezium;
mod outcome;
#[path = "../stage/program.rs"]
mod program;
mod record;
mod report;
mod router;
mod takeover;
mod topics;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use outbox_router::terminal;

use crate::case::Case;
use crate::comparison::{Findings, compare};
use crate::connect::{Installation, Setup, Worker};
use crate::database::Server;
use crate::outcome::Outcome;
use crate::report::Report;
use crate::router::Router;
use crate::topics::Broker;

/// Compares the router with Debezium, case by case.
///
/// Exit code 0: no case differs. 1: a case differs, or the comparison could not be run.
#[derive(Debug, Parser)]
struct Cli {
    /// URL of Postgres, with rights to create databases
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true)]
    postgres: String,

    /// Bootstrap servers of a Kafka without topics: all topics are treated as a case's, and deleted
    #[arg(long, env = "TEST_KAFKA")]
    kafka: String,

    #[command(flatten)]
    connect: Installation,

    /// Folder of the cases
    #[arg(long, default_value = "examples/parity/cases")]
    cases: PathBuf,

    /// Folder for settings and logs
    #[arg(long, default_value = ".services/parity")]
    folder: PathBuf,

    /// Runs only Debezium, and writes its records to this folder, a file of JSON lines for each case
    #[arg(long)]
    debezium_only: Option<PathBuf>,

    /// Runs no cases, but hands Debezium's slot to the router and back while rows are written
    #[arg(long, conflicts_with_all = ["debezium_only", "case"])]
    takeover: bool,

    /// Router to test; default: the one built with this program
    #[arg(long)]
    router: Option<PathBuf>,

    /// Only cases whose names begin with this
    case: Vec<String>,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    program::run("parity", run(Cli::parse())).await
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let server = Server::new(&cli.postgres)?;
    let broker = Broker::new(&cli.kafka)?;
    let router = Router {
        program: match cli.router {
            Some(program) => program,
            None => program::built_router()?,
        },
        folder: cli.folder.clone(),
        brokers: cli.kafka.clone(),
    };
    if cli.takeover {
        return takeover::run(&server, &broker, &cli.connect, &router).await;
    }
    let mut cases = case::read_all(&cli.cases)?;
    if !cli.case.is_empty() {
        cases.retain(|case| cli.case.iter().any(|begin| case.name.starts_with(begin.as_str())));
        anyhow::ensure!(!cases.is_empty(), "no case's name begins with {}", cli.case.join(" or "));
    }
    let mut report = Report::default();
    // tracing depends on the class path, so it needs a second worker
    for tracing in [false, true] {
        let of_worker: Vec<&Case> = cases.iter().filter(|case| case.settings.tracing == tracing).collect();
        if of_worker.is_empty() {
            continue;
        }
        let setup = Setup { tracing, keep_offsets: false, flush: Duration::from_secs(1) };
        let mut worker = Worker::start(&cli.connect, setup, &cli.folder, &cli.kafka).await?;
        for case in of_worker {
            let mut stage = Stage { server: &server, broker: &broker, worker: &mut worker };
            let of_case = || format!("case {}", case.name);
            if let Some(target) = &cli.debezium_only {
                let outcome = stage.debezium(case).await.with_context(of_case)?;
                write(target, case, &outcome)?;
                eprintln!("{}: {}", case.name, outcome.summary());
            } else {
                let findings = stage.both(case, &router).await.with_context(of_case)?;
                eprintln!("{}: {}", case.name, report::verdict(&findings));
                for difference in &findings.unexpected {
                    eprintln!("{difference}");
                }
                report.add(&case.name, findings);
            }
        }
        worker.end().await?;
    }
    if cli.debezium_only.is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    terminal::print(&report.render())?;
    Ok(if report.all_same() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The servers and programs of the cases.
struct Stage<'a> {
    server: &'a Server,
    broker: &'a Broker,
    worker: &'a mut Worker,
}

impl Stage<'_> {
    /// Runs only Debezium.
    async fn debezium(&mut self, case: &Case) -> anyhow::Result<Outcome> {
        let database = self.server.create(case).await?;
        let outcome = debezium::run(case, &database, self.broker, self.worker).await;
        self.broker.clear().await?;
        database.drop().await?;
        outcome
    }

    /// Runs both sides one after the other, because they write to the same topics.
    async fn both(&mut self, case: &Case, router: &Router) -> anyhow::Result<Findings> {
        let database = self.server.create(case).await?;
        let debezium = debezium::run(case, &database, self.broker, self.worker).await;
        self.broker.clear().await?;
        let debezium = debezium?;
        let router = router.run(case, &database, self.broker).await;
        self.broker.clear().await?;
        database.drop().await?;
        Ok(compare(case, &debezium, &router?))
    }
}

fn write(target: &Path, case: &Case, outcome: &Outcome) -> anyhow::Result<()> {
    std::fs::create_dir_all(target).with_context(|| format!("create {}", target.display()))?;
    let file = target.join(format!("{}.jsonl", case.name));
    std::fs::write(&file, outcome.json_lines(case)?).with_context(|| format!("write {}", file.display()))
}
