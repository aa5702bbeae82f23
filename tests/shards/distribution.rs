//! Exactly one shard delivers each aggregate, in order, however shards are spread over processes and whichever are killed.

use outbox_router::shards::{Ids, Shard};

use super::{
    MODES, all_confirmed, has_row_filters, outbox, outbox_and_kafka, refused, settings, slots, succeeded,
};
use crate::faults::sigkill::KILLS;
use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::writers::Writers;
use rand::Rng;

/// For texts, UUIDs and integers of all sizes, as Postgres prints them.
#[tokio::test]
async fn shards_hash_as_postgres_does() {
    let outbox = outbox().await;
    for (ids, function, values) in [
        (Ids::Texts, "hashtext", "SELECT repeat('aé€😀' || i, i % 9) v FROM generate_series(0, 3000) i"),
        (Ids::Uuids, "uuid_hash", "SELECT md5(i::text)::uuid v FROM generate_series(0, 3000) i"),
        (
            Ids::Integers,
            "hashint8",
            "SELECT (i::int8 * 6148914691236517 - 4611686018427387904) v FROM generate_series(0, 1500) i \
             UNION ALL SELECT i - 1500 FROM generate_series(0, 3000) i \
             UNION ALL VALUES (9223372036854775807), (-9223372036854775808)",
        ),
    ] {
        let rows = outbox
            .query(&format!("SELECT v::text, {function}(v) & 2147483647 FROM ({values}) AS x(v)"))
            .await;
        assert!(rows.len() > 3_000);
        for row in rows {
            let (text, hash): (String, i32) = (row.get(0), row.get(1));
            for of in [2, 3, 64] {
                let number = u32::try_from(hash).unwrap() % of;
                assert!(Shard { number, of }.holds(ids, Some(text.as_bytes())), "{ids:?} {text:?} of {of}");
            }
        }
    }
    // narrower integers have the same hash
    let same = "SELECT count(*) FROM generate_series(-32768, 32767) i WHERE hashint2(i::int2) <> hashint8(i) OR hashint4(i) <> hashint8(i)";
    assert_eq!(outbox.query(same).await[0].get::<_, i64>(0), 0);
}

#[tokio::test]
async fn shards_deliver_every_event_once_and_in_order() {
    for mode in MODES {
        let mut random = seed::random();
        let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
        let settings = settings(&outbox, &kafka, mode, 3);
        succeeded(settings.run(&["init"]), &["_0_of_3", "_2_of_3"]);
        assert_eq!(slots(&outbox).await, ["_0_of_3", "_1_of_3", "_2_of_3"]);
        succeeded(settings.run(&["init"]), &["Nothing had to be changed"]);
        let mut router = Router::active(&settings).await;
        let writers = Writers::start(&outbox, 4, &mut random).await;
        kafka.holds(&outbox.name, 500).await;
        writers.finish().await;
        all_confirmed(&outbox).await;
        let count = kafka.count(&outbox.name).await.unwrap() as u64;
        let status = router
            .shows("all events are counted", |status| {
                (mode == MODES[1] || status["totals"]["events"] == count).then(|| status.clone())
            })
            .await;
        let name = format!("{0}.{0}", outbox.name);
        assert_eq!(status["name"], name);
        assert_eq!(status["ready"], true);
        let each: Vec<u64> = (0..3)
            .map(|number| {
                assert_eq!(status["shards"][number]["name"], format!("{name}/{number}"));
                status["shards"][number]["totals"]["events"].as_u64().unwrap()
            })
            .collect();
        assert_eq!(each.iter().sum::<u64>(), status["totals"]["events"].as_u64().unwrap());
        assert!(each.iter().all(|events| *events > 0), "one shard has none of twenty aggregates: {each:?}");
        let (_, metrics) = router.get_now("/metrics").await;
        for number in 0..3 {
            let line = format!("outbox_router_state{{shard=\"{number}\",state=\"active\"}} 1");
            assert!(metrics.contains(&line), "{metrics}");
        }
        assert_eq!(metrics.matches("# TYPE outbox_router_state ").count(), 1, "{metrics}");
        router.stop().await;
        same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
    }
}

/// Three processes: one for the first shard, and two for the second, of which one is a standby. A random one is killed each time.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn shards_in_several_processes_under_sigkill_lose_nothing() {
    for mode in MODES {
        let mut random = seed::random();
        let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
        let settings = settings(&outbox, &kafka, mode, 2).set("postgres.wal_sender_timeout", "4s");
        succeeded(settings.run(&["init"]), &[]);
        let start = |number: &str| Router::with_arguments(&settings, &["--shard", number]);
        let mut routers = vec![start("0"), start("1"), start("1")];
        for router in &mut routers {
            router.ready().await;
        }
        let writers = Writers::start(&outbox, 4, &mut random).await;
        let mut seen = 0;
        for _ in 0..KILLS {
            kafka.holds(&outbox.name, seen + random.random_range(1..300)).await;
            let victim = random.random_range(0..3);
            let number = if victim == 0 { "0" } else { "1" };
            std::mem::replace(&mut routers[victim], start(number)).kill();
            seen = kafka.count(&outbox.name).await.unwrap();
        }
        writers.finish().await;
        all_confirmed(&outbox).await;
        for router in routers {
            router.stop().await;
        }
        let repeats = if mode == MODES[1] { Repeats::Never } else { Repeats::Restarts(KILLS) };
        same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), repeats).await;
    }
}

