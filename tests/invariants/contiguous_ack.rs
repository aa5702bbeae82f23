//! The slot is never confirmed past an event that the broker has not acknowledged.

use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::mock::Mock;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Two brokers with a topic each. The second can be taken down.
struct Setup {
    outbox: Outbox,
    mock: Mock,
    kafka: Kafka,
}

/// The broker of the topic `blocked`.
const SECOND: i32 = 2;

impl Setup {
    async fn new() -> Self {
        let (outbox, mock) = (Outbox::new().await, Mock::start(2));
        mock.create_topic(&outbox.topic("open"), 1, 1);
        mock.create_topic(&outbox.topic("blocked"), 1, SECOND);
        outbox.create_witness().await;
        let kafka = mock.client();
        Setup { outbox, mock, kafka }
    }

    fn settings(&self) -> Settings {
        Settings::new(&self.outbox, &self.kafka)
    }

    /// Sends one event to each topic, so that the router knows both, and takes the second broker down.
    async fn block(&self) {
        let end = self.outbox.commit(&[event("open", 1), event("blocked", 1)].concat()).await;
        self.outbox.confirmed_past(end).await;
        self.mock.down(SECOND);
    }

    /// Waits until the open topic holds `open` events and the router has confirmed all that it may.
    async fn sent(&self, open: usize) {
        let topic = self.outbox.topic("open");
        self.kafka.holds_in(&topic, 1, open).await;
        self.outbox.watched().await;
    }

    /// Brings the second broker back, and checks that every event arrives exactly once.
    async fn all_arrives_once(&self, router: Router) {
        self.mock.up(SECOND);
        self.outbox.all_confirmed().await;
        router.stop().await;
        same(&self.outbox, &self.kafka.records(&self.outbox.name).await, Repeats::Never).await;
    }
}

fn event(aggregate_type: &str, n: u32) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('{aggregate_type}', 'a', '{{\"n\": {n}}}');"
    )
}

#[tokio::test]
async fn contiguous_ack_waits_for_the_oldest_event() {
    let setup = Setup::new().await;
    let router = Router::active(&setup.settings()).await;
    setup.block().await;

    let acknowledged = setup.outbox.commit(&event("open", 2)).await;
    setup.outbox.confirmed_past(acknowledged).await;
    let blocked = setup.outbox.commit(&event("blocked", 2)).await;
    for n in 3..=50 {
        setup.outbox.execute(&event("open", n)).await;
    }
    setup.sent(50).await;
    let confirmed = setup.outbox.confirmed().await;
    assert!(confirmed >= acknowledged && confirmed < blocked, "{acknowledged} <= {confirmed} < {blocked}");

    setup.all_arrives_once(router).await;
}

#[tokio::test]
async fn contiguous_ack_waits_for_every_event_of_a_transaction() {
    let setup = Setup::new().await;
    let router = Router::active(&setup.settings()).await;
    setup.block().await;

    // only the last event of the transaction is blocked; the others of it, and the event after it, are not
    let blocked =
        setup.outbox.commit(&[event("open", 2), event("open", 3), event("blocked", 2)].concat()).await;
    setup.outbox.execute(&event("open", 4)).await;
    setup.sent(4).await;
    let confirmed = setup.outbox.confirmed().await;
    assert!(confirmed < blocked, "{confirmed} < {blocked}");

    setup.all_arrives_once(router).await;
}

/// A router that is killed while an event is unacknowledged sends that event after its restart.
#[tokio::test]
async fn contiguous_ack_holds_across_a_kill() {
    let setup = Setup::new().await;
    let router = Router::active(&setup.settings()).await;
    setup.block().await;
    setup.outbox.execute(&event("blocked", 2)).await;
    for n in 2..=10 {
        setup.outbox.execute(&event("open", n)).await;
    }
    setup.sent(10).await;
    router.kill();
    setup.mock.up(SECOND);
    let router = Router::start(&setup.settings());
    setup.outbox.all_confirmed().await;
    router.stop().await;
    same(&setup.outbox, &setup.kafka.records(&setup.outbox.name).await, Repeats::Restarts(1)).await;
}
