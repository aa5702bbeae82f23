//! `maintain`: what it deletes, what it shows, and what it survives.

use std::process::Command;

use serde_json::{Value, json};

use super::inbox::installed;
use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::eventually::eventually;
use crate::support::place::{Place, Ran, refused, succeeded};
use crate::support::postgres::{PrivatePostgres, Shutdown};
use crate::support::process;
use crate::support::router::Router;
use crate::support::signal::Signal;

/// The command, without any configuration.
fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(&["maintain", "--url", &place.url("postgres")]);
    command.args(arguments).env_clear();
    command
}

/// The loop, on a port of its own.
fn start(place: &Place) -> Router {
    Router::of(command(place, &["--listen", "127.0.0.1:0", "--interval", "1"]))
}

/// Waits until `/metrics` has all these lines.
async fn shows(router: &mut Router, lines: &[&str]) {
    eventually(&format!("/metrics has {lines:?}"), async || {
        router.assert_running();
        let (status, page) = router.get("/metrics")?;
        assert_eq!(status, 200);
        lines.iter().all(|line| page.lines().any(|shown| shown == *line)).then_some(())
    })
    .await;
}

/// How often it had to connect again.
fn errors(router: &Router) -> Option<u32> {
    let (_, page) = router.get("/metrics")?;
    page.lines().find_map(|line| line.strip_prefix("outbox_consumer_errors_total "))?.parse().ok()
}

/// Processed events, some of them older than 14 days; one that is not processed; and keys, some of them forgotten.
fn fill(place: &Place, old: u32) {
    place.psql(&format!(
        "SELECT count(*) FROM generate_series(1, {old} + 10) n, outbox_router.inbox_claim('c', 'e' || n); \
         SELECT outbox_router.inbox_put('c', 'waits', 'x'); \
         UPDATE outbox_router.inbox SET seen_at = now() - interval '15 days' \
         WHERE event_id = 'waits' OR event_id IN (SELECT 'e' || n FROM generate_series(1, {old}) n); \
         SELECT count(*) FROM generate_series(1, 5) n, outbox_router.idempotency_begin('u', 'k' || n, sha256('x')); \
         UPDATE outbox_router.idempotency_keys SET forget_at = now() - interval '1 s' WHERE key IN ('k1', 'k2', 'k3')"
    ));
}

fn left(place: &Place) -> String {
    place.psql(
        "SELECT (SELECT count(*) FROM outbox_router.inbox), (SELECT count(*) FROM outbox_router.inbox_queue), \
         (SELECT count(*) FROM outbox_router.idempotency_keys)",
    )
}

#[test]
fn maintain_once_deletes_all_that_is_old() {
    let place = installed();
    // more than two batches
    fill(&place, 12_000);
    let ran = succeeded(Ran::of(process::output(&mut command(&place, &["--once", "--json"]))), &[]);
    assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap(), json!({"events": 12_000, "keys": 3}));
    assert_eq!(left(&place).trim(), "11|1|2", "an event that waits is never deleted");
    let again = Ran::of(process::output(&mut command(&place, &["--once"])));
    succeeded(again, &["0 events and 0 idempotency keys deleted."]);
}

#[test]
fn maintain_once_is_for_the_role_of_a_consumer_too() {
    let place = Place::new();
    let (url, role) = (place.url("postgres"), format!("{}_shipping", place.name));
    let mut init = place.command(&["init", "--consumer", "--url", &url, "--role", &role]);
    succeeded(Ran::of(process::output(init.env_clear())), &[]);
    fill(&place, 1);
    let mut once = place.command(&["maintain", "--once", "--url", &place.url(&role)]);
    succeeded(Ran::of(process::output(once.env_clear())), &["1 event and 3 idempotency keys deleted."]);
}

