//! Several routers that poll one table.

use rand::Rng;

use crate::polling::polled;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::mock::Mock;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::signal::Signal;
use crate::support::writers::Writers;

/// Killed routers keep their rows until the lease expires, and frozen ones find out that it has.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in scripts/test --full"]
async fn nothing_is_lost_or_reordered_while_routers_are_killed_and_frozen() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let settings = settings.set("source.lease", "10s");
    let mut random = seed::random();
    let writers = Writers::start(&outbox, 2, &mut random).await;
    let mut routers = vec![Router::active(&settings).await, Router::active(&settings).await];
    for round in 0..4 {
        let published = "SELECT count(*)::text FROM outbox WHERE status = 'PUBLISHED'";
        let before: usize = outbox.text(published).await.parse().unwrap();
        crate::support::eventually::eventually("rows are published", async || {
            let now: usize = outbox.text(published).await.parse().unwrap();
            (now >= before + 50).then_some(())
        })
        .await;
        let victim = random.random_range(0..routers.len());
        if round % 2 == 0 {
            routers.remove(victim).kill();
            routers.push(Router::active(&settings).await);
        } else {
            let frozen = routers.remove(victim);
            frozen.signal(Signal::Stop);
            // until another has taken over what it had claimed
            let held = "SELECT count(*)::text FROM outbox_router.poll_claims WHERE NOT ended AND lease_until < now()";
            crate::support::eventually::eventually("its claims have expired or ended", async || {
                let expired = outbox.text("SELECT (max(lease_until) FILTER (WHERE NOT ended) IS NOT NULL)::text FROM outbox_router.poll_claims").await;
                (outbox.text(held).await == "0" || expired == "false").then_some(())
            })
            .await;
            frozen.signal(Signal::Continue);
            routers.push(frozen);
        }
    }
    writers.finish().await;
    outbox.all_published().await;
    for mut router in routers {
        router.assert_running();
        router.stop().await;
    }
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Late).await;
}

/// Others take its rows over then, and it must not send them any more.
#[tokio::test]
async fn a_router_that_is_cut_off_ends_its_session_before_its_lease_expires() {
    let mock = Mock::start(1);
    let kafka = mock.client();
    let (outbox, settings) = polled(&kafka).await;
    mock.create_topic(&outbox.topic("order"), 3, 1);
    let proxy = Proxy::to(outbox.address());
    let settings = settings.set("source.lease", "15s").reached_at(&outbox, &proxy.address());
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_published().await;
    mock.down(1);
    // in one transaction, so that all are claimed at about the same time
    let insert = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
                  SELECT 'order', 'a', jsonb_build_object('n', n) FROM generate_series(3, 499) n";
    outbox.execute(insert).await;
    // later than the claim, so that an answer that is awaited for the time of a lease comes after it
    let claimed_a_while_ago = "SELECT coalesce(max(lease_until) < now() + interval '13 s', false)::text FROM outbox_router.poll_claims WHERE NOT ended";
    eventually("rows are claimed for a while", async || {
        (outbox.text(claimed_a_while_ago).await == "true").then_some(())
    })
    .await;
    proxy.set(Network::BLACK_HOLE);
    router.logs("gave no answer within ").await;
    let log = router.log();
    let seconds = log.split("gave no answer within ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    // records may be sent for 10 s after the claim
    assert!(seconds.parse::<f64>().unwrap() < 10.0, "{log}");
    mock.up(1);
    proxy.set(Network::OPEN);
    outbox.all_published().await;
    router.assert_running();
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Late).await;
}

#[tokio::test]
async fn several_routers_share_the_work() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let routers =
        [Router::active(&settings).await, Router::active(&settings).await, Router::active(&settings).await];
    let writers = Writers::start(&outbox, 3, &mut seed::random()).await;
    outbox.insert_numbers("order", "a", 1..300).await;
    writers.finish().await;
    outbox.all_published().await;
    for router in routers {
        router.stop().await;
    }
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
