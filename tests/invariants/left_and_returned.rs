//! The table leaves the publication and returns between two looks: rows written meanwhile are not in the stream.

use pg_logical::Lsn;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::signal::Signal;

/// Postgres 15 and later.
const OF_THE_SCHEMA: &str = "CREATE PUBLICATION outbox_router FOR TABLES IN SCHEMA public \
     WITH (publish = 'insert', publish_via_partition_root = true)";

/// Debezium's default.
const OF_ALL_TABLES: &str = "CREATE PUBLICATION outbox_router FOR ALL TABLES \
     WITH (publish = 'insert', publish_via_partition_root = true)";

const EVENT: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{}')";

/// What does not let a row pass unpublished.
const ORDINARY: [&str; 17] = [
    "TRUNCATE outbox",
    "VACUUM FULL outbox",
    "CLUSTER outbox USING outbox_pkey",
    "ALTER TABLE outbox ADD COLUMN more int",
    "ALTER TABLE outbox ADD COLUMN rewritten timestamptz DEFAULT clock_timestamp()",
    "ALTER TABLE outbox ALTER COLUMN more TYPE text",
    "ALTER TABLE outbox DROP COLUMN more",
    "ALTER TABLE outbox OWNER TO pg_monitor; ALTER TABLE outbox OWNER TO postgres",
    "GRANT SELECT ON outbox TO pg_monitor",
    "CREATE INDEX ON outbox (created_at)",
    "REINDEX TABLE outbox",
    "ALTER TABLE outbox REPLICA IDENTITY FULL",
    "COMMENT ON TABLE outbox IS 'events'",
    "ALTER TABLE outbox SET (fillfactor = 90)",
    "ANALYZE outbox",
    "CREATE TABLE others (id int)",
    "ALTER TABLE others SET UNLOGGED",
];

/// What happened unseen, and the router that is to find it.
struct Unseen {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
    router: Router,
    /// The end of the log before it.
    before: Lsn,
}

const PARTITIONED: &str = "CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, \
     aggregate_id text, event_type text NOT NULL DEFAULT 'happened', payload jsonb, headers jsonb NOT NULL DEFAULT '{}', \
     created_at timestamptz NOT NULL DEFAULT clock_timestamp()) PARTITION BY LIST (aggregate_id); \
     CREATE TABLE old PARTITION OF outbox FOR VALUES IN ('a')";

/// A router that has sent one event, and what is around it.
struct Setting {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
    router: Router,
}

impl Setting {
    async fn new(table: &str, publication: &str) -> Self {
        let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
        outbox.execute(&format!("{table}; {publication}")).await;
        outbox.create_slot("pgoutput").await;
        let settings = Settings::new(&outbox, &kafka);
        let router = Router::active(&settings).await;
        outbox.execute(EVENT).await;
        outbox.all_confirmed().await;
        Setting { outbox, kafka, settings, router }
    }

    /// `None`: the server has no publications of schemas.
    async fn of_the_schema() -> Option<Self> {
        let version = Outbox::bare(shared::postgres()).await.server_version().await;
        if version < 150_000 {
            return None;
        }
        Some(Self::new(TABLE, OF_THE_SCHEMA).await)
    }

    /// Runs each statement by itself, between two looks of a running router, or while it is stopped. Returns the router.
    async fn unseen(self, running: bool, statements: &[&str]) -> Unseen {
        let Setting { outbox, kafka, settings, router } = self;
        if running {
            outbox.watched().await;
            router.signal(Signal::Stop);
            // a look that is under way would see what is done below, or half of it
            let idle = format!(
                "SELECT FROM pg_stat_activity WHERE application_name = '{0}.{0} watch' AND state <> 'idle'",
                outbox.name
            );
            eventually("no look is under way", async || outbox.query(&idle).await.is_empty().then_some(()))
                .await;
        }
        let stopped = if running {
            Some(router)
        } else {
            router.stop().await;
            None
        };
        let before = outbox.lsn().await;
        for sql in statements {
            outbox.execute(sql).await;
        }
        let router = match stopped {
            Some(router) => {
                router.signal(Signal::Continue);
                router
            }
            None => Router::start(&settings),
        };
        Unseen { outbox, kafka, settings, router, before }
    }

    /// The router says what it found, goes no further, and goes on when a person has accepted it.
    async fn stops(self, running: bool, statements: &[&str], parts: &[&str]) {
        let Unseen { outbox, kafka, settings, router, before } = self.unseen(running, statements).await;
        let ended = router.exits(3).await;
        ended.says(parts);
        ended.says(&["may be missing", "pg_copy_logical_replication_slot"]);
        // it stops where it is, and the next start finds it again
        let ended = Router::start(&settings).exits(3).await;
        ended.says(&["--accept-gap", "may be missing"]);
        let confirmed = outbox.confirmed().await;
        assert!(confirmed <= before, "confirmed up to {confirmed}, past {before}");
        let mut router = Router::with_arguments(&settings, &["--accept-gap", ended.accept_gap_position()]);
        router.ready().await;
        outbox.execute(EVENT).await;
        outbox.all_confirmed().await;
        router.stop().await;
        let router = Router::active(&settings).await;
        router.stop().await;
        assert!(kafka.count(&outbox.name).await.unwrap() >= 2);
    }

