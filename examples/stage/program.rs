//! How the programs end, and where the router lies beside them.

use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitCode, exit};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// Does the `work` of the program called `name`. A signal drops it, and with it the processes that it started.
pub(crate) async fn run(name: &str, work: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    unless_ended(work).await.unwrap_or_else(|error| {
        eprintln!("{name} failed: {error:#}");
        ExitCode::FAILURE
    })
}

async fn unless_ended(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
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
    // what was dropped may have left a thread behind that reads on, and the runtime would wait for it
    exit(code)
}

/// The router as cargo puts it: beside the folder `examples` that this program is in.
pub(crate) fn router_beside() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("ask where this program is")?;
    let folder = this.parent().and_then(|examples| examples.parent()).context("this program is nowhere")?;
    Ok(folder.join("outbox-router"))
}
