//! Refusals because of publication and table, and of events.

use super::{Arrive, Code, Scene};
use crate::contracts::contracts;
use crate::support::eventually::eventually;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::Router;
use crate::support::shared;

/// Types the steps of a refusal at the start, and those of the next start, which sends the rows that were not published.
async fn published_again(scene: &mut Scene, code: Code) {
    scene.writes(3).await;
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.mends(&ended, code, with_right_names(code)).await;
    scene.refused(Code::AlteredWhileAway, 3, "", Arrive::Once).await;
}

/// The way out if the publication, not the configuration, has to change.
fn with_right_names(code: Code) -> &'static str {
    match code {
        Code::PublicationWithoutTable => "If both names are right",
        _ => "",
    }
}

#[tokio::test]
async fn situation_publication_dropped() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("DROP PUBLICATION outbox_router").await;
    published_again(&mut scene, Code::PublicationMissing).await;
}

#[tokio::test]
async fn situation_publication_dropped_under_the_routers_role() {
    let mut scene = Scene::new().await;
    scene.is_of_a_role().await;
    scene.delivered(2).await;
    scene.sql("DROP PUBLICATION outbox_router").await;
    published_again(&mut scene, Code::PublicationMissing).await;
}

#[tokio::test]
async fn situation_publication_emptied() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("ALTER PUBLICATION outbox_router DROP TABLE outbox").await;
    published_again(&mut scene, Code::PublicationWithoutTable).await;
}

/// Types the steps to a publication of the router's own. The one that others read stays as it is.
async fn published_beside(scene: &mut Scene, code: Code) {
    scene.writes(3).await;
    let content = "SELECT p::text FROM pg_publication p WHERE pubname = 'outbox_router' UNION ALL \
                   SELECT t::text FROM pg_publication_tables t WHERE pubname = 'outbox_router' ORDER BY 1";
    let content = async |scene: &Scene| {
        let rows = scene.outbox.query(content).await;
        rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>()
    };
    let before = content(scene).await;
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.ended(&ended, code, with_right_names(code), Arrive::AtLeastOnce, &[Code::AnotherSlot]).await;
    assert_eq!(content(scene).await, before);
    scene.sql("SELECT pg_drop_replication_slot('SLOT_own')").await;
}

#[tokio::test]
async fn situation_publication_of_another_table() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("CREATE TABLE other (i int); ALTER PUBLICATION outbox_router SET TABLE other").await;
    published_beside(&mut scene, Code::PublicationWithoutTable).await;
}

#[tokio::test]
async fn situation_publication_of_others_without_inserts() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene
        .sql(
            "CREATE TABLE other (i int); ALTER PUBLICATION outbox_router ADD TABLE other; \
             ALTER PUBLICATION outbox_router SET (publish = 'truncate')",
        )
        .await;
    published_beside(&mut scene, Code::PublicationWithoutInserts).await;
}

#[tokio::test]
async fn situation_publication_without_inserts() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("ALTER PUBLICATION outbox_router SET (publish = 'delete')").await;
    published_again(&mut scene, Code::PublicationWithoutInserts).await;
}

#[tokio::test]
async fn situation_publication_of_partitions() {
    let outbox = Outbox::bare(shared::postgres()).await;
    let table = TABLE.replace("id uuid PRIMARY KEY DEFAULT", "id uuid DEFAULT");
    outbox
        .execute(&format!(
            "{table} PARTITION BY LIST (aggregate_id); CREATE TABLE part PARTITION OF outbox DEFAULT; {PUBLICATION}"
        ))
        .await;
    outbox.create_slot("pgoutput").await;
    let mut scene = Scene::of(outbox);
    scene.delivered(2).await;
    scene.sql("ALTER PUBLICATION outbox_router SET (publish_via_partition_root = false)").await;
    published_again(&mut scene, Code::PublishedByPartition).await;
}

#[tokio::test]
async fn situation_publication_created_again_while_the_router_was_away() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("DROP PUBLICATION outbox_router").await;
    scene.writes(3).await;
    scene.sql(PUBLICATION).await;
    scene.refused(Code::AlteredWhileAway, 3, "", Arrive::Once).await;
}

