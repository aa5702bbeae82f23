//! Something drops or invalidates bookmarks, which nobody reads, while the router runs.

use super::slot_lost::{LIMITS, write_wal};
use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Makes a bookmark, and waits until the router has seen it.
async fn bookmark(settings: &Settings, router: &mut Router, name: &str, usable: u64) -> String {
    let made = succeeded(settings.run_async(&["slot", "bookmark", name, "--json"]).await, &[]);
    let made: serde_json::Value = serde_json::from_str(&made.out).unwrap();
    counted(router, usable, 0).await;
    made["bookmark_slot"].as_str().unwrap().to_owned()
}

/// Waits until status and metrics count so many bookmarks.
async fn counted(router: &mut Router, usable: u64, lost: u64) {
    router
        .shows(&format!("{usable} usable and {lost} lost bookmarks"), |status| {
            let bookmarks = &status["bookmarks"];
            (bookmarks["usable"] == usable && bookmarks["lost"] == lost).then_some(())
        })
        .await;
    let (_, metrics) = router.get_now("/metrics").await;
    for (state, count) in [("usable", usable), ("lost", lost)] {
        let line = format!("outbox_router_bookmarks{{state=\"{state}\"}} {count}\n");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
}

#[tokio::test]
async fn bookmarks_that_others_drop_are_missed_at_once_and_after_a_lost_connection() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let mut router = Router::active(&settings).await;
    let first = bookmark(&settings, &mut router, "first", 1).await;
    let second = bookmark(&settings, &mut router, "second", 2).await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{first}')")).await;
    router.logs(&format!("has removed the slot {first}")).await;
    counted(&mut router, 1, 0).await;
    // in one go, so that the present session does not see that it is gone
    outbox
        .execute(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
             AND pid <> pg_backend_pid(); SELECT pg_drop_replication_slot('{second}')"
        ))
        .await;
    router.logs(&format!("has removed the slot {second}")).await;
    counted(&mut router, 0, 0).await;
    assert_eq!(router.log().matches("is gone, and this router has not dropped it").count(), 2);
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bookmarks_that_postgres_invalidates_are_named_with_the_servers_reason() {
    let server = PrivatePostgres::start(PG_HBA, LIMITS).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let mut router = Router::active(&settings).await;
    let invalidated = async |router: &mut Router, name: &str, slot: &str, reason: &str, act: &str| {
        let lost =
            format!("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND wal_status = 'lost'");
        eventually("the bookmark is invalidated", async || {
            outbox.execute("CHECKPOINT").await;
            (!outbox.query(&lost).await.is_empty()).then_some(())
        })
        .await;
        router.logs(&format!("the bookmark {name} is lost")).await;
        counted(router, 0, 1).await;
        let log = router.log();
        let line = log.lines().rfind(|line| line.contains(&format!("the bookmark {name} is lost")));
        let told = line.filter(|line| line.contains(reason) && line.contains(act));
        assert!(told.is_some(), "{line:?}");
        let drop = format!("slot drop {name}");
        succeeded(
            settings.run_async(&["check"]).await,
            &[&format!("the bookmark {name} is lost"), reason, act, &drop],
        );
        succeeded(settings.run_async(&["slot", "list"]).await, &[&format!("{name} is lost: {reason}")]);
        let ran = settings.run_async(&["slot", "reset", "--to", name, "--yes"]).await;
        assert!(ran.code == 1 && ran.err.contains(reason) && ran.err.contains(act), "{ran:?}");
        succeeded(settings.run_async(&["slot", "drop", name, "--yes"]).await, &[]);
    };

    let slot = bookmark(&settings, &mut router, "outgrown", 1).await;
    for _ in 0..6 {
        // the router's own slot keeps up
        write_wal(&outbox, 3).await;
        outbox.all_confirmed().await;
        outbox.execute("CHECKPOINT").await;
    }
    invalidated(&mut router, "outgrown", &slot, "wal_removed", "max_slot_wal_keep_size").await;

    if outbox.server_version().await >= 180_000 {
        let slot = bookmark(&settings, &mut router, "unread", 1).await;
        server.configure(&[("max_slot_wal_keep_size", "-1"), ("idle_replication_slot_timeout", "1s")]).await;
        let act = "idle_replication_slot_timeout = 0";
        invalidated(&mut router, "unread", &slot, "idle_timeout", act).await;
    }
}
