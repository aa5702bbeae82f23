//! Decides what a failure means: go on at the remembered position, or stop and say why.

mod backoff;
mod memory;
mod session;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::error::{Definite, Error, Exit, Transient};
use crate::monitor::{Monitor, State};
use crate::relay::{Ended, Outcome};
use backoff::Backoff;
use memory::Memory;

/// Runs the router until it is asked to stop, or must.
///
/// # Errors
/// The definite failure that stopped it. What may pass by itself is waited out here.
pub async fn run(config: Arc<Config>, monitor: Monitor, stop: CancellationToken) -> Result<(), Definite> {
    let mut memory = Memory::default();
    let mut backoff = Backoff::default();
    loop {
        let next = tokio::select! {
            biased;
            // a session ends by itself when it is asked to; only its start is cut short
            ended = session::run(&config, &monitor, &stop, &mut memory) => judge(ended, &mut memory, &mut backoff),
        };
        match next {
            Next::Stopped => return Ok(()),
            Next::Again => {}
            Next::Later(failure) => {
                monitor.state(State::Reconnecting { peer: failure.peer, reason: failure.what.clone() });
                monitor.reconnected(failure.peer);
                monitor.last_problem(failure.what.clone());
                let delay = backoff.next();
                backoff.log(&failure, delay);
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = pause(delay, &monitor) => {}
                }
            }
            Next::Never(definite) => {
                monitor.state(State::Refused { reason: definite.what.clone() });
                return Err(definite);
            }
        }
    }
}
