//! The positions topic does not acknowledge a checkpoint, because it has no leader or too few replicas in sync. The slot does not
//! advance, and the router says why, as it does for records.

use crate::bulk_reads::PG_HBA;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_cluster::PrivateCluster;
use crate::support::router::{Router, waits};
use crate::support::settings::Settings;

const AT_LEAST_ONCE: &str = "at-least-once";
const EXACTLY_ONCE: &str = "exactly-once";

/// The broker that is killed.
const VICTIM: i32 = 3;

/// What is wrong with a topic that is only on the victim, or on another broker too.
const NO_LEADER: &str = "has no leader";
const TOO_FEW_REPLICAS: &str = "has 1 of 2 replicas in sync, and min.insync.replicas is 2";

/// Waits until status, readiness and log name the positions topic and its problem.
async fn is_explained(router: &mut Router, outbox: &Outbox, problem: &str) {
    let topic = positions_topic(outbox);
    router
        .shows("the reason names the positions topic and its problem", |status| {
            let reason = status["reason"].as_str()?;
            let kafka = waits(status) && status["peer"] == "kafka";
            (kafka && reason.contains(&topic) && reason.contains(problem)).then_some(())
        })
        .await;
    eventually("readiness names them too", async || {
        let (ready, text) = router.get("/readyz")?;
        (ready == 503 && text.contains(&topic) && text.contains(problem)).then_some(())
    })
    .await;
    assert_eq!(router.get_now("/healthz").await.0, 200);
    router.logs(problem).await;
}

fn positions_topic(outbox: &Outbox) -> String {
    format!("positions-{}", outbox.name)
}

/// Postgres is private because the slots do not advance while the broker is away: on a shared server the routers would have to read
/// again what all other tests write in that time.
struct Servers {
    postgres: PrivatePostgres,
    cluster: PrivateCluster,
}

/// One router. The topic of its events is on the first two brokers. Its positions topic is on `positions_on`, and needs all of these
/// in sync.
struct Case {
    outbox: Outbox,
    kafka: Kafka,
    mode: &'static str,
    settings: Settings,
    /// What is wrong with the positions topic while the third broker is away.
    problem: &'static str,
}

impl Case {
    async fn new(servers: &Servers, mode: &'static str, positions_on: &[i32]) -> Self {
        let (outbox, kafka) = (Outbox::on(&servers.postgres.url()).await, servers.cluster.client());
        kafka.create_topic_on(&outbox.topic("order"), &[1, 2], &[]).await;
        let (positions, needed) = (positions_topic(&outbox), positions_on.len().to_string());
        let config = [("cleanup.policy", "compact"), ("min.insync.replicas", needed.as_str())];
        kafka.create_topic_on(&positions, positions_on, &config).await;
        let settings = Settings::new(&outbox, &kafka)
            .set("delivery.mode", mode)
            .set("delivery.positions_topic", positions);
        let problem = if positions_on == [VICTIM] { NO_LEADER } else { TOO_FEW_REPLICAS };
        Case { outbox, kafka, mode, settings, problem }
    }

    /// One whose transactions last 20 seconds. `with_coordinator`: the killed broker coordinates every other transaction, so that
    /// another broker has to take over.
    async fn with_short_transactions(servers: &Servers, with_coordinator: bool) -> Self {
        let mut case = Self::new(servers, EXACTLY_ONCE, &[1, VICTIM]).await;
        let names: Vec<_> = (0..200).map(|n| format!("{}-{n}", case.outbox.name)).collect();
        let ids: Vec<_> = names.iter().flat_map(|name| [format!("{name}.0"), format!("{name}.1")]).collect();
        let coordinators = case.kafka.coordinators(&ids).await;
        let wanted = |both: &[i32]| both.contains(&VICTIM) == with_coordinator;
        let name = names[coordinators.chunks(2).position(wanted).unwrap()].as_str();
        case.settings = case.settings.set("name", name).set("kafka.'transaction.timeout.ms'", 20_000);
        case
    }

    /// A router that has delivered three events.
    async fn router(&self) -> Router {
        let router = Router::active(&self.settings).await;
        self.outbox.insert_numbers("order", "a", 1..4).await;
        self.outbox.all_confirmed().await;
        router
    }

