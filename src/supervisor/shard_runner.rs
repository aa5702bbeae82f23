//! The routers of one process: one, or one for each shard on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Orders, run};
use crate::config::Config;
use crate::contracts::Contracts;
use crate::error::{Definite, Error};
use crate::monitor::Monitor;

/// One router, ready to run.
#[derive(Debug)]
pub struct Router {
    /// Its configuration: of a shard where there are several.
    pub config: Config,
    /// What payloads are judged by.
    pub contracts: Option<Arc<Contracts>>,
    /// Shows what it does.
    pub monitor: Monitor,
}

/// Runs them until they are asked to stop, or have done what they were ordered to. Where one must stop, all do: a person
/// has to look, and half a router that runs is easily overlooked.
///
/// # Errors
/// The first definite failure, or the system gives no thread.
pub async fn run_all(routers: Vec<Router>, orders: Orders, stop: &CancellationToken) -> Result<(), Error> {
    let mut routers = routers;
    if routers.len() == 1
        && let Some(Router { config, contracts, monitor }) = routers.pop()
    {
        return Ok(run(Arc::new(config), contracts, orders, monitor, stop.clone()).await?);
    }
    let (ended, mut ends) = mpsc::unbounded_channel();
    let mut threads = Vec::new();
    for router in routers {
        let (ended, stop_it) = (ended.clone(), stop.clone());
        let name = router.config.shard.map_or_else(String::new, |shard| format!("shard {}", shard.number));
        let work = move || {
            // without the others, which would go on
            let end = catch_unwind(AssertUnwindSafe(|| on_this_thread(router, orders, stop_it)));
            // nobody listens only after the process has given up
            let _ = ended.send(end.unwrap_or_else(|_| Err(panicked())));
        };
        match thread::Builder::new().name(name).spawn(work) {
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
            Err(_) => tracing::error!("another shard had to stop too: {error}"),
        }
    }
    for thread in threads {
        // a panic there was reported where it happened
        let _ = thread.join();
    }
    first
}

/// What is logged meanwhile says which shard it is.
fn on_this_thread(router: Router, orders: Orders, stop: CancellationToken) -> Result<(), Error> {
    let Router { config, contracts, monitor } = router;
    let number = config.shard.map_or(0, |shard| shard.number);
    let _logged = tracing::info_span!("shard", number).entered();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| no_resources(&error))?;
    let result: Result<(), Definite> =
        runtime.block_on(run(Arc::new(config), contracts, orders, monitor, stop));
    runtime.shutdown_background();
    // a message may name nothing that says which one it is about
    let of_shard =
        |definite: Definite| Definite { what: format!("shard {number}: {}", definite.what), ..definite };
    Ok(result.map_err(of_shard)?)
}

/// What it was is logged where it happened.
fn panicked() -> Error {
    Error::not_safe(
        "a shard has ended by a fault of the program",
        "Report it, with the lines of the log before; nothing is lost, and the next start goes on where it was",
    )
}

fn no_resources(error: &std::io::Error) -> Error {
    Error::usage(
        format!("Cannot start a shard: {error}"),
        "Raise the limits of the process on threads and open files, or run the shards in several processes (--shard)",
    )
}
