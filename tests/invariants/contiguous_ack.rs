//! The slot is never confirmed past an event that the broker has not acknowledged.

use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::mock::Mock;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Two brokers, of which the second can be taken away, and a topic on each.
struct Setting {
    outbox: Outbox,
    mock: Mock,
    kafka: Kafka,
}

/// The broker that the topic `blocked` lives on.
const SECOND: i32 = 2;

impl Setting {
    async fn new() -> Self {
        let (outbox, mock) = (Outbox::new().await, Mock::start(2));
        mock.create_topic(&outbox.topic("open"), 1, 1);
        mock.create_topic(&outbox.topic("blocked"), 1, SECOND);
        outbox.create_witness().await;
        let kafka = mock.client();
        Setting { outbox, mock, kafka }
    }

    fn settings(&self) -> Settings {
        Settings::new(&self.outbox, &self.kafka)
    }

    /// Sends one event to each topic, so that both are known, and takes the second broker away.
    async fn block(&self) {
        let end = self.outbox.commit(&[event("open", 1), event("blocked", 1)].concat()).await;
        self.outbox.confirmed_past(end).await;
        self.mock.down(SECOND);
    }

    /// Waits until the open topic holds so many events, and the slot has been moved as far as it may.
    async fn sent(&self, open: usize) {
        let topic = self.outbox.topic("open");
        self.kafka.holds_in(&topic, 1, open).await;
        self.outbox.watched().await;
    }

    /// Brings the second broker back: what waited for it arrives, and nothing a second time.
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
async fn contiguous_ack_waits_for_the_oldest_event_whatever_follows_it() {
    let setting = Setting::new().await;
    let router = Router::active(&setting.settings()).await;
    setting.block().await;

    let acknowledged = setting.outbox.commit(&event("open", 2)).await;
    setting.outbox.confirmed_past(acknowledged).await;
    let waits = setting.outbox.commit(&event("blocked", 2)).await;
    for n in 3..=50 {
        setting.outbox.execute(&event("open", n)).await;
    }
    setting.sent(50).await;
    let confirmed = setting.outbox.confirmed().await;
    assert!(confirmed >= acknowledged && confirmed < waits, "{acknowledged} <= {confirmed} < {waits}");

    setting.all_arrives_once(router).await;
}

#[tokio::test]
async fn contiguous_ack_waits_for_every_event_of_a_transaction() {
    let setting = Setting::new().await;
    let router = Router::active(&setting.settings()).await;
    setting.block().await;

    // the one that waits is the last of its transaction; others of that transaction, and one after it, do not wait
    let waits =
        setting.outbox.commit(&[event("open", 2), event("open", 3), event("blocked", 2)].concat()).await;
    setting.outbox.execute(&event("open", 4)).await;
    setting.sent(4).await;
    let confirmed = setting.outbox.confirmed().await;
    assert!(confirmed < waits, "{confirmed} < {waits}");

    setting.all_arrives_once(router).await;
}

/// Killed while an event waits, the router sends that event after its restart.
#[tokio::test]
async fn contiguous_ack_holds_across_a_kill() {
    let setting = Setting::new().await;
    let router = Router::active(&setting.settings()).await;
    setting.block().await;
    setting.outbox.execute(&event("blocked", 2)).await;
    for n in 2..=10 {
        setting.outbox.execute(&event("open", n)).await;
    }
    setting.sent(10).await;
    router.kill();
    setting.mock.up(SECOND);
    let router = Router::start(&setting.settings());
    setting.outbox.all_confirmed().await;
    router.stop().await;
    same(&setting.outbox, &setting.kafka.records(&setting.outbox.name).await, Repeats::Restarts(1)).await;
}
