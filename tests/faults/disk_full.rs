//! The disk of the broker or of Postgres is full.

use std::process::Command;

use super::failover::PG_HBA;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, connect};
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::process;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

/// Limits the size of the files of a process, in bytes: a write beyond the limit is cut short and the next one fails, as on a
/// full disk. A separate file system would need privileges that not every machine gives.
fn limit_file_size(bytes: &str, pid: u32) {
    let mut limit = Command::new("prlimit");
    limit.args([format!("--pid={pid}"), format!("--fsize={bytes}:")]);
    let limited = process::output(&mut limit);
    assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn disk_full_stops_the_broker_and_nothing_is_lost_once_there_is_space() {
    let mut random = seed::random();
    let broker = PrivateKafka::that_is_killed().await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    for topic in ["order", "customer", "invoice"] {
        kafka.create_topic(&outbox.topic(topic), 1, &[]).await;
    }
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    let writers = Writers::start(&outbox, 2, &mut random).await;
    kafka.holds(&outbox.name, 100).await;
    limit_file_size("250000", broker.pid());
    eventually("the broker has failed", async || {
        let log = broker.log();
        (log.contains("File too large") && log.contains("all log dirs")).then_some(())
    })
    .await;
    router.logs("no broker can be reached").await;
    // the loop learns of it in its next iteration
    eventually("the router is not ready", async || (router.get("/readyz")?.0 == 503).then_some(())).await;
    assert_eq!(router.get_now("/healthz").await.0, 200);

    // the new process has no limit
    broker.kill();
    broker.start_again();
    let seen = eventually("the broker answers again", async || kafka.count(&outbox.name).await.ok()).await;
    kafka.holds(&outbox.name, seen + 100).await;
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    // each of three topics may end the producer
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(3)).await;
}

/// Each new walsender starts the stream and then fails to write the changes that it has decoded to a file. The name of that file
/// contains the process id.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn disk_full_of_postgres_is_logged_once_and_so_is_the_recovery() {
    const CONNECTED: &str = "connected; events flow";
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    // existing processes keep having no limit
    let administrator = connect(&outbox.url()).await.unwrap();
    outbox.insert("order", "a", "{\"n\": 1}").await;
    outbox.all_confirmed().await;
    let walsender = outbox.active_pid().await;
    limit_file_size("0", server.pid());
    administrator.batch_execute(&format!("SELECT pg_terminate_backend({walsender})")).await.unwrap();
    administrator.batch_execute("CHECKPOINT").await.unwrap();
    router
        .shows("the router has made many attempts", |status| {
            (status["reconnects"]["postgres"].as_u64()? >= 12).then_some(())
        })
        .await;
    let log = router.log();
    let failures = log.matches("the server ended the replication stream").count();
    assert!((1..=3).contains(&failures), "logged {failures} times\n{log}");
    let connected = log.matches(CONNECTED).count();
    assert!(connected <= 3, "logged {connected} times\n{log}");
    assert!(!log.contains("caught up"), "there was no backlog\n{log}");

    limit_file_size("unlimited", server.pid());
    router.logs_times(CONNECTED, connected + 1).await;
    outbox.insert("order", "a", "{\"n\": 2}").await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
