//! `check` and the router warn of topics where an acknowledgement may mean a single copy.

use super::check::Found;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::Place;
use crate::support::private_cluster::PrivateCluster;
use crate::support::router::Router;
use crate::support::settings::Settings;

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn weak_acknowledgements_are_reported_by_check_and_logged_once_by_the_router() {
    let cluster = PrivateCluster::start().await;
    let (outbox, kafka) = (Outbox::new().await, cluster.client());
    let one = [("min.insync.replicas", "1")];
    kafka.create_replicated_topic(&outbox.topic("single"), 1, 1, &one).await;
    kafka.create_replicated_topic(&outbox.topic("insync"), 1, 3, &one).await;
    let unclean = [("unclean.leader.election.enable", "true")];
    kafka.create_replicated_topic(&outbox.topic("unclean"), 1, 3, &unclean).await;
    let types = ["single", "insync", "unclean", "fine"];
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    for _ in 0..2 {
        for aggregate_type in types {
            outbox.insert(aggregate_type, "a", "{}").await;
        }
    }
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    let warnings =
        |topic: &str, what: &str| log.matches(&format!("the topic {}: {what}", outbox.topic(topic))).count();
    assert_eq!(warnings("single", "one replica"), 1, "{log}");
    assert_eq!(warnings("insync", "min.insync.replicas is 1"), 1, "{log}");
    assert_eq!(warnings("unclean", "unclean.leader.election.enable is true"), 1, "{log}");
    assert_eq!(warnings("fine", ""), 0, "{log}");
    assert!(log.contains("remedy=\"Set min.insync.replicas = 2\""), "{log}");

    let place = Place::new()
        .with("KAFKA__BOOTSTRAP_SERVERS", &kafka.bootstrap)
        .with("ROUTE__TOPIC", &outbox.topic("${aggregate_type}"));
    assert_eq!(place.run(&["init"]).code, 0);
    let found = Found::at(&place);
    assert_eq!(found.code, 0, "a risk is not an error");
    for (check, topic) in [
        ("replication_factor", "single"),
        ("min_insync_replicas", "insync"),
        ("unclean_leader_election", "unclean"),
    ] {
        let finding = found.of(check);
        assert!(finding.starts_with("warning") && finding.contains(&outbox.topic(topic)), "{finding}");
        assert!(!finding.contains(&outbox.topic("fine")), "{finding}");
    }
}

#[tokio::test]
async fn weak_acknowledgements_of_a_single_broker_are_logged_once() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    for aggregate_type in ["order", "customer", "invoice"] {
        outbox.insert(aggregate_type, "a", "{}").await;
    }
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    assert_eq!(log.matches("Kafka has a single broker").count(), 1, "{log}");
    assert!(!log.contains("one replica"), "{log}");
}
