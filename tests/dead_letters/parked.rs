//! Which events the router parks, and when it stops or waits instead.

use super::{MODES, Setup};
use crate::support::eventually::eventually;
use crate::support::place::{refused, succeeded};
use crate::support::router::Router;

#[tokio::test]
async fn dead_letters_block_their_aggregate_and_nothing_else() {
    for mode in MODES {
        let setup = Setup::new(mode).await;
        let mut router = Router::active(&setup.settings).await;
        setup.outbox.insert_numbers("order", "a", 1..4).await;
        let id = setup.poison("a", 4).await;
        setup.outbox.insert_numbers("order", "a", 5..8).await;
        setup.outbox.insert_numbers("order", "b", 1..31).await;
        setup.outbox.all_confirmed().await;
        setup.sees("b", (1..31).collect()).await;
        setup.sees("a", vec![1, 2, 3]).await;
        let reasons: Vec<_> = setup.rows("a").await.into_iter().map(|(_, reason)| reason).collect();
        assert_eq!(reasons, ["unroutable", "behind", "behind", "behind"]);
        let status = router
            .shows("four events are parked", |status| {
                (status["dead_letters"]["events"] == 4).then(|| status["dead_letters"].clone())
            })
            .await;
        assert_eq!(status["aggregates"], 1, "{status}");
        let (_, metrics) = router.get_now("/metrics").await;
        for line in [
            "outbox_router_dead_letters 4",
            "outbox_router_dead_letters_aggregates 1",
            "outbox_router_events_parked_total{reason=\"unroutable\"} 1",
            "outbox_router_events_parked_total{reason=\"behind\"} 3",
        ] {
            assert!(metrics.contains(line), "{line} is not in {metrics}");
        }
        let log = router.log();
        assert!(log.contains("ERROR") && log.contains(&id) && log.contains("dead-letters"), "{log}");
        // the same after a restart
        router.stop().await;
        setup.outbox.insert_numbers("order", "a", 8..10).await;
        setup.outbox.insert_numbers("order", "b", 31..33).await;
        let router = Router::active(&setup.settings).await;
        setup.outbox.all_confirmed().await;
        setup.sees("b", (1..33).collect()).await;
        setup.sees("a", vec![1, 2, 3]).await;
        setup.parks(6).await;
        router.stop().await;
    }
}

/// The router cannot tell whether a record fits once it is compressed. So the broker refuses it, and with it the rest of the
/// batch.
#[tokio::test]
async fn dead_letters_hold_what_the_broker_refuses() {
    for mode in MODES {
        let setup = Setup::refusing(mode, 1).await;
        setup
            .outbox
            .execute(
                "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', 'a' || k, jsonb_build_object('n', n, 'text', \
                 CASE WHEN n = 3 AND k = 2 THEN (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 625) i) END) \
                 FROM generate_series(1, 5) n, generate_series(1, 3) k",
            )
            .await;
        let router = Router::active(&setup.settings).await;
        setup.outbox.all_confirmed().await;
        setup.parks(3).await;
        let reasons: Vec<_> = setup.rows("a2").await.into_iter().map(|(_, reason)| reason).collect();
        assert_eq!(reasons, ["too-large", "behind", "behind"], "{mode}");
        router.stop().await;
        let mut seen = [setup.seen("a1").await, setup.seen("a2").await, setup.seen("a3").await];
        // in at-least-once the rest of the batch was repeated
        seen.iter_mut().for_each(Vec::dedup);
        let last: Vec<_> = seen.iter().map(|numbers| numbers.last().copied()).collect();
        assert_eq!(last, [Some(5), Some(2), Some(5)], "{mode}: {seen:?}");
        if mode == "exactly-once" {
            assert_eq!(seen, [(1..6).collect(), vec![1, 2], (1..6).collect::<Vec<u64>>()]);
        }
    }
}

