//! Limits and defaults that an administrator has set for applications, here for the database.

use pg_logical::Environment;
use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::server_error::ErrorKind;
use pg_logical::session::Session;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

/// A setting, what the administrator makes of it, and what Postgres ships.
const LIMITS: [(&str, &str, &str); 9] = [
    ("statement_timeout", "1ms", "0"),
    ("lock_timeout", "1ms", "0"),
    ("idle_in_transaction_session_timeout", "1ms", "0"),
    ("idle_session_timeout", "500ms", "0"),
    ("transaction_timeout", "1ms", "0"),
    ("default_transaction_isolation", "serializable", "read committed"),
    ("default_transaction_deferrable", "on", "off"),
    ("default_transaction_read_only", "on", "off"),
    // so that rows which a policy hides are an error
    ("row_security", "on", "off"),
];

/// Limits everything that the server knows.
async fn limit(outbox: &Outbox) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut known = Vec::new();
    for limit @ (name, value, _) in LIMITS {
        if name == "transaction_timeout" && outbox.server_version().await < 170_000 {
            continue;
        }
        outbox.execute(&format!("ALTER DATABASE {} SET {name} = '{value}'", outbox.name)).await;
        known.push(limit);
    }
    known
}

#[tokio::test]
async fn a_session_has_no_limit_of_applications_unless_it_may_be_pooled() {
    let outbox = Outbox::bare(shared::postgres()).await;
    let limits = limit(&outbox).await;
    let conninfo = ConnInfo::parse(&outbox.url(), &Environment::empty()).unwrap();
    let shown = async |startup: Startup<'_>, name: &str| {
        let mut session = Session::connect(&conninfo, &startup).await.unwrap();
        session.query_one(&format!("SHOW {name}")).await
    };
    for replication in [false, true] {
        for (name, _, own) in &limits {
            let startup = Startup { replication, ..Startup::default() };
            assert_eq!(shown(startup, name).await.unwrap().as_deref(), Some(*own), "{name} {replication}");
        }
    }
    let pooled = Startup { pooled: true, ..Startup::default() };
    let isolation = shown(pooled, "default_transaction_isolation").await;
    // the limits apply too, so the question itself may be cancelled, which passes
    match isolation {
        Ok(isolation) => assert_eq!(isolation.as_deref(), Some("serializable")),
        Err(error) => {
            assert!(error.server_error().is_some_and(|error| error.kind() == ErrorKind::Transient), "{error}")
        }
    }
}

/// All commands of a first day, and events before and after a restart.
#[tokio::test]
async fn a_router_works_under_the_limits_of_applications() {
    for park in [false, true] {
        let (kafka, outbox) = (Kafka::shared(), Outbox::bare(shared::postgres()).await);
        let policy = if park { "park" } else { "stop" };
        let settings =
            Settings::new(&outbox, &kafka).set("dead_letters.policy", policy).set("heartbeat.interval", "1s");
        // this test's own session is older, so the limits do not apply to it
        limit(&outbox).await;
        succeeded(settings.run_async(&["init"]).await, &["slot"]);
        outbox
            .execute(
                "ALTER TABLE outbox ALTER event_type SET DEFAULT 'happened', ALTER headers SET DEFAULT '{}'",
            )
            .await;
        succeeded(settings.run_async(&["check"]).await, &[]);
        for round in 0..2 {
            let router = Router::active(&settings).await;
            outbox.insert_numbers("order", "a", round * 10..round * 10 + 10).await;
            outbox.all_confirmed().await;
            outbox.watched().await;
            let log = router.stop().await.log;
            assert_eq!(log.matches("connected; events flow").count(), 1, "{log}");
        }
        assert_eq!(kafka.records(&outbox.name).await.len(), 20);
    }
}
