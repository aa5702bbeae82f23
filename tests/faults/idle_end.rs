//! A server that ends an idle stream every now and then, as serverless ones do.

use std::time::Duration;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Waits until the session of the stream is older than those whose end is a failure.
async fn lasts(outbox: &Outbox, pid: i32) {
    eventually("the session lasts", async || {
        let old = format!(
            "SELECT FROM pg_stat_activity WHERE pid = {pid} AND clock_timestamp() - backend_start > '11 s'"
        );
        (outbox.query(&old).await.len() == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in scripts/test --full"]
async fn an_idle_stream_that_the_server_ends_is_one_line_each_time_and_the_router_stays_ready() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert("order", "a", "{}").await;
    outbox.all_confirmed().await;
    for ended in 1..=2 {
        let pid = outbox.active_pid().await;
        lasts(&outbox, pid).await;
        outbox.execute(&format!("SELECT pg_terminate_backend({pid})")).await;
        while router.log().matches("connected; events flow").count() <= ended {
            let (code, text) = router.get_now("/readyz").await;
            assert_eq!(code, 200, "{text}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    // a session that has just begun, and a server that does not answer, are told as ever
    let pid = outbox.active_pid().await;
    outbox.execute(&format!("SELECT pg_terminate_backend({pid})")).await;
    router.logs("connection failed; retrying until it works").await;
    outbox.insert("order", "a", "{}").await;
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    let again: Vec<_> = log.lines().filter(|line| line.contains("connected; events flow")).collect();
    assert_eq!(again.len(), 4, "{log}");
    let with_reason = |line: &&&str| line.contains("reason=") && line.contains("SQLSTATE 57P01");
    assert_eq!(again.iter().filter(with_reason).count(), 2, "{log}");
    assert_eq!(log.matches("connection failed").count(), 1, "{log}");
    kafka.holds(&outbox.name, 2).await;
}
