use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;

use super::*;
use crate::error::{ErrorCode, Exit, Peer};
use crate::monitor::{CountedPartitions, Monitor, State, StatusReport, TestClock};
use crate::postgres::polling::messages::CountedRows;

/// An endpoint on its own port, and its monitor.
struct Admin {
    monitor: Monitor,
    clock: Arc<TestClock>,
    serving: AdminServer,
}

impl Admin {
    fn start() -> Self {
        let (monitor, clock) = Monitor::for_test("shop.outbox_router");
        let serving = AdminServer::start("127.0.0.1:0", monitor.clone()).unwrap();
        Admin { monitor, clock, serving }
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let (status, body) = client::get(&self.serving.address().to_string(), path).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn end(self) {
        self.serving.end();
    }
}

fn answer(status: u16, text: &str) -> (StatusCode, String) {
    (StatusCode::from_u16(status).unwrap(), text.to_owned())
}

#[tokio::test]
async fn readiness_follows_the_state() {
    let admin = Admin::start();
    assert_eq!(admin.get("/readyz").await, answer(503, "starting\n"));
    admin.monitor.state(State::Active);
    assert_eq!(admin.get("/readyz").await, answer(200, "active\n"));
    admin.monitor.state(State::Waiting { reason: "slot s is active for PID 7".to_owned() });
    assert_eq!(admin.get("/readyz").await, answer(200, "waiting: slot s is active for PID 7\n"));
    admin.monitor.state(State::Refused { code: ErrorCode::SlotMissing, reason: "slot s is gone".to_owned() });
    assert_eq!(admin.get("/readyz").await, answer(503, "refused: OBR-3001: slot s is gone\n"));
    admin.end();
}

#[tokio::test]
async fn health_depends_only_on_the_main_loop() {
    let admin = Admin::start();
    admin.monitor.state(State::Reconnecting { peer: Peer::Postgres, code: None, reason: "down".to_owned() });
    assert_eq!(admin.get("/healthz").await, answer(200, "the main loop is running\n"));
    admin.clock.advance(Duration::from_secs(12));
    assert_eq!(admin.get("/healthz").await, answer(503, "the main loop has been stuck for 12 s\n"));
    admin.monitor.main_loop_ran();
    assert_eq!(admin.get("/healthz").await.0, StatusCode::OK);
    admin.end();
}

#[tokio::test]
async fn status_is_the_report() {
    let admin = Admin::start();
    admin.monitor.topic_counters("orders").delivered(3, 30);
    let (status, body) = admin.get("/status").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(serde_json::from_str::<StatusReport>(&body).unwrap(), admin.monitor.snapshot());
    admin.end();
}

#[tokio::test]
async fn metrics_contain_every_documented_name() {
    let admin = Admin::start();
    admin.monitor.topic_counters("orders").delivered(3, 30);
    let polled = pg_logical::PgTimestamp::now();
    admin.monitor.counted_rows(CountedRows { due: 0, oldest: None, failed: 0, refused: 0, polled });
    admin.monitor.heartbeat_enabled(Duration::from_secs(1));
    admin.monitor.heartbeat_received(pg_logical::PgTimestamp::now(), Duration::ZERO);
    admin.monitor.retention_enabled();
    admin.monitor.counted_partitions("public.outbox".to_owned(), CountedPartitions::default());
    let mut slot = admin.monitor.snapshot().slot;
    (slot.safe_wal_bytes, slot.safe_wal_seconds) = (Some(1), Some(1.0));
    admin.monitor.slot(slot);
    let (status, body) = admin.get("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    for metric in crate::metrics::ALL {
        assert!(body.contains(metric.name), "{}\n{body}", metric.name);
    }
    admin.end();
}

#[tokio::test]
async fn only_get_requests_are_accepted() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let admin = Admin::start();
    for page in ["/metrics", "/healthz", "/readyz", "/status", "/"] {
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            let mut stream = tokio::net::TcpStream::connect(admin.serving.address()).await.unwrap();
            let request = format!(
                "{method} {page} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            assert!(text.starts_with("HTTP/1.1 405 "), "{method} {page}: {text}");
        }
    }
    admin.end();
}

