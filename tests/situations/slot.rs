//! Refusals because of the slot, or of the checkpoint for it.

use super::{Arrive, Code, Scene};
use crate::support::outbox::{Outbox, PUBLICATION};
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::shared;

const DROP: &str = "SELECT pg_drop_replication_slot('SLOT')";

#[tokio::test]
async fn situation_database_not_prepared() {
    let mut scene = Scene::of(Outbox::bare(shared::postgres()).await);
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.mends(&ended, Code::NotPrepared, "").await;
    let router = Router::active(&scene.settings).await;
    scene.sql("SELECT outbox_router.emit('order', 'a', 'made', '{\"n\": 0}')").await;
    scene.written = 1;
    scene.count(Arrive::Once).await;
    router.stop().await;
}

#[tokio::test]
async fn situation_slot_dropped_with_a_bookmark() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    succeeded(scene.settings.run_async(&["slot", "bookmark", "before"]).await, &[]);
    scene.delivered(2).await;
    scene.sql(DROP).await;
    scene.writes(3).await;
    let way = "If it was dropped, or did not survive a failover, and there is a bookmark";
    scene.refused(Code::SlotMissing, 3, way, Arrive::AtLeastOnce).await;
}

/// Types the steps for a slot that was dropped, and has no bookmark.
async fn sent_from_the_table(scene: &mut Scene) {
    let ended = Router::start(&scene.settings).exits(3).await;
    let way = "If it was dropped, and there is no bookmark";
    scene.ended(&ended, Code::SlotMissing, way, Arrive::AtLeastOnce, &[Code::SlotAhead]).await;
}

#[tokio::test]
async fn situation_slot_dropped_without_a_bookmark() {
    let mut scene = Scene::new().await;
    scene
        .sql("ALTER TABLE outbox ADD upper_type text GENERATED ALWAYS AS (upper(aggregate_type)) STORED")
        .await;
    scene.delivered(2).await;
    // the second time, nothing of the first is left that stands in the way
    for _ in 0..2 {
        scene.sql(DROP).await;
        scene.writes(3).await;
        sent_from_the_table(&mut scene).await;
    }
}

/// The role that the router should have may create neither table nor publication.
#[tokio::test]
async fn situation_slot_dropped_under_the_routers_role() {
    let mut scene = Scene::new().await;
    scene.is_of_a_role().await;
    scene.delivered(2).await;
    scene.sql(DROP).await;
    scene.writes(3).await;
    sent_from_the_table(&mut scene).await;
}

/// Other rows reference those that are inserted again.
#[tokio::test]
async fn situation_slot_dropped_beside_referenced_rows() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql(DROP).await;
    scene.writes(3).await;
    scene
        .sql("CREATE TABLE noted (id uuid REFERENCES outbox (id)); INSERT INTO noted SELECT id FROM outbox")
        .await;
    sent_from_the_table(&mut scene).await;
    scene.sql("SELECT 1 / (count(*) = 5)::int FROM noted").await;
}

/// The events have no time by which the saved rows could be sorted.
#[tokio::test]
async fn situation_slot_dropped_beside_a_table_without_created_at() {
    let mut scene = Scene::new().await;
    scene.sql("ALTER TABLE outbox DROP created_at").await;
    scene.delivered(2).await;
    scene.sql(DROP).await;
    scene.writes(3).await;
    sent_from_the_table(&mut scene).await;
}

/// The new slot begins after events that the old one has not delivered.
#[tokio::test]
async fn situation_slot_renamed_to_one_that_begins_later() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.writes(2).await;
    scene.sql("SELECT pg_create_logical_replication_slot('SLOTnext', 'pgoutput')").await;
    let later = format!("{}next", scene.outbox.name);
    let name = format!("{0}.{0}", scene.outbox.name);
    scene.settings = scene.settings.clone().set("postgres.slot", later.as_str()).set("name", name);
    scene.refused(Code::AnotherSlot, 3, FROM_TABLE, Arrive::AtLeastOnce).await;
    scene.sql("SELECT pg_drop_replication_slot('SLOTnext')").await;
}

