//! Commands that wait for a lock name the lock and its holder on standard error.

use serde_json::Value;
use tokio_postgres::Client;

use crate::support::eventually::eventually;
use crate::support::outbox::connect;
use crate::support::place::{Place, Ran, succeeded};
use crate::support::running::Running;
use crate::support::shared;

/// Opens a session of an application, with a transaction that has run `sql`. Returns it with its process id.
async fn busy(place: &Place, sql: &str) -> (Client, i32) {
    let client = connect(&place.url("postgres")).await.unwrap();
    client.batch_execute(&format!("SET application_name = 'migration'; BEGIN; {sql}")).await.unwrap();
    let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    (client, pid)
}

/// Starts a command that has to wait for `what`, which the process `pid` blocks. Returns once standard error names both.
async fn waits(place: &Place, arguments: &[&str], what: &str, pid: i32) -> (Running, String) {
    let running = Running::start(&mut place.command(arguments));
    let expected = format!(
        "waiting for {what}, blocked by server process {pid} (application_name migration, database {}, role postgres, \
         idle in transaction, transaction since 2",
        place.name
    );
    let err = running.says(&expected).await;
    (running, err)
}

fn parking() -> Place {
    let place = Place::on(shared::postgres_with_long_transactions()).with("DEAD_LETTERS__POLICY", "park");
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    place
}

/// `route` waits without a time limit.
#[tokio::test]
async fn waiting_route_names_the_holder_of_the_table_lock() {
    let place = parking();
    place.psql("SELECT outbox_router.emit('order', '1', 'placed', '{}')");
    let (client, pid) = busy(&place, "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE").await;
    let what = "AccessShareLock on table public.outbox";
    let (route, err) = waits(&place, &["route", "--dry-run", "--json"], what, pid).await;
    assert_eq!(err.lines().count(), 1, "{err}");
    client.batch_execute("COMMIT").await.unwrap();
    let ran = route.ends().await;
    let shown: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, shown.as_array().unwrap().len()), (0, 1), "{ran:?}");
}

/// Runs a command that gives up, until it has had the time to find out who holds the lock.
async fn gives_up(place: &Place, arguments: &[&str], holder: &str) -> Ran {
    eventually(&format!("the error says {holder:?}"), async || {
        let ran = place.run(arguments);
        assert_eq!(ran.code, 1, "{ran:?}");
        let found = format!("{}{}", ran.out, &ran.err[ran.err.rfind("error: ").unwrap_or(ran.err.len())..]);
        found.contains(holder).then_some(ran)
    })
    .await
}

