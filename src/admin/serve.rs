//! The accept loop.
//!
//! Not `axum::serve`, which takes any number of connections and waits for ever for a request: open files are shared
//! with the connections to Postgres and Kafka, and a client that says nothing must not use them up.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{self, AbortHandle};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::routes;
use crate::monitor::Monitors;

/// Connections at one time. For one more the oldest is closed, so that idle clients never keep a probe waiting.
const CONNECTIONS: usize = 64;

/// A client has this long to send a request's head, and a kept-alive connection may idle for as long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection is kept, so that clients which ask and never read cannot hold all of them for ever.
const LIFETIME: Duration = Duration::from_secs(60);

/// How long the answers under way may take once the connection or the endpoint is to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause after a failed accept, for instance with no file left to open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How often the metrics exporter cleans up.
const UPKEEP: Duration = Duration::from_secs(5);

/// Answers on `listener`, which must not block, until `stop`.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    monitors: Monitors,
    stop: CancellationToken,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let app = routes::routes(monitors.clone());
    let connections = TaskTracker::new();
    tokio::select! {
        () = stop.cancelled() => {}
        () = accept(listener, &app, &connections, &stop) => {}
        () = upkeep(&monitors) => {}
    }
    connections.close();
    // what has not finished by then ends with the runtime
    let _ = time::timeout(STOP_TIMEOUT, connections.wait()).await;
    Ok(())
}

async fn accept(listener: TcpListener, app: &Router, connections: &TaskTracker, stop: &CancellationToken) {
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                open.push_back(connections.spawn(converse(stream, app.clone(), stop.clone())).abort_handle());
                // in a burst, those that have sent a request are answered before they are the oldest
                task::yield_now().await;
            }
            Err(error) => {
                tracing::debug!(%error, "the admin endpoint could not accept a connection");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One connection, with as many requests as the client likes.
async fn converse(stream: TcpStream, app: Router, stop: CancellationToken) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    tokio::pin!(connection);
    // a client that hangs up early is its own affair
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = time::sleep(LIFETIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = time::timeout(STOP_TIMEOUT, connection).await;
}

async fn upkeep(monitors: &Monitors) {
    let mut interval = time::interval(UPKEEP);
    loop {
        interval.tick().await;
        monitors.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::Monitor;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    /// The clock of the test stands until all wait for it.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_used_again_and_again_ends_all_the_same() {
        let (monitor, _) = Monitor::for_test("shop.outbox_router");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, monitor.into(), stop.clone()));

        let mut client = TcpStream::connect(address).await.unwrap();
        let (begun, mut answers) = (Instant::now(), 0);
        let mut buffer = [0; 1 << 16];
        while client.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.is_ok()
            && client.read(&mut buffer).await.is_ok_and(|read| read > 0)
        {
            answers += 1;
            time::sleep(LIFETIME / 10).await;
            assert!(begun.elapsed() < LIFETIME * 2, "still open after {answers} answers");
        }
        assert!(answers >= 9, "{answers} answers");
        stop.cancel();
        server.await.unwrap().unwrap();
    }
}
