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

/// The router is on this machine or near it.
const TIMEOUT: Duration = Duration::from_secs(3);

/// More than any answer of the router.
const ANSWER_LIMIT: usize = 16 << 20;

/// Why there is no answer: one sentence without a full stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// Nobody accepts connections there.
    #[error("no router answers at {at}: {why}")]
    Unreachable {
        /// The address that was tried.
        at: String,
        /// The error of the operating system.
        why: String,
    },
    /// The connection was accepted, but no answer arrives.
    #[error("no router answers at {at}: a process listens there and says nothing for {} s", TIMEOUT.as_secs())]
    Silent {
        /// The address that was tried.
        at: String,
    },
    /// The answer is not HTTP, or the connection was closed early.
    #[error("no router answers at {at}: what answers there does not speak HTTP")]
    Foreign {
        /// The address that was tried.
        at: String,
    },
}

/// The status and body of `GET path` from the endpoint that listens at `listen`.
pub(crate) async fn get(listen: &str, path: &str) -> Result<(StatusCode, Bytes), NoAnswer> {
    let at = connect_address(listen);
    match time::timeout(TIMEOUT, exchange(&at, path)).await {
        Ok(answer) => answer,
        Err(_) => Err(NoAnswer::Silent { at }),
    }
}

async fn exchange(at: &str, path: &str) -> Result<(StatusCode, Bytes), NoAnswer> {
    let unreachable = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused => "nobody listens there".to_owned(),
            _ => error.to_string(),
        };
        NoAnswer::Unreachable { at: at.to_owned(), why }
    };
    let foreign = || NoAnswer::Foreign { at: at.to_owned() };
    let stream = TcpStream::connect(at).await.map_err(unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|_| foreign())?;
    let request = Request::get(path).header(header::HOST, at).body(Empty::<Bytes>::new());
    let asked = async {
        let response = sender.send_request(request.map_err(|_| foreign())?).await.map_err(|_| foreign())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await.map_err(|_| foreign())?;
        Ok((status, body.to_bytes()))
    };
    // the connection only makes progress while it is polled; the answer is there before it ends
    tokio::pin!(asked, connection);
    tokio::select! {
        biased;
        answer = &mut asked => answer,
        _ = &mut connection => asked.await,
    }
}

/// The address to connect to for an endpoint at `listen`; an endpoint on all addresses is reached by loopback.
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
    fn all_addresses_are_reached_by_the_loopback() {
        assert_eq!(connect_address("0.0.0.0:8084"), "127.0.0.1:8084");
        assert_eq!(connect_address("[::]:8084"), "[::1]:8084");
        assert_eq!(connect_address("10.0.0.7:1"), "10.0.0.7:1");
        assert_eq!(connect_address("router.internal:1"), "router.internal:1");
    }

    #[tokio::test]
    async fn says_that_nobody_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        drop(listener);
        let why = "nobody listens there".to_owned();
        assert_eq!(get(&at, "/status").await, Err(NoAnswer::Unreachable { at, why }));
    }

    #[tokio::test]
    async fn says_that_what_answers_does_not_speak_http() {
        use tokio::io::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
            stream
        });
        assert_eq!(get(&at, "/status").await, Err(NoAnswer::Foreign { at }));
        server.await.unwrap();
    }
}
