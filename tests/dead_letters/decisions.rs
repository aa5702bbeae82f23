//! `dead-letters retry` and `discard`, and how the running router carries them out.

use super::{MODES, Setup, large};
use crate::faults::authorization::{acl, grant_checkpoints, settings as authorized};
use crate::situations::page::keep;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::place::succeeded;
use crate::support::private_kafka::{AUTHORIZING, PrivateKafka};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::writers::Writers;

#[tokio::test]
async fn dead_letters_that_are_discarded_release_later_events_in_order() {
    for mode in MODES {
        let setup = Setup::new(mode).await;
        let router = Router::active(&setup.settings).await;
        setup.outbox.insert_numbers("order", "a", 1..3).await;
        let id = setup.poison("a", 3).await;
        setup.outbox.insert_numbers("order", "a", 4..40).await;
        setup.parks(37).await;
        // an event that waits behind another one cannot be retried by itself
        let ran = setup.dead_letters(&["retry", "--reason", "behind"]);
        assert!(ran.out.contains("wait behind an earlier event"), "{}", ran.out);
        let ran = setup.dead_letters(&["discard", "--id", &id, "--dry-run"]);
        assert!(ran.out.contains(&id) && ran.out.contains("1 event of 1 aggregate"), "{}", ran.out);
        let ran = setup.settings.run(&["dead-letters", "discard", "--id", &id]);
        assert!(ran.code == 2 && ran.err.contains("--yes"), "there was no terminal to ask on: {ran:?}");
        let ran = setup.dead_letters(&["discard", "--id", &id, "--yes"]);
        assert!(ran.out.contains("1 event will be discarded"), "{}", ran.out);
        setup.outbox.insert_numbers("order", "a", 40..60).await;
        setup.sees("a", (1..3).chain(4..60).collect()).await;
        setup.parks(0).await;
        setup.outbox.insert_numbers("order", "a", 60..63).await;
        setup.sees("a", (1..3).chain(4..63).collect()).await;
        router.stop().await;
    }
}

#[tokio::test]
async fn dead_letters_are_retried_in_order_once_the_cause_is_fixed() {
    for mode in MODES {
        let setup = Setup::new(mode).await;
        let topic = setup.outbox.topic("order");
        setup.kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
        let mut router = Router::active(&setup.settings).await;
        setup.outbox.insert_numbers("order", "a", 1..3).await;
        setup.outbox.insert("order", "a", &large(3)).await;
        setup.outbox.insert_numbers("order", "a", 4..10).await;
        setup.outbox.insert("order", "a", &large(10)).await;
        setup.outbox.insert_numbers("order", "a", 11..15).await;
        setup.parks(12).await;
        // the cause still exists
        setup.dead_letters(&["retry", "--aggregate", "a"]);
        router.logs("still cannot be sent").await;
        setup.parks(12).await;
        eventually("the attempt is counted, and the decision is cleared", async || {
            let sql = "SELECT max(attempts), count(decision) FROM outbox_router.dead_letters";
            let rows = setup.outbox.query(sql).await;
            (rows[0].get::<_, i32>(0) == 1 && rows[0].get::<_, i64>(1) == 0).then_some(())
        })
        .await;
        let shown = setup.dead_letters(&["show", "--reason", "too-large"]).out;
        assert!(shown.lines().any(|line| line.split_whitespace().eq(["attempts", "1"])), "{shown}");
        for command in ["show", "list"] {
            let ran = setup.dead_letters(&[command, "--json"]);
            let shown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
            let first_two = [&shown[0]["attempts"], &shown[1]["attempts"]];
            assert_eq!(first_two, [&serde_json::json!(1), &serde_json::json!(0)], "{command}: {shown}");
        }

        setup.kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]).await;
        // a router that did not park the events itself sends them too
        router.stop().await;
        let router = Router::active(&setup.settings).await;
        let ran = setup.dead_letters(&["retry", "--reason", "too-large", "--json"]);
        let marked: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(
            marked.as_array().unwrap().len(),
            1,
            "the router finds the second one only when it gets there: {marked}"
        );
        assert_eq!(marked[0]["decision"], "retry");
        setup.sees("a", (1..15).collect()).await;
        setup.parks(0).await;
        router.stop().await;
    }
}

