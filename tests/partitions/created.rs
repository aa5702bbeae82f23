//! Partitions are there before they are needed, and a row finds a place without one.

use super::*;
use crate::support::place::{Place, psql};

#[tokio::test]
async fn rows_go_to_the_partition_of_their_day_and_all_others_to_the_default_one() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let router = Router::active(&settings).await;
    outbox.insert_ago("today", 2, 0).await;
    outbox.insert_ago("long ago", 2, 400).await;
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, created_at) VALUES \
             ('order', 'never', '{\"n\": 1}', 'infinity'), ('order', 'next week', '{\"n\": 1}', now() + interval '7 days')",
        )
        .await;
    let today = outbox.text("SELECT 'outbox_' || to_char(min(created_at) AT TIME ZONE 'UTC', 'YYYYMMDD') FROM outbox WHERE aggregate_id = 'today'").await;
    assert_eq!(outbox.places("today").await, today);
    for elsewhere in ["long ago", "never"] {
        assert_eq!(outbox.places(elsewhere).await, "outbox_default");
    }
    assert_ne!(outbox.places("next week").await, "outbox_default");
    kafka.holds(&outbox.name, 6).await;
    router.stop().await;
}

/// Week and month begin where the calendar of Postgres says, in UTC.
#[tokio::test]
async fn periods_follow_each_other_from_now_on() {
    let kafka = Kafka::shared();
    for (period, ahead) in [("day", 7), ("week", 3), ("month", 3)] {
        let outbox = of_today().await;
        outbox.execute(&format!("ALTER DATABASE {} SET timezone = 'Asia/Kathmandu'", outbox.name)).await;
        let settings = Settings::new(&outbox, &kafka);
        succeeded(settings.run_async(&["init", "--partitioned", period]).await, &[]);
        let found = outbox
            .text(&format!(
                "SELECT concat_ws(' ', count(*), bool_and(date_trunc('{period}', lower AT TIME ZONE 'UTC') = lower AT TIME ZONE 'UTC'), \
                 bool_and(upper AT TIME ZONE 'UTC' = lower AT TIME ZONE 'UTC' + interval '1 {period}'), \
                 bool_and(lower = before), bool_or(now() >= lower AND now() < upper)) \
                 FROM (SELECT *, lag(upper) OVER (ORDER BY lower) AS before \
                 FROM outbox_router.partitions_of('\"public\".\"outbox\"') WHERE NOT is_default) p"
            ))
            .await;
        assert_eq!(found, format!("{} t t t t", ahead + 1), "{period}");
    }
}

#[tokio::test]
async fn a_router_creates_those_that_are_missing_and_tells_how_many_there_are() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let before = outbox.partitions().await;
    let missing = before.iter().rev().skip(1).take(3).cloned().collect::<Vec<_>>();
    outbox.execute(&format!("DROP TABLE {}", missing.join(", "))).await;
    outbox.insert_ago("long ago", 3, 400).await;
    let mut router = Router::active(&settings).await;
    for name in &missing {
        router.logs(&format!("created the partition public.{name} of public.outbox")).await;
    }
    assert_eq!(outbox.partitions().await, before);
    let metrics = eventually("the partitions are counted", async || {
        let (_, metrics) = router.get("/metrics")?;
        metrics.contains("outbox_router_partitions_ahead{table=\"public.outbox\"} 7").then_some(metrics)
    })
    .await;
    assert!(metrics.contains("outbox_router_partition_default_rows{table=\"public.outbox\"} 3"), "{metrics}");
    let status = router.status().unwrap();
    let of_table = serde_json::json!({ "table": "public.outbox", "ahead": 7, "in_default": 3 });
    assert_eq!(status["partitions"], serde_json::json!([of_table]), "{status}");
    router.stop().await;
}

