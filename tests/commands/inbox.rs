//! `inbox`: what it shows, what it does, and what it refuses, in a database that has nothing but the inbox.

use serde_json::{Value, json};

use crate::situations::page::keep;
use crate::support::place::{Place, Ran, refused, succeeded};
use crate::support::process;

/// A database with the inbox.
pub(super) fn installed() -> Place {
    let place = Place::new();
    let url = place.url("postgres");
    let mut init = place.command(&["init", "--consumer", "--url", &url]);
    succeeded(Ran::of(process::output(init.env_clear())), &[]);
    place
}

/// Runs the command without any configuration.
fn run(place: &Place, arguments: &[&str]) -> Ran {
    let mut command = place.command(&["inbox"]);
    command.args(arguments).args(["--url", &place.url("postgres")]).env_clear();
    Ran::of(process::output(&mut command))
}

/// What it prints with --json.
fn run_json(place: &Place, arguments: &[&str]) -> Value {
    let ran = succeeded(run(place, &[arguments, &["--json"]].concat()), &[]);
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"))
}

/// The text of a member of each event.
fn members<'a>(events: &'a Value, name: &str) -> Vec<&'a str> {
    events.as_array().unwrap().iter().map(|event| event[name].as_str().unwrap()).collect()
}

/// Puts an event into the queue of the consumer `c`, and lets its attempts fail.
fn put(place: &Place, event: &str, failed: u32) {
    place.psql(&format!("SELECT outbox_router.inbox_put('c', '{event}', '{{\"n\": 1}}', 'order-1', 7)"));
    if failed > 0 {
        place.psql(&format!(
            "SELECT FROM outbox_router.inbox_next('c', 1, '1 min'); \
             UPDATE outbox_router.inbox_queue SET attempts = {failed} WHERE event_id = '{event}'; \
             SELECT outbox_router.inbox_fail('c', event_id, 'no route', token) \
             FROM outbox_router.inbox_queue WHERE event_id = '{event}'"
        ));
    }
}

fn state(place: &Place, event: &str) -> String {
    run_json(place, &["show", event, "--consumer", "c"])[0]["state"].as_str().unwrap().to_owned()
}

/// Events that were cleared, discarded or retried: who, what, which, why.
fn audit(place: &Place) -> String {
    place.psql(
        "SELECT done_by, action, consumer, event_id, coalesce(reason, '-'), done_at > now() - interval '10 min' \
         FROM outbox_router.inbox_audit ORDER BY id",
    )
}

#[test]
fn inbox_shows_what_waits_has_failed_or_is_leased() {
    let place = installed();
    succeeded(run(&place, &["list"]), &["No events."]);
    succeeded(run(&place, &["status"]), &["No consumer has called the inbox."]);
    put(&place, "dead", 8);
    place.psql("SELECT outbox_router.inbox_configure('c', ordered => false)");
    put(&place, "waits", 0);
    place.psql("SELECT FROM outbox_router.inbox_start('other', 'works', '1 hour')");
    place.psql("SELECT FROM outbox_router.inbox_start('other', 'gone', '1 hour')");
    place.psql("UPDATE outbox_router.inbox SET lease_until = now() - interval '400 s', seen_at = now() - interval '500 s' \
                WHERE event_id = 'gone'");
    place.psql("SELECT FROM outbox_router.inbox_claim('other', 'processed')");

    let table = succeeded(run(&place, &["list"]), &["dead", "no route", "order-1", "4 events"]).out;
    assert!(!table.contains("processed"), "{table}");
    let all = run_json(&place, &["list"]);
    assert_eq!(members(&all, "id"), ["gone", "dead", "waits", "works"], "the oldest first");
    assert_eq!(members(&all, "state"), ["expired", "failed", "waiting", "leased"]);
    for (state, id) in [("expired", "gone"), ("failed", "dead"), ("waiting", "waits"), ("leased", "works")] {
        assert_eq!(members(&run_json(&place, &["list", "--state", state]), "id"), [id]);
    }
    assert_eq!(members(&run_json(&place, &["list", "--consumer", "c"]), "id"), ["dead", "waits"]);
    succeeded(run(&place, &["list", "--limit", "1"]), &["gone", "1 event; there may be more"]);

    let status = run_json(&place, &["status"]);
    let [c, other] = &status["consumers"].as_array().unwrap()[..] else { panic!("{status}") };
    assert_eq!((&c["consumer"], &c["waiting"], &c["failed"]), (&json!("c"), &json!(1), &json!(1)));
    assert_eq!((&other["leased"], &other["expired"]), (&json!(1), &json!(1)));
    let oldest = |of: &Value| of["oldest_unprocessed_seconds"].as_f64().unwrap();
    assert!(oldest(c) < 300.0 && (500.0..800.0).contains(&oldest(other)), "{status}");
    assert_eq!(status["claims"], json!({"busy": 0, "done": 0, "fresh": 3}));
    assert_eq!(status["queue"]["failed"], 1);
    assert_eq!(status["mismatch_ratio"], Value::Null);
    succeeded(run(&place, &["status"]), &["consumer", "fresh 3", "other"]);
}