/// One row was written before the table was published again, and is committed once somebody waits for it.
#[tokio::test]
async fn situation_publication_created_again_beside_an_open_transaction() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("DROP PUBLICATION outbox_router").await;
    let open = scene.outbox.client().await;
    let insert =
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'b', '{\"n\": 2}')";
    open.batch_execute(&format!("BEGIN; {insert}")).await.unwrap();
    scene.written = 3;
    scene.writes(2).await;
    scene.sql(PUBLICATION).await;
    let watcher = scene.outbox.client().await;
    let commits = async {
        let waits =
            "SELECT FROM pg_locks WHERE relation = 'outbox'::regclass AND mode = 'ShareLock' AND NOT granted";
        eventually("somebody waits for the transaction", async || {
            watcher.query(waits, &[]).await.unwrap().pop()
        })
        .await;
        open.batch_execute("COMMIT").await.unwrap();
    };
    tokio::join!(scene.refused(Code::AlteredWhileAway, 3, "", Arrive::Once), commits);
}

/// Other rows reference those that are inserted again.
#[tokio::test]
async fn situation_publication_created_again_for_referenced_rows() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("DROP PUBLICATION outbox_router").await;
    scene.writes(3).await;
    scene
        .sql("CREATE TABLE noted (id uuid REFERENCES outbox (id)); INSERT INTO noted SELECT id FROM outbox")
        .await;
    scene.sql(PUBLICATION).await;
    scene.refused(Code::AlteredWhileAway, 3, "", Arrive::Once).await;
    scene.sql("SELECT 1 / (count(*) = 5)::int FROM noted").await;
}

/// Without checkpoints, the next start would find nothing altered.
#[tokio::test]
async fn situation_publication_dropped_without_checkpoints() {
    let mut scene = Scene::new().await;
    scene.settings = scene.settings.clone().set("delivery.positions_topic", "");
    scene.delivered(2).await;
    scene.sql("DROP PUBLICATION outbox_router").await;
    scene.writes(3).await;
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.ended(&ended, Code::PublicationMissing, "", Arrive::AtLeastOnce, &[]).await;
}

#[tokio::test]
async fn situation_publication_created_again_while_the_router_runs() {
    let mut scene = Scene::new().await;
    let router = scene.delivers(2).await;
    scene.sql(&format!("BEGIN; DROP PUBLICATION outbox_router; {PUBLICATION}; COMMIT")).await;
    let ended = router.exits(3).await;
    scene.ended(&ended, Code::AlteredWhileRunning, "", Arrive::AtLeastOnce, &[Code::AlteredWhileAway]).await;
}

/// Its rows are gone with it, and the new one is another table.
#[tokio::test]
async fn situation_table_dropped() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("DROP TABLE outbox").await;
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.mends(&ended, Code::TableMissing, "If it was dropped").await;
    scene.sql("ALTER TABLE outbox ALTER event_type SET DEFAULT 'happened'").await;
    scene.refused(Code::AlteredWhileAway, 3, "", Arrive::Once).await;
}

/// The first step shows the new name, which the operator then configures.
#[tokio::test]
async fn situation_table_renamed() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("ALTER TABLE outbox RENAME TO events").await;
    let insert =
        "INSERT INTO events (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{\"n\": 2}')";
    scene.sql(insert).await;
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.mends(&ended, Code::TableMissing, "").await;
    let rows = scene.outbox.query(ended.command("SELECT schemaname").trim_end_matches(';')).await;
    scene.settings = scene.settings.clone().set("outbox.table", rows[0].get::<_, String>(1));
    scene.written = 3;
    let router = Router::active(&scene.settings).await;
    scene.count(Arrive::Once).await;
    router.stop().await;
}

/// What was written while it was unlogged is in the table alone.
#[tokio::test]
async fn situation_table_unlogged() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("ALTER PUBLICATION outbox_router DROP TABLE outbox; ALTER TABLE outbox SET UNLOGGED").await;
    scene
        .sql("DROP PUBLICATION outbox_router; CREATE PUBLICATION outbox_router FOR ALL TABLES WITH (publish = 'insert')")
        .await;
    scene.writes(2).await;
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.ended(&ended, Code::TableNotLogged, "", Arrive::AtLeastOnce, &[Code::AlteredWhileAway]).await;
}

