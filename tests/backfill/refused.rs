//! Rows from before the slot that cannot be sent.

use super::*;
use crate::support::comparison::{Repeats, in_order, same};
use crate::support::place::refused;
use crate::support::router::Router;

/// Number 3 of the aggregate a1 goes to a topic that is not allowed.
async fn with_a_forbidden_row(kafka: &Kafka) -> (Outbox, Settings) {
    let (outbox, settings) = with_rows(kafka, 5).await;
    outbox.execute("UPDATE outbox SET aggregate_type = 'forbidden' WHERE payload = '{\"n\": 3}' AND aggregate_id = 'a1'").await;
    let settings = settings.set("topics.allow", vec![outbox.topic("order")]);
    (outbox, settings)
}

#[tokio::test]
async fn the_router_stops_before_a_row_that_cannot_be_sent_and_goes_on_without_it_once_it_is_deleted() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_a_forbidden_row(&kafka).await;
    begun(&settings, &[], 20).await;
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["cannot be sent", "Delete the row of public.outbox with this id"]);
    outbox.execute("DELETE FROM outbox WHERE aggregate_type = 'forbidden'; DELETE FROM outbox WHERE aggregate_id = 'a1'").await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    let records = kafka.records(&outbox.name).await;
    let others: Vec<_> = records.into_iter().filter(|record| record.key() != Some("a1")).collect();
    same(&outbox, &others, Repeats::Never).await;
}

/// `mode`: the delivery mode, or "slot" for the one without a positions topic.
async fn parked(mode: &str) {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_a_forbidden_row(&kafka).await;
    let settings = settings.set("dead_letters.policy", "park").set("route.headers.lsn", "${source.lsn}");
    let settings = match mode {
        "slot" => settings.set("delivery.positions_topic", false),
        mode => settings.set("delivery.mode", mode),
    };
    begun(&settings, &[], 20).await;
    insert(&outbox, 6, 7).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    let sent = |records: &[crate::support::kafka::Record]| {
        records
            .iter()
            .filter(|record| record.key() == Some("a1"))
            .map(|record| record.number())
            .collect::<Vec<_>>()
    };
    let records = kafka.committed(&outbox.name).await.unwrap();
    assert_eq!((sent(&records), records.len()), (vec![1, 2], 23), "{mode}");
    let parked = "SELECT string_agg(event_id || ' ' || reason, ',')::text FROM outbox_router.dead_letters";
    assert_eq!(outbox.text(parked).await.matches("behind").count(), 4, "{mode}");
    let allowed = vec![outbox.topic("order"), outbox.topic("forbidden")];
    let settings = settings.set("topics.allow", allowed);
    succeeded(settings.run_async(&["dead-letters", "retry", "--all"]).await, &[]);
    let router = Router::start(&settings);
    let records = eventually("all parked events are sent", async || {
        let records = kafka.committed(&outbox.name).await.ok()?;
        (sent(&records).len() >= 7).then_some(records)
    })
    .await;
    router.stop().await;
    // without a positions topic, what follows a parked event in the slot is repeated after a restart
    let repeats = if mode == "slot" { Repeats::Restarts(1) } else { Repeats::Never };
    // only the log has the value
    assert!(records.iter().all(|record| record.header("lsn").is_some() == (record.number() > 5)), "{mode}");
    // number 3 is alone in its topic
    let order: Vec<_> = sent(&records).into_iter().filter(|n| *n != 3).collect();
    assert_eq!(order, [1, 2, 4, 5, 6, 7], "{mode}");
    let others: Vec<_> = records.into_iter().filter(|record| record.key() != Some("a1")).collect();
    in_order(&others, repeats);
}

#[tokio::test]
async fn a_parked_row_holds_back_later_ones_of_its_aggregate_also_those_in_the_slot() {
    parked("at-least-once").await;
}

#[tokio::test]
async fn a_parked_row_holds_back_later_ones_with_transactions() {
    parked("exactly-once").await;
}

#[tokio::test]
async fn a_parked_row_holds_back_later_ones_without_a_positions_topic() {
    parked("slot").await;
}