/// The router has cached the old limit, and has already refused the same event because of it.
#[tokio::test]
async fn dead_letters_that_were_too_large_are_sent_once_the_topics_limit_is_raised() {
    for mode in MODES {
        let setup = Setup::new(mode).await;
        let topic = setup.outbox.topic("order");
        setup.kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
        let mut router = Router::active(&setup.settings).await;
        for aggregate in ["a", "b"] {
            setup.outbox.insert("order", aggregate, &large(1)).await;
            setup.outbox.insert_numbers("order", aggregate, 2..4).await;
        }
        setup.parks(6).await;
        // the cause still exists; the router tries the second event right after the first
        setup.dead_letters(&["retry", "--reason", "too-large"]);
        eventually("both were retried", async || {
            let sql =
                "SELECT count(*) FROM outbox_router.dead_letters WHERE attempts = 1 AND decision IS NULL";
            (setup.outbox.query(sql).await[0].get::<_, i64>(0) == 2).then_some(())
        })
        .await;
        setup.kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]).await;
        setup.dead_letters(&["retry", "--reason", "too-large"]);
        for aggregate in ["a", "b"] {
            setup.sees(aggregate, vec![1, 2, 3]).await;
        }
        setup.parks(0).await;
        router.assert_running();
        router.stop().await;
    }
}

/// Records are always in flight then, and a record that may be refused is sent only when none are.
#[tokio::test]
async fn dead_letters_are_retried_while_applications_keep_writing() {
    for mode in MODES {
        let mut random = seed::random();
        let setup = Setup::new(mode).await;
        let topic = setup.outbox.topic("order");
        setup.kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
        let router = Router::active(&setup.settings).await;
        setup.outbox.insert("order", "large", &large(1)).await;
        setup.outbox.insert_numbers("order", "large", 2..6).await;
        setup.parks(5).await;
        router.stop().await;
        setup.kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]).await;
        let writers = Writers::start(&setup.outbox, 4, &mut random).await;
        let router = Router::active(&setup.settings).await;
        setup.kafka.holds(&setup.outbox.name, 100).await;
        setup.dead_letters(&["retry", "--reason", "too-large"]);
        setup.sees("large", (1..6).collect()).await;
        setup.parks(0).await;
        writers.finish().await;
        setup.outbox.all_confirmed().await;
        router.stop().await;
        same(&setup.outbox, &setup.kafka.committed(&setup.outbox.name).await.unwrap(), Repeats::Never).await;
    }
}

/// An event that is parked while it is replayed after a reset still gets the replay header when it is sent.
#[tokio::test]
async fn dead_letters_of_a_reset_are_marked_as_replayed() {
    tokio::join!(reset(MODES[0]), reset(MODES[1]));
}

async fn reset(mode: &str) {
    let mut setup = Setup::new(mode).await;
    let lenient = setup.settings.clone().set("kafka.'message.max.bytes'", 1_000_000);
    let strict = setup.settings.clone().set("kafka.'message.max.bytes'", 2_000);
    setup.settings = strict.clone();
    let router = Router::active(&lenient).await;
    succeeded(lenient.run(&["slot", "bookmark", "before"]), &[]);
    setup.outbox.insert_numbers("order", "a", 1..3).await;
    setup.outbox.insert("order", "a", &large(3)).await;
    setup.outbox.insert_numbers("order", "a", 4..6).await;
    setup.sees("a", (1..6).collect()).await;
    setup.outbox.all_confirmed().await;
    router.stop().await;
    succeeded(strict.run(&["slot", "reset", "--to", "before", "--yes"]), &[]);
    let router = Router::active(&strict).await;
    setup.outbox.insert_numbers("order", "a", 6..8).await;
    setup.parks(5).await;
    router.stop().await;
    let router = Router::active(&lenient).await;
    setup.dead_letters(&["retry", "--all"]);
    setup.parks(0).await;
    setup.sees("a", (1..6).chain(1..8).collect()).await;
    router.stop().await;
    let records = setup.kafka.committed(&setup.outbox.name).await.unwrap();
    let marked: Vec<bool> =
        records.iter().map(|record| record.header("outbox-router-replay").is_some()).collect();
    assert_eq!(marked, [vec![false; 5], vec![true; 5], vec![false; 2]].concat(), "{mode}");
}

