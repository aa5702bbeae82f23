//! The number of shards changes while applications write.

use std::process::Command;
use std::time::Duration;

use rand::Rng;
use rdkafka::producer::Producer;
use tempfile::TempDir;

use super::{MODES, all_confirmed, outbox_and_kafka, refused, settings, slots, succeeded};
use crate::situations::page::keep;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::running::Running;
use crate::support::seed;
use crate::support::settings::{Settings, positions_topic};
use crate::support::writers::Writers;

async fn change(settings: &Settings, from: &str) {
    let ran = settings.run_async(&["shards", "change", "--from", from]).await;
    succeeded(ran, &["all earlier events are delivered", "DROP PUBLICATION"]);
}

/// Starts `shards change`. Its file is in the folder, which is deleted on drop.
fn begin_change(settings: &Settings, from: &str) -> (Running, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(settings.program());
    command.arg("-c").arg(settings.write_to(&folder)).args(["shards", "change", "--from", from]);
    command.current_dir(folder.path()).env_clear().env("HOME", folder.path());
    (Running::start(&mut command), folder)
}

/// Starts a router, and waits until it has delivered events with these numbers.
async fn delivers(settings: &Settings, outbox: &Outbox, numbers: std::ops::Range<u32>) {
    let router = Router::active(settings).await;
    outbox.insert_numbers("order", "a", numbers).await;
    all_confirmed(outbox).await;
    router.stop().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn shards_change_their_number_while_applications_write() {
    for mode in MODES {
        let mut random = seed::random();
        let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
        let with_count = |count| settings(&outbox, &kafka, mode, count);
        succeeded(with_count(1).run_async(&["init"]).await, &[]);
        let mut router = Router::active(&with_count(1)).await;
        let writers = Writers::start(&outbox, 4, &mut random).await;
        let mut seen = 0;
        for (from, to) in [(1, 2), (2, 3), (3, 2), (2, 1), (1, 2)] {
            kafka.holds(&outbox.name, seen + random.random_range(1..300)).await;
            succeeded(
                with_count(to).run_async(&["init"]).await,
                &["outbox-router shards change --from NUMBER"],
            );
            router.stop().await;
            change(&with_count(to), &from.to_string()).await;
            assert_eq!(slots(&outbox).await.len(), usize::try_from(to).unwrap());
            seen = kafka.count(&outbox.name).await.unwrap();
            router = Router::active(&with_count(to)).await;
        }
        kafka.holds(&outbox.name, seen + 1).await;
        writers.finish().await;
        all_confirmed(&outbox).await;
        router.stop().await;
        same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
    }
}

/// `shards change` is killed at random points and repeated until it is complete.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn shards_change_under_sigkill() {
    for mode in MODES {
        let mut random = seed::random();
        let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
        let with_count = |count| settings(&outbox, &kafka, mode, count);
        succeeded(with_count(2).run_async(&["init"]).await, &[]);
        let mut router = Router::active(&with_count(2)).await;
        let writers = Writers::start(&outbox, 4, &mut random).await;
        kafka.holds(&outbox.name, 200).await;
        let mut kills = 0;
        for (from, to) in [("2", 3), ("3", 2)] {
            succeeded(with_count(to).run_async(&["init"]).await, &[]);
            router.stop().await;
            for _ in 0..4 {
                let delay = std::time::Duration::from_millis(random.random_range(0..1_500));
                let ran = with_count(to).run_killed_after(&["shards", "change", "--from", from], delay).await;
                kills += 1;
                if ran.is_some_and(|code| code == 0) {
                    break;
                }
            }
            // once more, whether it is complete or not
            succeeded(with_count(to).run_async(&["shards", "change", "--from", from]).await, &[]);
            assert_eq!(slots(&outbox).await.len(), usize::try_from(to).unwrap());
            router = Router::active(&with_count(to)).await;
        }
        writers.finish().await;
        all_confirmed(&outbox).await;
        router.stop().await;
        let repeats = if mode == MODES[1] { Repeats::Never } else { Repeats::Restarts(kills) };
        same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), repeats).await;
    }
}

