//! Queries a running router's admin endpoint.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time;

use crate::error::without_numbers;
use crate::monitor::StatusReport;

/// The time limit of a request. The router is on this machine or close to it.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The largest answer that is accepted; those of the router are smaller.
const ANSWER_LIMIT: usize = 16 << 20;

/// The status and body of `GET path` from the endpoint that listens at `listen`.
///
/// # Errors
/// Why there is no answer: one sentence without a full stop.
pub(crate) async fn get(listen: &str, path: &str) -> Result<(StatusCode, Bytes), String> {
    let at = connect_address(listen);
    let answer = match time::timeout(TIMEOUT, exchange(&at, path)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("a process listens there, but did not answer within {} s", TIMEOUT.as_secs())),
    };
    answer.map_err(|why| format!("no router answers at {at}: {why}"))
}

/// What the router that listens at `listen` says about itself.
///
/// # Errors
/// Why there is no answer: one sentence without a full stop.
pub(crate) async fn status(listen: &str) -> Result<StatusReport, String> {
    let (status, body) = get(listen, "/status").await?;
    let report = (status == StatusCode::OK).then(|| serde_json::from_slice(&body).ok()).flatten();
    report.ok_or_else(|| {
        let at = connect_address(listen);
        format!(
            "no router answers at {at}: another program listens there, or an incompatible version of outbox-router"
        )
    })
}

async fn exchange(at: &str, path: &str) -> Result<(StatusCode, Bytes), String> {
    let stream = connect(at).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => "nothing is listening there".to_owned(),
        _ => without_numbers(error.to_string()),
    })?;
    // the answer is not HTTP, or the connection was closed early
    send_request(stream, at, path)
        .await
        .map_err(|_| "the process that listens there does not speak HTTP".to_owned())
}

/// Connects to `at`, or without IPv6 to the same port on the other loopback address: `[::]` stands for both.
async fn connect(at: &str) -> io::Result<TcpStream> {
    let other = at.parse::<SocketAddr>().ok().filter(|at| at.ip() == IpAddr::V6(Ipv6Addr::LOCALHOST));
    match (TcpStream::connect(at).await, other) {
        (Err(error), Some(at)) => {
            TcpStream::connect((Ipv4Addr::LOCALHOST, at.port())).await.map_err(|_| error)
        }
        (connected, _) => connected,
    }
}

async fn send_request(
    stream: TcpStream,
    at: &str,
    path: &str,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(header::HOST, at).body(Empty::<Bytes>::new())?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await?;
        Ok((status, body.to_bytes()))
    };
    // the connection only makes progress while it is polled, and the answer is complete before the connection ends
    tokio::pin!(answer, connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}

/// The address to connect to for an endpoint at `listen`: the loopback address if it listens on all addresses.
pub(crate) fn connect_address(listen: &str) -> String {
    match listen.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => {
            let loopback = match address.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            };
            SocketAddr::new(loopback, address.port()).to_string()
        }
        _ => listen.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_addresses_become_loopback_addresses() {
        assert_eq!(connect_address("0.0.0.0:8084"), "127.0.0.1:8084");
        assert_eq!(connect_address("[::]:8084"), "[::1]:8084");
        assert_eq!(connect_address("10.0.0.7:1"), "10.0.0.7:1");
        assert_eq!(connect_address("router.internal:1"), "router.internal:1");
    }

    #[tokio::test]
    async fn the_error_says_that_nothing_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        drop(listener);
        let why = format!("no router answers at {at}: nothing is listening there");
        assert_eq!(get(&at, "/status").await, Err(why));
    }

    #[tokio::test]
    async fn the_error_says_that_the_answer_is_not_http() {
        use tokio::io::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
            stream
        });
        let why = format!("no router answers at {at}: the process that listens there does not speak HTTP");
        assert_eq!(get(&at, "/status").await, Err(why));
        server.await.unwrap();
    }
}
