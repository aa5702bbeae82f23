//! The broker ends and comes back.

use crate::invariants::feedback_never_starves::{PG_HBA, TIMEOUT, a_silent_reader_is_dropped};
use crate::support::comparison::{Repeats, same};
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::settings::Settings;

#[tokio::test]
async fn broker_stopped_for_longer_than_wal_sender_timeout_and_back() {
    let server = PrivatePostgres::start(PG_HBA, &[TIMEOUT]).await;
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
    let settings = Settings::new(&outbox, &kafka).set("postgres.wal_sender_timeout", "2s");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..101).await;
    outbox.all_confirmed().await;
    let walsender = outbox.active_pid().await;

    // some under way when it goes, some while it is away
    outbox.insert_numbers("order", "a", 101..201).await;
    broker.stop();
    outbox.insert_numbers("order", "a", 201..301).await;
    outbox.insert_numbers("customer", "b", 1..101).await;
    for _ in 0..2 {
        a_silent_reader_is_dropped(&server).await;
    }
    router.logs("no broker can be reached").await;
    assert_eq!(router.get("/healthz").unwrap().0, 200);
    broker.start_again();

    outbox.insert_numbers("order", "a", 301..401).await;
    outbox.all_confirmed().await;
    assert_eq!(outbox.slot().await.unwrap().active_pid, Some(walsender), "dropped\n{}", router.log());
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