#[tokio::test]
async fn dead_letters_without_an_aggregate_block_nothing() {
    let setup = Setup::new("exactly-once").await;
    let router = Router::active(&setup.settings).await;
    setup
        .outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             VALUES ('two words', NULL, '{\"n\": 1}'), ('order', NULL, '{\"n\": 2}'), ('two words', NULL, '{\"n\": 3}')",
        )
        .await;
    setup.outbox.all_confirmed().await;
    setup.parks(2).await;
    let records = setup.kafka.committed_when(&setup.outbox.name, 1).await;
    assert_eq!(records[0].number(), 2);
    setup.dead_letters(&["discard", "--reason", "unroutable", "--yes"]);
    setup.parks(0).await;
    router.stop().await;
}

/// Once Kafka has refused a record, the transaction accepts no further ones. The router must not park those.
#[tokio::test]
async fn dead_letters_are_only_the_records_that_were_refused() {
    const EVENTS: usize = 3_000;
    const REFUSED: [usize; 3] = [700, 1_400, 2_100];
    let setup = Setup::refusing("exactly-once", 6).await;
    let router = Router::active(&setup.settings).await;
    for from in (0..EVENTS).step_by(10) {
        let sql = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', 'a' || n, jsonb_build_object('n', n, 'text', \
             CASE WHEN n = ANY (ARRAY{REFUSED:?}) THEN (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 625) i) END) \
             FROM generate_series({from}, {from} + 9) n"
        );
        setup.outbox.execute(&sql).await;
    }
    setup.outbox.all_confirmed().await;
    let sql =
        "SELECT aggregate_id || ' ' || reason FROM outbox_router.dead_letters ORDER BY final_lsn, change";
    let rows: Vec<String> = setup.outbox.query(sql).await.iter().map(|row| row.get(0)).collect();
    assert_eq!(rows, REFUSED.map(|n| format!("a{n} too-large")));
    router.stop().await;
    let records = setup.kafka.committed(&setup.outbox.name).await.unwrap();
    let mut seen: Vec<usize> = records.iter().map(|record| record.number() as usize).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..EVENTS).filter(|n| !REFUSED.contains(n)).collect::<Vec<_>>());
}

/// librdkafka adds its own overhead to the size of a record, and refuses one that is too large before a broker sees it.
#[tokio::test]
async fn dead_letters_that_the_client_refuses_are_too_large() {
    let mut setup = Setup::new("at-least-once").await;
    setup.settings = setup.settings.clone().set("kafka.'message.max.bytes'", 2_000);
    let router = Router::active(&setup.settings).await;
    setup
        .outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', 'a' || n, jsonb_build_object('n', n, \
             'text', repeat('x', n)) FROM generate_series(1400, 2000, 10) n",
        )
        .await;
    setup.outbox.all_confirmed().await;
    router.stop().await;
    let sql = "SELECT DISTINCT reason, detail LIKE '%with the overhead that the client adds%' FROM outbox_router.dead_letters \
               WHERE detail LIKE '%Raise message.max.bytes under `[kafka]`%' OR reason <> 'too-large' ORDER BY 2";
    let rows = setup.outbox.query(sql).await;
    let rows: Vec<(&str, bool)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(rows, [("too-large", false), ("too-large", true)]);
}

/// Several records of one batch are too large. The router has to find each of them, and must park none twice.
#[tokio::test]
async fn dead_letters_without_an_aggregate_are_refused_one_by_one() {
    tokio::join!(refused_one_by_one(MODES[0]), refused_one_by_one(MODES[1]));
}

