//! `run`: the router, its admin endpoint, and the signals that stop it.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::admin::Endpoint;
use crate::cli::RunArgs;
use crate::config::Config;
use crate::contracts::Contracts;
use crate::error::Error;
use crate::logging;
use crate::monitor::{Monitor, Monitors};
use crate::supervisor::{self, Router, RunOptions};

/// The number of files that a router opens at most with one Kafka broker; at its start there are about fifty.
const FILES: u64 = 64;

/// Runs until stopped.
///
/// # Errors
/// The definite failure that ended the router.
pub async fn run(config: &Config, args: &RunArgs) -> Result<(), Error> {
    let shards = super::chosen_shards(config, &args.shards)?;
    if shards.len() > 1 && args.accept_gap.is_some() {
        return Err(Error::usage(
            "--accept-gap is for one shard, the one that has named the position",
            "Add --shard with its number",
        ));
    }
    enough_files(shards.len())?;
    let contracts = Contracts::configured(config)?.map(Arc::new);
    let mut routers = Vec::new();
    for shard in shards {
        let monitor = Monitor::of_shard(&shard.name, shard.shard.map(|shard| shard.number));
        if let Some(interval) = config.heartbeat {
            monitor.heartbeat_on(interval);
        }
        routers.push(Router { contracts: contracts.clone(), config: shard, monitor });
    }
    let monitors = routers.iter().map(|router| router.monitor.clone()).collect();
    let monitors = Monitors::of_shards(&config.name, monitors);
    let admin_stop = CancellationToken::new();
    // bound first, so that a second router with the same configuration fails before it touches a server
    let admin = match &config.admin.listen {
        Some(listen) => Some(Endpoint::bind(listen)?.serve(monitors, admin_stop.clone())?),
        None => None,
    };
    let listen = admin.as_ref().map(|admin| admin.address().to_string());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), name = config.name, admin = listen, "starting");
    let stop = CancellationToken::new();
    tokio::spawn(Signals::new()?.obey(stop.clone()));
    ignore_signals()?;

    let options = RunOptions { accept_gap: args.accept_gap, until: None };
    let result = supervisor::run_all(routers, options, &stop).await;
    admin_stop.cancel();
    if let Some(admin) = admin {
        admin.join();
    }
    result
}

/// With too few file descriptors, Kafka clients wait silently.
fn enough_files(routers: usize) -> Result<(), Error> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let needed = u64::try_from(routers).unwrap_or(u64::MAX).saturating_mul(FILES);
    if limit >= needed {
        return Ok(());
    }
    Err(Error::usage(
        format!("The limit of open files is {limit}, and the router needs at least {needed}"),
        "Raise it (ulimit -n, LimitNOFILE in a systemd unit, or the container's nofile limit)",
    ))
}

/// The signals that stop the router.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            quit: listen(SignalKind::quit())?,
        })
    }

    /// The first signal stops the router cleanly, the second one at once.
    async fn obey(mut self, stop: CancellationToken) {
        self.next().await;
        stop.cancel();
        let second = self.next().await;
        logging::end(128 + second.as_raw_value());
    }

    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.quit.recv() => SignalKind::quit(),
        }
    }
}

/// Logs signals that the router ignores. Without a handler they would kill it.
fn ignore_signals() -> Result<(), Error> {
    let ignored = [
        (
            SignalKind::hangup(),
            "SIGHUP is ignored: the configuration cannot be reloaded. Restart to apply a changed configuration",
        ),
        (
            SignalKind::user_defined1(),
            "SIGUSR1 is ignored: it has no meaning here. Stop the router with SIGTERM",
        ),
        (
            SignalKind::user_defined2(),
            "SIGUSR2 is ignored: it has no meaning here. Stop the router with SIGTERM",
        ),
    ];
    for (kind, line) in ignored {
        let mut signals = listen(kind)?;
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                tracing::warn!("{line}");
            }
        });
    }
    Ok(())
}

/// # Errors
/// The process has no room for one more.
pub(super) fn listen(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| {
        Error::usage(format!("Cannot listen for signals: {error}"), "Raise the limits of the process")
    })
}