/// Moved rows would be sent again, and a partition that overlaps them cannot be created.
#[tokio::test]
async fn rows_stay_in_the_default_partition_and_keep_their_day() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let before = outbox.partitions().await;
    let missing = &before[3..6];
    outbox.execute(&format!("DROP TABLE {}", missing.join(", "))).await;
    outbox.execute("INSERT INTO outbox (aggregate_type, aggregate_id, created_at) VALUES ('order', 'a', now() + interval '4 days')").await;
    assert_eq!(outbox.places("a").await, "outbox_default");
    succeeded(settings.run_async(&["init"]).await, &["partitions of \"public\".\"outbox\": created"]);
    let after = outbox.partitions().await;
    assert_eq!(after.iter().filter(|name| missing.contains(name)).count(), 2, "{after:?}");
    assert_eq!(outbox.places("a").await, "outbox_default");
    succeeded(settings.run_async(&["init"]).await, &["Nothing had to be changed"]);
    let check = settings.run_async(&["check"]).await;
    assert!(check.out.contains("the default partition of public.outbox has 1 row"), "{}", check.out);
}

#[tokio::test]
async fn check_warns_if_few_are_ahead() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let check = settings.run_async(&["check"]).await;
    assert!(check.out.contains("public.outbox has 7 partitions ahead"), "{}", check.out);
    let all = outbox.partitions().await;
    outbox.execute(&format!("DROP TABLE {}", all[2..all.len() - 1].join(", "))).await;
    let check = settings.run_async(&["check"]).await;
    let warning = "public.outbox has 1 partition ahead; rows without one go to the default partition";
    assert!(check.out.contains(warning) && check.out.contains("outbox-router"), "{}", check.out);
}

/// The transactions need not end first.
#[tokio::test]
async fn partitions_are_created_while_transactions_that_wrote_to_the_table_are_open() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let last = outbox.partitions().await[7].clone();
    outbox.execute(&format!("DROP TABLE {last}")).await;
    let mut client = outbox.client().await;
    let open = client.transaction().await.unwrap();
    let insert = "INSERT INTO outbox (aggregate_type, aggregate_id) VALUES ('order', 'a')";
    open.batch_execute(insert).await.unwrap();
    succeeded(settings.run_async(&["init"]).await, &["partitions of \"public\".\"outbox\": created"]);
    open.batch_execute(insert).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(outbox.partitions().await[7], last);
}

/// A row of the day that is to be created is in the default partition before its transaction has ended.
#[tokio::test]
async fn a_row_that_is_inserted_into_the_default_partition_meanwhile_keeps_its_day_there() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let missing = outbox.partitions().await[4..6].to_vec();
    outbox.execute(&format!("DROP TABLE {}", missing.join(", "))).await;
    let mut client = outbox.client().await;
    let open = client.transaction().await.unwrap();
    let insert = "INSERT INTO outbox (aggregate_type, aggregate_id, created_at) VALUES ('order', 'a', now() + interval '4 days')";
    open.batch_execute(insert).await.unwrap();
    let creating = tokio::spawn({
        let settings = settings.clone();
        async move { settings.run_async(&["init"]).await }
    });
    eventually("init waits for the writer", async || {
        let waits = "SELECT count(*)::text FROM pg_locks l WHERE NOT l.granted AND l.relation = 'outbox_default'::regclass";
        (outbox.text(waits).await == "1").then_some(())
    })
    .await;
    open.commit().await.unwrap();
    succeeded(creating.await.unwrap(), &["partitions of \"public\".\"outbox\": created"]);
    let after = outbox.partitions().await;
    assert_eq!(after.iter().filter(|name| missing.contains(name)).collect::<Vec<_>>(), [&missing[1]]);
    assert_eq!(outbox.places("a").await, "outbox_default");
}

/// Several routers and `init` may do it.
#[tokio::test]
async fn several_processes_that_create_partitions_at_once_do_not_disturb_each_other() {
    let kafka = Kafka::shared();
    let (outbox, _settings) = by_day(&kafka).await;
    let all = outbox.partitions().await;
    outbox.execute(&format!("DROP TABLE {}", all[1..].join(", "))).await;
    let create = "DO $$ BEGIN WHILE outbox_router.create_partition('\"public\".\"outbox\"') IS NOT NULL LOOP COMMIT; END LOOP; END $$";
    let clients = [outbox.client().await, outbox.client().await, outbox.client().await];
    let [one, two, three] = clients.each_ref().map(|client| client.batch_execute(create));
    tokio::try_join!(one, two, three).unwrap();
    assert_eq!(outbox.partitions().await, all);
}

