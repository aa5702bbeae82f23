//! A second router uses the name of one that delivers. It has to stop, and must not disturb the first one.

use super::settings;
use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::{Settings, positions_topic};
use crate::support::writers::Writers;

/// The log line at the start of each session.
const SESSION: &str = "connected; events flow";

/// Starts other routers while the one of `outbox` delivers. Asserts that each is refused with these words, and that the session
/// of the first one continues.
async fn others_are_refused(outbox: &Outbox, kafka: &Kafka, others: &[Settings], words: &[&str]) {
    let router = Router::active(&settings(outbox, kafka)).await;
    let writers = Writers::start(outbox, 4, &mut seed::random()).await;
    let mut seen = 0;
    for other in others.iter().cycle().take(4) {
        kafka.holds(&outbox.name, seen + 100).await;
        let refused = Router::start(other).exits(3).await;
        refused.says(words);
        // the refusal must not blame the other router's database
        assert!(!refused.message().contains("the publication"), "{}", refused.message());
        seen = kafka.count(&outbox.name).await.unwrap();
    }
    kafka.holds(&outbox.name, seen + 100).await;
    writers.finish().await;
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    assert!(!log.contains("InvalidProducerEpoch") && !log.contains("another router has taken over"), "{log}");
    assert_eq!(log.matches(SESSION).count(), 1, "{log}");
    same(outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// Two clusters with the same names use one Kafka. The other router may use either mode.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_a_router_of_another_cluster_is_refused_before_it_fences_the_one_that_delivers() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let other = outbox.twin(&server.url()).await;
    let others = [settings(&other, &kafka), Settings::new(&other, &kafka)];
    others_are_refused(&outbox, &kafka, &others, &["another database cluster", "two routers share one name"])
        .await;
}

/// Two slots of one cluster use one `name`.
#[tokio::test]
async fn exactly_once_a_router_of_another_slot_is_refused_before_it_fences_the_one_that_delivers() {
    let (outbox, other, kafka) = (Outbox::new().await, Outbox::new().await, Kafka::shared());
    let name = format!("{0}.{0}", outbox.name);
    let others = [settings(&other, &kafka), Settings::new(&other, &kafka)];
    let others = others.map(|settings| {
        settings.set("name", name.as_str()).set("delivery.positions_topic", positions_topic(&outbox))
    });
    others_are_refused(&outbox, &kafka, &others, &["belongs to the slot", "two routers share one name"])
        .await;
}
