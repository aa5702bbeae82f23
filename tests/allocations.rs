//! How often memory is allocated for one event, on the thread that all of the relay runs on: in a session with a real
//! Postgres and a real Kafka, so that nothing on the way is left out but librdkafka's own.

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

/// May only go down. It is the name of the topic, which rdkafka hands over as a C string.
const AT_MOST: f64 = 1.0;

/// What differs from run to run, such as turns of the loop, for each event.
const NOISE: f64 = 0.1;

/// Of a router that delivers so many events, and is then asked to stop.
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
    // what a start takes is in both
    let (less, more) = (allocations(mode, few).await, allocations(mode, many).await);
    (more as f64 - less as f64) / (many - few) as f64
}

#[tokio::test]
async fn allocations_per_event_may_only_go_down() {
    for mode in ["at-least-once", "exactly-once"] {
        let found = per_event(mode).await;
        assert!(found < AT_MOST + NOISE, "{mode}: {found} allocations for each event, and {AT_MOST} before");
        assert!(found > AT_MOST - 0.5, "{mode}: {found} allocations for each event: lower AT_MOST to it");
    }
}
