//! The steps of docs/partitions-move.md from an outbox without partitions to one with them, while applications write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::support::place::refused;

/// Writes numbered events of one aggregate, one transaction each, with an INSERT into the table or a call of `emit`.
async fn write(
    outbox: Arc<Outbox>,
    table: String,
    aggregate: String,
    number: Arc<AtomicU64>,
    stop: CancellationToken,
) {
    let client = outbox.client().await;
    while !stop.is_cancelled() {
        let n = number.fetch_add(1, Ordering::Relaxed);
        let statement = match table.as_str() {
            "emit" => {
                format!("SELECT outbox_router.emit('order', '{aggregate}', 'placed', '{{\"n\": {n}}}')")
            }
            _ => format!(
                "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '{aggregate}', 'placed', '{{\"n\": {n}}}')"
            ),
        };
        client.batch_execute(&statement).await.unwrap();
    }
}

#[tokio::test]
async fn an_outbox_is_replaced_by_a_partitioned_one_while_applications_write() {
    let kafka = Kafka::shared();
    let outbox = Arc::new(Outbox::bare(shared::postgres()).await);
    let settings = Settings::new(&outbox, &kafka);
    succeeded(settings.run_async(&["init"]).await, &[]);
    let router = Router::active(&settings).await;
    let numbers = [Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1))];
    let start = |table: &str| {
        let stop = CancellationToken::new();
        let tables = [("a", table, &numbers[0]), ("b", "emit", &numbers[1])];
        let writers = tables.map(|(aggregate, table, number)| {
            tokio::spawn(write(
                outbox.clone(),
                table.to_owned(),
                aggregate.to_owned(),
                number.clone(),
                stop.clone(),
            ))
        });
        (stop, writers)
    };
    let written = |aggregate: usize, more: u64| {
        let number = numbers[aggregate].clone();
        async move {
            let goal = number.load(Ordering::Relaxed) + more;
            eventually("the applications write on", async || {
                (number.load(Ordering::Relaxed) > goal).then_some(())
            })
            .await;
        }
    };
    let (stop, writers) = start("outbox");
    written(0, 20).await;
    // both tables are configured
    let both = settings.clone().set("outbox.table", vec!["public.outbox", "public.events"]);
    let day = ["init", "--partitioned", "day"];
    refused(
        &both.run_async(&day).await,
        1,
        &["OBR-4002", "ALTER PUBLICATION", "ADD TABLE \"public\".\"events\""],
    );
    outbox.execute("ALTER PUBLICATION outbox_router ADD TABLE public.events").await;
    let ran = both.run_async(&day).await;
    succeeded(ran, &["partitioning of \"public\".\"outbox\": left out: it is not partitioned"]);
    router.stop().await;
    let router = Router::active(&both).await;
    written(1, 20).await;
    // applications change over, one by one
    outbox
        .execute(
            "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('outbox_router.emit'::regproc), '\"public\".\"outbox\"', '\"public\".\"events\"'); END $$",
        )
        .await;
    written(1, 20).await;
    stop.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    let (stop, writers) = start("events");
    written(0, 20).await;
    stop.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    // once the old table has no row that anybody needs
    outbox.execute("DELETE FROM outbox").await;
    outbox.all_confirmed().await;
    router.stop().await;
    let alone = settings.set("outbox.table", "public.events");
    let router = Router::active(&alone).await;
    outbox.execute("ALTER PUBLICATION outbox_router DROP TABLE public.outbox; DROP TABLE outbox").await;
    outbox.execute("INSERT INTO events (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'c', 'placed', '{\"n\": 1}')").await;
    let [a, b] = numbers.map(|number| number.load(Ordering::Relaxed) - 1);
    let records = kafka.records_when(&outbox.name, (a + b + 1) as usize).await;
    for (aggregate, last) in [("a", a), ("b", b), ("c", 1)] {
        let found: Vec<u64> = records
            .iter()
            .filter(|record| record.key() == Some(aggregate))
            .map(|record| record.number())
            .collect();
        assert_eq!(found, (1..=last).collect::<Vec<_>>(), "{aggregate}");
    }
    assert!(outbox.text("SELECT count(*)::text FROM events_default").await == "0");
    router.stop().await;
}