/// Those that somebody else has made end at other times.
#[tokio::test]
async fn a_partitioned_table_of_ones_own_is_continued() {
    let kafka = Kafka::shared();
    let outbox = of_today().await;
    outbox
        .execute(
            "CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text, \
             payload jsonb, headers jsonb, created_at timestamptz NOT NULL DEFAULT now(), size int GENERATED ALWAYS AS (length(aggregate_id)) STORED, \
             CHECK (aggregate_id <> '')) PARTITION BY RANGE (created_at); \
             DO $$ DECLARE noon timestamptz := date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' + interval '12 h'; BEGIN \
             EXECUTE format('CREATE TABLE first PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO (%L)', noon + interval '1 day'); \
             EXECUTE format('CREATE TABLE other PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)', noon + interval '3 days', noon + interval '3 days 2 h'); \
             END $$",
        )
        .await;
    let settings = Settings::new(&outbox, &kafka);
    succeeded(settings.run_async(&["init"]).await, &["exists already"]);
    assert_eq!(outbox.partitions().await.len(), 2);
    succeeded(
        settings.run_async(&["init", "--partitioned", "day"]).await,
        &["partitioning of \"public\".\"outbox\": stored", "partitions of \"public\".\"outbox\": created"],
    );
    let gaps = outbox
        .text(
            "SELECT concat_ws(' ', count(*) FILTER (WHERE lower <> before), count(*) > 8, max(upper) > now() + interval '7 days') \
             FROM (SELECT *, lag(upper) OVER (ORDER BY lower) AS before \
             FROM outbox_router.partitions_of('\"public\".\"outbox\"') WHERE NOT is_default) p",
        )
        .await;
    assert_eq!(gaps, "0 t t");
    outbox
        .execute("INSERT INTO outbox (aggregate_type, aggregate_id, created_at) SELECT 'order', 'a', now() + n * interval '6 h' FROM generate_series(1, 28) n")
        .await;
    assert!(!outbox.places("a").await.contains("outbox_default"));
    assert_eq!(outbox.text("SELECT sum(size)::text FROM outbox").await, "28");
}

/// Postgres cuts names after 63 bytes.
#[tokio::test]
async fn partitions_of_a_table_with_an_unusual_name_have_names_that_differ() {
    let kafka = Kafka::shared();
    let outbox = Outbox::bare(shared::postgres()).await;
    let name = "Ausgang\"der.Ereignisse'für.die.Bestellungen.und.Rechnungen";
    let settings = Settings::new(&outbox, &kafka)
        .set("outbox.table", format!("\"Mein $$ Schema\".\"{}\"", name.replace('"', "\"\"")));
    succeeded(settings.run_async(&["init", "--partitioned", "month"]).await, &["created, with partitions"]);
    let names = outbox
        .text("SELECT concat(count(DISTINCT c.relname), ' ', max(octet_length(c.relname))) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relkind = 'r'")
        .await;
    assert_eq!(names, "5 63");
    succeeded(settings.run_async(&["init", "--partitioned", "month"]).await, &["Nothing had to be changed"]);
}

#[test]
fn the_printed_script_creates_the_same_partitions() {
    let (by_init, by_psql) = (Place::new(), Place::new());
    let arguments = ["init", "--partitioned", "week"];
    assert_eq!(by_init.run(&arguments).code, 0);
    let script = by_psql.run(&[&arguments[..], &["--print-sql"]].concat());
    let file = by_psql.folder().join("init.sql");
    std::fs::write(&file, &script.out).unwrap();
    // twice, because the script is as idempotent as init
    for _ in 0..2 {
        let ran = psql(&by_psql.url("postgres"), &["-f", file.to_str().unwrap()]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let objects = "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid), pg_get_userbyid(c.relowner) FROM pg_class c \
                   WHERE c.relnamespace = 'public'::regnamespace ORDER BY 1; \
                   SELECT * FROM outbox_router.partitioned; SELECT prosrc FROM pg_proc WHERE proname = 'emit'";
    assert_eq!(by_psql.psql(objects), by_init.psql(objects));
    let again = by_psql.run(&arguments);
    assert!(
        again.out.contains("Nothing had to be changed") && !again.out.contains("left unchanged"),
        "{again:?}"
    );
}