#[test]
fn inbox_shows_an_event_with_payload_result_and_decisions() {
    let place = installed();
    put(&place, "e", 8);
    place.psql("SELECT outbox_router.inbox_put('c', 'bytes', '\\xff'::bytea)");
    place.psql("SELECT FROM outbox_router.inbox_claim('c', 'r'); SELECT outbox_router.inbox_result('c', 'r', '{\"ok\": true}')");
    run_json(&place, &["retry", "e", "--reason", "it's back"]);
    let shown = run_json(&place, &["show", "e"]);
    assert_eq!(shown[0]["payload"], "{\"n\": 1}");
    assert_eq!((&shown[0]["sequence"], &shown[0]["error"]), (&json!("7"), &json!("no route")));
    let decision = &shown[0]["decisions"][0];
    assert_eq!(
        (&decision["by"], &decision["action"], &decision["reason"]),
        (&json!("postgres"), &json!("retry"), &json!("it's back"))
    );
    assert_eq!(run_json(&place, &["show", "bytes"])[0]["payload"], json!({"base64": "/w=="}));
    assert_eq!(run_json(&place, &["show", "r"])[0]["result"], json!({"ok": true}));
    succeeded(run(&place, &["show", "e"]), &["order-1", "payload  {\"n\": 1}", "by postgres: it's back"]);
}

#[test]
fn inbox_retry_has_failed_events_taken_again() {
    let place = installed();
    place.psql("SELECT outbox_router.inbox_configure('c', ordered => false)");
    for event in ["a", "b", "c"] {
        put(&place, event, 8);
    }
    put(&place, "waits", 0);
    let taken = || {
        place.psql(
            "SELECT string_agg(event_id, ',' ORDER BY event_id) FROM outbox_router.inbox_next('c', 9, '1 h')",
        )
    };
    succeeded(run(&place, &["retry", "a", "--dry-run"]), &["failed", "1 event"]);
    assert_eq!(state(&place, "a"), "failed");
    succeeded(run(&place, &["retry", "a"]), &["1 event will be taken by the next free worker"]);
    assert_eq!(taken().trim(), "a,waits");
    succeeded(
        run(&place, &["retry", "--all", "--consumer", "c", "--reason", "fixed"]),
        &["2 events will be taken"],
    );
    assert_eq!(taken().trim(), "b,c");
    succeeded(run(&place, &["retry", "--all"]), &["No event has failed."]);
    assert_eq!(run_json(&place, &["retry", "--all"]), json!([]));
    assert_eq!(
        audit(&place).trim().lines().collect::<Vec<_>>(),
        ["postgres|retry|c|a|-|t", "postgres|retry|c|b|fixed|t", "postgres|retry|c|c|fixed|t"]
    );
}

#[test]
fn inbox_retry_of_very_many_events_takes_several_calls() {
    let place = installed();
    put(&place, "e", 8);
    place.psql(
        "INSERT INTO outbox_router.inbox (consumer, event_id, position) SELECT 'c', 'e' || n, -n FROM generate_series(1, 5000) n; \
         INSERT INTO outbox_router.inbox_queue (consumer, position, event_id, payload, due_at, attempts) \
         SELECT 'c', -n, 'e' || n, 'x', 'infinity', 8 FROM generate_series(1, 5000) n",
    );
    let first = run(&place, &["retry", "--all"]);
    succeeded(
        first,
        &["5000 events will be taken by the next free worker. More may have failed: run the command again."],
    );
    let second =
        succeeded(run(&place, &["retry", "--all"]), &["1 event will be taken by the next free worker."]);
    assert!(!second.out.contains("More"), "{second:?}");
}

