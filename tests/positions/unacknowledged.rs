//! The positions topic takes a position and does not acknowledge it: no leader, or too few replicas in sync. The slot stands still,
//! and the router says why, as it does for records.

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

/// Waits until state and readiness say that the positions topic is in the way, and what its metadata show.
async fn says(router: &mut Router, outbox: &Outbox, shows: &str) {
    let topic = positions_topic(outbox);
    router
        .shows("the state names the positions topic and what is wrong with it", |status| {
            let reason = status["reason"].as_str()?;
            let kafka = status["state"] == "reconnecting" && status["peer"] == "kafka";
            (kafka && reason.contains(&topic) && reason.contains(shows)).then_some(())
        })
        .await;
    eventually("readiness says so too", async || {
        let (ready, text) = router.get("/readyz")?;
        (ready == 503 && text.contains(&topic) && text.contains(shows)).then_some(())
    })
    .await;
    assert_eq!(router.get("/healthz").unwrap().0, 200);
    router.logs(shows).await;
}

fn positions_topic(outbox: &Outbox) -> String {
    format!("positions-{}", outbox.name)
}

/// Three brokers. The topic of the events is on two of them, that of the positions on others, all of which it needs.
struct Setting {
    cluster: PrivateCluster,
    outbox: Outbox,
    kafka: Kafka,
    mode: &'static str,
    settings: Settings,
}

impl Setting {
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
        Setting { cluster, outbox, kafka, mode, settings }
    }

    /// A router at work.
    async fn router(&self, settings: &Settings) -> Router {
        let router = Router::active(settings).await;
        self.outbox.insert_numbers("order", "a", 1..4).await;
        self.outbox.all_confirmed().await;
        router
    }

    /// Kills the broker that the positions need, and waits until the router says so.
    async fn killed(&self, router: &mut Router, shows: &str) {
        self.cluster.kill(VICTIM);
        self.outbox.insert_numbers("order", "a", 4..7).await;
        says(router, &self.outbox, shows).await;
        if self.mode == AT_LEAST_ONCE {
            // and events flow
            self.outbox.insert_numbers("order", "a", 7..10).await;
            self.kafka.holds_in(&self.outbox.topic("order"), 1, 9).await;
        }
        let waiting = self.outbox.lsn().await;
        self.outbox.watched().await;
        assert!(self.outbox.confirmed().await < waiting);
    }

    /// Brings the broker back, and judges log and records.
    async fn recovers(&self, mut router: Router, shows: &str) {
        self.cluster.start_again(VICTIM);
        self.outbox.all_confirmed().await;
        router.ready().await;
        let log = router.stop().await.log;
        assert!(!log.contains("__transaction_state") && !log.contains("did not fit into"), "{log}");
        let warned = log.lines().filter(|line| line.contains(" WARN ") && line.contains(shows)).count();
        // the end of a session may repeat the reason, and metadata may change on the way
        assert!((1..=3).contains(&warned), "{warned}: {log}");
        let records = if self.mode == EXACTLY_ONCE {
            self.kafka.committed(&self.outbox.name).await.unwrap()
        } else {
            self.kafka.records(&self.outbox.name).await
        };
        same(&self.outbox, &records, Repeats::Never).await;
    }
}

async fn explained(mode: &'static str, positions_on: &[i32], shows: &str) {
    let setting = Setting::new(mode, positions_on).await;
    let mut router = setting.router(&setting.settings).await;
    setting.killed(&mut router, shows).await;
    setting.recovers(router, shows).await;
}

/// A router that starts meanwhile.
async fn explained_at_the_start(mode: &'static str) {
    const SHOWS: &str = "has no leader";
    let setting = Setting::new(mode, &[VICTIM]).await;
    setting.router(&setting.settings).await.stop().await;
    setting.cluster.kill(VICTIM);
    setting.outbox.insert_numbers("order", "a", 4..7).await;
    let mut router = Router::start(&setting.settings);
    says(&mut router, &setting.outbox, SHOWS).await;
    setting.recovers(router, SHOWS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_positions_without_a_leader_are_explained_in_at_least_once() {
    explained(AT_LEAST_ONCE, &[VICTIM], "has no leader").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_positions_without_a_leader_are_explained_in_exactly_once() {
    explained(EXACTLY_ONCE, &[VICTIM], "has no leader").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_positions_with_too_few_replicas_are_explained_in_at_least_once() {
    explained(AT_LEAST_ONCE, &[1, VICTIM], "has 1 of 2 replicas in sync, and min.insync.replicas is 2").await;
}

/// Events stand still because of their own topic, so that is the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_positions_do_not_hide_why_events_stand_still() {
    const SHOWS: &str = "has no leader";
    let setting = Setting::new(AT_LEAST_ONCE, &[VICTIM]).await;
    setting.kafka.create_topic_on(&setting.outbox.topic("bill"), &[VICTIM], &[]).await;
    let mut router = setting.router(&setting.settings).await;
    setting.outbox.insert("bill", "b", "{\"n\": 1}").await;
    setting.outbox.all_confirmed().await;
    setting.killed(&mut router, SHOWS).await;
    setting.outbox.insert("bill", "b", "{\"n\": 2}").await;
    let topic = setting.outbox.topic("bill");
    router
        .shows("the state names the topic of the events", |status| {
            let reason = status["reason"].as_str()?;
            (reason.contains(&topic) && reason.contains(SHOWS)).then_some(())
        })
        .await;
    router.logs("nothing is acknowledged; events wait in Postgres").await;
    setting.recovers(router, SHOWS).await;
}

/// For as long as it takes: the transaction times out, and its abort waits for the same. `with_coordinator`: the broker that is
/// killed coordinates every other transaction, so that another takes over from it.
async fn explained_beyond_the_time_out(with_coordinator: bool) {
    const SHOWS: &str = "has 1 of 2 replicas in sync, and min.insync.replicas is 2";
    let setting = Setting::new(EXACTLY_ONCE, &[1, VICTIM]).await;
    let names: Vec<_> = (0..200).map(|n| format!("{}-{n}", setting.outbox.name)).collect();
    let ids: Vec<_> = names.iter().flat_map(|name| [format!("{name}.0"), format!("{name}.1")]).collect();
    let coordinators = setting.kafka.coordinators(&ids).await;
    let fits = |both: &[i32]| both.contains(&VICTIM) == with_coordinator;
    let name = names[coordinators.chunks(2).position(fits).unwrap()].as_str();
    let settings = setting.settings.clone().set("name", name).set("kafka.'transaction.timeout.ms'", 20_000);
    let mut router = setting.router(&settings).await;
    setting.killed(&mut router, SHOWS).await;
    router
        .shows("events wait for longer than the transaction lasts", |status| {
            (status["lag"]["seconds"].as_f64()? > 45.0).then_some(())
        })
        .await;
    says(&mut router, &setting.outbox, SHOWS).await;
    setting.recovers(router, SHOWS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_positions_with_too_few_replicas_are_explained_in_exactly_once() {
    explained_beyond_the_time_out(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_positions_with_too_few_replicas_are_explained_where_the_coordinator_is_gone_too() {
    explained_beyond_the_time_out(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_positions_without_a_leader_are_explained_at_the_start_in_at_least_once() {
    explained_at_the_start(AT_LEAST_ONCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_positions_without_a_leader_are_explained_at_the_start_in_exactly_once() {
    explained_at_the_start(EXACTLY_ONCE).await;
}
