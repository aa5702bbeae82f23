//! Commands exit with an error message at whatever point they lose the network.

use std::io::Read;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::Place;
use crate::support::process;
use crate::support::proxy::{Cut, Direction, Network, Proxy};
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

/// A running command behind a proxy of its own.
struct Running {
    case: String,
    child: Child,
    since: Instant,
    took: Option<Duration>,
    _proxy: Proxy,
    _place: Place,
}

impl Running {
    /// Drops everything from Postgres after its first `after` bytes.
    fn postgres(command: &str, after: usize) -> Self {
        let mut place = Place::new();
        let host = shared::postgres().rsplit_once('@').unwrap().1;
        let proxy = Proxy::to(host);
        let url = place.url("postgres").replace(host, &proxy.address());
        place.set("POSTGRES__URL", &url);
        proxy.cut_after(Direction::ToClient, after, Cut::Hole);
        Self::start(place, proxy, command, format!("{command}, Postgres silent after {after} bytes"))
    }

    fn kafka(command: &str, after: usize) -> Self {
        let mut place = Place::new();
        let proxy = Proxy::to(shared::kafka());
        place.set("KAFKA__BOOTSTRAP_SERVERS", &proxy.address());
        proxy.cut_after(Direction::ToClient, after, Cut::Hole);
        Self::start(place, proxy, command, format!("{command}, Kafka silent after {after} bytes"))
    }

    fn start(place: Place, proxy: Proxy, command: &str, case: String) -> Self {
        let child = process::start(&mut place.command(&[command]));
        Running { case, child, since: Instant::now(), took: None, _proxy: proxy, _place: place }
    }

    fn has_exited(&mut self) -> bool {
        if self.took.is_none() && self.child.try_wait().unwrap().is_some() {
            self.took = Some(self.since.elapsed());
        }
        self.took.is_some()
    }

    /// The output of a command that has exited.
    fn output(&mut self) -> String {
        let (mut out, mut err) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        out + &err
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // it has exited already, unless the test fails
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until all have exited, each with code 1 and this text.
async fn all_exit(mut all: Vec<Running>, text: &str) {
    eventually("every command exits", async || {
        // asks each one, so that each gets its own time
        let still: Vec<_> = all.iter_mut().filter_map(|one| (!one.has_exited()).then_some(())).collect();
        still.is_empty().then_some(())
    })
    .await;
    for mut running in all {
        let output = running.output();
        let took = running.took.unwrap().as_secs_f64();
        println!("network: {}: back after {took:.1} s", running.case);
        assert_eq!(running.child.wait().unwrap().code(), Some(1), "{}: {output}", running.case);
        assert!(output.contains(text), "{}: {output}", running.case);
    }
}

#[tokio::test]
async fn network_lost_under_a_command_exits_with_an_error() {
    let mut running = Vec::new();
    for command in ["init", "check", "status", "tail"] {
        // silent from the start, during the startup messages, during the first replies
        running.extend([0, 100, 700].map(|after| Running::postgres(command, after)));
    }
    all_exit(running, "no answer within").await;
}

#[tokio::test]
async fn network_to_kafka_lost_under_check_exits_with_an_error() {
    let running = [0, 100, 500].map(|after| Running::kafka("check", after));
    all_exit(running.into(), "no Kafka broker answers").await;
}

/// Starts a router whose network is lost after the first `after` bytes from Postgres.
async fn lost_while_a_router_starts(after: usize) {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let proxy = Proxy::to(outbox.address());
    // a busy machine must not exceed it by itself
    let settings = Settings::new(&outbox, &kafka)
        .reached_at(&outbox, &proxy.address())
        .set("postgres.wal_sender_timeout", "4s");
    proxy.cut_after(Direction::ToClient, after, Cut::Hole);
    let mut router = Router::start(&settings);
    router.logs("connection failed; retrying until it works").await;
    // the reason is shown during the next attempt too, which takes most of the time
    router
        .shows("another attempt", |status| {
            assert!(status["reason"].as_str().is_some_and(|reason| reason.contains("no answer")), "{status}");
            (status["reconnects"]["postgres"].as_u64()? >= 2).then_some(())
        })
        .await;
    // one warning for the session that broke, and one for failed connections
    let log = router.log();
    assert!((1..=2).contains(&log.matches("WARN").count()), "{log}");
    proxy.set(Network::OPEN);
    router.ready().await;
    router.stop().await;
    outbox.released().await;
}

/// `run` retries for ever, but each attempt has a time limit.
#[tokio::test]
async fn network_lost_while_a_router_starts_is_logged_and_retried() {
    // silent during the startup messages, and during the reply to each of the queries before the stream
    let lost = lost_while_a_router_starts;
    tokio::join!(lost(0), lost(100), lost(450), lost(700), lost(1500));
}
