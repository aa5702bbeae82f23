//! The checkpoint says why the router has stopped, and `check` repeats it until the router runs again.

use super::position_finding;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::{MODES, Settings};

#[tokio::test]
async fn check_names_the_event_at_which_the_router_has_stopped() {
    for mode in MODES {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let settings = Settings::new(&outbox, &kafka).set("delivery.mode", mode);
        let router = Router::active(&settings).await;
        outbox.insert_numbers("order", "a", 1..4).await;
        let id = outbox.insert("no topic", "a", "{}").await;
        let ended = router.exits(3).await;
        let found = position_finding(&settings).await;
        assert_eq!(found.level, "error", "{found:?}");
        let (_, what) = found.what.split_once("where the router has stopped: ").unwrap();
        // the last step is of check alone
        let remedy = found.remedy.split_last().unwrap().1.iter().map(String::as_str);
        ended.says(
            &[&[&id, what, &found.code, "outbox-router slot advance --to "][..], &remedy.collect::<Vec<_>>()]
                .concat(),
        );
        // a start tries again, and ends in the same way
        Router::start(&settings).exits(3).await.says(&[&id]);
        assert_eq!(position_finding(&settings).await.level, "error");
        // the remedy as printed
        settings.run_suggested_command(&ended);
        assert_ne!(position_finding(&settings).await.level, "error");
        let router = Router::active(&settings).await;
        outbox.insert_numbers("order", "a", 4..5).await;
        outbox.all_confirmed().await;
        assert_eq!(position_finding(&settings).await.level, "ok");
        router.stop().await;
        let records = kafka.committed(&outbox.name).await.unwrap();
        assert_eq!(records.iter().map(|record| record.number()).collect::<Vec<_>>(), [1, 2, 3, 4], "{mode}");
    }
}
