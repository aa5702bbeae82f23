//! Refusals before there is a slot: nothing waits in the log, and the rows of the table are sent if the steps are typed.

use super::typist::{Typist, ways};
use super::{Arrive, Code, Scene};
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::{Ended, Router};
use crate::support::shared;

const WITH_ROWS: &str = "To send the rows that are in the table, too";

/// A table with rows, without a slot. `prepare` makes a publication that lacks something.
async fn scene(prepare: &str) -> Scene {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{TABLE}; CREATE TABLE customers (i int PRIMARY KEY); {prepare}")).await;
    let mut scene = Scene::of(outbox);
    scene.writes(11).await;
    scene
}

/// `init` creates no slot for a publication that it refuses, and says what becomes of the rows without one.
async fn refused_by_init(prepare: &str, code: Code, ways: &[&str]) {
    let mut scene = scene(prepare).await;
    let ended = Ended::of(scene.settings.run_async(&["init"]).await);
    assert_eq!(ended.code(), code.to_string(), "{}", ended.log);
    let slots = "SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database()";
    assert_eq!(scene.outbox.text(slots).await, "0", "{prepare}");
    ended.says(&["some may be missing in Kafka", "only in the table"]);
    for of_a_slot in ["pg_copy_logical_replication_slot", "delayed, not lost", "pg_drop_replication_slot"] {
        assert!(!ended.message().contains(of_a_slot), "{of_a_slot}: {}", ended.log);
    }
    let mut typist = Typist::new(&scene.outbox, &scene.settings);
    for way in ways {
        typist.types_steps(&ended, way).await;
    }
    let router = Router::active(&typist.configured()).await;
    scene.writes(1).await;
    scene.count(Arrive::Once).await;
    router.stop().await;
}

const COLUMNS: &str = "outbox (id, aggregate_type, aggregate_id, event_type)";

#[tokio::test]
async fn situation_first_slot_with_a_column_list_beside_other_tables() {
    let prepare = format!("CREATE PUBLICATION outbox_router FOR TABLE {COLUMNS}, customers");
    refused_by_init(&prepare, Code::ColumnList, &[WITH_ROWS]).await;
}

#[tokio::test]
async fn situation_first_slot_with_a_column_list() {
    let prepare = format!("CREATE PUBLICATION outbox_router FOR TABLE {COLUMNS}");
    refused_by_init(&prepare, Code::ColumnList, &[WITH_ROWS]).await;
}

#[tokio::test]
async fn situation_first_slot_without_inserts() {
    for tables in ["outbox", "outbox, customers"] {
        let prepare =
            format!("CREATE PUBLICATION outbox_router FOR TABLE {tables} WITH (publish = 'truncate')");
        refused_by_init(&prepare, Code::PublicationWithoutInserts, &[WITH_ROWS]).await;
    }
}

#[tokio::test]
async fn situation_first_slot_without_the_table() {
    let prepare = "CREATE PUBLICATION outbox_router";
    refused_by_init(prepare, Code::PublicationWithoutTable, &[WITH_ROWS]).await;
}

#[tokio::test]
async fn situation_first_slot_of_an_unlogged_table() {
    refused_by_init("ALTER TABLE outbox SET UNLOGGED", Code::TableNotLogged, &[WITH_ROWS]).await;
}

/// The slot does not exist, which `init` mends whatever else is wrong: the refusal is short.
#[tokio::test]
async fn situation_slot_never_created() {
    for (prepare, keep) in
        [(PUBLICATION, true), ("SELECT 1", false), ("CREATE PUBLICATION outbox_router", false)]
    {
        let scene = scene(prepare).await;
        let ended = Router::start(&scene.settings).exits(3).await;
        if keep {
            scene.keeps(&ended, Code::SlotMissing);
        }
        assert_eq!(ended.code(), Code::SlotMissing.to_string());
        let words = ended.message().split_whitespace().count();
        assert!(words < 100, "{words} words: {}", ended.message());
    }
}

#[tokio::test]
async fn situation_slot_never_created_with_or_without_the_rows() {
    for (way, arrive) in [
        (WITH_ROWS, Arrive::Once),
        ("Without these rows", Arrive::Without(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])),
    ] {
        let mut scene = scene(PUBLICATION).await;
        let ended = Router::start(&scene.settings).exits(3).await;
        assert_eq!(ways(ended.message()).len(), 2, "{}", ended.message());
        let mut typist = Typist::new(&scene.outbox, &scene.settings);
        typist.types(&ended, way).await;
        let (router, _) = typist.done();
        scene.writes(1).await;
        scene.count(arrive).await;
        router.stop().await;
    }
}
