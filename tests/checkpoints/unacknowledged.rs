//! The positions topic does not acknowledge a checkpoint, because it has no leader or too few replicas in sync. The slot does not
//! advance, and the router says why, as it does for records.

use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::private_cluster::PrivateCluster;
use crate::support::router::Router;
use crate::support::settings::Settings;

const AT_LEAST_ONCE: &str = "at-least-once";
const EXACTLY_ONCE: &str = "exactly-once";

/// The broker that is killed.
const VICTIM: i32 = 3;

/// Waits until status, readiness and log name the positions topic and its problem.
async fn is_explained(router: &mut Router, outbox: &Outbox, problem: &str) {
    let topic = positions_topic(outbox);
    router
        .shows("the reason names the positions topic and its problem", |status| {
            let reason = status["reason"].as_str()?;
            let kafka = status["state"] == "reconnecting" && status["peer"] == "kafka";
            (kafka && reason.contains(&topic) && reason.contains(problem)).then_some(())
        })
        .await;
    eventually("readiness names them too", async || {
        let (ready, text) = router.get("/readyz")?;
        (ready == 503 && text.contains(&topic) && text.contains(problem)).then_some(())
    })
    .await;
    assert_eq!(router.get("/healthz").unwrap().0, 200);
    router.logs(problem).await;
}

fn positions_topic(outbox: &Outbox) -> String {
    format!("positions-{}", outbox.name)
}

/// Three brokers. The topic of the events is on the first two. The positions topic is on `positions_on` and needs all of these.
struct Setup {
    cluster: PrivateCluster,
    outbox: Outbox,
    kafka: Kafka,
    mode: &'static str,
    settings: Settings,
}

impl Setup {
    async fn new(mode: &'static str, positions_on: &[i32]) -> Self {
        let cluster = PrivateCluster::start().await;
        let (outbox, kafka) = (Outbox::new().await, cluster.client());
        kafka.create_topic_on(&outbox.topic("order"), &[1, 2], &[]).await;
        let (positions, needed) = (positions_topic(&outbox), positions_on.len().to_string());
        let config = [("cleanup.policy", "compact"), ("min.insync.replicas", needed.as_str())];
        kafka.create_topic_on(&positions, positions_on, &config).await;
        let settings = Settings::new(&outbox, &kafka)
            .set("delivery.mode", mode)
            .set("delivery.positions_topic", positions);
        Setup { cluster, outbox, kafka, mode, settings }
    }

    /// A router that has delivered three events.
    async fn router(&self, settings: &Settings) -> Router {
        let router = Router::active(settings).await;
        self.outbox.insert_numbers("order", "a", 1..4).await;
        self.outbox.all_confirmed().await;
        router
    }

    /// Kills the broker that the positions topic needs, and waits until the router explains it.
    async fn kill_broker(&self, router: &mut Router, problem: &str) {
        self.cluster.kill(VICTIM);
        self.outbox.insert_numbers("order", "a", 4..7).await;
        is_explained(router, &self.outbox, problem).await;
        if self.mode == AT_LEAST_ONCE {
            // events are still delivered
            self.outbox.insert_numbers("order", "a", 7..10).await;
            self.kafka.holds_in(&self.outbox.topic("order"), 1, 9).await;
        }
        let waiting = self.outbox.lsn().await;
        self.outbox.watched().await;
        assert!(self.outbox.confirmed().await < waiting);
    }

    /// Restarts the broker, and checks log and records.
    async fn recovers(&self, mut router: Router, problem: &str) {
        self.cluster.start_again(VICTIM);
        self.outbox.all_confirmed().await;
        router.ready().await;
        let log = router.stop().await.log;
        assert!(!log.contains("__transaction_state") && !log.contains("did not fit into"), "{log}");
        let warned = log.lines().filter(|line| line.contains(" WARN ") && line.contains(problem)).count();
        // the end of a session may repeat the reason, and the metadata may change in between
        assert!((1..=3).contains(&warned), "{warned}: {log}");
        let records = if self.mode == EXACTLY_ONCE {
            self.kafka.committed(&self.outbox.name).await.unwrap()
        } else {
            self.kafka.records(&self.outbox.name).await
        };
        same(&self.outbox, &records, Repeats::Never).await;
    }
}

