//! The table leaves the publication and returns between two checks of the catalogue watch: the stream lacks the rows written
//! meanwhile.

use pg_logical::Lsn;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::signal::Signal;

/// Postgres 15 and later.
pub(super) const SCHEMA_PUBLICATION: &str = "CREATE PUBLICATION outbox_router FOR TABLES IN SCHEMA public \
     WITH (publish = 'insert', publish_via_partition_root = true)";

/// Debezium's default.
const ALL_TABLES_PUBLICATION: &str = "CREATE PUBLICATION outbox_router FOR ALL TABLES \
     WITH (publish = 'insert', publish_via_partition_root = true)";

pub(super) const EVENT: &str =
    "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{}')";

/// Statements after which no row is missing from the stream.
const ORDINARY_DDL: [&str; 17] = [
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

/// The router that has to detect a change that happened between two of its checks.
struct AfterChange {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
    router: Router,
    /// The end of the WAL before the change.
    before: Lsn,
}

const PARTITIONED: &str = "CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, \
     aggregate_id text, event_type text NOT NULL DEFAULT 'happened', payload jsonb, headers jsonb NOT NULL DEFAULT '{}', \
     created_at timestamptz NOT NULL DEFAULT clock_timestamp()) PARTITION BY LIST (aggregate_id); \
     CREATE TABLE old PARTITION OF outbox FOR VALUES IN ('a')";

/// A router that has sent one event.
pub(super) struct Setup {
    pub(super) outbox: Outbox,
    kafka: Kafka,
    pub(super) settings: Settings,
    pub(super) router: Router,
}

impl Setup {
    pub(super) async fn new(table: &str, publication: &str) -> Self {
        let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
        outbox.execute(&format!("{table}; {publication}")).await;
        outbox.create_slot("pgoutput").await;
        let settings = Settings::new(&outbox, &kafka);
        let router = Router::active(&settings).await;
        outbox.execute(EVENT).await;
        outbox.all_confirmed().await;
        Setup { outbox, kafka, settings, router }
    }

    /// Returns `None` if the server does not know `FOR TABLES IN SCHEMA`.
    async fn with_schema_publication() -> Option<Self> {
        let version = Outbox::bare(shared::postgres()).await.server_version().await;
        if version < 150_000 {
            return None;
        }
        Some(Self::new(TABLE, SCHEMA_PUBLICATION).await)
    }

    /// Runs each statement in its own transaction, between two checks of a running router or while none runs.
    async fn change_unobserved(self, running: bool, statements: &[&str]) -> AfterChange {
        let Setup { outbox, kafka, settings, router } = self;
        if running {
            outbox.watched().await;
            router.signal(Signal::Stop);
            // a check that is in progress would see the statements below, or some of them
            let idle = format!(
                "SELECT FROM pg_stat_activity WHERE application_name = '{0}.{0} watch' AND state <> 'idle'",
                outbox.name
            );
            eventually("no check is in progress", async || {
                outbox.query(&idle).await.is_empty().then_some(())
            })
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
        AfterChange { outbox, kafka, settings, router, before }
    }

    /// The router stops with a reason, also after a restart, and resumes once a person has accepted the gap.
    pub(super) async fn assert_stops(self, running: bool, statements: &[&str], parts: &[&str]) {
        let AfterChange { outbox, kafka, settings, router, before } =
            self.change_unobserved(running, statements).await;
        let ended = router.exits(3).await;
        ended.says(parts);
        ended.says(&["may be missing"]);
        // the next start detects the same gap and confirms nothing
        let ended = Router::start(&settings).exits(3).await;
        ended.says(&["--accept-gap", "may be missing", "pg_copy_logical_replication_slot"]);
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

    /// The router delivers everything and warns of nothing.
    pub(super) async fn assert_unaffected(self, running: bool, statements: &[&str], events: usize) {
        let AfterChange { outbox, kafka, mut router, .. } = self.change_unobserved(running, statements).await;
        router.ready().await;
        outbox.execute(EVENT).await;
        outbox.all_confirmed().await;
        outbox.watched().await;
        let log = router.stop().await.log;
        assert!(!log.contains("rewritten"), "{log}");
        assert_eq!(kafka.count(&outbox.name).await, Ok(2 + events));
    }
}

async fn schema_move(running: bool) {
    let Some(setup) = Setup::with_schema_publication().await else { return };
    let elsewhere =
        "INSERT INTO elsewhere.outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{}')";
    let statements = [
        "CREATE SCHEMA elsewhere",
        "ALTER TABLE outbox SET SCHEMA elsewhere",
        elsewhere,
        "ALTER TABLE elsewhere.outbox SET SCHEMA public",
    ];
    setup.assert_stops(running, &statements, &["publication", "altered"]).await;
}

#[tokio::test]
async fn temporarily_unpublished_by_schema_move_is_detected_by_running_router() {
    schema_move(true).await;
}

#[tokio::test]
async fn temporarily_unpublished_by_schema_move_is_detected_at_start() {
    schema_move(false).await;
}

/// A router whose publication existed before `init` was run.
async fn after_init(publication: &str) -> Setup {
    let setup = Setup::new(TABLE, publication).await;
    let made = setup.settings.run_async(&["init"]).await;
    assert!(made.code == 0 && made.out.contains("publication \"outbox_router_guard\": created"), "{made:?}");
    let again = setup.settings.run_async(&["init"]).await;
    assert!(again.code == 0 && again.out.contains("Nothing had to be changed"), "{again:?}");
    // later checks compare with the definitions at the session's start, so start one that has the guard
    let Setup { outbox, kafka, settings, router } = setup;
    router.stop().await;
    Setup { router: Router::active(&settings).await, outbox, kafka, settings }
}

#[tokio::test]
async fn temporarily_unpublished_by_set_unlogged_is_refused_by_postgres_with_guard() {
    let setup = after_init(ALL_TABLES_PUBLICATION).await;
    let check = setup.settings.run_async(&["check"]).await;
    assert!(!check.out.contains("publication_watch"), "{check:?}");
    let refused =
        setup.outbox.client().await.batch_execute("ALTER TABLE outbox SET UNLOGGED").await.unwrap_err();
    let refused = refused.as_db_error().unwrap().message();
    assert_eq!(refused, "cannot change table \"outbox\" to unlogged because it is part of a publication");
    setup
        .assert_unaffected(
            true,
            &["UPDATE outbox SET event_type = 'changed'", "DELETE FROM outbox", EVENT],
            1,
        )
        .await;
}

const UNLOGGED: [&str; 3] = ["ALTER TABLE outbox SET UNLOGGED", EVENT, "ALTER TABLE outbox SET LOGGED"];

async fn guard_dropped(running: bool) {
    let setup = after_init(ALL_TABLES_PUBLICATION).await;
    let again = "CREATE PUBLICATION outbox_router_guard FOR TABLE outbox WITH (publish = '')";
    let statements = [&["DROP PUBLICATION outbox_router_guard"][..], &UNLOGGED, &[again]].concat();
    setup.assert_stops(running, &statements, &["publication", "altered"]).await;
}

#[tokio::test]
async fn temporarily_unpublished_by_set_unlogged_after_dropping_guard_is_detected_by_running_router() {
    guard_dropped(true).await;
}

#[tokio::test]
async fn temporarily_unpublished_by_set_unlogged_after_dropping_guard_is_detected_at_start() {
    guard_dropped(false).await;
}

/// Without `init` the router cannot know whether rows are missing, and says so.
async fn without_init(running: bool) {
    let setup = Setup::new(TABLE, ALL_TABLES_PUBLICATION).await;
    let log = setup.router.log();
    assert!(log.contains("can be made unlogged for a time") && log.contains("outbox-router init"), "{log}");
    let check = setup.settings.run_async(&["check"]).await;
    assert!(check.out.contains("can be made unlogged for a time"), "{check:?}");
    let mut after = setup.change_unobserved(running, &UNLOGGED).await;
    after.router.logs("the outbox table was rewritten").await;
    after.router.stop().await;
}

#[tokio::test]
async fn temporarily_unpublished_by_set_unlogged_without_init_causes_warning_of_running_router() {
    without_init(true).await;
}

#[tokio::test]
async fn temporarily_unpublished_by_set_unlogged_without_init_causes_warning_at_start() {
    without_init(false).await;
}

/// A partitioned outbox for which `init` was run.
async fn partitioned() -> Setup {
    let setup = Setup::new(PARTITIONED, PUBLICATION).await;
    let log = setup.router.log();
    assert!(log.contains("a partition of public.outbox can be attached with rows"), "{log}");
    let check = setup.settings.run_async(&["check"]).await;
    assert!(check.out.contains("a partition of public.outbox can be attached with rows"), "{check:?}");
    let made = setup.settings.run_async(&["init"]).await;
    assert!(made.code == 0 && made.out.contains("event triggers outbox_router_attach"), "{made:?}");
    let again = setup.settings.run_async(&["init"]).await;
    assert!(again.code == 0 && again.out.contains("Nothing had to be changed"), "{again:?}");
    let check = setup.settings.run_async(&["check"]).await;
    assert!(!check.out.contains("publication_watch"), "{check:?}");
    setup
}

const ATTACH_OLD: &str = "ALTER TABLE outbox ATTACH PARTITION old FOR VALUES IN ('a')";

async fn detached_partition(running: bool) {
    // Postgres 14 goes on sending rows of a partition that was detached, so nothing is lost
    if running && Outbox::bare(shared::postgres()).await.server_version().await < 150_000 {
        return;
    }
    let statements = ["ALTER TABLE outbox DETACH PARTITION old", &EVENT.replace("outbox", "old"), ATTACH_OLD];
    partitioned()
        .await
        .assert_stops(running, &statements, &["altered", "the partition public.old was attached with rows"])
        .await;
}

#[tokio::test]
async fn temporarily_unpublished_by_detached_partition_is_detected_by_running_router() {
    detached_partition(true).await;
}

#[tokio::test]
async fn temporarily_unpublished_by_detached_partition_is_detected_at_start() {
    detached_partition(false).await;
}

/// Both `init` and the router have a role that owns the table and is no superuser: there are no event triggers.
async fn partitioned_without_superuser() -> Setup {
    let Setup { outbox, kafka, settings, router } = Setup::new(PARTITIONED, PUBLICATION).await;
    router.stop().await;
    let role = format!("{}_owner", outbox.name);
    outbox
        .execute(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION; GRANT CREATE ON DATABASE {} TO {role}; GRANT CREATE ON SCHEMA public TO {role}; \
             ALTER TABLE outbox OWNER TO {role}; ALTER TABLE old OWNER TO {role}; ALTER PUBLICATION outbox_router OWNER TO {role}; \
             DROP SCHEMA outbox_router CASCADE",
            outbox.name
        ))
        .await;
    let url = outbox.url().replace("postgres@", &format!("{role}@"));
    let settings = settings.set("postgres.url", url);
    let made = settings.run_async(&["init"]).await;
    assert!(made.code == 0 && made.out.contains("only a superuser can create them"), "{made:?}");
    let again = settings.run_async(&["init"]).await;
    assert!(again.code == 0 && !again.out.contains("partitions that exist"), "{again:?}");
    let check = settings.run_async(&["check"]).await;
    assert!(check.out.contains("a partition of public.outbox can be unlogged for a time"), "{check:?}");
    Setup { router: Router::active(&settings).await, outbox, kafka, settings }
}

/// Rows are noted only if they are older than the attachment.
async fn attached_without_superuser(running: bool) {
    if running && Outbox::bare(shared::postgres()).await.server_version().await < 150_000 {
        return;
    }
    let (in_b, in_c) = (EVENT.replace("'a'", "'b'"), EVENT.replace("'a'", "'c'"));
    let (create, attach) = (
        "CREATE TABLE c (LIKE outbox INCLUDING DEFAULTS) PARTITION BY LIST (aggregate_id); \
         CREATE TABLE c1 PARTITION OF c FOR VALUES IN ('c')",
        "ALTER TABLE outbox ATTACH PARTITION c FOR VALUES IN ('c')",
    );
    let empty = [
        "CREATE TABLE b PARTITION OF outbox FOR VALUES IN ('b')",
        &in_b,
        create,
        "ALTER TABLE c OWNER TO owner_of_outbox; ALTER TABLE c1 OWNER TO owner_of_outbox",
        attach,
        &in_c,
    ];
    let setup = partitioned_without_superuser().await;
    let owned = empty.map(|sql| sql.replace("owner_of_outbox", &format!("{}_owner", setup.outbox.name)));
    setup.assert_unaffected(running, &owned.each_ref().map(String::as_str), 2).await;

    let filled = format!("SET ROLE OWNER; {create}; {}", in_c.replace("outbox", "c1"));
    for (statements, name) in [
        (vec![filled.as_str(), attach], "public.c"),
        (vec![&format!("{filled}; {attach}")], "public.c"),
        (
            vec!["ALTER TABLE outbox DETACH PARTITION old", &EVENT.replace("outbox", "old"), ATTACH_OLD],
            "public.old",
        ),
    ] {
        let setup = partitioned_without_superuser().await;
        let owner = format!("{}_owner", setup.outbox.name);
        let statements: Vec<String> = statements.iter().map(|sql| sql.replace("OWNER", &owner)).collect();
        let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
        let says = format!("the partition {name} was attached with rows");
        setup.assert_stops(running, &statements, &["altered", &says]).await;
    }
}

#[tokio::test]
async fn temporarily_unpublished_by_attached_partition_is_detected_without_event_triggers_by_running_router()
{
    attached_without_superuser(true).await;
}

#[tokio::test]
async fn temporarily_unpublished_by_attached_partition_is_detected_without_event_triggers_at_start() {
    attached_without_superuser(false).await;
}

#[tokio::test]
async fn temporarily_unpublished_by_attached_partition_of_somebody_else_causes_warning() {
    let Setup { outbox, mut router, .. } = partitioned_without_superuser().await;
    outbox.execute("CREATE TABLE c (LIKE outbox)").await;
    outbox.execute("ALTER TABLE outbox ATTACH PARTITION c FOR VALUES IN ('c')").await;
    router.logs("a partition of public.outbox can be attached with rows").await;
    let owner = format!("{}_owner", outbox.name);
    outbox.execute(&format!("ALTER TABLE c OWNER TO {owner}")).await;
    router.ready().await;
}

#[tokio::test]
async fn temporarily_unpublished_by_unlogged_partition_is_detected() {
    let statements = ["ALTER TABLE old SET UNLOGGED", EVENT, "ALTER TABLE old SET LOGGED"];
    partitioned()
        .await
        .assert_stops(true, &statements, &["altered", "the partition public.old", "was unlogged for a time"])
        .await;
}

async fn partition_maintenance(running: bool) {
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
        // the triggers ignore unpublished tables; this foreign table has no handler, so reading it would fail
        "CREATE TABLE measured (n int) PARTITION BY LIST (n)",
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere",
        "CREATE FOREIGN TABLE measured_elsewhere (n int) SERVER elsewhere",
        "ALTER TABLE measured ATTACH PARTITION measured_elsewhere FOR VALUES IN (1)",
    ];
    partitioned().await.assert_unaffected(running, &statements, 2).await;
}

#[tokio::test]
async fn temporarily_unpublished_is_not_reported_for_partition_maintenance_under_running_router() {
    partition_maintenance(true).await;
}

#[tokio::test]
async fn temporarily_unpublished_is_not_reported_for_partition_maintenance_at_start() {
    partition_maintenance(false).await;
}

async fn ordinary_ddl(publication: &str, running: bool) {
    if publication == SCHEMA_PUBLICATION && Setup::with_schema_publication().await.is_none() {
        return;
    }
    after_init(publication).await.assert_unaffected(running, &ORDINARY_DDL, 0).await;
}

#[tokio::test]
async fn temporarily_unpublished_is_not_reported_for_ordinary_ddl_under_running_router() {
    for publication in [SCHEMA_PUBLICATION, ALL_TABLES_PUBLICATION] {
        ordinary_ddl(publication, true).await;
    }
}

#[tokio::test]
async fn temporarily_unpublished_is_not_reported_for_ordinary_ddl_at_start() {
    for publication in [SCHEMA_PUBLICATION, ALL_TABLES_PUBLICATION] {
        ordinary_ddl(publication, false).await;
    }
}
