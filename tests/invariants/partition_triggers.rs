//! The event triggers of a partitioned outbox never make DDL fail. If they cannot do their work, they raise a warning.

use tokio::task::JoinHandle;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::{Ran, psql};
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

/// Creates a partitioned table, and a table with one row that can be attached to it.
fn partitioned(name: &str) -> String {
    format!(
        "CREATE TABLE {name} (id uuid DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text, \
         event_type text NOT NULL DEFAULT 'happened', payload jsonb, headers jsonb NOT NULL DEFAULT '{{}}', \
         created_at timestamptz NOT NULL DEFAULT clock_timestamp()) PARTITION BY LIST (aggregate_id); \
         CREATE TABLE {name}_filled (LIKE {name} INCLUDING DEFAULTS); \
         INSERT INTO {name}_filled (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{{}}')"
    )
}

fn attach(table: &str) -> String {
    format!("ALTER TABLE {table} ATTACH PARTITION {table}_filled FOR VALUES IN ('a')")
}

/// Two partitioned tables in one publication, for which `init` has not been run.
async fn bare() -> (Outbox, Settings) {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{}; {}", partitioned("outbox"), partitioned("other"))).await;
    outbox
        .execute(
            "CREATE PUBLICATION outbox_router FOR TABLE outbox, other \
             WITH (publish = 'insert', publish_via_partition_root = true)",
        )
        .await;
    outbox.create_slot("pgoutput").await;
    let tables = vec!["public.outbox".to_owned(), "public.other".to_owned()];
    let settings = Settings::new(&outbox, &Kafka::shared()).set("outbox.table", tables);
    (outbox, settings)
}

async fn init(settings: &Settings) -> Ran {
    let ran = settings.run_async(&["init"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    ran
}

/// Starts a statement in a session of its own, where it may wait for a lock.
fn start(outbox: &Outbox, sql: String) -> JoinHandle<Ran> {
    let url = outbox.url();
    tokio::task::spawn_blocking(move || psql(&url, &["-c", &sql]))
}

#[tokio::test]
async fn partition_triggers_let_ddl_pass_after_owner_loses_superuser_and_init_repairs_them() {
    let (outbox, settings) = bare().await;
    let owner = format!("{}_owner", outbox.name);
    outbox.execute(&format!("CREATE ROLE {owner} SUPERUSER LOGIN")).await;
    let of_owner =
        settings.clone().set("postgres.url", outbox.url().replace("postgres@", &format!("{owner}@")));
    init(&of_owner).await;
    let check = settings.run_async(&["check"]).await;
    assert!(!check.out.contains("publication_watch"), "{check:?}");

    outbox.execute(&format!("ALTER ROLE {owner} NOSUPERUSER")).await;
    let attached = start(&outbox, attach("outbox")).await.unwrap();
    assert_eq!(attached.code, 0, "{attached:?}");
    let warning = "outbox-router may not see the rows of partition public.outbox_filled: permission denied for table outbox_filled";
    assert!(attached.err.contains(warning), "{attached:?}");
    let rewritten = start(
        &outbox,
        "ALTER TABLE outbox_filled SET UNLOGGED; ALTER TABLE outbox_filled SET LOGGED".to_owned(),
    )
    .await
    .unwrap();
    assert_eq!(rewritten.code, 0, "{rewritten:?}");
    let warning = "outbox-router may not see the rows of partition public.outbox_filled: permission denied for schema outbox_router";
    assert!(rewritten.err.contains(warning), "{rewritten:?}");

    let missing = "a partition of public.outbox can be attached with rows";
    let check = settings.run_async(&["check"]).await;
    assert!(check.out.contains(missing) && check.out.contains("init"), "{check:?}");
    let router = Router::active(&settings).await;
    assert!(router.log().contains(missing), "{}", router.log());
    let made = init(&settings).await;
    assert!(
        made.out.contains("event triggers outbox_router_attach and outbox_router_rewrite: created"),
        "{made:?}"
    );
    let again = init(&settings).await;
    assert!(again.out.contains("Nothing had to be changed"), "{again:?}");
    let check = settings.run_async(&["check"]).await;
    assert!(!check.out.contains("publication_watch"), "{check:?}");

    outbox.execute(&attach("other")).await;
    router.exits(3).await.says(&["altered", "the partition public.other_filled was attached with rows"]);
    outbox.execute(&format!("DROP OWNED BY {owner}; DROP ROLE {owner}")).await;
}

#[tokio::test]
async fn partition_triggers_let_ddl_pass_that_attaches_partitions_of_two_tables_at_once() {
    let (outbox, settings) = bare().await;
    init(&settings).await;
    for end in ["ROLLBACK", "COMMIT"] {
        let first = outbox.client().await;
        first.batch_execute(&format!("BEGIN; {}", attach("outbox"))).await.unwrap();
        let router = Router::active(&settings).await;
        let second = start(&outbox, attach("other")).await.unwrap();
        assert_eq!(second.code, 0, "{end}: {second:?}");
        let warning = "not all rows of partition public.other_filled are in the log of its table";
        assert!(second.err.contains(warning), "{end}: {second:?}");
        first.batch_execute(end).await.unwrap();
        let ended = router.exits(3).await;
        ended.says(&["altered", "the partition public.other_filled was attached with rows"]);
        if end == "ROLLBACK" {
            let ended = Router::start(&settings).exits(3).await;
            let router = Router::with_arguments(&settings, &["--accept-gap", ended.accept_gap_position()]);
            outbox.active_pid().await;
            outbox.execute("ALTER TABLE other DETACH PARTITION other_filled").await;
            router.stop().await;
        }
    }
}

/// They do not touch the publication.
#[tokio::test]
async fn partition_triggers_let_ddl_pass_while_another_session_alters_the_publication() {
    let (outbox, settings) = bare().await;
    init(&settings).await;
    let other = outbox.client().await;
    other
        .batch_execute("BEGIN; ALTER PUBLICATION outbox_router SET (publish = 'insert, truncate')")
        .await
        .unwrap();
    let attached = start(&outbox, attach("outbox")).await.unwrap();
    assert_eq!(attached.code, 0, "{attached:?}");
    let noted = outbox.query("SELECT 1 FROM outbox_router.rows_not_in_log").await;
    assert_eq!(noted.len(), 1);
    other.batch_execute("ROLLBACK").await.unwrap();
}

/// What the triggers of earlier versions did: they altered the publication, without changing it.
#[tokio::test]
async fn partition_triggers_of_an_earlier_version_stop_the_router_until_init_replaces_them() {
    let (outbox, settings) = bare().await;
    init(&settings).await;
    outbox
        .execute(
            "CREATE OR REPLACE FUNCTION outbox_router.partition_brings_rows() RETURNS event_trigger LANGUAGE plpgsql \
             SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN \
             ALTER PUBLICATION outbox_router SET (publish_via_partition_root = true); END $$",
        )
        .await;
    let check = settings.run_async(&["check"]).await;
    assert!(check.out.contains("a partition of public.outbox can be unlogged for a time"), "{check:?}");
    let router = Router::active(&settings).await;
    outbox.execute("CREATE TABLE unrelated (i int); ALTER TABLE unrelated ADD j int").await;
    router.exits(3).await.says(&["altered", "the event triggers of an earlier version", "init"]);
    init(&settings).await;
    let check = settings.run_async(&["check"]).await;
    assert!(!check.out.contains("publication_watch"), "{check:?}");
}
