//! A name server for a network namespace, which knows one address. What it does not answer keeps the resolver waiting.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::NamedTempFile;

use super::namespace::Namespace;

/// It ends with the test.
pub(crate) struct NameServer {
    answers: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    resolv_conf: NamedTempFile,
}

impl NameServer {
    /// Answers inside `namespace` that any name is the host's side of it. The resolver there waits `timeout` seconds for an answer,
    /// and asks `attempts` times.
    pub(crate) fn new(namespace: &Namespace, timeout: u32, attempts: u32) -> Self {
        let socket = UdpSocket::bind((std::net::Ipv4Addr::from(namespace.host), 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (answers, ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (answering, over, host) = (Arc::clone(&answers), Arc::clone(&ended), namespace.host);
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while !over.load(Ordering::Relaxed) {
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

    /// From now on nothing is answered.
    pub(crate) fn mute(&self) {
        self.answers.store(false, Ordering::Relaxed);
    }

    /// The resolver's configuration.
    pub(crate) fn resolv_conf(&self) -> &str {
        self.resolv_conf.path().to_str().unwrap()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// RFC 1035: the header and the question come back, with an address (type 1) if one was asked for.
fn answer(query: &[u8], address: [u8; 4]) -> Vec<u8> {
    const HEADER: usize = 12;
    let name = query[HEADER..].iter().position(|byte| *byte == 0).unwrap();
    let question = &query[HEADER..HEADER + name + 5];
    let asks_for_address = question[name + 1..name + 3] == [0, 1];
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(asks_for_address), 0, 0, 0, 0]);
    answer.extend(question);
    if asks_for_address {
        // the name of the question, an address, valid for a second
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(address);
    }
    answer
}
