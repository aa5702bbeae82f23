//! What a running router shows of parked events that it did not park itself.

use super::{MODES, Setting};
use crate::support::router::Router;

/// The text of a gauge on `/metrics`.
fn gauge(router: &Router, name: &str) -> Option<String> {
    let (_, page) = router.get("/metrics")?;
    page.lines().find_map(|line| line.strip_prefix(&format!("outbox_router_{name} ")).map(str::to_owned))
}

/// Waits until `/status` shows so many events and aggregates, which `outbox-router status` prints, and the same on `/metrics`.
async fn shows(router: &mut Router, events: u64, aggregates: u64) {
    let what = format!("{events} events of {aggregates} aggregates are shown as parked");
    router
        .shows(&what, |status| {
            let shown = &status["dead_letters"];
            (shown["events"] == events && shown["aggregates"] == aggregates).then_some(())
        })
        .await;
    assert_eq!(gauge(router, "dead_letters"), Some(events.to_string()));
    assert_eq!(gauge(router, "dead_letters_aggregates"), Some(aggregates.to_string()));
}

#[tokio::test]
async fn dead_letters_of_an_earlier_process_are_shown() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let router = Router::active(&setting.settings).await;
        setting.poison("a", 1).await;
        setting.outbox.insert_numbers("order", "a", 2..5).await;
        setting.parks(4).await;
        router.stop().await;
        let mut router = Router::active(&setting.settings).await;
        shows(&mut router, 4, 1).await;
        router.stop().await;
    }
}

#[tokio::test]
async fn dead_letters_that_are_gone_when_a_session_starts_are_no_longer_shown() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let mut router = Router::active(&setting.settings).await;
        setting.poison("a", 1).await;
        setting.outbox.insert_numbers("order", "a", 2..5).await;
        setting.parks(4).await;
        shows(&mut router, 4, 1).await;
        // or the events would come again, and be parked again
        setting.outbox.all_confirmed().await;
        setting.outbox.execute("DELETE FROM outbox_router.dead_letters").await;
        let end = format!("SELECT pg_terminate_backend({}, 60000)", setting.outbox.active_pid().await);
        setting.outbox.execute(&end).await;
        shows(&mut router, 0, 0).await;
        router.stop().await;
    }
}