/// Settings for two and for three shards. The router of two shards has delivered three events.
async fn two_and_three(outbox: &Outbox, kafka: &Kafka) -> (Settings, Settings) {
    let (two, three) = (settings(outbox, kafka, MODES[0], 2), settings(outbox, kafka, MODES[0], 3));
    succeeded(two.run_async(&["init"]).await, &[]);
    let router = Router::active(&two).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    kafka.holds(&outbox.name, 3).await;
    router.stop().await;
    (two, three)
}

#[tokio::test]
async fn shards_do_not_start_after_they_have_handed_over() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let (two, three) = two_and_three(&outbox, &kafka).await;
    let ran = three.run(&["shards", "change", "--from", "2"]);
    refused(&ran, 1, &["does not exist yet", "outbox-router init"]);
    keep(&ran.err, &[(&outbox.name, "NAME")]);
    succeeded(three.run_async(&["init"]).await, &[]);
    let shown = succeeded(
        three.run(&["shards", "change", "--from", "2", "--dry-run"]),
        &["would deliver", "_0_of_2", "_2_of_3"],
    );
    assert!(!shown.out.contains("dropped"), "{}", shown.out);
    assert_eq!(slots(&outbox).await.len(), 5);
    change(&three, "2").await;
    Router::start(&two).exits(3).await;
    refused(&two.run(&["shards", "change", "--from", "2"]), 2, &["equals `[shards] count`"]);
    delivers(&three, &outbox, 4..7).await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// The slot of the first number is recreated under the same name, for which an old checkpoint exists.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn shards_that_have_handed_over_do_not_resume_when_their_slots_are_recreated() {
    for mode in MODES {
        let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
        let with_count = |count| settings(&outbox, &kafka, mode, count);
        succeeded(with_count(1).run_async(&["init"]).await, &[]);
        delivers(&with_count(1), &outbox, 1..4).await;
        succeeded(with_count(2).run_async(&["init"]).await, &[]);
        change(&with_count(2), "1").await;
        let router = Router::active(&with_count(2)).await;
        outbox.insert_numbers("order", "a", 4..7).await;
        succeeded(with_count(1).run_async(&["init"]).await, &["outbox-router shards change --from NUMBER"]);
        let confirmed: String = outbox.confirmed().await.to_string();
        for arguments in [&[][..], &["--accept-gap", &confirmed]] {
            let ended = Router::with_arguments(&with_count(1), arguments).exits(3).await;
            ended.says(&[
                "handed over to 2 shards",
                "set `[shards] count = 2`",
                "outbox-router shards change --from 2",
            ]);
            if arguments.is_empty() {
                ended.shown(&outbox);
            }
        }
        router.stop().await;
        outbox.insert_numbers("order", "a", 7..10).await;
        change(&with_count(1), "2").await;
        delivers(&with_count(1), &outbox, 10..12).await;
        same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
    }
}

/// A command that was killed inside a Kafka transaction has left it open. Kafka aborts it when it times out.
#[tokio::test]
async fn shards_wait_for_the_end_of_an_interrupted_transaction() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let topic = format!("positions-{}", outbox.name);
    let with_count =
        |count| settings(&outbox, &kafka, MODES[1], count).set("delivery.positions_topic", topic.as_str());
    succeeded(with_count(1).run_async(&["init"]).await, &[]);
    delivers(&with_count(1), &outbox, 1..4).await;
    succeeded(with_count(2).run_async(&["init"]).await, &[]);
    let key = format!("{0}.{0}/shards", outbox.name);
    // far longer than the test, which aborts it in Kafka's place
    let open = kafka.leave_open(&topic, &key, Duration::from_secs(600)).await;
    let (change, _folder) = begin_change(&with_count(2), "1");
    change.says("waiting for an interrupted transaction to end").await;
    tokio::task::spawn_blocking(move || open.abort_transaction(Duration::from_secs(60)))
        .await
        .unwrap()
        .unwrap();
    succeeded(change.ends().await, &["all earlier events are delivered"]);
    delivers(&with_count(2), &outbox, 4..7).await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// The command waits while a router of the old number runs, and hands over once that is stopped.