/// Every slot receives every message. One shard sends it, chosen by the same hash as for rows.
#[tokio::test]
async fn shards_send_each_message_once_and_in_order_with_the_rows_of_its_aggregate() {
    for mode in MODES {
        let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
        let settings = settings(&outbox, &kafka, mode, 3).set("outbox.message_prefix", "outbox");
        succeeded(settings.run(&["init"]), &[]);
        let router = Router::active(&settings).await;
        let ran = settings.run_async(&["slot", "bookmark", "before"]).await;
        succeeded(ran, &[]);
        for n in 1..=20 {
            for aggregate in ["a", "b", "c", "d", "e", "ä"] {
                if n % 2 == 0 {
                    outbox.insert("order", aggregate, &format!("{{\"n\": {n}}}")).await;
                    continue;
                }
                outbox
                    .execute(&format!(
                        "SELECT pg_logical_emit_message(true, 'outbox', jsonb_build_object('id', '{aggregate}-{n}', 'aggregate_type', 'order', \
                         'aggregate_id', '{aggregate}', 'event_type', 'happened', 'payload', jsonb_build_object('n', {n}))::text)"
                    ))
                    .await;
            }
        }
        kafka.committed_when(&outbox.name, 120).await;
        router.stop().await;
        let records = kafka.committed(&outbox.name).await.unwrap();
        assert_eq!(records.len(), 120);
        crate::support::comparison::in_order(&records, Repeats::Never);
        // a reset counts the events of its shard by the same hash
        let counted = ["0", "1", "2"].map(|shard| {
            let ran = settings.run(&["slot", "reset", "--to", "before", "--dry-run", "--shard", shard]);
            let out = succeeded(ran, &[]).out;
            let before = out.split(" event").next().unwrap().rsplit(' ').next().unwrap();
            if before == "no" { 0 } else { before.parse::<u32>().unwrap_or_else(|_| panic!("{out}")) }
        });
        assert_eq!(counted.iter().sum::<u32>(), 120, "{counted:?}");
    }
}

/// Shards work for UUIDs and integers too, and are refused for other types.
#[tokio::test]
async fn shards_of_uuids_and_integers_work_and_other_types_are_refused() {
    let kafka = Kafka::shared();
    for (sql_type, id) in [
        ("uuid", "md5(i::text)::uuid"),
        ("bigint", "i - 20"),
        ("smallint", "i - 20"),
        ("varchar(40)", "'a' || i"),
    ] {
        let outbox = crate::support::outbox::Outbox::bare(crate::support::shared::postgres()).await;
        if !has_row_filters(&outbox).await {
            return;
        }
        let table =
            crate::support::outbox::TABLE.replace("aggregate_id text", &format!("aggregate_id {sql_type}"));
        outbox.execute(&table).await;
        let settings = settings(&outbox, &kafka, MODES[0], 2);
        succeeded(settings.run(&["init"]), &[]);
        succeeded(settings.run(&["init"]), &["Nothing had to be changed"]);
        let router = Router::active(&settings).await;
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', {id}, '{{\"n\": 1}}' FROM generate_series(1, 40) i; \
                 INSERT INTO outbox (aggregate_type, payload) VALUES ('order', '{{\"n\": 1}}')"
            ))
            .await;
        all_confirmed(&outbox).await;
        let status = router.status().unwrap();
        let each: Vec<u64> =
            (0..2).map(|n| status["shards"][n]["totals"]["events"].as_u64().unwrap()).collect();
        router.stop().await;
        assert_eq!(kafka.count(&outbox.name).await, Ok(41), "{sql_type}");
        assert!(each[0] > 5 && each[1] > 5, "{sql_type}: {each:?}");
    }
    let outbox = crate::support::outbox::Outbox::bare(crate::support::shared::postgres()).await;
    outbox.execute(&crate::support::outbox::TABLE.replace("aggregate_id text", "aggregate_id numeric")).await;
    refused(&settings(&outbox, &kafka, MODES[0], 2).run(&["init"]), 1, &["aggregate_id is of type numeric"]);
    assert!(slots(&outbox).await.is_empty());
}

#[tokio::test]
async fn shards_that_have_caught_up_leave_the_router_ready_while_others_go_on() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let settings = settings(&outbox, &kafka, MODES[0], 2);
    succeeded(settings.run_async(&["init"]).await, &[]);
    let other = outbox.client().await;
    let lock =
        format!("SELECT pg_advisory_lock(hashtextextended('outbox-router slot {}_0_of_2', 0))", outbox.name);
    other.batch_execute(&lock).await.unwrap();
    let mut router = Router::with_arguments(&settings, &["--until-caught-up"]);
    router
        .shows("shard 1 has ended, and shard 0 waits", |status| {
            let [waits, ended] = status["shards"].as_array()?.as_slice() else { return None };
            (waits["state"] == "waiting" && ended["state"] == "ended" && status["state"] == "waiting")
                .then_some(())
        })
        .await;
    let (code, text) = router.get_now("/readyz").await;
    assert!(code == 200 && text.contains("/1 ended") && text.contains("/0 waiting: "), "{code} {text}");
    drop(other);
    router.exits(0).await;
}
