//! Exit codes and signals of the example programs, and where the router was built.

use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitCode, exit};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// Runs the `work` of the program `name`. A signal drops the work, which ends the processes that it started.
pub(crate) async fn run(name: &str, work: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    until_signal(work).await.unwrap_or_else(|error| {
        eprintln!("{name} failed: {error:#}");
        ExitCode::FAILURE
    })
}

async fn until_signal(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let code = {
        let work = pin!(work);
        tokio::select! {
            done = work => return done,
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
        }
    };
    // the runtime would wait for a blocking thread that the dropped work may have left behind
    exit(code)
}

/// The path of the router that cargo built: next to the folder `examples` of this program.
pub(crate) fn built_router() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("find the path of this program")?;
    let folder =
        this.parent().and_then(|examples| examples.parent()).context("this program has no parent folder")?;
    Ok(folder.join("outbox-router"))
}