async fn refused_one_by_one(mode: &str) {
    let setup = Setup::refusing(mode, 1).await;
    setup
        .outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', NULL, jsonb_build_object('n', n, 'text', \
             CASE WHEN n IN (2, 3, 5) THEN (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 625) i) END) \
             FROM generate_series(1, 6) n",
        )
        .await;
    let router = Router::active(&setup.settings).await;
    setup.outbox.all_confirmed().await;
    setup.parks(3).await;
    router.stop().await;
    let records = setup.kafka.committed(&setup.outbox.name).await.unwrap();
    let mut seen: Vec<u64> = records.iter().map(|record| record.number()).collect();
    if mode == "at-least-once" {
        // the rest of the batch was repeated
        seen.sort_unstable();
        seen.dedup();
    }
    assert_eq!(seen, [1, 4, 6], "{mode}");
    let router = Router::active(&setup.settings).await;
    // the cause still exists
    setup.dead_letters(&["retry", "--reason", "too-large"]);
    eventually("each was retried, and is still too large", async || {
        let sql =
            "SELECT count(*) FROM outbox_router.dead_letters WHERE attempts = 1 AND reason = 'too-large'";
        (setup.outbox.query(sql).await[0].get::<_, i64>(0) == 3).then_some(())
    })
    .await;
    setup.kafka.alter_topic(&setup.outbox.topic("order"), &[("max.message.bytes", "100000")]).await;
    setup.dead_letters(&["retry", "--reason", "too-large"]);
    setup.parks(0).await;
    router.stop().await;
    let records = setup.kafka.committed(&setup.outbox.name).await.unwrap();
    assert_eq!(records.iter().filter(|record| [2, 3, 5].contains(&record.number())).count(), 3, "{mode}");
}