    /// Waits until the router explains that the broker is away, and checks that it confirms nothing.
    async fn waits(&self, router: &mut Router) {
        self.outbox.insert_numbers("order", "a", 4..7).await;
        is_explained(router, &self.outbox, self.problem).await;
        if self.mode == AT_LEAST_ONCE {
            // events are still delivered
            self.outbox.insert_numbers("order", "a", 7..10).await;
            self.kafka.holds_in(&self.outbox.topic("order"), 1, 9).await;
        }
        let waiting = self.outbox.lsn().await;
        self.outbox.watched().await;
        assert!(self.outbox.confirmed().await < waiting);
    }

    /// Checks what the router has logged while the broker is away.
    fn has_explained(&self, router: &Router) {
        let log = router.log();
        assert!(!log.contains("__transaction_state"), "{log}");
        let warned =
            log.lines().filter(|line| line.contains(" WARN ") && line.contains(self.problem)).count();
        // the end of a session may repeat the reason, and `blocked` has two topics
        assert!((1..=3).contains(&warned), "{warned}: {log}");
    }

    /// Checks log and records once the broker is back.
    async fn recovers(&self, mut router: Router) {
        self.outbox.all_confirmed().await;
        router.ready().await;
        let log = router.stop().await.log;
        assert!(!log.contains("did not fit into"), "{log}");
        let records = if self.mode == EXACTLY_ONCE {
            self.kafka.committed(&self.outbox.name).await.unwrap()
        } else {
            self.kafka.records(&self.outbox.name).await
        };
        same(&self.outbox, &records, Repeats::Never).await;
    }
}

/// All cases share one cluster, because three brokers take a long time to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn unacknowledged_checkpoints_are_explained() {
    let servers = Servers {
        postgres: PrivatePostgres::start(PG_HBA, &[]).await,
        cluster: PrivateCluster::start().await,
    };
    let mut running = Vec::new();
    for (mode, positions_on) in
        [(AT_LEAST_ONCE, &[VICTIM][..]), (EXACTLY_ONCE, &[VICTIM]), (AT_LEAST_ONCE, &[1, VICTIM])]
    {
        let case = Case::new(&servers, mode, positions_on).await;
        running.push((case.router().await, case));
    }
    // the router keeps explaining after the transaction has timed out, while its abort waits for the same topic
    let mut timed_out = Vec::new();
    for with_coordinator in [false, true] {
        let case = Case::with_short_transactions(&servers, with_coordinator).await;
        timed_out.push((case.router().await, case));
    }
    // events are blocked by their own topic, so the reason must name that one
    let blocked = Case::new(&servers, AT_LEAST_ONCE, &[VICTIM]).await;
    let topic = blocked.outbox.topic("bill");
    blocked.kafka.create_topic_on(&topic, &[VICTIM], &[]).await;
    let mut blocked_router = blocked.router().await;
    blocked.outbox.insert("bill", "b", "{\"n\": 1}").await;
    blocked.outbox.all_confirmed().await;
    // the router starts while the broker is away
    let mut starting = Vec::new();
    for mode in [AT_LEAST_ONCE, EXACTLY_ONCE] {
        let case = Case::new(&servers, mode, &[VICTIM]).await;
        case.router().await.stop().await;
        starting.push(case);
    }

    servers.cluster.kill(VICTIM);
    for (router, case) in running.iter_mut().chain(&mut timed_out) {
        case.waits(router).await;
    }
    blocked.waits(&mut blocked_router).await;
    blocked.outbox.insert("bill", "b", "{\"n\": 2}").await;
    blocked_router
        .shows("the reason names the topic of the events", |status| {
            let reason = status["reason"].as_str()?;
            (reason.contains(&topic) && reason.contains(NO_LEADER)).then_some(())
        })
        .await;
    blocked_router.logs("nothing is acknowledged; events wait in Postgres").await;
    running.push((blocked_router, blocked));
    for case in starting {
        case.outbox.insert_numbers("order", "a", 4..7).await;
        let mut router = Router::start(&case.settings);
        is_explained(&mut router, &case.outbox, case.problem).await;
        running.push((router, case));
    }
    for (router, case) in &mut timed_out {
        router
            .shows("events wait for longer than the transaction lasts", |status| {
                (status["lag"]["seconds"].as_f64()? > 45.0).then_some(())
            })
            .await;
        is_explained(router, &case.outbox, case.problem).await;
    }
    for (router, case) in running.iter().chain(&timed_out) {
        case.has_explained(router);
    }

    servers.cluster.start_again(VICTIM);
    for (router, case) in running.into_iter().chain(timed_out) {
        case.recovers(router).await;
    }
}
