//! The routers of one process: one, or one for each shard on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{RunOptions, run};
use crate::config::Config;
use crate::contracts::Contracts;
use crate::error::{Definite, Error, ErrorCode};
use crate::monitor::Monitor;

/// The stack of a shard, as large as that of a process without shards usually is. A thread has a quarter of it by default, which a start
/// that compares the log with the stream does not always get by with.
const STACK: usize = 8 << 20;

/// One router, ready to run.
#[derive(Debug)]
pub struct Router {
    /// Its configuration; that of one shard if there are several.
    pub config: Config,
    /// The payload contracts.
    pub contracts: Option<Arc<Contracts>>,
    /// Shows its state.
    pub monitor: Monitor,
}

/// Runs all routers until they are asked to stop or are done. A definite failure of one shard stops all: an operator has to look,
/// and would easily overlook that only some shards run.
///
/// # Errors
/// The first definite failure, or the error of a thread that cannot be created.
pub async fn run_all(
    routers: Vec<Router>,
    options: RunOptions,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let mut routers = routers;
    if routers.len() == 1
        && let Some(Router { config, contracts, monitor }) = routers.pop()
    {
        return Ok(run(Arc::new(config), contracts, options, monitor, stop.clone()).await?);
    }
    let (ended, mut ends) = mpsc::unbounded_channel();
    let mut threads = Vec::new();
    for router in routers {
        let (ended, stop_it, monitor) = (ended.clone(), stop.clone(), router.monitor.clone());
        let name = router.config.shard.map_or_else(String::new, |shard| format!("shard {}", shard.number));
        let work = move || {
            // a panic would end this thread alone, and the other shards would go on
            let end = catch_unwind(AssertUnwindSafe(|| run_shard(router, options, stop_it)));
            monitor.main_loop_ended();
            // the receiver is gone only if the process has given up
            let _ = ended.send(end.unwrap_or_else(|_| Err(shard_panicked())));
        };
        match thread::Builder::new().name(name).stack_size(STACK).spawn(work) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                stop.cancel();
                return Err(no_resources(&error));
            }
        }
    }
    drop(ended);
    let mut first = Ok(());
    while let Some(end) = ends.recv().await {
        let Err(error) = end else { continue };
        stop.cancel();
        match &first {
            Ok(()) => first = Err(error),
            Err(_) => tracing::error!("another shard has failed too: {error}"),
        }
    }
    for thread in threads {
        // the panic was logged in its thread
        let _ = thread.join();
    }
    first
}

/// Runs one shard. Its log lines carry the shard's number.
fn run_shard(router: Router, options: RunOptions, stop: CancellationToken) -> Result<(), Error> {
    let Router { config, contracts, monitor } = router;
    let number = config.shard.map_or(0, |shard| shard.number);
    let _logged = tracing::info_span!("shard", number).entered();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| no_resources(&error))?;
    let result: Result<(), Definite> =
        runtime.block_on(run(Arc::new(config), contracts, options, monitor, stop));
    runtime.shutdown_background();
    // the message itself may not say which shard failed
    let of_shard =
        |definite: Definite| Definite { what: format!("shard {number}: {}", definite.what), ..definite };
    Ok(result.map_err(of_shard)?)
}

/// The panic itself is logged in its thread.
fn shard_panicked() -> Error {
    Error::not_safe(
        ErrorCode::Bug,
        "a shard has panicked, which is a bug in outbox-router",
        "Report it with the log lines before it. No event is lost: the next start resumes at the position",
    )
}

fn no_resources(error: &std::io::Error) -> Error {
    Error::usage(
        ErrorCode::ProcessLimits,
        format!("Cannot start a shard: {error}"),
        "Raise the limits of the process on threads and open files, or run the shards in several processes (--shard)",
    )
}
