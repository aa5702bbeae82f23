//! What the router tells systemd, on a socket of the test's own.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::signal::Signal;

/// The messages on a socket.
struct Notified {
    socket: UnixDatagram,
    messages: Vec<String>,
    /// The index of the first message after the last one that a test has waited for.
    next: usize,
}

impl Notified {
    fn at(address: &SocketAddr) -> Self {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        Notified { socket, messages: Vec::new(), next: 0 }
    }

    /// Receives what has arrived, and returns how many messages that are.
    fn receive(&mut self) -> usize {
        let before = self.messages.len();
        let mut buffer = [0; 4096];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(size) => self.messages.push(String::from_utf8(buffer[..size].to_vec()).unwrap()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.messages.len() - before;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Waits for this message, after the one that was last waited for.
    async fn hears(&mut self, message: &str) {
        eventually(&format!("systemd is told {message:?}"), async || {
            self.receive();
            let later = &self.messages[self.next..];
            let position = later.iter().position(|heard| heard.starts_with(message))?;
            self.next += position + 1;
            Some(())
        })
        .await;
    }
}

#[tokio::test]
async fn systemd_is_told_the_state_and_that_the_loop_runs() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let mut notified = Notified::at(&SocketAddr::from_pathname(&path).unwrap());
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let router = Router::with_variables(&Settings::new(&outbox, &kafka), &variables);
    notified.hears("READY=1").await;
    assert_eq!(notified.messages[0], "READY=1");
    notified.hears("STATUS=active").await;
    notified.hears("WATCHDOG=1").await;

    let other_path = folder.path().join("standby");
    let mut other = Notified::at(&SocketAddr::from_pathname(&other_path).unwrap());
    let variables = [("NOTIFY_SOCKET", other_path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let standby = Router::with_variables(&Settings::new(&outbox, &kafka), &variables);
    other.hears("STATUS=waiting").await;
    standby.stop().await;

    // a frozen process says nothing
    router.signal(Signal::Stop);
    eventually("the frozen router is silent", async || {
        notified.receive();
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        (notified.receive() == 0).then_some(())
    })
    .await;
    notified.next = notified.messages.len();
    router.signal(Signal::Continue);
    notified.hears("WATCHDOG=1").await;
    router.signal(Signal::Terminate);
    notified.hears("STOPPING=1").await;
    router.exits(0).await;
}

#[tokio::test]
async fn systemd_does_not_wait_for_a_server_that_the_router_waits_for() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    // nothing listens at port 1
    let settings = Settings::new(&outbox, &kafka).reached_at(&outbox, "127.0.0.1:1");
    let name = format!("outbox-router-{}", shared::unique());
    let mut notified = Notified::at(&SocketAddr::from_abstract_name(&name).unwrap());
    let socket = format!("@{name}");
    let router = Router::with_variables(&settings, &[("NOTIFY_SOCKET", &socket)]);
    notified.hears("READY=1").await;
    notified.hears("STATUS=reconnecting to postgres: cannot connect to Postgres at 127.0.0.1:1").await;
    assert!(!notified.messages.iter().any(|message| message == "WATCHDOG=1"), "{:?}", notified.messages);
    router.stop().await;

    // a configuration that is refused is never ready
    let before = notified.messages.len();
    let refused = settings.set("delivery.mode", "maybe");
    Router::with_variables(&refused, &[("NOTIFY_SOCKET", &socket)]).exits(2).await;
    notified.receive();
    assert!(
        !notified.messages[before..].iter().any(|message| message == "READY=1"),
        "{:?}",
        notified.messages
    );
}

/// A socket that nobody reads, or that does not exist, does not stop anything.
#[tokio::test]
async fn systemd_that_does_not_listen_does_not_matter() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let _unread = UnixDatagram::bind(&path).unwrap();
    let missing = folder.path().join("missing");
    for path in [path.to_str().unwrap(), missing.to_str().unwrap(), "relative", "@"] {
        let variables = [("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "2000")];
        let mut router = Router::with_variables(&Settings::new(&outbox, &kafka), &variables);
        router.ready().await;
        outbox.insert("order", "a", "1").await;
        outbox.all_confirmed().await;
        router.stop().await;
    }
}