#[tokio::test]
async fn situation_slot_of_another_plugin() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql(DROP).await;
    scene.sql("SELECT pg_create_logical_replication_slot('SLOT', 'test_decoding')").await;
    scene.writes(3).await;
    scene.refused(Code::SlotOfAnotherPlugin, 3, "", Arrive::AtLeastOnce).await;
    // the other program's slot is still there
    scene.sql("SELECT 1 / count(*) FROM pg_replication_slots WHERE slot_name = 'SLOT'").await;
    scene.sql("SELECT pg_drop_replication_slot('SLOT_own')").await;
}

#[tokio::test]
async fn situation_slot_of_prepared_transactions() {
    let mut scene = Scene::new().await;
    scene.sql(DROP).await;
    scene.sql("SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput', false, true)").await;
    scene.writes(3).await;
    scene.refused(Code::SlotTwoPhase, 3, "", Arrive::Once).await;
    scene.sql("SELECT pg_drop_replication_slot('SLOT_committed')").await;
}

#[tokio::test]
async fn situation_slot_renamed_in_the_configuration() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.writes(2).await;
    scene.sql("SELECT pg_copy_logical_replication_slot('SLOT', 'SLOT_other')").await;
    let other = format!("{}_other", scene.outbox.name);
    scene.settings = scene
        .settings
        .clone()
        .set("postgres.slot", other.as_str())
        .set("name", format!("{0}.{0}", scene.outbox.name));
    scene.refused(Code::AnotherSlot, 3, "To go on", Arrive::AtLeastOnce).await;
    scene.sql("SELECT pg_drop_replication_slot('SLOT_other')").await;
}

/// What the command takes away was announced: events 2 to 4.
#[tokio::test]
async fn situation_slot_moved_by_somebody_else() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.writes(3).await;
    scene.sql("SELECT pg_replication_slot_advance('SLOT', pg_current_wal_flush_lsn())").await;
    scene.refused(Code::SlotAhead, 3, NOTHING_MISSING, Arrive::Without(&[2, 3, 4])).await;
}

const NOTHING_MISSING: &str = "If Debezium read the slot since and sent its events, or this router ran with another `[delivery] \
     positions_topic` or none, nothing is missing. Then, or to go on without missing events";
pub(crate) const FROM_TABLE: &str = "To send missing events again that are still in the table; rows that are still in the slot are sent twice";
const NO_BOOKMARK: &str = "There is no bookmark. To send missing events again that are still in the table; rows that are still in the slot are sent twice";

/// One of the rows is of a transaction that began before everything that the router has delivered.
#[tokio::test]
async fn situation_slot_moved_past_a_long_transaction() {
    let mut scene = Scene::new().await;
    let mut client = scene.outbox.client().await;
    let long = client.transaction().await.unwrap();
    let sql =
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'b', '{\"n\": 0}')";
    long.batch_execute(sql).await.unwrap();
    scene.written = 1;
    // the router cannot confirm more while that transaction is open, but has delivered
    let router = Router::active(&scene.settings).await;
    scene.writes(2).await;
    scene.kafka.holds(&scene.outbox.name, 2).await;
    scene.outbox.all_confirmed().await;
    router.stop().await;
    long.commit().await.unwrap();
    scene.writes(2).await;
    scene.sql("SELECT pg_replication_slot_advance('SLOT', pg_current_wal_flush_lsn())").await;
    scene.refused(Code::SlotAhead, 3, NO_BOOKMARK, Arrive::AtLeastOnce).await;
}

/// The slot has the unpublished rows again once it is back at the bookmark.
#[tokio::test]
async fn situation_slot_moved_and_publication_dropped_with_a_bookmark() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    succeeded(scene.settings.run_async(&["slot", "bookmark", "before"]).await, &[]);
    scene.delivered(2).await;
    scene.sql("DROP PUBLICATION outbox_router").await;
    scene.writes(3).await;
    scene.sql(PUBLICATION).await;
    scene.writes(2).await;
    scene.sql("SELECT pg_replication_slot_advance('SLOT', pg_current_wal_flush_lsn())").await;
    let ended = Router::start(&scene.settings).exits(3).await;
    scene.mends(&ended, Code::SlotAhead, "Otherwise events may be missing").await;
    scene.refused(Code::AlteredWhileAway, 3, "", Arrive::AtLeastOnce).await;
}

