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
use crate::support::settings::Settings;

/// Allocations per event; may only go down. The one is the topic's name, which rdkafka passes as a C string.
const AT_MOST: f64 = 1.0;

/// Allocations per event that differ from run to run, for example with the number of loop iterations.
const NOISE: f64 = 0.1;

/// Counts the allocations of a router that delivers `events` events and is then stopped.
async fn allocations(mode: &str, events: u64) -> u64 {
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
    let settings = Settings::new(&outbox, &kafka).set("delivery.mode", mode);
    let folder = tempfile::tempdir().unwrap();
    let file = settings.write_to(&folder);
    let config = Arc::new(load(Some(&file), &Environment::empty()).unwrap().config);
    let (monitor, stop) = (Monitor::new(&config.name), CancellationToken::new());
    let router = {
        let (monitor, stop) = (monitor.clone(), stop.clone());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let run = supervisor::run(config, None, supervisor::RunOptions::default(), monitor, stop);
            allocation_counter::measure(|| runtime.block_on(run).unwrap()).count_total
        })
    };
    eventually("everything is delivered", async || {
        (monitor.snapshot().totals.events == events).then_some(())
    })
    .await;
    stop.cancel();
    tokio::task::spawn_blocking(|| router.join().unwrap()).await.unwrap()
}

async fn per_event(mode: &str) -> f64 {
    let (few, many) = (2_000, 12_000);
    // the difference leaves out the allocations at start
    let (less, more) = (allocations(mode, few).await, allocations(mode, many).await);
    (more as f64 - less as f64) / (many - few) as f64
}

#[tokio::test]
async fn allocations_per_event_may_only_go_down() {
    for mode in ["at-least-once", "exactly-once"] {
        let found = per_event(mode).await;
        assert!(found < AT_MOST + NOISE, "{mode}: {found} allocations per event, at most {AT_MOST} allowed");
        assert!(found > AT_MOST - 0.5, "{mode}: {found} allocations per event: lower AT_MOST");
    }
}
