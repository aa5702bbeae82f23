//! Two versions of the router alternate, and each resumes where the other one stopped. `scripts/upgrade` builds the earlier
//! version and runs these tests; without it they are ignored.

use std::env;

use rand::Rng;

use crate::dead_letters::Setup;
use crate::support::comparison::{Repeats, numbers_and_marks, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::{MODES, Settings};
use crate::support::writers::Writers;

/// How often the version changes under load. Half of the routers are killed.
const TURNS: usize = 8;

/// How the log reports a missing checkpoint, in the earlier version and in this one.
const NO_CHECKPOINT: [&str; 2] = ["no position is remembered", "no checkpoint is stored"];

/// The settings for the earlier version, and for this one.
fn versions(settings: &Settings) -> [Settings; 2] {
    let earlier = env::var("PREVIOUS_ROUTER").expect("scripts/upgrade sets PREVIOUS_ROUTER");
    [settings.of_program(earlier), settings.clone()]
}

/// An upgrade, and the way back.
fn orders(settings: &Settings) -> [[Settings; 2]; 2] {
    let [earlier, this] = versions(settings);
    [[earlier.clone(), this.clone()], [this, earlier]]
}

#[tokio::test]
#[ignore = "needs a router of the previous version: scripts/upgrade"]
async fn upgrade_and_downgrade_under_load_lose_nothing_and_keep_order_per_aggregate() {
    for mode in MODES {
        let mut random = seed::random();
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let versions = versions(&Settings::new(&outbox, &kafka).set("delivery.mode", mode));
        let writers = Writers::start(&outbox, 4, &mut random).await;
        let mut kills = 0;
        for turn in 0..TURNS {
            let router = Router::active(&versions[turn % 2]).await;
            let seen = kafka.count(&outbox.name).await.unwrap_or_default();
            kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
            assert_eq!(
                NO_CHECKPOINT.iter().any(|words| router.log().contains(words)),
                turn == 0,
                "{mode}, turn {turn}: {}",
                router.log()
            );
            if turn % 4 < 2 {
                router.stop().await;
            } else {
                kills += 1;
                router.kill();
            }
        }
        writers.finish().await;
        let router = Router::active(&versions[0]).await;
        outbox.all_confirmed().await;
        router.stop().await;
        let (records, repeats) = match mode {
            "exactly-once" => (kafka.committed(&outbox.name).await.unwrap(), Repeats::Never),
            _ => (kafka.records(&outbox.name).await, Repeats::Restarts(kills)),
        };
        same(&outbox, &records, repeats).await;
    }
}

#[tokio::test]
#[ignore = "needs a router of the previous version: scripts/upgrade"]
async fn upgrade_and_downgrade_keep_parked_events_and_their_order() {
    for (mode, way) in MODES.into_iter().flat_map(|mode| [(mode, 0), (mode, 1)]) {
        let setup = Setup::new(mode).await;
        let [first, second] = orders(&setup.settings)[way].clone();
        let router = Router::active(&first).await;
        setup.outbox.insert_numbers("order", "a", 1..3).await;
        let parked = setup.poison("a", 3).await;
        setup.outbox.insert_numbers("order", "a", 4..20).await;
        setup.parks(17).await;
        router.stop().await;

        let router = Router::active(&second).await;
        setup.outbox.insert_numbers("order", "a", 20..30).await;
        setup.parks(27).await;
        succeeded(second.run(&["dead-letters", "discard", "--id", &parked, "--yes"]), &[]);
        setup.sees("a", (1..3).chain(4..30).collect()).await;
        setup.parks(0).await;
        let parked = setup.poison("b", 1).await;
        setup.outbox.insert_numbers("order", "b", 2..5).await;
        setup.parks(4).await;
        // while no router runs, the version that starts next discards the event
        router.stop().await;
        succeeded(first.run(&["dead-letters", "discard", "--id", &parked, "--yes"]), &[]);
        let router = Router::active(&first).await;
        setup.sees("b", (2..5).collect()).await;
        setup.parks(0).await;
        router.stop().await;
    }
}

#[tokio::test]
#[ignore = "needs a router of the previous version: scripts/upgrade"]
async fn upgrade_and_downgrade_keep_bookmarks_and_mark_replayed_events() {
    for way in 0..2 {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let [first, second] = orders(&Settings::new(&outbox, &kafka))[way].clone();
        let router = Router::active(&first).await;
        outbox.insert_numbers("order", "a", 1..6).await;
        outbox.all_confirmed().await;
        succeeded(first.run(&["slot", "bookmark", "before"]), &[]);
        outbox.insert_numbers("order", "a", 6..16).await;
        outbox.all_confirmed().await;
        router.stop().await;
        // one version resets the slot, and the other one runs afterwards
        succeeded(second.run(&["slot", "reset", "--to", "before", "--yes"]), &[]);
        let router = Router::active(&first).await;
        outbox.all_confirmed().await;
        router.stop().await;
        let router = Router::active(&second).await;
        outbox.insert_numbers("order", "a", 16..18).await;
        outbox.all_confirmed().await;
        router.stop().await;
        let records = kafka.records(&outbox.name).await;
        let unmarked = |numbers: std::ops::Range<u64>| numbers.map(|n| (n, false));
        let expected: Vec<_> =
            unmarked(1..16).chain((6..16).map(|n| (n, true))).chain(unmarked(16..18)).collect();
        assert_eq!(numbers_and_marks(&records), expected);
    }
}

#[tokio::test]
#[ignore = "needs a router of the previous version: scripts/upgrade"]
async fn upgrade_and_downgrade_do_not_send_skipped_events() {
    for (mode, way) in MODES.into_iter().flat_map(|mode| [(mode, 0), (mode, 1)]) {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let settings = Settings::new(&outbox, &kafka).set("delivery.mode", mode);
        let [first, second] = orders(&settings)[way].clone();
        let router = Router::active(&first).await;
        outbox.insert_numbers("order", "a", 1..3).await;
        outbox.all_confirmed().await;
        router.stop().await;
        outbox.insert_numbers("order", "a", 3..6).await;
        second.advance_past_everything(&outbox).await;
        outbox.insert_numbers("order", "a", 6..8).await;
        for settings in [&first, &second] {
            let router = Router::active(settings).await;
            outbox.all_confirmed().await;
            router.stop().await;
        }
        let records = kafka.committed(&outbox.name).await.unwrap();
        let numbers: Vec<_> = records.iter().map(|record| record.number()).collect();
        assert_eq!(numbers, [1, 2, 6, 7], "{mode}");
    }
}
