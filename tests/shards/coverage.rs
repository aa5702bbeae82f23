//! A set of shards that does not take every aggregate exactly once is found.

use super::{MODES, done, has_row_filters, outbox, refused, settings, slots};
use crate::support::kafka::Kafka;
use crate::support::router::Router;

#[tokio::test]
async fn shards_need_a_server_with_row_filters() {
    let (outbox, kafka) = (outbox().await, Kafka::shared());
    if has_row_filters(&outbox).await {
        return;
    }
    let settings = settings(&outbox, &kafka, MODES[0], 2);
    refused(&settings.run(&["init"]), 1, &["shards need the row filters of 15", "nothing was changed"]);
    let ended = Router::start(&settings).exits(1).await;
    assert!(ended.log.contains("does not exist"), "{}", ended.log);
}

#[tokio::test]
async fn shards_that_do_not_cover_everything_exactly_once_are_found() {
    let (outbox, kafka) = (outbox().await, Kafka::shared());
    if !has_row_filters(&outbox).await {
        return;
    }
    let settings = settings(&outbox, &kafka, MODES[0], 2);
    done(settings.run(&["init"]), &[]);
    done(settings.run(&["check"]), &["2 publications take every aggregate exactly once"]);
    let correct = "(hashtext(coalesce(aggregate_id, '')) & 2147483647) % 2 = 1";
    for (filter, says) in [
        // the remainder of a negative number is negative
        (Some("hashtext(coalesce(aggregate_id, '')) % 2 = 1"), "is not that of shard 1 of 2"),
        // a NULL is in no shard
        (Some("(hashtext(aggregate_id) & 2147483647) % 2 = 1"), "is not that of shard 1 of 2"),
        (Some("(hashtext(coalesce(aggregate_id, '')) & 2147483647) % 2 = 0"), "is not that of shard 1 of 2"),
        (
            Some("(hashtext(coalesce(aggregate_type, '')) & 2147483647) % 2 = 1"),
            "is not that of shard 1 of 2",
        ),
        (None, "has no row filter"),
        (Some(correct), ""),
    ] {
        let filter_sql = filter.map(|filter| format!("WHERE ({filter})")).unwrap_or_default();
        outbox
            .execute(&format!("ALTER PUBLICATION outbox_router_1_of_2 SET TABLE outbox {filter_sql}"))
            .await;
        let ran = settings.run(&["check"]);
        if says.is_empty() {
            done(ran, &["every aggregate exactly once"]);
            continue;
        }
        assert_eq!(ran.code, 1, "{}", ran.out);
        assert!(ran.out.contains(says), "{says}: {}", ran.out);
        let ended = Router::start(&settings).exits(1).await;
        ended.says(&[says, "outbox_router_1_of_2"]);
        refused(&settings.run(&["init"]), 1, &[says]);
    }
}

#[tokio::test]
async fn shards_of_tables_with_different_ids_are_refused() {
    let (outbox, kafka) = (outbox().await, Kafka::shared());
    if !has_row_filters(&outbox).await {
        return;
    }
    outbox.execute("CREATE TABLE other (LIKE outbox INCLUDING ALL); ALTER TABLE other ALTER aggregate_id TYPE uuid USING NULL").await;
    let settings = settings(&outbox, &kafka, MODES[0], 2)
        .set("outbox.table", vec!["public.outbox".to_owned(), "public.other".to_owned()]);
    refused(&settings.run(&["init"]), 1, &["texts", "UUIDs", "in two shards"]);
    assert!(slots(&outbox).await.is_empty());
}

#[tokio::test]
async fn shards_of_another_number_that_are_left_are_found() {
    let (outbox, kafka) = (outbox().await, Kafka::shared());
    if !has_row_filters(&outbox).await {
        return;
    }
    let (two, three) = (settings(&outbox, &kafka, MODES[0], 2), settings(&outbox, &kafka, MODES[0], 3));
    done(two.run(&["init"]), &[]);
    let router = Router::active(&two).await;
    outbox.insert("order", "a", "{}").await;
    kafka.holds(&outbox.name, 1).await;
    router.stop().await;
    done(three.run(&["init"]), &[]);
    for settings in [&two, &three] {
        let ran = settings.run(&["check"]);
        assert_eq!(ran.code, 1, "{}", ran.out);
        assert!(ran.out.contains("for another number of shards"), "{}", ran.out);
    }
    // the old ones are started again until they hand over, the new ones not before
    let router = Router::active(&two).await;
    router.stop().await;
    for shard in ["0", "1", "2"] {
        let ended = Router::with_arguments(&three, &["--shard", shard]).exits(3).await;
        assert!(ended.log.contains("_of_2"), "{}", ended.log);
    }
}

#[tokio::test]
async fn shards_that_there_are_not_cannot_be_chosen() {
    let (outbox, kafka) = (outbox().await, Kafka::shared());
    let two = settings(&outbox, &kafka, MODES[0], 2);
    for command in ["run", "slot list", "dead-letters list"] {
        let arguments: Vec<&str> = command.split(' ').chain(["--shard", "2"]).collect();
        refused(&two.run(&arguments), 2, &["there is no shard 2 of 2", "0 to 1"]);
    }
    let one = settings(&outbox, &kafka, MODES[0], 1);
    refused(&one.run(&["run", "--shard", "0"]), 2, &["there are no shards"]);
    for only in [vec![2_i64], vec![0, 0], vec![-1]] {
        refused(&two.clone().set("shards.only", only).run(&["check"]), 2, &["shards.only"]);
    }
}
