//! The demo: writers, the router, a consumer, and the comparison of what was committed with what arrived.
//!
//! `scripts/demo` brings up the servers and runs it. By hand, with servers of its own that nothing else has used:
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
#[allow(dead_code, reason = "each program uses its part of it")]
#[path = "../stage/mod.rs"]
mod stage;
mod writers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use outbox_router::terminal;

use crate::scenario::{Stage, play};
use crate::stage::program;
use crate::writers::Plan;

/// Writes orders and their events, kills the router in the middle, and compares what arrived with the table.
///
/// Exit code 0: everything arrived, in order and unaltered. 1: it did not, or the demo could not be done.
#[derive(Debug, Parser)]
struct Cli {
    /// Postgres, with rights to create tables and slots; no other demo has run there
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true)]
    postgres: String,

    /// Kafka
    #[arg(long, env = "TEST_KAFKA")]
    kafka: String,

    /// Rows that the writers commit
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rows: u64,

    /// The time that they take for it
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,

    /// Makes the same choices again
    #[arg(long)]
    seed: Option<u64>,

    /// The router; by default the one that was built with this program
    #[arg(long)]
    router: Option<PathBuf>,

    /// For the router's configuration and log
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
    let report = play(&stage, plan).await?;
    terminal::print(&report.render())?;
    match report.findings.verdict() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(faults) => anyhow::bail!(faults),
    }
}
