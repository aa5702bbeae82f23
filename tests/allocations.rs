//! Counts memory allocations per event on the thread of the relay, in a session with real servers. Only librdkafka's own
//! allocations are not counted.

use std::sync::Arc;
use std::thread;

use outbox_router::config::load::load;
use outbox_router::monitor::Monitor;
use outbox_router::supervisor;
use pg_logical::Environment;
use tokio_util::sync::CancellationToken;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::settings::{MODES, Settings};

/// Allocations per event without TLS, and with it; they may only go down. rustls makes a vector of each record that it decrypts:
/// here of ten Inserts, a Begin and a Commit for ten events.
const AT_MOST: [(&str, f64); 2] = [("disable", 0.0), ("require", 1.2)];

/// Allocations per event that differ from run to run, for example with the number of loop iterations. In exactly-once mode each
/// Kafka transaction allocates too, and a slow machine makes more of them for the same events.
fn noise(mode: &str) -> f64 {
    if mode == "exactly-once" { 0.5 } else { 0.1 }
}

/// Counts the allocations of a router that delivers `events` events and is then stopped.
async fn allocations(mode: &str, sslmode: &str, events: u64) -> u64 {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    outbox
        .execute(&format!(
            "DO $$ BEGIN FOR tx IN 1..{events} / 10 LOOP
               INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
               SELECT 'order', 'a' || n, 'Placed', '{{\"n\": 1}}' FROM generate_series(1, 10) n;
               COMMIT;
             END LOOP; END $$"
        ))
        .await;
    let url = format!("{}?sslmode={sslmode}", outbox.url());
    let settings = Settings::new(&outbox, &kafka)
        .set("delivery.mode", mode)
        .set("postgres.url", url)
        .set("postgres.catch_up", "stream");
    let folder = tempfile::tempdir().unwrap();
    let file = settings.write_to(&folder);
    let config = Arc::new(load(Some(&file), &Environment::empty()).unwrap().config);
    let (monitor, stop) = (Monitor::new(&config.name), CancellationToken::new());
    let router = {
        let (monitor, stop) = (monitor.clone(), stop.clone());
        // a debug build needs more than a thread has by default; the program itself runs on its main thread, which has as much
        let thread = thread::Builder::new().stack_size(8 << 20);
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let run = supervisor::run(config, None, supervisor::RunOptions::default(), monitor, stop);
            allocation_counter::measure(|| runtime.block_on(run).unwrap()).count_total
        };
        thread.spawn(run).unwrap()
    };
    eventually("everything is delivered", async || {
        (monitor.snapshot().totals.events == events).then_some(())
    })
    .await;
    stop.cancel();
    tokio::task::spawn_blocking(|| router.join().unwrap()).await.unwrap()
}

/// Sessions with few events and with many. The difference leaves out the allocations at start.
const EVENTS: [u64; 2] = [2_000, 12_000];

/// Whether so many allocations per event are as expected, and what to do if not.
fn judge(mode: &str, at_most: f64, found: f64) -> Result<(), String> {
    if found >= at_most + noise(mode) {
        return Err(format!("at most {at_most} allowed"));
    }
    if found <= at_most - 0.5 { Err("lower AT_MOST".to_owned()) } else { Ok(()) }
}

/// Measures until the result is as expected, at most three times. What is done every second allocates too, so of each number of
/// events the shortest session counts.
async fn assert_per_event(mode: &str, sslmode: &str, at_most: f64) {
    let (mut least, mut judged, mut found) = ([u64::MAX; 2], Ok(()), 0.0);
    for _ in 0..3 {
        for (least, events) in least.iter_mut().zip(EVENTS) {
            *least = allocations(mode, sslmode, events).await.min(*least);
        }
        found = (least[1] as f64 - least[0] as f64) / (EVENTS[1] - EVENTS[0]) as f64;
        judged = judge(mode, at_most, found);
        if judged.is_ok() {
            break;
        }
    }
    assert_eq!(judged, Ok(()), "{mode}, sslmode={sslmode}: {found} allocations per event");
}

#[tokio::test]
async fn allocations_per_event_may_only_go_down() {
    for mode in MODES {
        for (sslmode, at_most) in AT_MOST {
            assert_per_event(mode, sslmode, at_most).await;
        }
    }
}
