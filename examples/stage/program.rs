//! How the programs end, and where the router lies beside them.

use std::path::PathBuf;
use std::process::ExitCode;

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
    tokio::select! {
        done = work => done,
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
    }
}

/// The router as cargo puts it: beside the folder `examples` that this program is in.
pub(crate) fn router_beside() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("ask where this program is")?;
    let folder = this.parent().and_then(|examples| examples.parent()).context("this program is nowhere")?;
    Ok(folder.join("outbox-router"))
}