#[tokio::test]
async fn shards_wait_for_routers_of_the_old_number() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let (two, three) = two_and_three(&outbox, &kafka).await;
    succeeded(three.run_async(&["init"]).await, &[]);
    let router = Router::active(&two).await;
    let (handing_over, _folder) = begin_change(&three, "2");
    handing_over.says("waiting for the slot").await;
    outbox.insert_numbers("order", "a", 4..7).await;
    kafka.holds(&outbox.name, 6).await;
    router.stop().await;
    succeeded(handing_over.ends().await, &["all earlier events are delivered"]);
    delivers(&three, &outbox, 7..9).await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// Two operators type the same command. The first one waits for a router, so the second one finds it running.
#[tokio::test]
async fn shards_change_that_is_typed_twice_at_once_alarms_nobody() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let (two, three) = two_and_three(&outbox, &kafka).await;
    succeeded(three.run_async(&["init"]).await, &[]);
    let router = Router::active(&two).await;
    let change = ["shards", "change", "--from", "2"];
    let (first, _folder) = begin_change(&three, "2");
    first.says("waiting for the slot").await;
    let second = three.run_async(&change).await;
    let said =
        ["another `outbox-router shards change` is running", "nothing is missing", "outbox-router check"];
    refused(&second, 1, &said);
    assert!(!second.err.contains("may be missing"), "{}", second.err);
    router.stop().await;
    succeeded(first.ends().await, &["all earlier events are delivered"]);
    succeeded(three.run_async(&change).await, &["is already complete"]);
    delivers(&three, &outbox, 4..7).await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

#[tokio::test]
async fn shards_with_parked_events_are_not_changed() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let with_count = |count| {
        settings(&outbox, &kafka, MODES[0], count)
            .set("dead_letters.policy", "park")
            .set("route.topic", outbox.topic("${aggregate_type}"))
    };
    succeeded(with_count(2).run_async(&["init"]).await, &[]);
    let mut router = Router::active(&with_count(2)).await;
    // not a valid topic name
    outbox.insert("a b", "a", "{}").await;
    outbox.insert("order", "b", "{\"n\": 1}").await;
    all_confirmed(&outbox).await;
    router.shows("one event is parked", |status| (status["dead_letters"]["events"] == 1).then_some(())).await;
    succeeded(
        with_count(2).run(&["dead-letters", "list"]),
        &["shard 0 of 2", "shard 1 of 2", "2 shards: 1 event of 1 aggregate"],
    );
    succeeded(with_count(3).run_async(&["init"]).await, &[]);
    succeeded(
        with_count(3).run(&["dead-letters", "list"]),
        &["Slots for another number of shards exist", "_0_of_2"],
    );
    router.stop().await;
    refused(&with_count(3).run(&["shards", "change", "--from", "2"]), 3, &["has 1 parked event, and"]);
    let router = Router::active(&with_count(2)).await;
    succeeded(
        with_count(2).run(&["dead-letters", "discard", "--all", "--yes"]),
        &["1 event will be discarded"],
    );
    eventually("no event is parked", async || {
        let parked: i64 = outbox.query("SELECT count(*) FROM outbox_router.dead_letters").await[0].get(0);
        (parked == 0).then_some(())
    })
    .await;
    router.stop().await;
    change(&with_count(3), "2").await;
}

/// A checkpoint of a router, or the record of a handover, as in the positions topic.
fn record(slot: &str, identifier: &str, at: &str) -> String {
    serde_json::json!({
        "version": 1, "epoch": 99, "slot": slot, "system_identifier": identifier, "timeline": 1, "flush_lsn": at,
        "quiet_from_lsn": at, "reading": { "publication": null, "tables": {}, "message_prefix": null },
    })
    .to_string()
}

