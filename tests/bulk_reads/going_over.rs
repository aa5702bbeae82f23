//! From the stream to bulk reads and back, again and again: no gap, no event twice, no key out of order.

use super::{MODES, PG_HBA, backlog, counted, delivered_once, settings, slow, streams, took_bulk_reads};
use crate::faults::broker_stopped::broker_killed_at_random_points;
use crate::faults::sigkill::{KILLS, killed_at_random_points};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;

#[tokio::test]
async fn bulk_reads_take_a_backlog_and_the_stream_what_comes_after() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        backlog(&outbox, 3_000).await;
        let mut router = Router::active(&settings(&outbox, &kafka, mode, "1MiB")).await;
        outbox.all_confirmed().await;
        took_bulk_reads(&mut router, 2).await;
        streams(&mut router).await;
        let bites = counted(&router, "bites_total");
        // live again, and not a bulk read more
        backlog(&outbox, 1).await;
        kafka.holds(&outbox.name, 30_010).await;
        outbox.all_confirmed().await;
        assert_eq!(counted(&router, "bites_total"), bites);
        assert_eq!(counted(&router, "reconnects_total{peer=\"postgres\"}"), Some(0));
        router.stop().await;
        delivered_once(&outbox, &kafka).await;
    }
}

/// A burst takes two seconds and more, and the router looks every second how far it is behind.
#[tokio::test]
async fn bulk_reads_and_stream_in_turns_as_applications_write() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let mut router = Router::active(&slow(settings(&outbox, &kafka, mode, "1"))).await;
        for _ in 0..4 {
            let taken = counted(&router, "bites_total").unwrap();
            backlog(&outbox, 200).await;
            took_bulk_reads(&mut router, taken + 1).await;
            streams(&mut router).await;
        }
        outbox.all_confirmed().await;
        assert_eq!(counted(&router, "reconnects_total{peer=\"postgres\"}"), Some(0));
        router.stop().await;
        delivered_once(&outbox, &kafka).await;
    }
}

#[tokio::test]
async fn bulk_reads_and_sigkill_at_random_points_lose_nothing() {
    for mode in MODES {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        killed_at_random_points(&outbox, &kafka, &settings(&outbox, &kafka, mode, "1")).await;
        let repeats = if mode == MODES[1] { Repeats::Never } else { Repeats::Restarts(KILLS) };
        same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), repeats).await;
    }
}

#[tokio::test]
async fn bulk_reads_and_a_broker_that_is_killed_again_and_again_show_no_event_twice() {
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    broker_killed_at_random_points(&broker, &outbox, &settings(&outbox, &kafka, MODES[1], "1"), 3).await;
    delivered_once(&outbox, &kafka).await;
}

/// Both begin in one session and end in the next: what is remembered is the same for both.
#[tokio::test]
async fn bulk_reads_begin_where_a_stream_has_stopped_and_the_other_way_round() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (mut written, mut sent) = (0, 0);
    for lag in ["1", "1GiB", "1", "1GiB"] {
        let slow = slow(settings(&outbox, &kafka, MODES[0], lag));
        eventually("a router was stopped before it had sent everything", async || {
            backlog(&outbox, 500).await;
            written += 5_000;
            let router = Router::start(&slow);
            kafka.holds(&outbox.name, sent + 500).await;
            router.stop().await;
            sent = kafka.count(&outbox.name).await.unwrap();
            (sent < written).then_some(())
        })
        .await;
    }
    let router = Router::start(&settings(&outbox, &kafka, MODES[0], "1"));
    outbox.all_confirmed().await;
    router.stop().await;
    delivered_once(&outbox, &kafka).await;
}
