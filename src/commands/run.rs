//! `run`: the router, its admin endpoint, and the signals that stop it.

use std::sync::Arc;
use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::connect::Startup;
use rustix::process::{Resource, getrlimit};
use tokio::signal::unix::SignalKind;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::admin::AdminServer;
use crate::cli::RunArgs;
use crate::commands::signals::at_signal;
use crate::commands::{partitions, prune};
use crate::config::Config;
use crate::contracts::Contracts;
use crate::error::{Error, ErrorCode};
use crate::logging;
use crate::monitor::{Monitor, Monitors};
use crate::supervisor::{self, Router, RunOptions};
use crate::systemd;

/// The number of files that a router may open with one Kafka broker. It opens about fifty at its start.
const FILES_PER_ROUTER: u64 = 64;

/// How long a prune may take to end.
const LAST_BATCH: Duration = Duration::from_secs(2);

/// Runs until stopped.
///
/// # Errors
/// The definite failure that ended the router.
pub async fn run(config: &Config, args: &RunArgs) -> Result<(), Error> {
    let shards = super::chosen_shards(config, &args.shards)?;
    if shards.len() > 1 && args.accept_gap.is_some() {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--accept-gap applies to one shard",
            "Add --shard with the number of the shard that reported the position",
        ));
    }
    if config.polling.is_some() && args.accept_gap.is_some() {
        let what = "--accept-gap is about a position in the log, and this router polls the table";
        return Err(Error::usage(ErrorCode::CommandLine, what, "Leave it out"));
    }
    check_open_files(shards.len())?;
    let contracts = Contracts::configured(config)?.map(Arc::new);
    let mut routers = Vec::new();
    for shard in shards {
        let monitor = Monitor::for_shard(&shard.name, shard.shard.map(|shard| shard.number));
        if let Some(interval) = config.heartbeat {
            monitor.heartbeat_enabled(interval);
        }
        routers.push(Router { contracts: contracts.clone(), config: shard, monitor });
    }
    let each: Vec<Monitor> = routers.iter().map(|router| router.monitor.clone()).collect();
    let monitors = Monitors::for_shards(&config.name, each.clone());
    // bound first, so that a second router with the same configuration fails before it touches a server
    let listen = config.admin.listen.as_deref();
    let admin = listen.map(|listen| AdminServer::start(listen, monitors.clone())).transpose()?;
    let listen = admin.as_ref().map(|admin| admin.address().to_string());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), name = config.name, admin = listen, "starting");
    let stop = CancellationToken::new();
    stop_at_signals(&stop)?;
    ignore_signals()?;
    // servers may be away for long, and then the router waits: what depends on this unit must not wait with it
    let _notifies = systemd::notify(monitors, stop.clone());

    let until = match (args.until_caught_up, &config.polling) {
        (false, _) => None,
        (true, None) => Some(end_of_log(config).await?),
        // until nothing is due
        (true, Some(_)) => Some(Lsn::INVALID),
    };
    // not in a process that ends by itself, or skips events that may have to be recovered from the table
    let may_prune = !args.until_caught_up && args.accept_gap.is_none();
    let prunes = may_prune.then(|| prune::hourly::start(config, each.clone(), stop.clone())).flatten();
    let _partitions =
        (!args.until_caught_up).then(|| partitions::start(config, each, stop.clone())).flatten();
    let options = RunOptions { accept_gap: args.accept_gap, until, hands_over: false };
    let result = supervisor::run_all(routers, options, &stop).await;
    if let (Ok(()), Some(until), false) = (&result, until, stop.is_cancelled()) {
        match config.polling {
            None => tracing::info!("caught up: everything that was committed before {until} is delivered"),
            Some(_) => tracing::info!("caught up: no row is due"),
        }
    }
    if let Some(prunes) = prunes {
        // it gives back its lease after a batch
        stop.cancel();
        let _ = timeout(LAST_BATCH, prunes).await;
    }
    if let Some(admin) = admin {
        admin.end();
    }
    result
}

/// Where the log ends now.
async fn end_of_log(config: &Config) -> Result<Lsn, Error> {
    let mut session = super::connect(config, "run", Startup::default()).await?;
    let end = super::log_end(&mut session).await;
    session.close().await;
    end
}

/// Refuses a low limit, because a Kafka client without file descriptors waits silently.
fn check_open_files(routers: usize) -> Result<(), Error> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let needed = u64::try_from(routers).unwrap_or(u64::MAX).saturating_mul(FILES_PER_ROUTER);
    if limit >= needed {
        return Ok(());
    }
    Err(Error::usage(
        ErrorCode::ProcessLimits,
        format!("The limit of open files is {limit}, and the router needs at least {needed}"),
        "Raise it (ulimit -n, LimitNOFILE in a systemd unit, or the container's nofile limit)",
    ))
}

/// The first signal stops the router cleanly, the second one at once.
fn stop_at_signals(stop: &CancellationToken) -> Result<(), Error> {
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit()] {
        let stop = stop.clone();
        at_signal(kind, move || {
            if stop.is_cancelled() {
                logging::end(128 + kind.as_raw_value());
            }
            stop.cancel();
        })?;
    }
    Ok(())
}

/// Logs signals that the router ignores. Without a handler they would kill it.
fn ignore_signals() -> Result<(), Error> {
    for (kind, line) in [
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
    ] {
        at_signal(kind, move || tracing::warn!("{line}"))?;
    }
    Ok(())
}
