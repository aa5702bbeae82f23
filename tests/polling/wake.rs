//! `[source] notify`: a trigger on the table wakes routers.

use std::future::poll_fn;

use tokio_postgres::{AsyncMessage, NoTls};

use crate::polling::polled;
use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

#[tokio::test]
async fn inserts_wake_routers_once_per_statement() {
    let kafka = Kafka::shared();
    let outbox = Outbox::bare(shared::postgres()).await;
    let settings = Settings::polling(&outbox, &kafka).set("source.notify", true);
    succeeded(
        settings.run_async(&["init"]).await,
        &["function outbox_router.wake_pollers: created", "table \"public\".\"outbox\": created"],
    );
    outbox.execute("ALTER TABLE outbox ALTER event_type SET DEFAULT 'happened'").await;
    succeeded(settings.run_async(&["check"]).await, &["public.outbox can be polled"]);
    let (client, mut connection) = tokio_postgres::connect(&outbox.url(), NoTls).await.unwrap();
    let (notified, mut notifications) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = notified.send(notification.channel().to_owned());
            }
        }
    });
    client.batch_execute("LISTEN outbox_router").await.unwrap();
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..20).await;
    assert_eq!(notifications.recv().await.unwrap(), "outbox_router");
    outbox.all_published().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn a_missing_trigger_is_reported_and_rows_are_found_without_it() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let settings = settings.set("source.notify", true);
    let trigger = "CREATE TRIGGER outbox_router_wake_pollers AFTER INSERT ON \"public\".\"outbox\" FOR EACH STATEMENT EXECUTE FUNCTION \
                   outbox_router.wake_pollers()";
    succeeded(
        settings.run_async(&["init"]).await,
        &["trigger on \"public\".\"outbox\": left out: existing tables are not changed", trigger],
    );
    let found = settings.run_async(&["check"]).await;
    assert!(found.code == 0 && found.out.contains(trigger), "{}", found.out);
    let mut router = Router::active(&settings).await;
    router.logs("no trigger on the outbox table wakes this router").await;
    outbox.insert_numbers("order", "a", 1..5).await;
    outbox.all_published().await;
    router.stop().await;
    outbox.execute(trigger).await;
    let found = settings.run_async(&["check"]).await;
    assert!(found.code == 0 && !found.out.contains("wake"), "{}", found.out);
}
