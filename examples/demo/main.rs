//! The demo: runs writers, the router and a consumer, and compares what was committed with what arrived.
//!
//! `scripts/demo` starts the servers and runs this program. To run it by hand, with servers that nothing else has used:
//!
//! ```sh
//! scripts/services up && eval "$(scripts/services env)"
//! cargo build --release && cargo run --release --example demo
//! ```

mod comparison;
mod latency;
mod progress;
mod report;
mod scenario;
#[allow(dead_code, reason = "each program uses only some of it")]
#[path = "../stage/mod.rs"]
mod stage;
mod writers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use outbox_router::terminal;

use crate::scenario::{Stage, run_demo};
use crate::stage::program;
use crate::writers::Plan;

/// Writes orders and their events, kills the router in the middle, and compares what arrived with the table.
///
/// Exit code 0: everything arrived, in order and unaltered. 1: it did not, or the demo could not be run.
#[derive(Debug, Parser)]
struct Cli {
    /// URL of a Postgres on which no demo has run, with rights to create tables and slots
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true)]
    postgres: String,

    /// Bootstrap servers of Kafka
    #[arg(long, env = "TEST_KAFKA")]
    kafka: String,

    /// Rows that the writers commit
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rows: u64,

    /// Seconds over which they spread them
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,

    /// Makes the same choices as an earlier run with this seed
    #[arg(long)]
    seed: Option<u64>,

    /// Router to test; default: the one built with this program
    #[arg(long)]
    router: Option<PathBuf>,

    /// Folder for the router's configuration and log
    #[arg(long, default_value = ".services/demo")]
    folder: PathBuf,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    program::run("demo", run(Cli::parse())).await
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let stage = Stage {
        program: match cli.router {
            Some(program) => program,
            None => program::built_router()?,
        },
        folder: cli.folder,
        postgres: cli.postgres,
        brokers: cli.kafka,
    };
    let plan = Plan {
        writers: cli.writers,
        rows: cli.rows,
        span: Duration::from_secs(cli.seconds),
        orders: 500,
        customers: 50,
        seed: cli.seed.unwrap_or_else(|| rand::random_range(0..1_000_000)),
    };
    let report = run_demo(&stage, plan).await?;
    terminal::print(&report.render())?;
    match report.findings.verdict() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(faults) => anyhow::bail!(faults),
    }
}
