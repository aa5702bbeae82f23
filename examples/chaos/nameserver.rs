//! A name server that resolves every name to this machine, and can be made slow.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, process};

use anyhow::Context;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// How long an answer takes while the server is slow.
pub(crate) const LATE: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(50);
/// The length of a message's header.
const HEADER: usize = 12;
/// The record type A.
const A: [u8; 2] = [0, 1];

/// Answers until it is dropped.
pub(crate) struct Nameserver {
    address: SocketAddr,
    slow: Arc<AtomicBool>,
    waiting: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Nameserver {
    /// Starts it on port 53, because resolv.conf names no port, and on an address of its own.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let [_, _, high, low] = process::id().to_be_bytes();
        Self::bind(Ipv4Addr::new(127, 53, high, low), 53).await
    }

    async fn bind(address: Ipv4Addr, port: u16) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((address, port)).await;
        let socket = Arc::new(socket.with_context(|| format!("listen for DNS queries on {address}:{port}"))?);
        let address = socket.local_addr()?;
        let (slow, waiting) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_slow, counted) = (Arc::clone(&slow), Arc::clone(&waiting));
        let task = tokio::spawn(async move {
            let mut query = [0; 512];
            loop {
                // as if the packet was lost
                let Ok((length, from)) = socket.recv_from(&mut query).await else { continue };
                let Some(answer) = query.get(..length).and_then(answer) else { continue };
                let (socket, counted) = (Arc::clone(&socket), Arc::clone(&counted));
                let late = if is_slow.load(Ordering::Relaxed) { LATE } else { Duration::ZERO };
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    sleep(late).await;
                    let _ = socket.send_to(&answer, from).await;
                    counted.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Ok(Nameserver { address, slow, waiting, task })
    }

    pub(crate) fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }

    /// Waits until all queries are answered.
    pub(crate) async fn all_answered(&self) {
        while self.waiting.load(Ordering::Relaxed) > 0 {
            sleep(POLL_EVERY).await;
        }
    }

    /// Writes a script that runs `program` in its own mount namespace, with this name server as the only one.
    pub(crate) fn write_wrapper(&self, program: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
        let folder = std::path::absolute(folder)?;
        let program = std::path::absolute(program)?;
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let resolver = folder.join("resolv.conf");
        // a longer timeout than the slowest answer takes
        let text = format!("nameserver {}\noptions timeout:30 attempts:1\n", self.address.ip());
        fs::write(&resolver, text).with_context(|| format!("write {}", resolver.display()))?;
        let script = folder.join("router-with-nameserver");
        let text = format!(
            "#!/bin/sh\nexec unshare --mount -- sh -c 'mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"' '{}' '{}' \"$@\"\n",
            resolver.display(),
            program.display()
        );
        fs::write(&script, text).with_context(|| format!("write {}", script.display()))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&script, mode)
            .with_context(|| format!("make {} executable", script.display()))?;
        Ok(script)
    }
}

impl Drop for Nameserver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The answer to a query: this machine for type A, no record for any other type (RFC 1035, section 4).
fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let (header, question) = query.split_at_checked(HEADER)?;
    let mut end = 0;
    // the labels of the name, each preceded by its length
    while let length @ 1.. = *question.get(end)? {
        end += usize::from(length) + 1;
    }
    let kind = question.get(end + 1..end + 3)?;
    let question = question.get(..end + 5)?;
    let found = kind == A;
    let mut answer = header.get(..2)?.to_vec();
    // no error, recursion available, one question, and one record or none
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(found), 0, 0, 0, 0]);
    answer.extend(question);
    if found {
        // a pointer to the name in the question, type A, class IN, TTL 0, four bytes
        answer.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(Ipv4Addr::LOCALHOST.octets());
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const QUERY: &[u8] = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x06broker\x07invalid\0\0\x01\0\x01";

    #[test]
    fn answers_type_a_only_and_ignores_malformed_queries() {
        let reply = answer(QUERY).unwrap();
        assert_eq!(reply[..12], *b"\x12\x34\x81\x80\0\x01\0\x01\0\0\0\0");
        assert!(reply.ends_with(&[127, 0, 0, 1]));
        let mut other = QUERY.to_vec();
        let kind = other.len() - 3;
        other[kind] = 28;
        let reply = answer(&other).unwrap();
        assert_eq!((reply[7], reply.len()), (0, other.len()));
        for length in 0..QUERY.len() {
            assert_eq!(answer(&QUERY[..length]), None);
        }
    }

    #[tokio::test]
    async fn slow_server_delays_answer() {
        let server = Nameserver::bind(Ipv4Addr::LOCALHOST, 0).await.unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut reply = [0; 512];
        socket.send_to(QUERY, server.address).await.unwrap();
        socket.recv(&mut reply).await.unwrap();
        server.set_slow(true);
        socket.send_to(QUERY, server.address).await.unwrap();
        assert!(timeout(Duration::from_millis(200), socket.recv(&mut reply)).await.is_err());
        assert_eq!(server.waiting.load(Ordering::Relaxed), 1);
    }
}