    /// Nothing is lost, and nothing said.
    async fn goes_on(self, running: bool, statements: &[&str], events: usize) {
        let Unseen { outbox, kafka, mut router, .. } = self.unseen(running, statements).await;
        router.ready().await;
        outbox.execute(EVENT).await;
        outbox.all_confirmed().await;
        outbox.watched().await;
        let log = router.stop().await.log;
        assert!(!log.contains("rewritten"), "{log}");
        assert_eq!(kafka.count(&outbox.name).await, Ok(2 + events));
    }
}

async fn a_schema_left(running: bool) {
    let Some(setting) = Setting::of_the_schema().await else { return };
    let elsewhere =
        "INSERT INTO elsewhere.outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{}')";
    let statements = [
        "CREATE SCHEMA elsewhere",
        "ALTER TABLE outbox SET SCHEMA elsewhere",
        elsewhere,
        "ALTER TABLE elsewhere.outbox SET SCHEMA public",
    ];
    setting.stops(running, &statements, &["publication", "altered"]).await;
}

#[tokio::test]
async fn left_and_returned_a_schema_under_a_running_router_is_seen() {
    a_schema_left(true).await;
}

#[tokio::test]
async fn left_and_returned_a_schema_while_the_router_is_stopped_is_seen() {
    a_schema_left(false).await;
}

/// Makes what `init` makes besides for a publication that was there before.
async fn with_what_init_makes(publication: &str) -> Setting {
    let setting = Setting::new(TABLE, publication).await;
    let made = setting.settings.run_async(&["init"]).await;
    assert!(made.code == 0 && made.out.contains("publication outbox_router_guard: created"), "{made:?}");
    let again = setting.settings.run_async(&["init"]).await;
    assert!(again.code == 0 && again.out.contains("Nothing had to be changed"), "{again:?}");
    // what a session begins with is remembered
    let Setting { outbox, kafka, settings, router } = setting;
    router.stop().await;
    Setting { router: Router::active(&settings).await, outbox, kafka, settings }
}

#[tokio::test]
async fn left_and_returned_by_set_unlogged_is_refused_by_postgres_where_init_has_made_its_guard() {
    let setting = with_what_init_makes(OF_ALL_TABLES).await;
    let check = setting.settings.run_async(&["check"]).await;
    assert!(!check.out.contains("publication_watch"), "{check:?}");
    let refused =
        setting.outbox.client().await.batch_execute("ALTER TABLE outbox SET UNLOGGED").await.unwrap_err();
    let refused = refused.as_db_error().unwrap().message();
    assert_eq!(refused, "cannot change table \"outbox\" to unlogged because it is part of a publication");
    setting
        .goes_on(true, &["UPDATE outbox SET event_type = 'changed'", "DELETE FROM outbox", EVENT], 1)
        .await;
}

const UNLOGGED: [&str; 3] = ["ALTER TABLE outbox SET UNLOGGED", EVENT, "ALTER TABLE outbox SET LOGGED"];

async fn the_guard_is_taken_away(running: bool) {
    let setting = with_what_init_makes(OF_ALL_TABLES).await;
    let again = "CREATE PUBLICATION outbox_router_guard FOR TABLE outbox WITH (publish = '')";
    let statements = [&["DROP PUBLICATION outbox_router_guard"][..], &UNLOGGED, &[again]].concat();
    setting.stops(running, &statements, &["publication", "altered"]).await;
}

#[tokio::test]
async fn left_and_returned_by_set_unlogged_without_the_guard_is_seen_by_a_running_router() {
    the_guard_is_taken_away(true).await;
}

#[tokio::test]
async fn left_and_returned_by_set_unlogged_without_the_guard_while_the_router_is_stopped_is_seen() {
    the_guard_is_taken_away(false).await;
}

/// A database in which `init` was not run: nobody can tell, and that is said.
async fn nobody_can_tell(running: bool) {
    let setting = Setting::new(TABLE, OF_ALL_TABLES).await;
    let log = setting.router.log();
    assert!(log.contains("can be made unlogged for a time") && log.contains("outbox-router init"), "{log}");
    let check = setting.settings.run_async(&["check"]).await;
    assert!(check.out.contains("can be made unlogged for a time"), "{check:?}");
    let mut unseen = setting.unseen(running, &UNLOGGED).await;
    unseen.router.logs("the outbox table was rewritten").await;
    unseen.router.stop().await;
}

#[tokio::test]
async fn left_and_returned_by_set_unlogged_in_a_database_without_the_guard_is_warned_of_under_a_running_router()
 {
    nobody_can_tell(true).await;
}