#[test]
fn inbox_discard_counts_an_event_as_processed() {
    let place = installed();
    put(&place, "e", 8);
    let start = "SELECT token FROM outbox_router.inbox_start('c', 'gone', '1 min')";
    let token = place.psql(start).trim().to_owned();
    place.psql("UPDATE outbox_router.inbox SET lease_until = now() - interval '1 s' WHERE event_id = 'gone'");

    refused(&run(&place, &["discard", "e", "--reason", "x"]), 2, &["Cannot ask for confirmation", "--yes"]);
    let no_reason = run(&place, &["discard", "e", "--yes"]);
    assert!(no_reason.code == 2 && no_reason.err.contains("--reason"), "{no_reason:?}");
    refused(&run(&place, &["discard", "e", "--yes", "--reason", ""]), 1, &["the reason is empty"]);
    assert_eq!(state(&place, "e"), "failed");
    for event in ["e", "gone"] {
        succeeded(
            run(&place, &["discard", event, "--yes", "--reason", "not needed"]),
            &["1 event discarded"],
        );
        assert_eq!(state(&place, event), "processed");
    }
    assert_eq!(place.psql("SELECT outbox_router.inbox_put('c', 'e', 'x')").trim(), "duplicate");
    let late = format!("SELECT outbox_router.inbox_finish('c', 'gone', '{token}')");
    assert_eq!(place.psql(&late).trim(), "f", "its handler is told");
    assert_eq!(audit(&place), "postgres|discard|c|e|not needed|t\npostgres|discard|c|gone|not needed|t\n");
}

#[test]
fn inbox_clear_has_the_next_delivery_processed_again() {
    let place = installed();
    let claim = "SELECT outcome FROM outbox_router.inbox_claim('c', 'e')";
    assert_eq!(place.psql(claim).trim(), "fresh");
    assert_eq!(place.psql(claim).trim(), "done");
    refused(&run(&place, &["clear", "e", "--reason", "x"]), 2, &["Cannot ask for confirmation", "--yes"]);
    let json = run(&place, &["clear", "e", "--reason", "x", "--json"]);
    refused(&json, 2, &["--json cannot ask"]);
    assert_eq!(serde_json::from_str::<Value>(&json.out).unwrap()["error_code"], "OBR-2001");
    let no_reason = run(&place, &["clear", "e", "--yes"]);
    assert!(no_reason.code == 2 && no_reason.err.contains("--reason"), "{no_reason:?}");
    succeeded(run(&place, &["clear", "e", "--reason", "x", "--dry-run"]), &["processed", "1 event"]);
    assert_eq!(place.psql(claim).trim(), "done");
    assert_eq!(audit(&place), "");

    succeeded(run(&place, &["clear", "e", "--reason", "parcel was lost", "--yes"]), &["1 event forgotten"]);
    assert_eq!(audit(&place), "postgres|clear|c|e|parcel was lost|t\n");
    assert_eq!(state(&place, "e"), "forgotten", "show still has the decision");
    refused(&run(&place, &["clear", "e", "--reason", "x", "--yes"]), 1, &["OBR-8102", "no event e"]);
    assert_eq!(place.psql(claim).trim(), "fresh");
    // an event that waits is deleted from the queue too
    put(&place, "q", 8);
    succeeded(run(&place, &["clear", "q", "--reason", "x", "--yes", "--json"]), &["\"failed\""]);
    assert_eq!(place.psql("SELECT outbox_router.inbox_put('c', 'q', 'x')").trim(), "new");
}

/// A worker that finished after `clear` would have had an effect that the next delivery repeats.
#[test]
fn inbox_refuses_an_event_that_a_worker_has() {
    let place = installed();
    put(&place, "queued", 0);
    place.psql("SELECT FROM outbox_router.inbox_next('c', 1, '1 hour')");
    place.psql("SELECT FROM outbox_router.inbox_start('c', 'started', '1 hour')");
    for event in ["queued", "started"] {
        for action in [&["clear", event, "--yes"][..], &["discard", event, "--yes"], &["retry", event]] {
            let ran = run(&place, &[action, &["--reason", "x", "--json"]].concat());
            refused(&ran, 1, &["OBR-8103", &format!("the event {event} is under a lease until 2")]);
            assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap()["error_code"], "OBR-8103");
        }
        assert_eq!(state(&place, event), "leased");
    }
    assert_eq!(audit(&place), "");
}

