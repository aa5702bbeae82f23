//! The heartbeat is written with SQL, returns in the stream, and is never taken for an event.

use crate::commands::check::Found;
use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::Place;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::signal::{Signal, send};

/// The time from writing the last returned heartbeat to its return, in seconds.
fn lag(status: &serde_json::Value) -> Option<f64> {
    status["heartbeat"]["lag_seconds"].as_f64()
}

/// Waits until a heartbeat has returned that was written after this call.
async fn wait_for_return(router: &mut Router) {
    let start = std::time::Instant::now();
    router
        .shows("a new heartbeat returns", |status| {
            let age = status["heartbeat"]["age_seconds"].as_f64()?;
            lag(status).filter(|_| age < start.elapsed().as_secs_f64())
        })
        .await;
}

/// SQL that writes a heartbeat of the router `name`.
fn written_for(name: &str) -> String {
    format!(
        "SELECT pg_logical_emit_message(true, 'outbox-router.heartbeat/{name}', \
         (extract(epoch FROM clock_timestamp() - '2000-01-01'::timestamptz) * 1000000)::bigint::text);"
    )
}

#[tokio::test]
async fn heartbeat_returns_and_is_not_an_event() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("heartbeat.interval", "1s")
        // with a prefix the router reads all messages, and must tell heartbeats from events
        .set("outbox.message_prefix", "outbox");
    let mut router = Router::active(&settings).await;
    wait_for_return(&mut router).await;
    wait_for_return(&mut router).await;
    outbox.all_confirmed().await;
    let status = router.status().unwrap();
    assert_eq!(status["totals"]["ignored_changes"], 0, "{status}");
    let (_, metrics) = router.get_now("/metrics").await;
    for metric in ["outbox_router_heartbeat_lag_seconds ", "outbox_router_heartbeat_age_seconds "] {
        assert!(metrics.contains(metric), "{metrics}");
    }
    let log = router.stop().await.log;
    // on a busy machine one may take longer than the three seconds after which the router says so
    let late = |line: &&str| line.contains("no heartbeat has come back");
    let mut warnings = log.lines().filter(|line| line.contains("WARN")).filter(|line| !late(line));
    assert_eq!(warnings.next(), None, "{log}");
    assert_eq!(kafka.count(&outbox.name).await, Ok(0));
}

#[tokio::test]
async fn heartbeat_is_off_unless_configured() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    outbox.create_witness().await;
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.watched().await;
    router.shows("no heartbeat", |status| status["heartbeat"].is_null().then_some(())).await;
    assert!(!router.get_now("/metrics").await.1.contains("outbox_router_heartbeat_lag_seconds "));
    router.stop().await;
    let sql = format!("SELECT data FROM pg_logical_slot_peek_changes('{}_witness', NULL, NULL)", outbox.name);
    let written: Vec<String> = outbox.query(&sql).await.iter().map(|row| row.get(0)).collect();
    assert!(!written.iter().any(|data| data.contains("heartbeat")), "{written:?}");
}

/// A position within a transaction counts its changes. Heartbeats must not be counted.
#[tokio::test]
async fn heartbeat_does_not_shift_positions_within_a_transaction() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("heartbeat.interval", "1s")
        .set("route.headers.sequence", "${source.sequence}");
    let router = Router::active(&settings).await;
    let own = written_for(&format!("{0}.{0}", outbox.name));
    let row = |n: u32| {
        format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{{\"n\": {n}}}');"
        )
    };
    outbox.execute(&[row(1), own.clone(), row(2), own.clone(), own.clone(), row(3), own].concat()).await;
    let records = kafka.records_when(&outbox.name, 3).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let ordinal = |header: &str| u64::from_str_radix(&header[16..], 16).unwrap();
    let ordinals: Vec<u64> =
        records.iter().map(|record| ordinal(record.header("sequence").unwrap())).collect();
    assert_eq!(ordinals, [1, 2, 3]);
}

#[tokio::test]
async fn heartbeat_without_privilege_is_logged_once_and_init_grants_it() {
    let mut place = Place::new().with("HEARTBEAT__INTERVAL", "1s");
    let role = format!("{}_router", place.name);
    let made = place.run(&["init", "--role", &role]);
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.out.contains("to write heartbeats: exists already"), "{made:?}");
    assert_eq!(Found::at(&place).of("heartbeat"), "ok: the role may write it\n");

    place.psql(
        "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname = 'pg_logical_emit_message' \
         LOOP EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC'; END LOOP; END $$",
    );
    place.set("POSTGRES__URL", &place.url(&role));
    let found = Found::at(&place);
    assert_eq!(found.code, 0, "only a warning, because no event is lost or blocked");
    // Postgres 17 and later have one more argument
    insta::assert_snapshot!(place.masked(&found.of("heartbeat")).replace(",boolean)", ")"));
    let name = format!("{0}.{0}", place.name);
    let settings = Settings::default()
        .set("postgres.url", place.url(&role))
        .set("postgres.slot", place.name.as_str())
        .set("postgres.publication", place.name.as_str())
        .set("kafka.'bootstrap.servers'", Kafka::shared().bootstrap.as_str())
        .set("heartbeat.interval", "1s");
    let mut router = Router::active(&settings).await;
    router.logs("the heartbeat cannot be written; events flow").await;
    router
        .shows("the status has the problem", |status| {
            status["heartbeat"]["problem"].as_str()?.contains("permission denied").then_some(())
        })
        .await;

    // another router's heartbeat is ignored; one with this router's name counts, whoever wrote it
    place.psql(&written_for("another.router"));
    let before = place.psql("SELECT pg_current_wal_flush_lsn()");
    router
        .shows("the stream is past it", |status| {
            let received: pg_logical::Lsn = status["positions"]["received"].as_str()?.parse().ok()?;
            (received >= before.trim().parse().ok()?).then_some(())
        })
        .await;
    assert_eq!(lag(&router.status().unwrap()), None);
    place.psql(&written_for(&name));
    router.shows("its own heartbeat returns", lag).await;

    place.set("POSTGRES__URL", &place.url("postgres"));
    let script = place.run(&["init", "--role", &role, "--print-sql"]);
    assert!(script.out.contains("GRANT EXECUTE ON FUNCTION "), "{script:?}");
    let made = place.run(&["init", "--role", &role]);
    assert!(made.out.contains("to write heartbeats: granted"), "{made:?}");
    router.logs("the heartbeat can be written again").await;
    wait_for_return(&mut router).await;
    let log = router.stop().await.log;
    assert_eq!(log.matches("the heartbeat cannot be written").count(), 1, "{log}");
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn heartbeat_that_does_not_return_is_logged_once_and_so_is_its_return() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("heartbeat.interval", "1s")
        // the router must not detect the silent walsender before the missing heartbeat
        .set("postgres.wal_sender_timeout", "5m");
    let mut router = Router::active(&settings).await;
    wait_for_return(&mut router).await;
    let walsender = u32::try_from(outbox.active_pid().await).unwrap();
    assert!(send(Signal::Stop, walsender));
    router.logs("no heartbeat has come back in the stream for").await;
    assert!(send(Signal::Continue, walsender));
    router.logs("heartbeats come back again").await;
    wait_for_return(&mut router).await;
    let log = router.stop().await.log;
    assert_eq!(log.matches("no heartbeat has come back").count(), 1, "{log}");
    assert_eq!(log.matches("heartbeats come back again").count(), 1, "{log}");
}
