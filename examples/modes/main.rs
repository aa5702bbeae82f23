//! Measures what exactly-once costs: runs both delivery modes alternately and repeatedly, so that other load on the machine
//! affects both alike.
//!
//! `scripts/modes` starts the servers and runs this program; see its `--help`.

mod backlog;
mod judge;
#[allow(dead_code, reason = "each program uses only some of it")]
#[path = "../measure/mod.rs"]
mod measure;
mod report;
#[allow(dead_code, reason = "each program uses only some of it")]
#[path = "../stage/mod.rs"]
mod stage;
mod summary;
mod takeover;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use outbox_router::config::DeliveryMode;
use outbox_router::terminal;

use crate::judge::Verdict;
use crate::measure::ground::{Ground, Run};
use crate::measure::machine::Machine;
use crate::measure::progress::Progress;
use crate::measure::writers::Load;
use crate::measure::{catch_up, latency};
use crate::report::{Measured, Report, Settings};
use crate::stage::program;

/// The load while latency is measured.
const LOAD: Load = Load { rate: 1_000, rows: 1 };

/// The number of kills after which the modes alternate.
const KILLS_IN_A_ROW: u32 = 5;

/// Measures catch-up, latency and takeover, in at-least-once and exactly-once mode.
///
/// Exit code 0: measured; nothing was lost, and nothing repeated that must not be. 1: otherwise.
#[derive(Debug, Parser)]
struct Cli {
    /// URL of a Postgres whose outbox nothing else has used, with rights to create tables and slots
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true)]
    postgres: String,
    #[arg(long, env = "TEST_KAFKA")]
    kafka: String,
    /// Kafka's version, for the report
    #[arg(long, default_value = "unknown")]
    kafka_version: String,
    #[arg(long)]
    router: PathBuf,
    /// Folder for configuration and logs
    #[arg(long, default_value = ".services/modes/modes")]
    folder: PathBuf,
    /// Rows of the backlog [default: 500000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rows: Option<u64>,
    /// Catch-up rounds in each mode [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds of each latency measurement [default: 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Latency rounds in each mode [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    latency_rounds: Option<u32>,
    /// SIGKILLs in each mode [default: 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    kills: Option<u32>,
    /// 100000 rows, one round of each, 5 seconds, 3 kills
    #[arg(long)]
    quick: bool,
    /// Writes all measurements to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Cli {
    fn settings(&self) -> Settings {
        let (rows, rounds, seconds, latency_rounds, kills) =
            if self.quick { (100_000, 1, 5, 1, 3) } else { (500_000, 5, 20, 3, 20) };
        Settings {
            rows: self.rows.unwrap_or(rows),
            rounds: self.rounds.unwrap_or(rounds),
            seconds: self.seconds.unwrap_or(seconds),
            latency_rounds: self.latency_rounds.unwrap_or(latency_rounds),
            kills: self.kills.unwrap_or(kills),
        }
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    program::run("modes", run(Cli::parse())).await
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let report = measure(&cli).await?;
    terminal::print(&report.render())?;
    if let Some(path) = &cli.json {
        let json = serde_json::to_string_pretty(&report).context("write the figures as JSON")?;
        fs::write(path, json + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    let broken: Vec<&Verdict> =
        report.measured.verdicts.iter().filter(|verdict| verdict.is_broken()).collect();
    for verdict in &broken {
        eprintln!("{verdict}");
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(cli: &Cli) -> anyhow::Result<Report> {
    let settings = cli.settings();
    let ground = Ground::prepare(&cli.router, &cli.folder, &cli.postgres, &cli.kafka).await?;
    let machine = Machine::look(&ground, &cli.kafka_version).await?;
    let progress = Progress::new(settings.steps());
    let mut measured = Measured::default();
    catch_ups(&ground, &settings, &progress, &mut measured).await?;
    latencies(&ground, &settings, &progress, &mut measured).await?;
    takeover(&ground, &settings, &progress, &mut measured).await?;
    drop(progress);
    Ok(Report::new(machine.at_the_end(), settings, measured))
}

async fn catch_ups(
    ground: &Ground,
    settings: &Settings,
    progress: &Progress,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let expected = backlog::write(ground, settings.rows, progress).await?;
    let others = backlog::ids_of_others(ground).await?;
    // warm-up: the broker's JVM compiles its code, and the broker creates its transaction topic
    for mode in DeliveryMode::ALL {
        catch_up::measure(
            ground,
            backlog::NAME,
            &Run::new("warm-up", mode, 0),
            settings.rows,
            false,
            progress,
        )
        .await?;
        progress.step();
    }
    for round in 1..=settings.rounds {
        for mode in in_turns(round) {
            let run = Run::new("catch-up", mode, round);
            let found =
                catch_up::measure(ground, backlog::NAME, &run, settings.rows, false, progress).await?;
            progress.say(&format!("{}: {found}", run.name));
            measured.catch_up.push(found);
            measured.verdicts.push(judge::judge(ground, "catch-up", &run, &expected).await?);
            progress.step();
            let settings = "dead_letters.policy = \"park\"\n".to_owned();
            let run = Run { settings, ..Run::new("parked", mode, round) };
            backlog::park(ground, &run).await?;
            let found =
                catch_up::measure(ground, backlog::NAME, &run, others.len() as u64, false, progress).await?;
            progress.say(&format!("{}: {found}", run.name));
            measured.parked.push(found);
            measured.verdicts.push(judge::judge(ground, "parked", &run, &others).await?);
            progress.step();
        }
    }
    // it would retain the WAL of all further measurements
    ground.drop_slot(backlog::NAME).await
}

async fn latencies(
    ground: &Ground,
    settings: &Settings,
    progress: &Progress,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let span = Duration::from_secs(settings.seconds.into());
    // warm-up: the broker's JVM compiles its code for small batches, which takes longer with transactions
    for mode in DeliveryMode::ALL {
        latency::measure(ground, &Run::new("latency-warm-up", mode, 0), LOAD, span, progress).await?;
        progress.step();
    }
    for round in 1..=settings.latency_rounds {
        for mode in in_turns(round) {
            let run = Run::new("latency", mode, round);
            let found = latency::measure(ground, &run, LOAD, span, progress).await?;
            progress.say(&format!("{}: {}", run.name, found.seen));
            measured.latency.push(found);
            measured
                .verdicts
                .push(judge::judge(ground, "latency", &run, &ground.rows_of(&run).await?).await?);
            progress.step();
        }
    }
    Ok(())
}

async fn takeover(
    ground: &Ground,
    settings: &Settings,
    progress: &Progress,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let (mut left, mut group) = (settings.kills, 0);
    while left > 0 {
        let kills = left.min(KILLS_IN_A_ROW);
        (left, group) = (left - kills, group + 1);
        for mode in in_turns(group) {
            let run = Run::new("takeover", mode, group);
            let found = takeover::measure(ground, &run, kills, progress).await?;
            for takeover in &found {
                progress.say(&format!("{}: {takeover}", run.name));
            }
            measured.takeovers.extend(found);
            measured
                .verdicts
                .push(judge::judge(ground, "takeover", &run, &ground.rows_of(&run).await?).await?);
        }
    }
    Ok(())
}

/// The modes in the order of this round. It alternates, so that slow changes of the machine favour neither.
fn in_turns(round: u32) -> [DeliveryMode; 2] {
    let [first, second] = DeliveryMode::ALL;
    if round.is_multiple_of(2) { [second, first] } else { [first, second] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_alternate_in_beginning_rounds() {
        let beginners: Vec<DeliveryMode> =
            (1..=4).flat_map(|round| in_turns(round).into_iter().take(1)).collect();
        let [first, second] = DeliveryMode::ALL;
        assert_eq!(beginners, [first, second, first, second]);
    }

    #[test]
    fn explicit_options_override_quick() {
        let arguments =
            ["modes", "--postgres", "a", "--kafka", "b", "--router", "c", "--quick", "--kills", "7"];
        let settings = Cli::parse_from(arguments).settings();
        assert_eq!((settings.rows, settings.kills), (100_000, 7));
    }
}
