//! The accept loop.
//!
//! `axum::serve` accepts any number of connections and waits for ever for a request. Idle clients must not use up the file
//! descriptors that the connections to Postgres and Kafka need.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
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

/// The maximum number of connections. The oldest is closed for a new one, so that idle clients never keep a probe waiting.
const CONNECTIONS: usize = 64;

/// How long a client may take to send the head of a request, and how long a kept-alive connection may be idle.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum age of a connection, so that clients that never read cannot occupy all connections for ever.
const LIFETIME: Duration = Duration::from_secs(60);

/// How long answers in progress may take when the connection or the endpoint ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause after a failed accept, for example without a free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves `listeners`, which must be non-blocking, until `stop`.
pub(super) async fn serve(
    listeners: Vec<std::net::TcpListener>,
    pages: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let listeners = listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<Vec<_>>>()?;
    let connections = TaskTracker::new();
    tokio::select! {
        () = stop.cancelled() => {}
        () = accept(&listeners, &pages, &connections, &stop) => {}
    }
    connections.close();
    // unfinished connections end with the runtime
    let _ = time::timeout(STOP_TIMEOUT, connections.wait()).await;
    Ok(())
}

/// The next connection of any listener.
async fn next(listeners: &[TcpListener]) -> io::Result<TcpStream> {
    poll_fn(|context| {
        let accepted = listeners.iter().map(|listener| listener.poll_accept(context));
        let mut ready = accepted.filter(Poll::is_ready);
        ready.next().unwrap_or(Poll::Pending).map_ok(|(stream, _)| stream)
    })
    .await
}

async fn accept(
    listeners: &[TcpListener],
    app: &Router,
    connections: &TaskTracker,
    stop: &CancellationToken,
) {
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS);
    loop {
        match next(listeners).await {
            Ok(stream) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                open.push_back(
                    connections.spawn(serve_requests(stream, app.clone(), stop.clone())).abort_handle(),
                );
                // lets connections be answered before a burst of new ones makes them the oldest
                task::yield_now().await;
            }
            Err(error) => {
                tracing::debug!(%error, "the admin endpoint could not accept a connection");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection, with any number of requests.
async fn serve_requests(stream: TcpStream, app: Router, stop: CancellationToken) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    tokio::pin!(connection);
    // errors of clients that disconnect early do not matter
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = time::sleep(LIFETIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = time::timeout(STOP_TIMEOUT, connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::routes;
    use crate::monitor::Monitor;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    /// The test's clock only advances when everything waits for it.
    #[tokio::test(start_paused = true)]
    async fn a_connection_in_constant_use_ends_after_its_lifetime() {
        let (monitor, _) = Monitor::for_test("shop.outbox_router");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(vec![listener], routes::routes(monitor.into()), stop.clone()));

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