#[tokio::test]
async fn unknown_paths_show_the_index() {
    let admin = Admin::start();
    let (status, index) = admin.get("/").await;
    assert_eq!(status, StatusCode::OK);
    for page in ["/metrics", "/healthz", "/readyz", "/status"] {
        assert!(index.contains(page), "{page}\n{index}");
    }
    assert_eq!(admin.get("/metricz").await, (StatusCode::NOT_FOUND, index));
    admin.end();
}

#[test]
fn answers_while_the_thread_that_started_it_is_stuck() {
    // this thread runs no event loop, and reads only after the answer must have been written
    let admin = Admin::start();
    let mut stream = TcpStream::connect(admin.serving.address()).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    admin.end();
}

#[tokio::test]
async fn a_silent_client_delays_neither_other_clients_nor_the_shutdown() {
    let admin = Admin::start();
    let silent = TcpStream::connect(admin.serving.address()).unwrap();
    let mut half = TcpStream::connect(admin.serving.address()).unwrap();
    half.write_all(b"GET /status HTTP/1.1\r\nHost:").unwrap();
    assert_eq!(admin.get("/healthz").await.0, StatusCode::OK);
    admin.end();
    drop((silent, half));
}

#[test]
fn many_silent_clients_do_not_delay_a_probe() {
    let admin = Admin::start();
    let silent: Vec<_> = (0..100)
        .map(|number| {
            let mut stream = TcpStream::connect(admin.serving.address()).unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET /healthz HTTP/1.1\r\nHost:").unwrap();
            }
            stream
        })
        .collect();
    let mut probe = TcpStream::connect(admin.serving.address()).unwrap();
    probe.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    probe.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    // of the first 64 connections only the oldest was closed: the probe did not wait for the others to expire
    let open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    assert!(open(&silent[50]), "the probe waited for the silent clients to be closed");
    assert!(!open(&silent[0]), "the oldest client did not give way");
    admin.end();
}

#[test]
fn many_clients_at_once_are_all_answered() {
    let admin = Admin::start();
    let clients: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(admin.serving.address()).unwrap();
            stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
            stream
        })
        .collect();
    for (number, mut stream) in clients.into_iter().enumerate() {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "client {number}: {text}");
    }
    admin.end();
}

#[test]
fn an_address_in_use_is_named_with_the_key_to_change() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    // no HTTP
    std::thread::spawn(move || taken.accept().map(drop));
    let monitor = Monitor::new("shop.outbox_router");
    let Err(Error::Definite(error)) = AdminServer::start(&listen, monitor) else { panic!("must not bind") };
    assert_eq!(error.exit, Exit::Usage);
    insta::assert_snapshot!(error.to_string().replace(&listen, "<listen>"), @r#"OBR-2006: The admin endpoint cannot listen at <listen>: another process listens there. Set `listen` in [admin] to a free address of this machine, or to false to go without the endpoint"#);
}

#[test]
fn a_router_that_has_the_address_is_named() {
    let first = AdminServer::start("127.0.0.1:0", Monitor::new("shop.outbox_router")).unwrap();
    let listen = first.address().to_string();
    let named = AdminServer::start(&listen, Monitor::new("shop.outbox_router")).unwrap_err().to_string();
    assert!(named.contains(&format!("at {listen}: the router shop.outbox_router runs there. ")), "{named}");
    first.end();
}

#[test]
fn an_invalid_address_is_named_with_the_key_to_change() {
    let message = |listen| AdminServer::start(listen, Monitor::new("r")).unwrap_err().to_string();
    insta::assert_snapshot!(message("8084"), @r#"OBR-2006: The admin endpoint cannot listen at 8084: it is not of the form host:port. Set `listen` in [admin] to a free address of this machine, or to false to go without the endpoint"#);
    insta::assert_snapshot!(message("192.0.2.1:8084"), @r#"OBR-2006: The admin endpoint cannot listen at 192.0.2.1:8084: this machine has no such address. Set `listen` in [admin] to a free address of this machine, or to false to go without the endpoint"#);
}
