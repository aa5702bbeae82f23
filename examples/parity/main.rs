//! The comparison with Debezium: the same rows go through Debezium in Kafka Connect and through the router, and what
//! both made of them is compared record by record.
//!
//! `scripts/parity` fetches Debezium, brings up the servers and runs it; its `--help` says the rest.

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

    /// No cases: Debezium's slot changes hands, there and back, while rows are written
    #[arg(long, conflicts_with_all = ["debezium_only", "case"])]
    takeover: bool,

    /// The router; by default the one that was built with this program
    #[arg(long)]
    router: Option<PathBuf>,

    /// Only cases whose name begins so
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
    // a worker without tracing, and one with it: it is a matter of what lies on the class path
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

/// What a case plays on.
struct Stage<'a> {
    server: &'a Server,
    broker: &'a Broker,
    worker: &'a mut Worker,
}

impl Stage<'_> {
    /// Debezium's side alone.
    async fn debezium(&mut self, case: &Case) -> anyhow::Result<Outcome> {
        let database = self.server.create(case).await?;
        let outcome = debezium::run(case, &database, self.broker, self.worker).await;
        self.broker.clear().await?;
        database.drop().await?;
        outcome
    }

    /// Both sides, one after the other: they write to topics of the same names.
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