#[tokio::test]
async fn left_and_returned_by_set_unlogged_in_a_database_without_the_guard_is_warned_of_at_a_start() {
    nobody_can_tell(false).await;
}

/// A partitioned outbox for which `init` was run.
async fn partitioned() -> Setting {
    let setting = Setting::new(PARTITIONED, PUBLICATION).await;
    let log = setting.router.log();
    assert!(log.contains("a partition of public.outbox can be attached with rows"), "{log}");
    let check = setting.settings.run_async(&["check"]).await;
    assert!(check.out.contains("a partition of public.outbox can be attached with rows"), "{check:?}");
    let made = setting.settings.run_async(&["init"]).await;
    assert!(made.code == 0 && made.out.contains("event triggers outbox_router_attach"), "{made:?}");
    let again = setting.settings.run_async(&["init"]).await;
    assert!(again.code == 0 && again.out.contains("Nothing had to be changed"), "{again:?}");
    let check = setting.settings.run_async(&["check"]).await;
    assert!(!check.out.contains("publication_watch"), "{check:?}");
    setting
}

const ATTACH_OLD: &str = "ALTER TABLE outbox ATTACH PARTITION old FOR VALUES IN ('a')";

async fn a_partition_came_back(running: bool) {
    // 14 goes on sending what is written into a partition after it was detached, so nothing is lost
    if running && Outbox::bare(shared::postgres()).await.server_version().await < 150_000 {
        return;
    }
    let statements = ["ALTER TABLE outbox DETACH PARTITION old", &EVENT.replace("outbox", "old"), ATTACH_OLD];
    partitioned().await.stops(running, &statements, &["altered", "a partition is attached with rows"]).await;
}

#[tokio::test]
async fn left_and_returned_a_partition_under_a_running_router_is_seen() {
    a_partition_came_back(true).await;
}

#[tokio::test]
async fn left_and_returned_a_partition_while_the_router_is_stopped_is_seen() {
    a_partition_came_back(false).await;
}

#[tokio::test]
async fn left_and_returned_by_a_partition_that_was_unlogged_is_seen() {
    let statements = ["ALTER TABLE old SET UNLOGGED", EVENT, "ALTER TABLE old SET LOGGED"];
    partitioned().await.stops(true, &statements, &["altered", "becomes unlogged"]).await;
}

async fn ordinary_partitions(running: bool) {
    let statements = [
        "CREATE TABLE b PARTITION OF outbox FOR VALUES IN ('b')",
        "CREATE TABLE c (LIKE outbox)",
        "ALTER TABLE outbox ATTACH PARTITION c FOR VALUES IN ('c')",
        &EVENT.replace("'a'", "'b'"),
        &EVENT.replace("'a'", "'c'"),
        "ALTER TABLE outbox ADD COLUMN more int",
        "ALTER TABLE outbox ALTER COLUMN more TYPE text",
        "ALTER TABLE outbox OWNER TO pg_monitor; ALTER TABLE outbox OWNER TO postgres",
        "GRANT SELECT ON outbox TO pg_monitor",
        "CREATE INDEX ON outbox (created_at)",
        "TRUNCATE b",
        "VACUUM FULL c",
        "ALTER TABLE outbox DETACH PARTITION old",
        "ALTER TABLE old SET UNLOGGED",
        "DROP TABLE old",
        "CREATE TABLE old PARTITION OF outbox FOR VALUES IN ('a')",
        // tables that are not published are none of the triggers' business; one without a handler cannot be read at all
        "CREATE TABLE measured (n int) PARTITION BY LIST (n)",
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere",
        "CREATE FOREIGN TABLE measured_elsewhere (n int) SERVER elsewhere",
        "ALTER TABLE measured ATTACH PARTITION measured_elsewhere FOR VALUES IN (1)",
    ];
    partitioned().await.goes_on(running, &statements, 2).await;
}

#[tokio::test]
async fn left_and_returned_is_not_what_ordinary_maintenance_of_partitions_does_under_a_running_router() {
    ordinary_partitions(true).await;
}

#[tokio::test]
async fn left_and_returned_is_not_what_ordinary_maintenance_of_partitions_does_while_the_router_is_stopped() {
    ordinary_partitions(false).await;
}

async fn ordinary(publication: &str, running: bool) {
    if publication == OF_THE_SCHEMA && Setting::of_the_schema().await.is_none() {
        return;
    }
    with_what_init_makes(publication).await.goes_on(running, &ORDINARY, 0).await;
}

#[tokio::test]
async fn left_and_returned_is_not_what_ordinary_ddl_does_under_a_running_router() {
    for publication in [OF_THE_SCHEMA, OF_ALL_TABLES] {
        ordinary(publication, true).await;
    }
}

#[tokio::test]
async fn left_and_returned_is_not_what_ordinary_ddl_does_while_the_router_is_stopped() {
    for publication in [OF_THE_SCHEMA, OF_ALL_TABLES] {
        ordinary(publication, false).await;
    }
}
