//! The table leaves the publication and returns between two looks: rows written meanwhile are not in the stream.

use outbox_router::lsn::Lsn;

use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, TABLE};
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
        let mut router = Router::with_arguments(&settings, &["--accept-gap", ended.goes_on_at()]);
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
        router.stop().await;
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

async fn ordinary(publication: &str, running: bool) {
    if publication == OF_THE_SCHEMA && Setting::of_the_schema().await.is_none() {
        return;
    }
    Setting::new(TABLE, publication).await.goes_on(running, &ORDINARY, 0).await;
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
