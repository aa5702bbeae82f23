//! Whoever may connect may take advisory locks. Taking the lock of a slot makes routers wait, and causes nothing worse.

use std::time::{Duration, Instant};

use super::assert_delivers;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, connect};
use crate::support::router::Router;
use crate::support::settings::Settings;

/// A router that waits for its turn to write parked events reports a healthy process.
#[tokio::test]
async fn advisory_locks_of_a_stranger_on_parked_events_leave_the_process_healthy() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("dead_letters.policy", "park");
    let init = settings.run(&["init"]);
    assert_eq!(init.code, 0, "{init:?}");
    let holder = outbox.client().await;
    let name = format!("{0}.{0}", outbox.name);
    let take = format!("SELECT pg_advisory_lock(hashtextextended('outbox-router dead letters {name}', 0))");
    holder.batch_execute(&take).await.unwrap();
    let router = Router::start(&settings);
    outbox.session_waits_for_advisory_lock().await;
    // longer than the main loop may be blocked before /healthz fails; on a busy machine it may be late for a moment, but a blocked one
    // would stay so
    let begun = Instant::now();
    eventually("the process is healthy after 12 s", async || {
        let (code, _) = router.get("/healthz")?;
        (code == 200 && begun.elapsed() > Duration::from_secs(12)).then_some(())
    })
    .await;
    outbox.session_waits_for_advisory_lock().await;
    drop(holder);
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    router.stop().await;
}

/// All functions that take a lock with a single 64-bit key.
const FUNCTIONS: &str = "pg_advisory_lock(bigint), pg_advisory_lock_shared(bigint), pg_advisory_xact_lock(bigint), \
                         pg_advisory_xact_lock_shared(bigint), pg_try_advisory_lock(bigint), pg_try_advisory_lock_shared(bigint), \
                         pg_try_advisory_xact_lock(bigint), pg_try_advisory_xact_lock_shared(bigint)";

/// The functions that the router calls.
const OURS: &str = "pg_advisory_lock(bigint), pg_advisory_xact_lock(bigint), pg_try_advisory_lock(bigint)";

#[tokio::test]
async fn advisory_locks_of_a_stranger_make_routers_wait_unless_they_are_denied() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (role, stranger) = (format!("{}_router", outbox.name), format!("{}_stranger", outbox.name));
    let url = |role: &str| outbox.url().replace("postgres@", &format!("{role}@"));
    let settings = Settings::new(&outbox, &kafka);
    let init = settings.run(&["init", "--role", &role]);
    assert_eq!(init.code, 0, "{init:?}");
    let settings = settings.set("postgres.url", url(&role));
    outbox.execute(&format!("CREATE ROLE {stranger} LOGIN")).await;
    let take = format!("SELECT pg_advisory_lock(hashtextextended('outbox-router slot {}', 0))", outbox.name);

    let holder = connect(&url(&stranger)).await.unwrap();
    holder.batch_execute(&take).await.unwrap();
    let mut router = Router::start(&settings);
    router.logs("waiting for the slot").await;
    let (code, ready) = router.get_now("/readyz").await;
    let expected = format!("role {stranger}");
    assert!(code == 200 && ready.contains(&expected) && router.log().contains(&expected), "{ready}");
    outbox.insert_numbers("order", "a", 1..4).await;
    drop(holder);
    let records = kafka.committed_when(&outbox.name, 3).await;
    assert_eq!(records.iter().map(|record| record.number()).collect::<Vec<_>>(), [1, 2, 3]);
    router.stop().await;

    outbox.execute(&format!("REVOKE EXECUTE ON FUNCTION {FUNCTIONS} FROM PUBLIC")).await;
    outbox.execute(&format!("GRANT EXECUTE ON FUNCTION {OURS} TO {role}")).await;
    let refused = connect(&url(&stranger)).await.unwrap().batch_execute(&take).await.unwrap_err();
    assert_eq!(refused.code().map(|code| code.code()), Some("42501"), "{refused:?}");
    assert_delivers("without EXECUTE for PUBLIC", &settings, &outbox, &kafka).await;
    outbox.execute(&format!("GRANT EXECUTE ON FUNCTION {FUNCTIONS} TO PUBLIC")).await;

    outbox.execute(&format!("REVOKE CONNECT ON DATABASE {} FROM PUBLIC", outbox.name)).await;
    let refused = connect(&url(&stranger)).await.unwrap_err();
    assert_eq!(refused.code().map(|code| code.code()), Some("42501"), "{refused:?}");
    assert_delivers("without CONNECT for PUBLIC", &settings, &outbox, &kafka).await;
    outbox.execute(&format!("DROP OWNED BY {role}, {stranger}; DROP ROLE {role}, {stranger}")).await;
}
