//! The HTTP endpoint for metrics, probes and `status`.
//!
//! It has its own thread and runtime, so that it also answers while the main loop is busy or stuck, which is when it is
//! needed most. It only reads the [`Monitors`]; nothing in it can change the router.

pub(crate) mod client;
mod routes;
mod serve;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::monitor::Monitors;

/// The endpoint with its address bound, before it answers. Bind it before anything else starts.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
}

/// The running endpoint. If it is dropped without [`Serving::join`], it runs until its token is cancelled.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    thread: JoinHandle<()>,
}

impl Endpoint {
    /// Binds `listen`, host and port.
    ///
    /// # Errors
    /// The address is not available. The exit code is 2, because no server was contacted.
    pub fn bind(listen: &str) -> Result<Self, Error> {
        let taken = TcpListener::bind(listen).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Endpoint { listener, address })
        });
        taken.map_err(|error| unavailable(listen, &error))
    }

    /// The bound address; with port 0 configured, the system has chosen the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is cancelled. Cancel it last: while the router stops, the probes say so.
    ///
    /// # Errors
    /// The system provides no thread or no event queue.
    pub fn serve(self, monitors: impl Into<Monitors>, stop: CancellationToken) -> Result<Serving, Error> {
        let monitors = monitors.into();
        let address = self.address;
        let no_resources = |error: io::Error| {
            Error::usage(
                format!("The admin endpoint cannot start: {error}"),
                "Raise the limits of the process on threads and open files",
            )
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_resources)?;
        let work = move || {
            if let Err(error) = runtime.block_on(serve::serve(self.listener, monitors, stop)) {
                tracing::error!(%error, "the admin endpoint ended");
            }
        };
        let thread = thread::Builder::new().name("admin".to_owned()).spawn(work).map_err(no_resources)?;
        tracing::debug!(%address, "admin endpoint");
        Ok(Serving { address, thread })
    }
}

impl Serving {
    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the end, which comes at most about a second after the token is cancelled.
    pub fn join(self) {
        // a panic was already reported
        let _ = self.thread.join();
    }
}

fn unavailable(listen: &str, error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => "another process listens there".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::InvalidInput => "it is not of the form host:port".to_owned(),
        _ => error.to_string(),
    };
    Error::usage(
        format!("The admin endpoint cannot listen at {listen}: {why}"),
        "Set `listen` in [admin] to a free address of this machine, or to \"\" to go without the endpoint",
    )
}

#[cfg(test)]
mod tests;
