//! Dead letters and bookmarks during bulk reads.

use super::{MODES, PG_HBA, backlog, delivered_once, settings, took_bulk_reads};
use crate::support::comparison::{REPLAY, Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;

#[tokio::test]
async fn bulk_reads_park_unsendable_events_and_the_later_ones_of_the_aggregate() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        outbox.create_dead_letters_table().await;
        backlog(&outbox, 500).await;
        // not a valid topic name
        outbox.insert("two words", "poisoned", "{\"n\": 1}").await;
        outbox.insert_numbers("order", "poisoned", 2..5).await;
        backlog(&outbox, 500).await;
        let settings = settings(&outbox, &kafka, mode, "1").set("dead_letters.policy", "park");
        let mut router = Router::active(&settings).await;
        outbox.all_confirmed().await;
        took_bulk_reads(&mut router, 1).await;
        let parked: i64 = outbox.query("SELECT count(*) FROM outbox_router.dead_letters").await[0].get(0);
        assert_eq!(parked, 4);
        assert_eq!(kafka.committed(&outbox.name).await.unwrap().len(), 10_000);
        succeeded(settings.run(&["dead-letters", "discard", "--all", "--yes"]), &[]);
        // the router learns of the decision after the command has ended
        router
            .shows("no event is parked", |status| (status["dead_letters"]["events"] == 0).then_some(()))
            .await;
        outbox.insert("order", "poisoned", "{\"n\": 1}").await;
        outbox.all_confirmed().await;
        router.stop().await;
        outbox.execute("DELETE FROM outbox WHERE aggregate_id = 'poisoned'").await;
        let records = kafka.committed(&outbox.name).await.unwrap();
        let others: Vec<_> =
            records.iter().filter(|record| record.key() != Some("poisoned")).cloned().collect();
        assert_eq!(others.len() + 1, records.len());
        same(&outbox, &others, Repeats::Never).await;
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_after_a_reset_to_a_bookmark_mark_replayed_events() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let settings = settings(&outbox, &kafka, mode, "1");
        let router = Router::active(&settings).await;
        backlog(&outbox, 20).await;
        outbox.all_confirmed().await;
        succeeded(settings.run(&["slot", "bookmark", "before"]), &[]);
        backlog(&outbox, 1_000).await;
        outbox.all_confirmed().await;
        router.stop().await;
        succeeded(settings.run(&["slot", "reset", "--to", "before", "--yes"]), &["10000 events"]);
        let mut router = Router::active(&settings).await;
        eventually("all events are there a second time", async || {
            (kafka.committed(&outbox.name).await.ok()?.len() >= 20_200).then_some(())
        })
        .await;
        outbox.all_confirmed().await;
        took_bulk_reads(&mut router, 1).await;
        router.stop().await;
        let records = kafka.committed(&outbox.name).await.unwrap();
        let marked = records.iter().filter(|record| record.header(REPLAY).is_some()).count();
        assert_eq!((records.len(), marked), (20_200, 10_000));
        same(&outbox, &records, Repeats::Restarts(1)).await;
        let router = Router::active(&settings).await;
        router.stop().await;
        assert_eq!(kafka.committed(&outbox.name).await.unwrap().len(), 20_200);
    }
}

/// The router creates bookmarks by itself during bulk reads.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_leave_bookmarks_alone() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings =
        settings(&outbox, &kafka, MODES[0], "1").set("bookmarks.every", "1h").set("bookmarks.keep", 2);
    backlog(&outbox, 1_000).await;
    let mut router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    took_bulk_reads(&mut router, 1).await;
    eventually("a bookmark exists", async || {
        let ran = settings.run(&["slot", "list", "--json"]);
        ran.out.contains("_bookmark_").then_some(())
    })
    .await;
    router.stop().await;
    delivered_once(&outbox, &kafka).await;
}