#[test]
fn maintain_refuses_a_wrong_command_line() {
    let place = Place::new();
    let run = |arguments: &[&str]| Ran::of(process::output(place.command(arguments).env_clear()));
    refused(&run(&["maintain"]), 2, &["--url"]);
    let away = ["maintain", "--once", "--url", "postgres://u@127.0.0.1:1/x"];
    refused(&run(&away), 1, &["OBR-1007", "127.0.0.1:1"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    refused(
        &Ran::of(process::output(&mut command(&place, &["--listen", &listen]))),
        2,
        &["OBR-2006", "--listen"],
    );
}

#[tokio::test]
async fn maintain_shows_every_outcome_from_the_start_and_deletes_as_it_goes() {
    let place = installed();
    let mut maintain = start(&place);
    let zeros = [
        "outbox_consumer_up 1",
        "outbox_consumer_claims_total{outcome=\"fresh\"} 0",
        "outbox_consumer_claims_total{outcome=\"done\"} 0",
        "outbox_consumer_claims_total{outcome=\"busy\"} 0",
        "outbox_consumer_requests_total{outcome=\"new\"} 0",
        "outbox_consumer_requests_total{outcome=\"replay\"} 0",
        "outbox_consumer_requests_total{outcome=\"mismatch\"} 0",
        "outbox_consumer_queue_events_total{outcome=\"put\"} 0",
        "outbox_consumer_sequences_skipped_total 0",
        "outbox_consumer_deleted_total{what=\"events\"} 0",
        "outbox_consumer_errors_total 0",
    ];
    shows(&mut maintain, &zeros).await;
    fill(&place, 3);
    place.psql(
        "SELECT FROM outbox_router.idempotency_begin('u', 'k5', sha256('other')); \
         SELECT FROM outbox_router.inbox_claim('c', 'e12'); \
         SELECT FROM outbox_router.inbox_start('c', 'leased', '1 hour'); \
         UPDATE outbox_router.inbox_queue SET put_at = now() - interval '10 min'",
    );
    let counted = [
        "outbox_consumer_claims_total{outcome=\"fresh\"} 14",
        "outbox_consumer_claims_total{outcome=\"done\"} 1",
        "outbox_consumer_requests_total{outcome=\"new\"} 5",
        "outbox_consumer_requests_total{outcome=\"mismatch\"} 1",
        "outbox_consumer_waiting{consumer=\"c\"} 1",
        "outbox_consumer_failed{consumer=\"c\"} 0",
        "outbox_consumer_leased{consumer=\"c\"} 1",
        "outbox_consumer_deleted_total{what=\"events\"} 3",
        "outbox_consumer_deleted_total{what=\"keys\"} 3",
    ];
    shows(&mut maintain, &counted).await;
    let (_, page) = maintain.get_now("/metrics").await;
    let oldest = page
        .lines()
        .find_map(|line| line.strip_prefix("outbox_consumer_oldest_unprocessed_seconds{consumer=\"c\"} "));
    assert!((600.0..900.0).contains(&oldest.unwrap().parse().unwrap()), "{page}");
    maintain.stop().await;
}

#[tokio::test]
async fn maintain_is_stopped_by_a_signal() {
    let place = installed();
    for signal in [Signal::Terminate, Signal::Interrupt, Signal::Quit] {
        let mut maintain = start(&place);
        shows(&mut maintain, &["outbox_consumer_up 1"]).await;
        maintain.signal(signal);
        maintain.exits(0).await;
    }
}

/// A scrape reads what the loop has read.
#[tokio::test]
async fn maintain_asks_the_database_nothing_for_a_scrape() {
    let place = installed();
    let mut maintain = Router::of(command(&place, &["--listen", "127.0.0.1:0", "--interval", "3600"]));
    shows(&mut maintain, &["outbox_consumer_up 1"]).await;
    let asked = || {
        place.psql(
            "SELECT query_start FROM pg_stat_activity WHERE application_name = 'outbox-router maintain' \
             AND datname = current_database()",
        )
    };
    let before = asked();
    assert!(!before.trim().is_empty());
    for _ in 0..100 {
        assert_eq!(maintain.get_now("/metrics").await.0, 200);
    }
    assert_eq!(asked(), before);
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn maintain_goes_on_after_postgres_was_restarted() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let place = Place::on(&server.url());
    let mut init = place.command(&["init", "--consumer", "--url", &place.url("postgres")]);
    succeeded(Ran::of(process::output(init.env_clear())), &[]);
    let mut maintain = start(&place);
    fill(&place, 3);
    shows(&mut maintain, &["outbox_consumer_deleted_total{what=\"events\"} 3"]).await;
    for shutdown in [Shutdown::Fast, Shutdown::Immediate] {
        server.stop(shutdown);
        shows(&mut maintain, &["outbox_consumer_up 0", "outbox_consumer_requests_total{outcome=\"new\"} 5"])
            .await;
        let before = errors(&maintain).unwrap();
        eventually("more attempts", async || (errors(&maintain)? >= before + 5).then_some(())).await;
        server.start_again();
        shows(&mut maintain, &["outbox_consumer_up 1"]).await;
    }
    place.psql("UPDATE outbox_router.inbox SET seen_at = now() - interval '15 days' WHERE event_id = 'e13'");
    shows(&mut maintain, &["outbox_consumer_deleted_total{what=\"events\"} 4"]).await;
    let attempts = errors(&maintain).unwrap();
    let log = maintain.stop().await.log;
    let logged = u32::try_from(log.matches("connection failed; retrying").count()).unwrap();
    // each reason once: refused, shutting down, starting up
    assert!((2..=8).contains(&logged) && logged < attempts, "{attempts} attempts:\n{log}");
    assert_eq!(log.matches(" connected").count(), 3, "{log}");
}

/// What it cannot do at the start stays until somebody acts.
#[tokio::test]
async fn maintain_waits_for_a_server_and_ends_without_an_inbox() {
    let place = Place::new();
    let ended = start(&place).exits(1).await;
    assert!(ended.log.contains("OBR-8101"), "{}", ended.log);
    let away = ["maintain", "--url", "postgres://u@127.0.0.1:1/x", "--listen", "127.0.0.1:0"];
    let mut command = place.command(&away);
    command.env_clear();
    let mut maintain = Router::of(command);
    shows(&mut maintain, &["outbox_consumer_up 0", "outbox_consumer_deleted_total{what=\"keys\"} 0"]).await;
    maintain.logs("connection failed; retrying until it works").await;
    maintain.stop().await;
}