/// Somebody deletes the rows of events that others wait behind, without the router.
#[tokio::test]
async fn dead_letters_deleted_by_hand_count_as_discarded() {
    let setup = Setup::new("exactly-once").await;
    let router = Router::active(&setup.settings).await;
    setup.outbox.insert_numbers("order", "a", 1..3).await;
    setup.poison("a", 3).await;
    setup.poison("b", 1).await;
    setup.outbox.insert_numbers("order", "a", 4..8).await;
    setup.parks(6).await;
    setup.outbox.execute("DELETE FROM outbox_router.dead_letters WHERE reason <> 'behind'").await;
    setup.outbox.insert_numbers("order", "a", 8..10).await;
    setup.outbox.insert_numbers("order", "b", 2..4).await;
    setup.sees("a", vec![1, 2, 4, 5, 6, 7, 8, 9]).await;
    setup.sees("b", vec![2, 3]).await;
    setup.parks(0).await;
    let log = router.stop().await.log;
    assert_eq!(log.matches("somebody has changed it").count(), 1, "{log}");
}

/// The router waits for a topic that it may not write to, but not because of an event that is already parked.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn dead_letters_of_a_topic_without_write_permission_block_nothing_else() {
    let broker = PrivateKafka::start(&AUTHORIZING).await;
    let mut setup = Setup::new("at-least-once").await;
    setup.kafka = broker.client();
    setup.settings = authorized(&setup.outbox, &broker).set("dead_letters.policy", "park");
    grant_checkpoints(&broker);
    let (ours, theirs) = (setup.outbox.topic("order"), setup.outbox.topic("secret"));
    acl(&broker, "--add", &["Write", "Describe", "Create"], &ours, "literal");
    let mut router = Router::active(&setup.settings).await;
    setup.outbox.insert("secret", "a", "{\"n\": 1}").await;
    setup.outbox.insert_numbers("order", "a", 2..4).await;
    setup.parks(3).await;
    // somebody else creates the topic, but the router may not write to it yet
    setup.kafka.create_topic(&theirs, 1, &[]).await;
    acl(&broker, "--add", &["Describe"], &theirs, "literal");
    setup.dead_letters(&["retry", "--all"]);
    router.logs("still cannot be sent").await;
    setup.outbox.insert_numbers("order", "b", 1..4).await;
    setup.sees("b", vec![1, 2, 3]).await;
    setup.parks(3).await;
    acl(&broker, "--add", &["Write"], &theirs, "literal");
    eventually("it is sent as soon as the router may write", async || {
        setup.dead_letters(&["retry", "--all"]);
        (setup.parked().await == 0).then_some(())
    })
    .await;
    router.stop().await;
    // there is no order between the two topics
    let mut seen = setup.seen("a").await;
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
}

