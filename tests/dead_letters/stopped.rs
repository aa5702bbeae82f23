//! Routers that are stopped while they retry parked events.

use super::Setup;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::router::Router;

const AGGREGATES: u32 = 60;
const EACH: u32 = 5;

/// Without a crash, at-least-once repeats nothing: the router deletes the rows of the events that it has sent before it exits.
#[tokio::test]
async fn dead_letters_that_are_retried_while_the_router_is_stopped_are_sent_once() {
    let mut setup = Setup::new("at-least-once").await;
    let open = setup.settings.clone();
    let router = Router::active(&open.clone().set("topics.allow", vec!["elsewhere"])).await;
    setup
        .outbox
        .execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order', 'a' || a, jsonb_build_object('n', n) \
             FROM generate_series(1, {EACH}) n, generate_series(1, {AGGREGATES}) a ORDER BY n"
        ))
        .await;
    setup.parks(i64::from(AGGREGATES * EACH)).await;
    router.stop().await;
    setup.settings = open;
    setup.dead_letters(&["retry", "--reason", "unroutable"]);
    let mut left = i64::from(AGGREGATES * EACH);
    while left > 0 {
        let router = Router::active(&setup.settings).await;
        eventually("more rows are deleted", async || (setup.parked().await < left).then_some(())).await;
        router.stop().await;
        left = setup.parked().await;
    }
    same(&setup.outbox, &setup.kafka.records(&setup.outbox.name).await, Repeats::Never).await;
}
