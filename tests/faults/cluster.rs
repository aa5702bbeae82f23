//! One or two of three brokers are away while applications write.

use rand::Rng;

use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::longest_pause::LongestPause;
use crate::support::outbox::Outbox;
use crate::support::private_cluster::PrivateCluster;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn cluster_restarted_broker_by_broker_loses_nothing_and_repeats_nothing() {
    let mut random = seed::random();
    let cluster = PrivateCluster::start().await;
    let (outbox, kafka) = (Outbox::new().await, cluster.client());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    let writers = Writers::start(&outbox, 2, &mut random).await;
    let mut seen = 0;
    kafka.holds(&outbox.name, 1).await;
    for broker in 1..=3 {
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        let pause = LongestPause::measure(&router);
        cluster.stop(broker);
        cluster.start_again(broker);
        cluster.in_sync(&outbox.name).await;
        seen = eventually("the records can be counted", async || kafka.count(&outbox.name).await.ok()).await;
        kafka.holds(&outbox.name, seen + 1).await;
        println!("broker {broker} restarted: nothing acknowledged for at most {:?}", pause.end());
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn cluster_with_a_killed_leader_loses_nothing_and_repeats_nothing() {
    const KILLS: usize = 2;
    let mut random = seed::random();
    let cluster = PrivateCluster::start().await;
    let (outbox, kafka) = (Outbox::new().await, cluster.client());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    let writers = Writers::start(&outbox, 2, &mut random).await;
    let mut seen = 0;
    kafka.holds(&outbox.name, 1).await;
    for kill in 1..=KILLS {
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        let partitions = kafka.replicas(&outbox.name).await.unwrap();
        let leader = partitions.iter().find_map(|partition| partition.leader).unwrap();
        let pause = LongestPause::measure(&router);
        cluster.kill(leader);
        eventually("every partition has another leader", async || {
            let partitions = kafka.replicas(&outbox.name).await.ok()?;
            partitions.iter().all(|now| now.leader.is_some_and(|now| now != leader)).then_some(())
        })
        .await;
        seen = eventually("the records can be counted", async || kafka.count(&outbox.name).await.ok()).await;
        kafka.holds(&outbox.name, seen + 1).await;
        println!("kill {kill}, broker {leader}: nothing acknowledged for at most {:?}", pause.end());
        cluster.start_again(leader);
        cluster.in_sync(&outbox.name).await;
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// One broker is away and the topic requires all three, so the leader answers each request with NOT_ENOUGH_REPLICAS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn cluster_without_enough_replicas_in_sync_blocks_events_and_status_says_why() {
    let cluster = PrivateCluster::start().await;
    let (outbox, kafka) = (Outbox::new().await, cluster.client());
    let topic = outbox.topic("order");
    let settings = Settings::new(&outbox, &kafka).set("topics.config.'min.insync.replicas'", "3");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    cluster.kill(3);
    outbox.insert_numbers("order", "a", 4..7).await;
    router
        .shows("the reason says that replicas are missing", |status| {
            let reason = status["reason"].as_str()?;
            (status["state"] == "stalled" && reason.contains("min.insync.replicas is 3")).then_some(())
        })
        .await;
    let (ready, text) = router.get_now("/readyz").await;
    assert!(
        ready == 503 && text.contains(&topic) && text.contains("2 of 3 replicas in sync"),
        "{ready} {text}"
    );
    assert_eq!(router.get_now("/healthz").await.0, 200);
    let waiting = outbox.lsn().await;
    outbox.watched().await;
    assert!(outbox.confirmed().await < waiting);
    cluster.start_again(3);
    outbox.all_confirmed().await;
    router.ready().await;
    let log = router.stop().await.log;
    assert_eq!(log.matches("2 of 3 replicas in sync").count(), 1, "{log}");
    assert!(log.contains("events are acknowledged again"), "{log}");
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// The last broker has neither a majority of controllers nor enough replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn cluster_with_one_broker_left_blocks_events_in_bounded_memory() {
    const EVENTS: u32 = 200_000;
    let cluster = PrivateCluster::start().await;
    let (outbox, kafka) = (Outbox::new().await, cluster.client());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    cluster.kill(2);
    cluster.kill(3);
    let many = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
         SELECT 'order', 'b' || n % 100, jsonb_build_object('n', n / 100 + 1, 'text', repeat('x', 200)) \
         FROM generate_series(0, {}) n",
        EVENTS - 1
    );
    outbox.execute(&many).await;
    router
        .shows("the router is waiting for Kafka", |status| {
            (status["state"] == "stalled" && status["peer"] == "kafka").then_some(())
        })
        .await;
    println!("with one broker of three: {}", router.get_now("/readyz").await.1);
    assert_eq!(router.get_now("/healthz").await.0, 200);
    let waiting = outbox.lsn().await;
    outbox.watched().await;
    assert!(outbox.confirmed().await < waiting);
    cluster.start_again(3);
    outbox.all_confirmed().await;
    router.ready().await;
    cluster.start_again(2);
    println!("peak memory: {} MB", router.peak_heap() / 1_000_000);
    assert!(router.peak_heap() < 36_000_000, "{}", router.peak_heap());
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