#[tokio::test]
async fn rows_that_the_broker_refuses_are_found_and_parked() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 20).await;
    outbox.execute("UPDATE outbox SET payload = payload || jsonb_build_object('text', repeat('x', 3000)) WHERE payload ->> 'n' IN ('7', '8')").await;
    kafka.create_topic(&outbox.topic("order"), 2, &[("max.message.bytes", "2000")]).await;
    let settings = settings.set("dead_letters.policy", "park").set("kafka.'compression.type'", "none");
    begun(&settings, &[], 80).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    let records = kafka.records(&outbox.name).await;
    in_order(&records, Repeats::Restarts(8));
    assert!(records.iter().all(|record| record.number() < 7));
    assert_eq!(outbox.text("SELECT count(*)::text FROM outbox_router.dead_letters").await, "56");
}

#[tokio::test]
async fn a_slot_that_was_moved_or_created_again_stops_the_router() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 5).await;
    begun(&settings, &[], 20).await;
    outbox
        .execute(&format!(
            "SELECT pg_drop_replication_slot('{0}'), pg_create_logical_replication_slot('{0}', 'pgoutput')",
            outbox.name
        ))
        .await;
    let ended = Router::start(&settings).exits(3).await;
    ended.shown(&outbox).says(&["OBR-8205", "they end at its first position", "init"]);
    let drop = format!("SELECT pg_drop_replication_slot('{}')", outbox.name);
    outbox.execute(&drop).await;
    begun(&settings, &[], 20).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn what_would_lose_or_repeat_rows_has_to_wait() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 5).await;
    begun(&settings, &[], 20).await;
    let lsn = outbox.lsn().await.to_string();
    outbox.execute("SELECT pg_switch_wal()").await;
    let commands: [&[&str]; 2] = [&["replay", "--yes"], &["slot", "advance", "--to", &lsn, "--yes"]];
    for command in commands {
        let ran = settings.run_async(command).await;
        refused(&ran, 1, &["OBR-8205", "20 rows from before the slot", "are not sent yet"]);
    }
}

#[tokio::test]
async fn a_role_that_may_not_read_every_row_is_refused() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 5).await;
    let role = format!("{}_role", outbox.name);
    outbox
        .execute(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; \
             CREATE POLICY none ON outbox TO {role} USING (false)"
        ))
        .await;
    let url = outbox.url();
    let own = settings.clone().set("postgres.url", url.replace("//postgres@", &format!("//{role}@")));
    let ran = settings.run_async(&["init", "--backfill"]).await;
    succeeded(ran, &["20 rows of public.outbox from before it"]);
    let unknown = Router::start(&own).exits(1).await;
    unknown.says(&["OBR-8205", "may not read outbox_router.backfills", "init"]);
    let ran = own.run_async(&["init", "--backfill", "--url", &url]).await;
    succeeded(ran, &["exists already"]);
    let check = own.run_async(&["check"]).await;
    assert!(check.out.contains("row-level security of public.outbox"), "{}", check.out);
    let hidden = Router::start(&own).exits(1).await;
    outbox.execute(&format!("REVOKE SELECT ON outbox FROM {role}")).await;
    let forbidden = Router::start(&own).exits(1).await;
    outbox.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    hidden.says(&["OBR-8205", "row-level security of public.outbox may hide rows", "BYPASSRLS"]);
    forbidden.says(&["OBR-8205", "may not read public.outbox", "GRANT SELECT"]);
}

#[tokio::test]
async fn a_table_that_was_rewritten_stops_the_router() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 5).await;
    begun(&settings, &[], 20).await;
    outbox.execute("VACUUM FULL outbox").await;
    Router::start(&settings).exits(3).await.says(&[
        "OBR-8205",
        "public.outbox was rewritten or replaced",
        "VACUUM FULL",
    ]);
}

#[tokio::test]
async fn a_table_that_is_rewritten_while_it_is_read_stops_the_router() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 15_000).await;
    begun(&settings, &[], 60_000).await;
    let router = Router::start(&slowly(&settings));
    more(&outbox, 1).await;
    outbox.execute("ALTER TABLE outbox ALTER aggregate_id TYPE varchar(20)").await;
    router.exits(3).await.says(&["OBR-8205", "public.outbox was rewritten"]);
}

/// A mistyped year would create the slot and send nothing.
#[tokio::test]
async fn a_time_in_the_future_is_refused_before_the_slot_is_created() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 5).await;
    let ran = settings.run_async(&["init", "--backfill", "--since", "2199-01-01"]).await;
    refused(&ran, 2, &["--since 2199-01-01 is in the future"]);
    assert!(outbox.slot().await.is_none());
}