#[tokio::test]
async fn situation_table_unlogged_and_unpublished() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("ALTER PUBLICATION outbox_router DROP TABLE outbox; ALTER TABLE outbox SET UNLOGGED").await;
    scene.writes(2).await;
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.ended(&ended, Code::TableNotLogged, "", Arrive::AtLeastOnce, &[Code::AlteredWhileAway]).await;
}

const WITHOUT_EVENT: &str = "To go on without this event and the rest of its transaction";

#[tokio::test]
async fn situation_event_without_a_topic() {
    let mut scene = Scene::new().await;
    scene.writes(2).await;
    scene.outbox.insert("no topic", "a", "{}").await;
    scene.refused(Code::EventUnroutable, 3, WITHOUT_EVENT, Arrive::Once).await;
}

/// Events of other aggregates flow.
#[tokio::test]
async fn situation_event_without_a_topic_is_parked() {
    let mut scene = Scene::new().await;
    scene.writes(2).await;
    scene.outbox.insert("no topic", "b", "{}").await;
    let way = "To park this event with the later ones of its aggregate, and send all others";
    scene.refused(Code::EventUnroutable, 3, way, Arrive::Once).await;
}

#[tokio::test]
async fn situation_event_that_is_too_large() {
    let mut scene = Scene::new().await;
    scene.kafka.create_topic(&scene.outbox.topic("large"), 1, &[("max.message.bytes", "2000")]).await;
    scene.writes(2).await;
    scene.outbox.insert("large", "a", &format!("{{\"text\": \"{}\"}}", "x".repeat(3_000))).await;
    scene.refused(Code::EventTooLarge, 3, WITHOUT_EVENT, Arrive::Once).await;
}

#[tokio::test]
async fn situation_row_updated() {
    let mut scene = Scene::new().await;
    scene.settings = scene.settings.clone().set("outbox.on_update", "stop");
    scene.sql("ALTER PUBLICATION outbox_router SET (publish = 'insert, update')").await;
    scene.writes(2).await;
    scene.sql("UPDATE outbox SET aggregate_id = 'b'").await;
    let way = "To leave the setting, if no event follows in the transaction of the update";
    scene.refused(Code::RowUpdated, 3, way, Arrive::Once).await;
}

#[tokio::test]
async fn situation_message_that_is_not_an_event() {
    let mut scene = Scene::new().await;
    scene.settings = scene.settings.clone().set("outbox.message_prefix", "outbox");
    scene.writes(2).await;
    scene.sql("SELECT pg_logical_emit_message(true, 'outbox', 'no JSON')").await;
    scene.refused(Code::MessageUndecodable, 3, WITHOUT_EVENT, Arrive::Once).await;
}

#[tokio::test]
async fn situation_event_that_violates_its_contract() {
    let mut scene = Scene::new().await;
    let contracts = contracts();
    scene.settings = scene
        .settings
        .clone()
        .set("contracts.directory", contracts.path().to_str().unwrap())
        .set("contracts.on_violation", "reject");
    scene.writes(2).await;
    scene.sql("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'placed', '{}')").await;
    scene.refused(Code::EventContract, 3, WITHOUT_EVENT, Arrive::Once).await;
}

#[tokio::test]
async fn situation_role_without_replication() {
    let mut scene = Scene::new().await;
    let role = format!("{}_poor", scene.outbox.name);
    scene.sql(&format!("CREATE ROLE {role} LOGIN")).await;
    scene.settings = scene
        .settings
        .clone()
        .set("postgres.url", scene.outbox.url().replace("//postgres@", &format!("//{role}@")));
    scene.writes(2).await;
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.mends(&ended, Code::PostgresAccess, "").await;
    Router::active(&scene.settings).await.stop().await;
    scene.sql(&format!("REVOKE ALL ON DATABASE SLOT FROM {role}; DROP ROLE {role}")).await;
}
