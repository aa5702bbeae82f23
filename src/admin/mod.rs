//! The HTTP endpoint for metrics, probes and `status`.
//!
//! It has its own thread and runtime, so that it answers even while the main loop is busy or stuck. It only reads the
//! [`Monitors`]; no request can change the router. `maintain` serves its metrics in the same way.

pub(crate) mod client;
mod listen;
mod routes;
mod serve;

use std::io;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use axum::Router;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorCode};
use crate::monitor::Monitors;
pub(crate) use routes::metrics_page;

/// What to do if the address cannot be used.
pub(crate) const LISTEN_REMEDY: &str =
    "Set `listen` in [admin] to a free address of this machine, or to false to go without the endpoint";

/// The running endpoint. If it is dropped without [`AdminServer::end`], it runs until the process ends.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: CancellationToken,
    thread: JoinHandle<()>,
}

impl AdminServer {
    /// Binds `listen`, host and port, and serves the pages about a router there.
    ///
    /// # Errors
    /// The address is not available, or the system provides no thread or no event queue. The exit code is 2, because no
    /// server was contacted.
    pub fn start(listen: &str, monitors: impl Into<Monitors>) -> Result<Self, Error> {
        Self::serve(listen, routes::routes(monitors.into()), LISTEN_REMEDY)
    }

    /// The same with other pages. `remedy` is for an address that is not available.
    ///
    /// # Errors
    /// As for `start`.
    pub(crate) fn serve(listen: &str, pages: Router, remedy: &str) -> Result<Self, Error> {
        let bound = listen::bind(listen).and_then(|listeners| {
            let first = listeners.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
            let address = first.local_addr()?;
            Ok((listeners, address))
        });
        let (listeners, address) = bound.map_err(|error| unavailable(listen, &error, remedy))?;
        let no_resources = |error: io::Error| {
            Error::usage(
                ErrorCode::ProcessLimits,
                format!("The admin endpoint cannot start: {error}"),
                "Raise the limits of the process on threads and open files",
            )
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_resources)?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let work = move || {
            if let Err(error) = runtime.block_on(serve::serve(listeners, pages, stopped)) {
                tracing::error!(%error, "the admin endpoint ended");
            }
        };
        let thread = thread::Builder::new().name("admin".to_owned()).spawn(work).map_err(no_resources)?;
        tracing::debug!(%address, "admin endpoint");
        Ok(AdminServer { address, stop, thread })
    }

    /// The bound address; with port 0 configured, the system has chosen the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it, which takes at most about a second. Call this last, so that the probes show that the router is stopping.
    pub fn end(self) {
        self.stop.cancel();
        // a panic has already been reported
        let _ = self.thread.join();
    }
}

fn unavailable(listen: &str, error: &io::Error, remedy: &str) -> Error {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => match router_at(listen) {
            Some(name) => format!("the router {name} runs there"),
            None => "another process listens there".to_owned(),
        },
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::InvalidInput => "it is not of the form host:port".to_owned(),
        _ => error.to_string(),
    };
    Error::usage(
        ErrorCode::AdminEndpoint,
        format!("The admin endpoint cannot listen at {listen}: {why}"),
        remedy,
    )
}

/// The name of the router that answers at `listen`. Asked on a thread of its own, because the caller may be in a runtime.
fn router_at(listen: &str) -> Option<String> {
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(client::status(listen)).ok()
    };
    let report = thread::scope(|scope| scope.spawn(ask).join().ok().flatten())?;
    Some(report.name)
}

#[cfg(test)]
mod tests;