#[tokio::test]
async fn dead_letters_are_listed_and_shown() {
    let setup = Setup::new("at-least-once").await;
    let router = Router::active(&setup.settings).await;
    let id = setup.poison("a\u{1b}[31m", 1).await;
    setup.outbox.insert_numbers("order", "a\u{1b}[31m", 2..4).await;
    setup.parks(3).await;
    let ran = setup.dead_letters(&["list"]);
    assert!(ran.out.contains(&id) && ran.out.contains("3 events of 1 aggregate"), "{}", ran.out);
    assert!(!ran.out.contains('\u{1b}'), "{}", ran.out);
    let ran = setup.dead_letters(&["list", "--limit", "1", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["reason"]), (1, &"unroutable".into()));
    let ran = setup.dead_letters(&["show", "--id", &id]);
    assert!(ran.out.contains("{\"n\": 1}") && ran.out.contains("public.outbox"), "{}", ran.out);
    assert!(!ran.out.contains('\u{1b}'), "{}", ran.out);
    let ran = setup.dead_letters(&["show", "--id", &id, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(shown[0]["event"]["columns"][0]["value"], id.as_str(), "{shown}");
    // no event is selected, or there is no terminal to ask on
    for (arguments, says) in [
        (&["discard"][..], "Select events with --id"),
        (&["discard", "--all"], "Add --yes"),
        (&["retry"], "Select events with --id"),
        (&["retry", "--reason", "bad"], "expected one of unroutable"),
    ] {
        let ran = setup.settings.run(&[&["dead-letters"], arguments].concat());
        assert!(ran.code == 2 && ran.err.contains(says), "{arguments:?}: {}{}", ran.out, ran.err);
    }
    setup.parks(3).await;
    router.stop().await;
}

/// A nightly job has nothing but this run.
#[tokio::test]
async fn dead_letters_that_are_decided_are_sent_or_discarded_before_a_run_until_caught_up_ends() {
    for mode in MODES {
        let setup = Setup::new(mode).await;
        let until = async || {
            let ran = setup.settings.run_async(&["run", "--until-caught-up"]).await;
            assert!(ran.code == 0 && ran.err.contains("caught up"), "{mode}: {}", ran.err);
        };
        setup.poison("a", 1).await;
        setup.outbox.insert_numbers("order", "a", 2..5).await;
        let discarded = setup.poison("b", 1).await;
        setup.outbox.insert_numbers("order", "b", 2..5).await;
        until().await;
        assert_eq!(setup.parked().await, 8, "{mode}");
        setup.dead_letters(&["discard", "--id", &discarded, "--yes"]);
        until().await;
        assert_eq!(setup.parked().await, 4, "{mode}");
        setup.sees("b", vec![2, 3, 4]).await;
        // one that fails again does not keep it
        setup.dead_letters(&["retry", "--aggregate", "a"]);
        until().await;
        assert_eq!(setup.parked().await, 4, "{mode}");
        setup.dead_letters(&["discard", "--reason", "unroutable", "--yes"]);
        until().await;
        assert_eq!(setup.parked().await, 0, "{mode}");
        setup.sees("a", vec![2, 3, 4]).await;
    }
}

#[tokio::test]
async fn dead_letters_that_are_unknown_are_refused() {
    let setup = Setup::new("at-least-once").await;
    for (arguments, says) in [
        (&["show", "--id", "7"][..], "OBR-6104: no event with the id 7 is parked"),
        (&["retry", "--id", "7"], "OBR-6104: no event with the id 7 is parked"),
        (&["retry", "--aggregate", "a\u{1b}", "--reason", "behind"], " of the aggregate a"),
        (&["discard", "--id", "7", "--dry-run"], "OBR-6104"),
        (&["discard", "--id", "7", "--yes"], "OBR-6104"),
    ] {
        let ran = setup.settings.run_async(&[&["dead-letters"], arguments].concat()).await;
        assert!(
            ran.code == 1 && ran.err.contains(says) && !ran.err.contains('\u{1b}'),
            "{arguments:?}: {ran:?}"
        );
        assert!(ran.out.is_empty(), "{ran:?}");
    }
    let ran = setup.settings.run_async(&["dead-letters", "retry", "--id", "7", "--json"]).await;
    let error: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &error["error_code"]), (1, &"OBR-6104".into()));
    // these may select nothing
    for arguments in
        [&["list", "--id", "7"][..], &["retry", "--all"], &["discard", "--reason", "topic", "--yes"]]
    {
        setup.dead_letters(arguments);
    }
    keep(&setup.settings.run_async(&["dead-letters", "show", "--id", "7"]).await.err, &[]);
}

