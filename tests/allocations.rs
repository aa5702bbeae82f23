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

async fn per_event(mode: &str, sslmode: &str) -> f64 {
    let (few, many) = (2_000, 12_000);
    // the difference leaves out the allocations at start
    let (less, more) = (allocations(mode, sslmode, few).await, allocations(mode, sslmode, many).await);
    (more as f64 - less as f64) / (many - few) as f64
}

#[tokio::test]
async fn allocations_per_event_may_only_go_down() {
    for mode in MODES {
        for (sslmode, at_most) in AT_MOST {
            let found = per_event(mode, sslmode).await;
            let what = format!("{mode}, sslmode={sslmode}: {found} allocations per event");
            assert!(found < at_most + noise(mode), "{what}, at most {at_most} allowed");
            assert!(found > at_most - 0.5, "{what}: lower AT_MOST");
        }
    }
}
