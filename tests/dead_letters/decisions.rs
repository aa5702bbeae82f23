//! What a person decides, and what the running router makes of it.

use super::{MODES, Setting, large};
use crate::faults::authorization::{acl, may_remember, settings as authorized};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::private_kafka::{AUTHORIZING, PrivateKafka};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::writers::Writers;

#[tokio::test]
async fn dead_letters_thrown_away_let_what_waits_behind_them_follow_in_order() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let router = Router::active(&setting.settings).await;
        setting.outbox.insert_numbers("order", "a", 1..3).await;
        let id = setting.poison("a", 3).await;
        setting.outbox.insert_numbers("order", "a", 4..40).await;
        setting.parks(37).await;
        // what waits behind is not to be decided by itself
        let ran = setting.dead_letters(&["retry", "--reason", "behind"]);
        assert!(ran.out.contains("wait behind an earlier event"), "{}", ran.out);
        let ran = setting.dead_letters(&["discard", "--id", &id, "--dry-run"]);
        assert!(ran.out.contains(&id) && ran.out.contains("1 event of 1 aggregate"), "{}", ran.out);
        let ran = setting.settings.run(&["dead-letters", "discard", "--id", &id]);
        assert!(ran.code == 2 && ran.err.contains("--yes"), "nobody was there to be asked: {ran:?}");
        let ran = setting.dead_letters(&["discard", "--id", &id, "--yes"]);
        assert!(ran.out.contains("1 event will be discarded"), "{}", ran.out);
        setting.outbox.insert_numbers("order", "a", 40..60).await;
        setting.sees("a", (1..3).chain(4..60).collect()).await;
        setting.parks(0).await;
        setting.outbox.insert_numbers("order", "a", 60..63).await;
        setting.sees("a", (1..3).chain(4..63).collect()).await;
        router.stop().await;
    }
}

#[tokio::test]
async fn dead_letters_are_sent_again_in_order_once_what_was_wrong_is_mended() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let topic = setting.outbox.topic("order");
        setting.kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
        let mut router = Router::active(&setting.settings).await;
        setting.outbox.insert_numbers("order", "a", 1..3).await;
        setting.outbox.insert("order", "a", &large(3)).await;
        setting.outbox.insert_numbers("order", "a", 4..10).await;
        setting.outbox.insert("order", "a", &large(10)).await;
        setting.outbox.insert_numbers("order", "a", 11..15).await;
        setting.parks(12).await;
        // nothing is mended yet
        setting.dead_letters(&["retry", "--aggregate", "a"]);
        router.logs("a parked event still cannot be sent").await;
        setting.parks(12).await;
        eventually("the attempt is counted, and nothing is decided any more", async || {
            let sql = "SELECT max(attempts), count(decision) FROM outbox_router.dead_letters";
            let rows = setting.outbox.query(sql).await;
            (rows[0].get::<_, i32>(0) == 1 && rows[0].get::<_, i64>(1) == 0).then_some(())
        })
        .await;
        let shown = setting.dead_letters(&["show", "--reason", "too-large"]).out;
        assert!(shown.lines().any(|line| line.split_whitespace().eq(["attempts", "1"])), "{shown}");
        for command in ["show", "list"] {
            let ran = setting.dead_letters(&[command, "--json"]);
            let shown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
            let first_two = [&shown[0]["attempts"], &shown[1]["attempts"]];
            assert_eq!(first_two, [&serde_json::json!(1), &serde_json::json!(0)], "{command}: {shown}");
        }

        setting.kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]).await;
        // also by a router that did not refuse them itself
        router.stop().await;
        let router = Router::active(&setting.settings).await;
        let ran = setting.dead_letters(&["retry", "--reason", "too-large", "--json"]);
        let marked: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(
            marked.as_array().unwrap().len(),
            1,
            "the second is found out when its turn comes: {marked}"
        );
        assert_eq!(marked[0]["decision"], "retry");
        setting.sees("a", (1..15).collect()).await;
        setting.parks(0).await;
        router.stop().await;
    }
}