/// Postgres cannot store a NUL character in a text column.
#[tokio::test]
async fn dead_letters_with_a_nul_character_are_stored_unchanged() {
    let mut setup = Setup::new("exactly-once").await;
    setup.settings = setup.settings.clone().set("outbox.message_prefix", "outbox");
    let router = Router::active(&setup.settings).await;
    let emit = async |kind: &str, n: u32| {
        setup
            .outbox
            .execute(&format!(
                "SELECT pg_logical_emit_message(true, 'outbox', '{{\"id\": \"i\\u0000{n}\", \"aggregate_type\": \"{kind}\", \
                 \"aggregate_id\": \"m\\u0000\", \"event_type\": \"e\\u0000\", \"payload\": {{\"n\": {n}, \"t\": \"\\u0000\"}}}}')"
            ))
            .await;
    };
    emit("two\\u0000words", 1).await;
    emit("order", 2).await;
    setup.parks(2).await;
    setup.outbox.insert_numbers("order", "b", 1..3).await;
    setup.outbox.all_confirmed().await;
    let ran = setup.dead_letters(&["list", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(shown[0]["aggregate_id"], "m\u{fffd}", "{shown}");
    setup.dead_letters(&["discard", "--reason", "unroutable", "--yes"]);
    setup.parks(0).await;
    let records = setup.kafka.committed_when(&setup.outbox.name, 3).await;
    let last: Vec<_> = records.iter().filter(|record| record.key() == Some("m\0")).collect();
    assert_eq!((last.len(), last[0].number(), last[0].id()), (1, 2, "i\u{0}2"), "{last:?}");
    assert!(last[0].text().contains("\\u0000"), "{last:?}");
    router.stop().await;
}

#[tokio::test]
async fn dead_letters_beyond_their_cap_stop_the_router() {
    let mut setup = Setup::new("exactly-once").await;
    setup.settings = setup.settings.clone().set("dead_letters.max_aggregates", 2);
    let router = Router::active(&setup.settings).await;
    for aggregate in ["a", "b", "a", "c"] {
        setup.poison(aggregate, 1).await;
    }
    router.exits(3).await.says(&["`[dead_letters] max_aggregates` allows: 2", "slot advance"]);
    setup.parks(3).await;
    Router::start(&setup.settings).exits(3).await.says(&["max_aggregates"]);
    // the router carries out decisions before it parks more, so the user need not raise the limit
    setup.dead_letters(&["discard", "--all", "--yes"]);
    let router = Router::active(&setup.settings).await;
    setup.outbox.all_confirmed().await;
    setup.parks(1).await;
    router.stop().await;
}

#[tokio::test]
async fn dead_letters_stop_a_router_that_does_not_park() {
    let setup = Setup::new("at-least-once").await;
    let router = Router::active(&setup.settings).await;
    setup.poison("a", 1).await;
    setup.parks(1).await;
    router.stop().await;
    let stopping = setup.settings.clone().set("dead_letters.policy", "stop");
    let ended = Router::start(&stopping).exits(3).await;
    ended.says(&["1 events are parked", "policy"]).shown(&setup.outbox);
    let check = stopping.run(&["check"]);
    assert!(check.code == 1 && check.out.contains("1 events are parked"), "{check:?}");
    let router = Router::active(&setup.settings).await;
    setup.dead_letters(&["discard", "--all", "--yes"]);
    setup.parks(0).await;
    router.stop().await;
    Router::active(&stopping).await.stop().await;
}

/// The events may belong to another router. Without the privilege to read the table, the router only warns.
#[tokio::test]
async fn dead_letters_that_a_router_may_not_read_cause_a_warning() {
    let setup = Setup::new("at-least-once").await;
    let (outbox, role) = (&setup.outbox, format!("{}_blind", setup.outbox.name));
    outbox.execute(&format!("CREATE ROLE {role} LOGIN REPLICATION")).await;
    let url = outbox.url().replace("postgres@", &format!("{role}@"));
    let blind = setup.settings.clone().set("dead_letters.policy", "stop").set("postgres.url", url);
    let router = Router::active(&blind).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    setup.sees("a", vec![1, 2, 3]).await;
    let log = router.stop().await.log;
    assert!(!log.contains("cannot tell whether"), "nothing was ever parked: {log}");
    outbox
        .execute(
            "INSERT INTO outbox_router.dead_letters (router, final_lsn, change, xid, committed_at, source, reason, detail, event) \
             VALUES ('another', '0/1', 1, 1, now(), 'public.outbox', 'topic', '', '{}')",
        )
        .await;
    let log = Router::active(&blind).await.stop().await.log;
    assert!(log.contains("cannot tell whether events are parked") && log.contains("GRANT SELECT"), "{log}");
    // a router that may read the table does not warn
    outbox.execute(&format!("GRANT USAGE ON SCHEMA outbox_router TO {role}; GRANT SELECT ON outbox_router.dead_letters TO {role}")).await;
    let log = Router::active(&blind).await.stop().await.log;
    assert!(!log.contains("cannot tell whether"), "{log}");
    outbox.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// The position may pass an unsendable event only once its row is stored.
#[tokio::test]
async fn dead_letters_that_cannot_be_stored_hold_back_the_slot() {
    for mode in MODES {
        let setup = Setup::new(mode).await;
        let mut router = Router::active(&setup.settings).await;
        setup.outbox.insert_numbers("order", "a", 1..3).await;
        setup.outbox.all_confirmed().await;
        let table = "outbox_router.dead_letters";
        setup.outbox.execute(&format!("ALTER TABLE {table} RENAME TO elsewhere")).await;
        setup.poison("a", 3).await;
        let before = setup.outbox.lsn().await;
        setup.outbox.insert_numbers("order", "b", 1..4).await;
        router.logs("the table of parked events cannot be used").await;
        setup.outbox.watched().await;
        assert!(setup.outbox.slot().await.unwrap().confirmed < before, "the slot has moved past it");
        router.kill();
        let ended = Router::start(&setup.settings).exits(1).await;
        ended.says(&["outbox_router.dead_letters", "outbox-router init"]).shown(&setup.outbox);
        setup.outbox.execute("ALTER TABLE outbox_router.elsewhere RENAME TO dead_letters").await;
        let router = Router::active(&setup.settings).await;
        setup.outbox.all_confirmed().await;
        setup.parks(1).await;
        // in at-least-once the killed router had already sent them, but could not advance the position
        let seen = setup.seen("b").await;
        let repeated = mode == "at-least-once" && seen == [1, 2, 3, 1, 2, 3];
        assert!(repeated || seen == [1, 2, 3], "{mode}: {seen:?}");
        router.stop().await;
    }
}

#[test]
fn nothing_is_parked_in_a_default_set_up() {
    let mut place = crate::support::place::Place::new();
    let role = place.name.clone();
    succeeded(place.run(&["init", "--role", &role]), &[]);
    place.set("POSTGRES__URL", &place.url(&role));
    succeeded(place.run(&["dead-letters", "list"]), &["No events are parked", "policy = \"stop\""]);
    let ran = place.run(&["dead-letters", "list", "--json"]);
    assert_eq!((ran.code, ran.out.trim()), (0, "[]"), "{}", ran.err);
    // a table that was written to may have rows, which this role must not see
    place.psql(
        "INSERT INTO outbox_router.dead_letters (router, final_lsn, change, xid, committed_at, source, reason, detail, event) \
         VALUES ('shop', '0/1', 1, 1, now(), 'public.outbox', 'topic', '', '{}')",
    );
    refused(&place.run(&["dead-letters", "list"]), 1, &["OBR-1005", "permission denied"]);
}

#[tokio::test]
async fn dead_letters_table_is_created_by_init_and_usable_by_the_routers_role() {
    use crate::support::place::Place;
    let mut place = Place::new().with("DEAD_LETTERS__POLICY", "park");
    let role = place.name.clone();
    succeeded(place.run(&["init", "--role", &role]), &["outbox_router.dead_letters"]);
    place.set("POSTGRES__URL", &place.url(&role));
    place.set("ADMIN__LISTEN", "");
    let ran = place.run(&["check", "--json"]);
    assert!(ran.out.contains("the router can park events, and none are parked"), "{}{}", ran.out, ran.err);
    let ran = place.run(&["dead-letters", "list"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "No events are parked.\n"), "{}", ran.err);
    // without the grant, `check` names the missing privilege
    place.psql(&format!("REVOKE INSERT ON outbox_router.dead_letters FROM {role}"));
    let ran = place.run(&["check", "--json"]);
    assert!(ran.out.contains("lacks INSERT for outbox_router.dead_letters"), "{}", ran.out);
    succeeded(place.run(&["init", "--url", &place.url("postgres"), "--role", &role]), &[]);
    let ran = eventually("check finds nothing wrong", async || {
        let ran = place.run(&["check", "--json"]);
        ran.out.contains("the router can park events, and none are parked").then_some(ran)
    })
    .await;
    assert!(!ran.out.contains("lacks"), "{}", ran.out);
}

/// While nobody writes, the router's sessions are idle for a while. `idle_session_timeout` must not end them.
#[tokio::test]
async fn dead_letters_session_survives_idle_session_timeout() {
    let setup = Setup::new("at-least-once").await;
    let outbox = &setup.outbox;
    // the test's own session is older, so the setting does not apply to it
    outbox.execute(&format!("ALTER DATABASE {} SET idle_session_timeout = '300ms'", outbox.name)).await;
    let router = Router::active(&setup.settings).await;
    setup.poison("a", 1).await;
    outbox.all_confirmed().await;
    let sessions = format!(
        "SELECT application_name || ' ' || pid, application_name FROM pg_stat_activity \
         WHERE application_name LIKE '{0}.{0}%' ORDER BY 1",
        outbox.name
    );
    let sessions = async || -> Vec<(String, String)> {
        outbox.query(&sessions).await.iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    let names = ["", " dead letters", " watch"].map(|of| format!("{0}.{0}{of}", outbox.name));
    // a short session that looks for locks has the name of the one that it works for
    let before = eventually("the router has one session of each kind", async || {
        Some(sessions().await).filter(|now| now.iter().map(|(_, name)| name).eq(&names))
    })
    .await;
    outbox.watched().await;
    outbox.watched().await;
    let now = sessions().await;
    assert!(before.iter().all(|session| now.contains(session)), "{before:?} became {now:?}");
    let log = router.stop().await.log;
    assert!(!log.contains("idle-session timeout"), "{log}");
    assert_eq!(log.matches("connected; events flow").count(), 1, "{log}");
}