/// The handover position is stored, one new shard has a checkpoint there, and the slot of the other one was recreated since.
#[tokio::test]
async fn shards_do_not_start_until_an_interrupted_handover_is_complete() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let with_count = |count| settings(&outbox, &kafka, MODES[0], count);
    let insert = async |numbers: std::ops::Range<u32>| {
        for aggregate in ["a", "b", "c", "d", "e", "f"] {
            outbox.insert_numbers("order", aggregate, numbers.clone()).await;
        }
    };
    succeeded(with_count(1).run(&["init"]), &[]);
    let router = Router::active(&with_count(1)).await;
    succeeded(with_count(2).run(&["init"]), &[]);
    insert(1..4).await;
    kafka.holds(&outbox.name, 18).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let listed: serde_json::Value =
        serde_json::from_str(&with_count(1).run(&["slot", "list", "--json"]).out).unwrap();
    let at = listed["remembered"].as_str().unwrap();
    let identifier: String =
        outbox.query("SELECT system_identifier::text FROM pg_control_system()").await[0].get(0);
    let (name, slot) = (format!("{0}.{0}", outbox.name), &outbox.name);
    let topic = &positions_topic(&outbox);
    kafka
        .write(topic, &format!("{name}/shards"), Some(&record(&format!("{slot}_of_2"), &identifier, at)))
        .await;
    kafka.write(topic, &format!("{name}/0"), Some(&record(&format!("{slot}_0_of_2"), &identifier, at))).await;
    insert(4..7).await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{slot}_1_of_2')")).await;
    succeeded(with_count(2).run(&["init"]), &[]);
    for (settings, arguments) in
        [(with_count(1), &[][..]), (with_count(2), &["--shard", "0"]), (with_count(2), &["--shard", "1"])]
    {
        let ended = Router::with_arguments(&settings, arguments).exits(3).await;
        ended
            .says(&["`outbox-router shards change` was interrupted", "outbox-router shards change --from 1"]);
        if arguments.is_empty() {
            ended.shown(&outbox);
        }
    }
    change(&with_count(2), "1").await;
    succeeded(with_count(2).run(&["shards", "change", "--from", "1"]), &["is already complete"]);
    let ended = Router::start(&with_count(1)).exits(3).await;
    ended.says(&["does not exist"]);
    // the record that the test wrote does not contain the publication's row filter
    let ended = Router::with_arguments(&with_count(2), &["--shard", "0"]).exits(3).await;
    ended.says(&["publication", "--shard 0"]);
    let gap = ended.accept_gap_position().replace(" --shard 0", "");
    let first = Router::with_arguments(&with_count(2), &["--shard", "0", "--accept-gap", &gap]);
    let second = Router::with_arguments(&with_count(2), &["--shard", "1"]);
    all_confirmed(&outbox).await;
    first.stop().await;
    second.stop().await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// A shard that stops at an event suggests a command with its own number, so that no event of another shard is skipped.
#[tokio::test]
async fn shards_skip_only_their_own_events() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let two = settings(&outbox, &kafka, MODES[0], 2);
    succeeded(two.run(&["init"]), &[]);
    outbox.insert("a b", "a", "{}").await;
    outbox.insert_numbers("order", "b", 1..4).await;
    outbox.insert_numbers("order", "c", 1..4).await;
    let ended = Router::start(&two).exits(3).await;
    let (without, _) = ended.command("outbox-router slot advance").split_once(" --shard ").unwrap();
    let arguments: Vec<&str> = without.split(' ').skip(1).chain(["--yes"]).collect();
    refused(&two.run(&arguments), 2, &["Add --shard"]);
    two.run_suggested_command(&ended);
    let router = Router::active(&two).await;
    all_confirmed(&outbox).await;
    router.stop().await;
    outbox.execute("DELETE FROM outbox WHERE aggregate_type = 'a b'").await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}
