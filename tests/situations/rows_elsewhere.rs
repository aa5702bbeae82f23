//! Rows of the outbox are in a relation below it, which is not published under its name.

use super::typist::Typist;
use super::{Arrive, Code, Scene};
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::{Ended, Router};
use crate::support::shared;

/// A table that inherits, and a trigger that puts all rows there.
const REDIRECT: &str = "CREATE TABLE \"outbox C\" (LIKE outbox INCLUDING DEFAULTS); ALTER TABLE \"outbox C\" INHERIT outbox; \
     CREATE FUNCTION redirect() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO \"outbox C\" SELECT new.*; RETURN NULL; END$$; \
     CREATE TRIGGER redirect BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION redirect()";

/// The first step of the way out.
const DROP_TRIGGER: &str = "DROP TRIGGER redirect ON outbox";

/// Writes events without asking for the rows, which are elsewhere.
async fn writes_into(scene: &mut Scene, table: &str, count: u32) {
    let (first, last) = (scene.written, scene.written + count - 1);
    let insert = format!(
        "INSERT INTO {table} (id, aggregate_type, aggregate_id, event_type, payload, headers, created_at) \
         SELECT gen_random_uuid(), 'order', 'a', 'happened', json_build_object('n', n), '{{}}', clock_timestamp() \
         FROM generate_series({first}, {last}) n"
    );
    scene.sql(&insert).await;
    scene.written += count;
}

#[tokio::test]
async fn situation_rows_in_a_table_that_inherits() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql(REDIRECT).await;
    writes_into(&mut scene, "outbox", 10).await;
    assert_eq!(scene.outbox.text("SELECT count(*)::text FROM outbox").await, "12");
    let check = scene.settings.run_async(&["check"]).await;
    assert!(check.code == 1 && check.out.contains("OBR-4104"), "{check:?}");
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.sql(DROP_TRIGGER).await;
    scene.ended(&ended, Code::RowsElsewhere, "", Arrive::Once, &[]).await;
}

/// The slot is not moved past the rows.
#[tokio::test]
async fn situation_rows_in_a_table_that_inherits_while_the_router_runs() {
    let mut scene = Scene::new().await;
    let router = scene.delivers(2).await;
    scene.sql(REDIRECT).await;
    writes_into(&mut scene, "outbox", 10).await;
    let ended = router.exits(3).await;
    assert_eq!(ended.code(), Code::RowsElsewhere.to_string(), "{}", ended.log);
    // the trigger is still there: nothing is moved
    let moving = ended.command("DO ").to_owned();
    let refused = scene.outbox.client().await.batch_execute(&moving).await.unwrap_err();
    assert!(format!("{refused:?}").contains("the rows went elsewhere"), "{refused:?}");
    scene.sql(DROP_TRIGGER).await;
    let mut typist = Typist::new(&scene.outbox, &scene.settings);
    typist.types(&ended, "").await;
    let (router, _) = typist.done();
    scene.writes(1).await;
    scene.count(Arrive::Once).await;
    router.stop().await;
}

#[tokio::test]
async fn situation_rows_in_an_unlogged_partition() {
    let outbox = Outbox::bare(shared::postgres()).await;
    let table = TABLE.replace("PRIMARY KEY ", "");
    let mut scene = Scene::of(outbox);
    scene.sql(&format!("{table} PARTITION BY LIST (aggregate_id); {PUBLICATION}")).await;
    scene.sql("CREATE TABLE others PARTITION OF outbox DEFAULT").await;
    scene.outbox.create_slot("pgoutput").await;
    scene.delivered(2).await;
    scene.sql("DELETE FROM outbox; CREATE UNLOGGED TABLE part PARTITION OF outbox FOR VALUES IN ('a')").await;
    scene.writes(5).await;
    let ended = Router::start(&scene.settings).exits(1).await;
    scene.ended(&ended, Code::RowsElsewhere, "", Arrive::Once, &[]).await;
    scene
        .sql(
            "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; \
             CREATE FOREIGN TABLE remote PARTITION OF outbox FOR VALUES IN ('b') SERVER s",
        )
        .await;
    let ended = Router::start(&scene.settings).exits(1).await;
    ended.says(&["OBR-4104", "public.remote is a partition of it and foreign"]);
}

#[tokio::test]
async fn situation_rows_in_several_relations_are_named_one_after_the_other() {
    let mut scene = Scene::new().await;
    scene.delivered(2).await;
    scene.sql("CREATE TABLE c1 (more int) INHERITS (outbox); CREATE TABLE c2 () INHERITS (c1)").await;
    for table in ["c1", "c2"] {
        writes_into(&mut scene, table, 1).await;
    }
    for says in ["public.c2 inherits from it, and there is another one", "public.c1 inherits from it"] {
        let ended = Router::start(&scene.settings).exits(1).await;
        ended.says(&["OBR-4104", says]);
        scene.sql(ended.command("DO ")).await;
    }
    let router = Router::active(&scene.settings).await;
    scene.count(Arrive::Once).await;
    router.stop().await;
}

#[tokio::test]
async fn situation_rows_elsewhere_before_there_is_a_slot() {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{TABLE}; {PUBLICATION}; {REDIRECT}")).await;
    let mut scene = Scene::of(outbox);
    writes_into(&mut scene, "outbox", 11).await;
    let ended = Ended::of(scene.settings.run_async(&["init"]).await);
    assert_eq!(ended.code(), Code::RowsElsewhere.to_string(), "{}", ended.log);
    let slots = "SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database()";
    assert_eq!(scene.outbox.text(slots).await, "0");
    scene.sql(DROP_TRIGGER).await;
    let mut typist = Typist::new(&scene.outbox, &scene.settings);
    typist.types_steps(&ended, "To send the rows that are in the table, too").await;
    let router = Router::active(&typist.configured()).await;
    scene.writes(1).await;
    scene.count(Arrive::Once).await;
    router.stop().await;
}