/// The router knows the smaller limits when they are raised, and has refused the same event by them before.
#[tokio::test]
async fn dead_letters_too_large_for_the_topic_are_sent_by_the_running_router_once_its_limit_is_raised() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let topic = setting.outbox.topic("order");
        setting.kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
        let mut router = Router::active(&setting.settings).await;
        for aggregate in ["a", "b"] {
            setting.outbox.insert("order", aggregate, &large(1)).await;
            setting.outbox.insert_numbers("order", aggregate, 2..4).await;
        }
        setting.parks(6).await;
        // nothing is mended yet; the second event is tried right after the first
        setting.dead_letters(&["retry", "--reason", "too-large"]);
        eventually("both were tried again", async || {
            let sql =
                "SELECT count(*) FROM outbox_router.dead_letters WHERE attempts = 1 AND decision IS NULL";
            (setting.outbox.query(sql).await[0].get::<_, i64>(0) == 2).then_some(())
        })
        .await;
        setting.kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]).await;
        setting.dead_letters(&["retry", "--reason", "too-large"]);
        for aggregate in ["a", "b"] {
            setting.sees(aggregate, vec![1, 2, 3]).await;
        }
        setting.parks(0).await;
        router.assert_running();
        router.stop().await;
    }
}

/// Something is always under way then, and a record that may be refused waits until nothing is.
#[tokio::test]
async fn dead_letters_are_sent_again_while_others_are_written_all_the_time() {
    for mode in MODES {
        let mut random = seed::random();
        let setting = Setting::new(mode).await;
        let topic = setting.outbox.topic("order");
        setting.kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
        let router = Router::active(&setting.settings).await;
        setting.outbox.insert("order", "large", &large(1)).await;
        setting.outbox.insert_numbers("order", "large", 2..6).await;
        setting.parks(5).await;
        router.stop().await;
        setting.kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]).await;
        let writers = Writers::start(&setting.outbox, 4, &mut random).await;
        let router = Router::active(&setting.settings).await;
        setting.kafka.holds(&setting.outbox.name, 100).await;
        setting.dead_letters(&["retry", "--reason", "too-large"]);
        setting.sees("large", (1..6).collect()).await;
        setting.parks(0).await;
        writers.finish().await;
        setting.outbox.all_confirmed().await;
        router.stop().await;
        same(&setting.outbox, &setting.kafka.committed(&setting.outbox.name).await.unwrap(), Repeats::Never)
            .await;
    }
}