async fn check_times_out(table: &str) {
    let place = parking();
    let (_client, pid) = busy(&place, &format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")).await;
    let holder = format!("waiting for AccessShareLock on table {table}, blocked by server process {pid} (");
    let check = gives_up(&place, &["check", "--json"], &holder).await;
    assert!(check.err.contains(&holder), "{}", check.err);
    let report: Value = serde_json::from_str(&check.out).unwrap();
    let text = report.to_string();
    let finding = format!("gave no answer within 10 s: {holder}");
    assert!(text.contains(&finding) && text.contains("run check again"), "{text}");
}

#[tokio::test]
async fn waiting_check_names_the_holder_of_the_outboxs_lock_and_times_out() {
    check_times_out("public.outbox").await;
}

#[tokio::test]
async fn waiting_check_names_the_holder_of_the_dead_letters_lock_and_times_out() {
    check_times_out("outbox_router.dead_letters").await;
}

#[tokio::test]
async fn waiting_dead_letters_name_the_holder_of_the_table_lock() {
    let place = parking();
    for (arguments, mode) in [
        (&["dead-letters", "list", "--json"][..], "AccessShareLock"),
        (&["dead-letters", "retry", "--all", "--json"], "AccessShareLock"),
    ] {
        let (client, pid) =
            busy(&place, "LOCK TABLE outbox_router.dead_letters IN ACCESS EXCLUSIVE MODE").await;
        let what = format!("{mode} on table outbox_router.dead_letters");
        let (command, _) = waits(&place, arguments, &what, pid).await;
        client.batch_execute("COMMIT").await.unwrap();
        let ran = command.ends().await;
        assert_eq!((ran.code, ran.out.as_str()), (0, "[]\n"));
    }
}

#[tokio::test]
async fn waiting_dead_letters_that_do_not_get_the_lock_in_time_exit_with_the_reason() {
    let place = parking();
    let (_client, pid) = busy(&place, "LOCK TABLE outbox_router.dead_letters IN ACCESS EXCLUSIVE MODE").await;
    let holder = format!("blocked by server process {pid} (");
    let ran = gives_up(&place, &["dead-letters", "list", "--json"], &holder).await;
    assert!(ran.out.starts_with("{\"error_code\""), "{ran:?}");
    assert!(ran.err[ran.err.rfind("error: ").unwrap()..].contains(&holder), "{ran:?}");
}

/// A command that moves the slot waits for another one that holds the slot's lock.
#[tokio::test]
async fn waiting_slot_advance_names_the_holder_of_the_slot_lock() {
    let place = parking();
    let lock = format!("SELECT pg_advisory_lock(hashtextextended('outbox-router slot {}', 0))", place.name);
    let (client, pid) = busy(&place, &lock).await;
    place.psql("SELECT outbox_router.emit('order', '1', 'placed', '{}')");
    let end = place.psql("SELECT pg_current_wal_flush_lsn()");
    let arguments = ["slot", "advance", "--yes", "--to", end.trim()];
    let (advance, _) = waits(&place, &arguments, "an advisory lock", pid).await;
    client.batch_execute("SELECT pg_advisory_unlock_all(); COMMIT").await.unwrap();
    succeeded(advance.ends().await, &["The router resumes at"]);
}

/// `init` creates the publication while another session holds a conflicting lock on the outbox.
#[tokio::test]
async fn waiting_init_gives_up_and_names_the_holder_of_the_lock() {
    let place = parking();
    let slot = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ";
    place.psql(&format!("DROP PUBLICATION {}; {slot}'{}'", place.name, place.name));
    // the lock of VACUUM and CREATE INDEX CONCURRENTLY
    let (client, pid) = busy(&place, "LOCK TABLE outbox IN SHARE UPDATE EXCLUSIVE MODE").await;
    let waits = format!(
        "waiting for ShareUpdateExclusiveLock on table public.outbox, blocked by server process {pid} (application_name"
    );
    let ran = gives_up(&place, &["init"], &waits).await;
    let last = &ran.err[ran.err.rfind("error: ").unwrap()..];
    assert!(last.contains(&format!("cannot create the publication \"{}\": ", place.name)), "{last}");
    assert!(last.contains("and run init again"), "{last}");
    // in the final error, and once while it waits, unless the machine is too busy for that
    assert!((1..=2).contains(&ran.err.matches(&waits).count()), "{}", ran.err);
    client.batch_execute("COMMIT").await.unwrap();
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// Writers of the application never wait for `init`.
#[tokio::test]
async fn waiting_init_does_not_block_writers_of_an_existing_table() {
    let place = parking();
    let slot = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ";
    place.psql(&format!("DROP PUBLICATION {}; {slot}'{}'", place.name, place.name));
    let emit = "SELECT outbox_router.emit('order', '1', 'placed', '{}')";
    let (writer, pid) = busy(&place, emit).await;
    let (init, _) = waits(&place, &["init"], "the end of a transaction", pid).await;
    place.psql(&format!("SET lock_timeout = '1ms'; {emit}"));
    writer.batch_execute("COMMIT").await.unwrap();
    succeeded(init.ends().await, &[&format!("publication \"{}\": created", place.name)]);
    // also while init itself waits for a lock
    place.psql(&format!("DROP PUBLICATION {}", place.name));
    let (_index, _) = busy(&place, "LOCK TABLE outbox IN SHARE UPDATE EXCLUSIVE MODE").await;
    let init = Running::start(&mut place.command(&["init"]));
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'outbox'::regclass AND NOT granted";
    eventually("init waits", async || (place.psql(waiting).trim() == "1").then_some(())).await;
    place.psql(&format!("SET lock_timeout = '1ms'; {emit}"));
    drop(init);
}