#[tokio::test]
async fn situation_slot_and_publication_dropped() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql(&format!("{DROP}; DROP PUBLICATION outbox_router")).await;
    scene.writes(3).await;
    succeeded(scene.settings.run_async(&["init"]).await, &[]);
    scene.writes(2).await;
    scene.refused(Code::SlotAhead, 3, NO_BOOKMARK, Arrive::AtLeastOnce).await;
}

/// Only the checkpoint of the former name shows that the table left the publication.
#[tokio::test]
async fn situation_name_changed() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("ALTER PUBLICATION outbox_router DROP TABLE outbox").await;
    scene.writes(3).await;
    scene.sql("ALTER PUBLICATION outbox_router ADD TABLE outbox").await;
    scene.writes(2).await;
    let (former, name) = (scene.settings.clone(), format!("{0}.{0}", scene.outbox.name));
    scene.settings = former.clone().set("name", format!("renamed-{}", scene.outbox.name));
    let ended = Router::start(&scene.settings).exits(3).await;
    scene.keeps(&ended, Code::CheckpointLost);
    ended.says(&[&format!("In the configuration set name = \"{name}\" as before, and start the router")]);
    scene.settings = former.set("name", name);
    scene.refused(Code::AlteredWhileAway, 3, "", Arrive::AtLeastOnce).await;
}

#[tokio::test]
async fn situation_renamed() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.writes(2).await;
    scene.settings = scene.settings.clone().set("name", format!("renamed-{}", scene.outbox.name));
    let way = "To change the name if nothing is missing, or to go on without the events that may be missing";
    scene.refused(Code::CheckpointLost, 3, way, Arrive::AtLeastOnce).await;
}

/// The name of the router follows the slot's.
async fn scene_with_another_slot() -> Scene {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.writes(2).await;
    scene.settings = scene.settings.clone().set("postgres.slot", format!("{}_other", scene.outbox.name));
    succeeded(scene.settings.run_async(&["init"]).await, &[]);
    scene.writes(1).await;
    scene
}

#[tokio::test]
async fn situation_slot_changed() {
    let mut scene = scene_with_another_slot().await;
    scene.refused(Code::AnotherSlot, 3, "If `[postgres] slot` was changed", Arrive::Once).await;
    scene.sql("SELECT pg_drop_replication_slot('SLOT_other')").await;
}

#[tokio::test]
async fn situation_slot_replaced() {
    let mut scene = scene_with_another_slot().await;
    scene.refused(Code::AnotherSlot, 3, FROM_TABLE, Arrive::AtLeastOnce).await;
    scene.sql("SELECT pg_drop_replication_slot('SLOT_other')").await;
}

/// The slot has the name of the checkpoint no longer, and the table was not published for a time.
#[tokio::test]
async fn situation_slot_renamed_unpublished() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("SELECT pg_copy_logical_replication_slot('SLOT', 'SLOT_other')").await;
    scene.sql("ALTER PUBLICATION outbox_router DROP TABLE outbox").await;
    scene.writes(3).await;
    scene.sql("ALTER PUBLICATION outbox_router ADD TABLE outbox").await;
    let (other, name) = (format!("{}_other", scene.outbox.name), format!("{0}.{0}", scene.outbox.name));
    scene.settings = scene.settings.clone().set("postgres.slot", other).set("name", name);
    scene.refused(Code::AnotherSlot, 3, FROM_TABLE, Arrive::AtLeastOnce).await;
    scene.sql("SELECT pg_drop_replication_slot('SLOT_other')").await;
}

/// The positions topic was deleted, and the slot was moved: nothing shows which events are missing.
#[tokio::test]
async fn situation_checkpoint_lost() {
    let mut scene = Scene::new().await;
    let topic = format!("positions-{}", scene.outbox.name);
    scene.settings = scene.settings.clone().set("delivery.positions_topic", topic.as_str());
    scene.delivered(2).await;
    scene.kafka.delete_topic(&topic).await;
    scene.writes(3).await;
    scene.sql("SELECT pg_replication_slot_advance('SLOT', pg_current_wal_flush_lsn())").await;
    scene.refused(Code::CheckpointLost, 3, FROM_TABLE, Arrive::AtLeastOnce).await;
}