/// A lease that has expired is not in the way.
#[tokio::test]
async fn inbox_refuses_an_event_in_a_workers_transaction() {
    let place = installed();
    put(&place, "e", 0);
    let (worker, connection) =
        tokio_postgres::connect(&place.url("postgres"), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    worker.batch_execute("BEGIN; SELECT FROM outbox_router.inbox_next('c')").await.unwrap();
    let clear = ["clear", "e", "--reason", "sent twice", "--yes"];
    let ran = run(&place, &clear);
    refused(&ran, 1, &["OBR-8103", "a transaction that has not ended has the event \"e\"", "Wait until"]);
    keep(&ran.err, &[]);
    worker.batch_execute("ROLLBACK; SELECT FROM outbox_router.inbox_next('c', 1, '1 hour')").await.unwrap();
    refused(&run(&place, &clear), 1, &["OBR-8103"]);
    worker
        .batch_execute("UPDATE outbox_router.inbox_queue SET due_at = now() - interval '1 s'")
        .await
        .unwrap();
    succeeded(run(&place, &clear), &["1 event forgotten"]);
}

#[test]
fn inbox_refuses_an_event_that_is_unknown_or_does_not_wait() {
    let place = installed();
    for event in
        [&["show", "nowhere"][..], &["retry", "nowhere"], &["clear", "nowhere", "--reason", "x", "--yes"]]
    {
        refused(&run(&place, event), 1, &["OBR-8102", "no event nowhere of any consumer is known"]);
    }
    place.psql("SELECT FROM outbox_router.inbox_claim('c', 'e') c, outbox_router.inbox_claim('d', 'e') d");
    refused(&run(&place, &["show", "e", "--consumer", "x"]), 1, &["no event e of the consumer x is known"]);
    assert_eq!(run_json(&place, &["show", "e"]).as_array().unwrap().len(), 2);
    let clear = ["clear", "e", "--reason", "x", "--yes"];
    refused(&run(&place, &clear), 2, &["2 consumers have the event e", "--consumer with one of c, d"]);
    succeeded(run(&place, &[&clear[..], &["--consumer", "d"]].concat()), &["1 event forgotten"]);
    let ran = run(&place, &["retry", "e"]);
    refused(&ran, 1, &["OBR-8102", "the event e is processed", "inbox clear e --consumer c"]);
    keep(&ran.err, &[]);
    let consumers = place.psql("SELECT string_agg(consumer, ',') FROM outbox_router.inbox_consumers");
    assert_eq!(consumers.trim(), "c,d", "a misspelt name is not remembered");
}

#[test]
fn inbox_missing_is_said_with_the_command_that_installs_it() {
    let place = Place::new();
    let list = run(&place, &["list"]);
    refused(&list, 1, &["OBR-8101", "has no inbox", "outbox-router init --consumer --url"]);
    let url = place.url("postgres");
    let address = url.rsplit_once('@').unwrap().1.split('/').next().unwrap();
    keep(&list.err, &[(address, "HOST"), (&place.name, "NAME")]);
    let mut maintain = place.command(&["maintain", "--once", "--json", "--url", &url]);
    let ran = Ran::of(process::output(maintain.env_clear()));
    refused(&ran, 1, &["OBR-8101"]);
    assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap()["error_code"], "OBR-8101");
    let without = Ran::of(process::output(place.command(&["inbox", "list"]).env_clear()));
    refused(&without, 2, &["inbox needs --url"]);
}

/// A consumer's role reads no event, and decides about none.
#[test]
fn inbox_is_not_for_the_role_of_a_consumer() {
    let place = Place::new();
    let (url, role) = (place.url("postgres"), format!("{}_shipping", place.name));
    let mut init = place.command(&["init", "--consumer", "--url", &url, "--role", &role]);
    succeeded(Ran::of(process::output(init.env_clear())), &[]);
    put(&place, "e", 0);
    let as_role = |arguments: &[&str]| {
        let mut command = place.command(&["inbox"]);
        Ran::of(process::output(command.args(arguments).args(["--url", &place.url(&role)]).env_clear()))
    };
    succeeded(as_role(&["status"]), &["waiting"]);
    for denied in [&["list"][..], &["show", "e"], &["clear", "e", "--reason", "x", "--yes"]] {
        let ran = as_role(denied);
        refused(&ran, 1, &["permission denied", "Connect with --url as the administrator"]);
        assert!(!ran.err.contains("Events:"), "no router delays them: {ran:?}");
    }
}