async fn explained(mode: &'static str, positions_on: &[i32], problem: &str) {
    let setup = Setup::new(mode, positions_on).await;
    let mut router = setup.router(&setup.settings).await;
    setup.kill_broker(&mut router, problem).await;
    setup.recovers(router, problem).await;
}

/// A router starts while the broker is away.
async fn explained_at_the_start(mode: &'static str) {
    const PROBLEM: &str = "has no leader";
    let setup = Setup::new(mode, &[VICTIM]).await;
    setup.router(&setup.settings).await.stop().await;
    setup.cluster.kill(VICTIM);
    setup.outbox.insert_numbers("order", "a", 4..7).await;
    let mut router = Router::start(&setup.settings);
    is_explained(&mut router, &setup.outbox, PROBLEM).await;
    setup.recovers(router, PROBLEM).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_checkpoints_without_a_leader_are_explained_in_at_least_once() {
    explained(AT_LEAST_ONCE, &[VICTIM], "has no leader").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_checkpoints_without_a_leader_are_explained_in_exactly_once() {
    explained(EXACTLY_ONCE, &[VICTIM], "has no leader").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_checkpoints_with_too_few_replicas_are_explained_in_at_least_once() {
    explained(AT_LEAST_ONCE, &[1, VICTIM], "has 1 of 2 replicas in sync, and min.insync.replicas is 2").await;
}

/// Events are blocked by their own topic, so the reason must name that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_checkpoints_do_not_hide_why_events_are_blocked() {
    const PROBLEM: &str = "has no leader";
    let setup = Setup::new(AT_LEAST_ONCE, &[VICTIM]).await;
    setup.kafka.create_topic_on(&setup.outbox.topic("bill"), &[VICTIM], &[]).await;
    let mut router = setup.router(&setup.settings).await;
    setup.outbox.insert("bill", "b", "{\"n\": 1}").await;
    setup.outbox.all_confirmed().await;
    setup.kill_broker(&mut router, PROBLEM).await;
    setup.outbox.insert("bill", "b", "{\"n\": 2}").await;
    let topic = setup.outbox.topic("bill");
    router
        .shows("the reason names the topic of the events", |status| {
            let reason = status["reason"].as_str()?;
            (reason.contains(&topic) && reason.contains(PROBLEM)).then_some(())
        })
        .await;
    router.logs("nothing is acknowledged; events wait in Postgres").await;
    setup.recovers(router, PROBLEM).await;
}

/// The router keeps explaining after the transaction has timed out, while its abort waits for the same topic. `with_coordinator`:
/// the killed broker coordinates every other transaction, so that another broker has to take over.
async fn explained_beyond_the_timeout(with_coordinator: bool) {
    const PROBLEM: &str = "has 1 of 2 replicas in sync, and min.insync.replicas is 2";
    let setup = Setup::new(EXACTLY_ONCE, &[1, VICTIM]).await;
    let names: Vec<_> = (0..200).map(|n| format!("{}-{n}", setup.outbox.name)).collect();
    let ids: Vec<_> = names.iter().flat_map(|name| [format!("{name}.0"), format!("{name}.1")]).collect();
    let coordinators = setup.kafka.coordinators(&ids).await;
    let wanted = |both: &[i32]| both.contains(&VICTIM) == with_coordinator;
    let name = names[coordinators.chunks(2).position(wanted).unwrap()].as_str();
    let settings = setup.settings.clone().set("name", name).set("kafka.'transaction.timeout.ms'", 20_000);
    let mut router = setup.router(&settings).await;
    setup.kill_broker(&mut router, PROBLEM).await;
    router
        .shows("events wait for longer than the transaction lasts", |status| {
            (status["lag"]["seconds"].as_f64()? > 45.0).then_some(())
        })
        .await;
    is_explained(&mut router, &setup.outbox, PROBLEM).await;
    setup.recovers(router, PROBLEM).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_checkpoints_with_too_few_replicas_are_explained_in_exactly_once() {
    explained_beyond_the_timeout(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_checkpoints_are_explained_when_the_coordinator_is_gone_too() {
    explained_beyond_the_timeout(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_checkpoints_without_a_leader_are_explained_at_the_start_in_at_least_once() {
    explained_at_the_start(AT_LEAST_ONCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_checkpoints_without_a_leader_are_explained_at_the_start_in_exactly_once() {
    explained_at_the_start(EXACTLY_ONCE).await;
}