#[tokio::test]
async fn dead_letters_that_are_parked_during_the_prompt_are_not_discarded() {
    let setup = Setup::new("at-least-once").await;
    let router = Router::active(&setup.settings).await;
    setup.poison("a", 1).await;
    setup.parks(1).await;
    let screen = setup.settings.run_on_terminal(&["dead-letters", "discard", "--all"], "1", async || {
        setup.poison("a", 2).await;
        setup.poison("b", 1).await;
        setup.parks(3).await;
    });
    let screen = screen.await;
    assert!(screen.contains("1 event of 1 aggregate"), "{screen}");
    assert!(screen.contains("1 event will be discarded"), "{screen}");
    setup.parks(2).await;
    // events that were shown may be gone when the user answers
    let screen = setup.settings.run_on_terminal(&["dead-letters", "discard", "--all"], "2", async || {
        setup.dead_letters(&["discard", "--aggregate", "b", "--yes"]);
        setup.parks(1).await;
    });
    let screen = screen.await;
    assert!(screen.contains("1 event will be discarded"), "{screen}");
    setup.parks(0).await;
    router.stop().await;
}

/// A discard that is entered during the attempt counts.
#[tokio::test]
async fn dead_letters_that_are_discarded_during_a_retry_are_gone() {
    let setup = Setup::new("at-least-once").await;
    // the attempt has failed, and the router's UPDATE is blocked before it reads the row
    setup
        .outbox
        .execute(
            "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF current_setting('application_name') LIKE '% dead letters' THEN PERFORM pg_advisory_xact_lock(1); END IF; \
             RETURN NULL; END $$; \
             CREATE TRIGGER waits BEFORE UPDATE ON outbox_router.dead_letters FOR EACH STATEMENT EXECUTE FUNCTION waits()",
        )
        .await;
    let holder = setup.outbox.client().await;
    holder.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let router = Router::active(&setup.settings).await;
    setup.poison("a", 1).await;
    setup.outbox.insert_numbers("order", "a", 2..4).await;
    setup.parks(3).await;
    setup.dead_letters(&["retry", "--all"]);
    eventually("the router's UPDATE is blocked", async || {
        let sql = "SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' \
                   AND NOT l.granted AND a.datname = current_database()";
        (!setup.outbox.query(sql).await.is_empty()).then_some(())
    })
    .await;
    setup.dead_letters(&["discard", "--reason", "unroutable", "--yes"]);
    holder.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
    setup.sees("a", vec![2, 3]).await;
    setup.parks(0).await;
    router.stop().await;
}

#[tokio::test]
async fn dead_letters_may_be_logical_messages() {
    let mut setup = Setup::new("exactly-once").await;
    setup.settings = setup.settings.clone().set("outbox.message_prefix", "outbox");
    let router = Router::active(&setup.settings).await;
    let emit = async |kind: &str, n: u32| {
        setup
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
    setup.parks(2).await;
    setup.dead_letters(&["discard", "--id", "2", "--yes"]);
    emit("order", 4).await;
    setup.sees("m", vec![1, 3, 4]).await;
    setup.parks(0).await;
    router.stop().await;
}

/// The user can copy the DELETE statement from the error message.
#[tokio::test]
async fn dead_letters_that_cannot_be_read_are_reported_with_a_statement_that_deletes_them() {
    let setup = Setup::new("at-least-once").await;
    let settings = setup.settings.clone().set("name", "it's \\ mine");
    setup
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
    keep(&list.err, &[(&setup.outbox.name, "NAME")]);
    let statement = list.err.lines().map(str::trim_start).find(|line| line.starts_with("DELETE ")).unwrap();
    setup.outbox.execute(statement).await;
    let ran = run(&["list"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "No events are parked.\n"), "{ran:?}");
}
