//! A name server for a network namespace. It has one address for all names, and can stop answering.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::NamedTempFile;

use super::namespace::Namespace;

/// Ends on drop.
pub(crate) struct NameServer {
    answers: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    resolv_conf: NamedTempFile,
}

impl NameServer {
    /// Inside `namespace`, every name resolves to the host's side of it. The resolver there waits `timeout` seconds for an
    /// answer, and asks `attempts` times.
    pub(crate) fn new(namespace: &Namespace, timeout: u32, attempts: u32) -> Self {
        let socket = UdpSocket::bind((std::net::Ipv4Addr::from(namespace.host), 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (answers, ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (answering, ended_too, host) = (Arc::clone(&answers), Arc::clone(&ended), namespace.host);
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while !ended_too.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut query) else { continue };
                if answering.load(Ordering::Relaxed) {
                    socket.send_to(&answer(&query[..length], host), from).unwrap();
                }
            }
        });
        let resolv_conf = NamedTempFile::new().unwrap();
        let server = std::net::Ipv4Addr::from(namespace.host);
        let text = format!("nameserver {server}\noptions timeout:{timeout} attempts:{attempts}\n");
        std::fs::write(resolv_conf.path(), text).unwrap();
        NameServer { answers, ended, resolv_conf }
    }

    /// From now on the server answers nothing.
    pub(crate) fn mute(&self) {
        self.answers.store(false, Ordering::Relaxed);
    }

    /// The path of the resolver's configuration.
    pub(crate) fn resolv_conf(&self) -> &str {
        self.resolv_conf.path().to_str().unwrap()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// RFC 1035: the answer repeats header and question, and adds an address (type 1) if the question is for one.
fn answer(query: &[u8], address: [u8; 4]) -> Vec<u8> {
    const HEADER: usize = 12;
    let name = query[HEADER..].iter().position(|byte| *byte == 0).unwrap();
    let question = &query[HEADER..HEADER + name + 5];
    let asks_for_address = question[name + 1..name + 3] == [0, 1];
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(asks_for_address), 0, 0, 0, 0]);
    answer.extend(question);
    if asks_for_address {
        // the name of the question, an address, and a TTL of one second
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(address);
    }
    answer
}