/// What is asked for again by a reset, and is parked on the way, is told from what is new when it is sent.
#[tokio::test]
async fn dead_letters_of_a_reset_are_marked_as_what_was_asked_for_again() {
    for mode in MODES {
        let mut setting = Setting::new(mode).await;
        let lenient = setting.settings.clone().set("kafka.'message.max.bytes'", 1_000_000);
        let strict = setting.settings.clone().set("kafka.'message.max.bytes'", 2_000);
        setting.settings = strict.clone();
        let router = Router::active(&lenient).await;
        let ran = lenient.run(&["slot", "bookmark", "before"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        setting.outbox.insert_numbers("order", "a", 1..3).await;
        setting.outbox.insert("order", "a", &large(3)).await;
        setting.outbox.insert_numbers("order", "a", 4..6).await;
        setting.sees("a", (1..6).collect()).await;
        setting.outbox.all_confirmed().await;
        router.stop().await;
        let ran = strict.run(&["slot", "reset", "--to", "before", "--yes"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let router = Router::active(&strict).await;
        setting.outbox.insert_numbers("order", "a", 6..8).await;
        setting.parks(5).await;
        router.stop().await;
        let router = Router::active(&lenient).await;
        setting.dead_letters(&["retry", "--all"]);
        setting.parks(0).await;
        setting.sees("a", (1..6).chain(1..8).collect()).await;
        router.stop().await;
        let records = setting.kafka.committed(&setting.outbox.name).await.unwrap();
        let marked: Vec<bool> =
            records.iter().map(|record| record.header("outbox-router-replay").is_some()).collect();
        assert_eq!(marked, [vec![false; 5], vec![true; 5], vec![false; 2]].concat(), "{mode}");
    }
}

/// What others wait behind is gone from the table, and the router was not asked.
#[tokio::test]
async fn dead_letters_taken_out_by_hand_count_as_thrown_away() {
    let setting = Setting::new("exactly-once").await;
    let router = Router::active(&setting.settings).await;
    setting.outbox.insert_numbers("order", "a", 1..3).await;
    setting.poison("a", 3).await;
    setting.poison("b", 1).await;
    setting.outbox.insert_numbers("order", "a", 4..8).await;
    setting.parks(6).await;
    setting.outbox.execute("DELETE FROM outbox_router.dead_letters WHERE reason <> 'behind'").await;
    setting.outbox.insert_numbers("order", "a", 8..10).await;
    setting.outbox.insert_numbers("order", "b", 2..4).await;
    setting.sees("a", vec![1, 2, 4, 5, 6, 7, 8, 9]).await;
    setting.sees("b", vec![2, 3]).await;
    setting.parks(0).await;
    let log = router.stop().await.log;
    assert_eq!(log.matches("somebody has changed it").count(), 1, "{log}");
}

/// A topic that the router may not write to makes it wait, but not for an event that is parked already.
#[tokio::test]
async fn dead_letters_of_a_topic_that_may_not_be_written_hold_up_nobody_else() {
    let broker = PrivateKafka::start(&AUTHORIZING).await;
    let mut setting = Setting::new("at-least-once").await;
    setting.kafka = broker.client();
    setting.settings = authorized(&setting.outbox, &broker).set("dead_letters.policy", "park");
    may_remember(&broker);
    let (ours, theirs) = (setting.outbox.topic("order"), setting.outbox.topic("secret"));
    acl(&broker, "--add", &["Write", "Describe", "Create"], &ours, "literal");
    let mut router = Router::active(&setting.settings).await;
    setting.outbox.insert("secret", "a", "{\"n\": 1}").await;
    setting.outbox.insert_numbers("order", "a", 2..4).await;
    setting.parks(3).await;
    // it is made by somebody else, and may not be written yet
    setting.kafka.create_topic(&theirs, 1, &[]).await;
    acl(&broker, "--add", &["Describe"], &theirs, "literal");
    setting.dead_letters(&["retry", "--all"]);
    router.logs("still cannot be sent").await;
    setting.outbox.insert_numbers("order", "b", 1..4).await;
    setting.sees("b", vec![1, 2, 3]).await;
    setting.parks(3).await;
    acl(&broker, "--add", &["Write"], &theirs, "literal");
    eventually("it is sent as soon as it may be", async || {
        setting.dead_letters(&["retry", "--all"]);
        let rows = setting.outbox.query("SELECT count(*) FROM outbox_router.dead_letters").await;
        (rows[0].get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    router.stop().await;
    // one from each topic; between topics there is no order
    let mut seen = setting.seen("a").await;
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
}

#[tokio::test]
async fn dead_letters_are_listed_and_shown() {
    let setting = Setting::new("at-least-once").await;
    let router = Router::active(&setting.settings).await;
    let id = setting.poison("a\u{1b}[31m", 1).await;
    setting.outbox.insert_numbers("order", "a\u{1b}[31m", 2..4).await;
    setting.parks(3).await;
    let ran = setting.dead_letters(&["list"]);
    assert!(ran.out.contains(&id) && ran.out.contains("3 events of 1 aggregate"), "{}", ran.out);
    assert!(!ran.out.contains('\u{1b}'), "{}", ran.out);
    let ran = setting.dead_letters(&["list", "--limit", "1", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["reason"]), (1, &"unroutable".into()));
    let ran = setting.dead_letters(&["show", "--id", &id]);
    assert!(ran.out.contains("{\"n\": 1}") && ran.out.contains("public.outbox"), "{}", ran.out);
    assert!(!ran.out.contains('\u{1b}'), "{}", ran.out);
    let ran = setting.dead_letters(&["show", "--id", &id, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(shown[0]["event"]["columns"][0]["value"], id.as_str(), "{shown}");
    // nothing is chosen, and nobody can be asked
    for (arguments, says) in [
        (&["discard"][..], "Select events with --id"),
        (&["discard", "--all"], "Add --yes"),
        (&["retry"], "Select events with --id"),
        (&["retry", "--reason", "bad"], "expected one of unroutable"),
    ] {
        let ran = setting.settings.run(&[&["dead-letters"], arguments].concat());
        assert!(ran.code == 2 && ran.err.contains(says), "{arguments:?}: {}{}", ran.out, ran.err);
    }
    setting.parks(3).await;
    router.stop().await;
}

#[tokio::test]
async fn dead_letters_that_are_parked_while_it_is_asked_are_not_decided() {
    let setting = Setting::new("at-least-once").await;
    let router = Router::active(&setting.settings).await;
    setting.poison("a", 1).await;
    setting.parks(1).await;
    let screen = setting.settings.asked(&["dead-letters", "discard", "--all"], "1", async || {
        setting.poison("a", 2).await;
        setting.poison("b", 1).await;
        setting.parks(3).await;
    });
    let screen = screen.await;
    assert!(screen.contains("1 event of 1 aggregate"), "{screen}");
    assert!(screen.contains("1 event will be discarded"), "{screen}");
    setting.parks(2).await;
    // some of what was shown may be gone by then
    let screen = setting.settings.asked(&["dead-letters", "discard", "--all"], "2", async || {
        setting.dead_letters(&["discard", "--aggregate", "b", "--yes"]);
        setting.parks(1).await;
    });
    let screen = screen.await;
    assert!(screen.contains("1 event will be discarded"), "{screen}");
    setting.parks(0).await;
    router.stop().await;
}

/// What was decided of it meanwhile holds.
#[tokio::test]
async fn dead_letters_thrown_away_while_they_are_tried_again_are_gone() {
    let setting = Setting::new("at-least-once").await;
    // the router has tried, and its UPDATE waits before it has looked at the row
    setting
        .outbox
        .execute(
            "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF current_setting('application_name') LIKE '% dead letters' THEN PERFORM pg_advisory_xact_lock(1); END IF; \
             RETURN NULL; END $$; \
             CREATE TRIGGER waits BEFORE UPDATE ON outbox_router.dead_letters FOR EACH STATEMENT EXECUTE FUNCTION waits()",
        )
        .await;
    let holder = setting.outbox.client().await;
    holder.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let router = Router::active(&setting.settings).await;
    setting.poison("a", 1).await;
    setting.outbox.insert_numbers("order", "a", 2..4).await;
    setting.parks(3).await;
    setting.dead_letters(&["retry", "--all"]);
    eventually("the router waits", async || {
        let sql = "SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' \
                   AND NOT l.granted AND a.datname = current_database()";
        (!setting.outbox.query(sql).await.is_empty()).then_some(())
    })
    .await;
    setting.dead_letters(&["discard", "--reason", "unroutable", "--yes"]);
    holder.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
    setting.sees("a", vec![2, 3]).await;
    setting.parks(0).await;
    router.stop().await;
}

#[tokio::test]
async fn dead_letters_that_are_messages_are_kept_and_sent_as_such() {
    let mut setting = Setting::new("exactly-once").await;
    setting.settings = setting.settings.clone().set("outbox.message_prefix", "outbox");
    let router = Router::active(&setting.settings).await;
    let emit = async |kind: &str, n: u32| {
        setting
            .outbox
            .execute(&format!(
                "SELECT pg_logical_emit_message(true, 'outbox', '{{\"id\": \"{n}\", \"aggregate_type\": \"{kind}\", \
                 \"aggregate_id\": \"m\", \"event_type\": \"e\", \"payload\": {{\"n\": {n}}}}}')"
            ))
            .await;
    };
    emit("order", 1).await;
    emit("two words", 2).await;
    emit("order", 3).await;
    setting.parks(2).await;
    setting.dead_letters(&["discard", "--id", "2", "--yes"]);
    emit("order", 4).await;
    setting.sees("m", vec![1, 3, 4]).await;
    setting.parks(0).await;
    router.stop().await;
}

/// What is to be done about it is copied from the error as it stands.
#[tokio::test]
async fn dead_letters_that_cannot_be_read_are_named_by_the_statement_that_takes_them_away() {
    let setting = Setting::new("at-least-once").await;
    let settings = setting.settings.clone().set("name", "it's \\ mine");
    setting
        .outbox
        .execute(
            "INSERT INTO outbox_router.dead_letters (router, final_lsn, change, xid, committed_at, source, reason, detail, event) \
             VALUES ('it''s \\ mine', '0/1A', 7, 1, now(), 'public.outbox', 'topic', '', '{}')",
        )
        .await;
    let commands: [&[&str]; 3] = [&["list"], &["show"], &["discard", "--all", "--dry-run"]];
    let run = |command: &[&str]| settings.run(&[&["dead-letters"], command].concat());
    let [list, show, discard] = commands.map(run);
    assert!(
        list.code != 0 && list.err == show.err && list.err == discard.err,
        "{list:?} {show:?} {discard:?}"
    );
    let (_, statement) = list.err.split_once("or delete it: ").unwrap();
    setting.outbox.execute(statement).await;
    let ran = run(&["list"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "No events are parked.\n"), "{ran:?}");
}
