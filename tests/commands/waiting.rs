//! Commands that wait for a lock name the lock and its holder on standard error.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio_postgres::Client;

use crate::support::eventually::eventually;
use crate::support::outbox::connect;
use crate::support::place::{Place, Ran};
use crate::support::process;
use crate::support::shared;

/// Opens a session of an application, with a transaction that has run `sql`. Returns it with its process id.
async fn busy(place: &Place, sql: &str) -> (Client, i32) {
    let client = connect(&place.url("postgres")).await.unwrap();
    client.batch_execute(&format!("SET application_name = 'migration'; BEGIN; {sql}")).await.unwrap();
    let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    (client, pid)
}

/// A running command, and its standard error so far.
struct Running {
    child: Child,
    err: Arc<Mutex<String>>,
}

impl Running {
    fn start(place: &Place, arguments: &[&str]) -> Self {
        let mut child = process::start(&mut place.command(arguments));
        let err = Arc::new(Mutex::new(String::new()));
        let (lines, text) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&err));
        std::thread::spawn(move || lines.for_each(|line| *text.lock().unwrap() += &(line.unwrap() + "\n")));
        Running { child, err }
    }

    /// Waits for the line that names the lock and its holder. Returns all of standard error.
    async fn waits(&self, what: &str, pid: i32, place: &Place) -> String {
        let expected = format!(
            "waiting for {what}, blocked by server process {pid} (application_name migration, database {}, role postgres, \
             idle in transaction, transaction since 2",
            place.name
        );
        eventually(&format!("standard error has {expected:?}"), async || {
            let err = self.err.lock().unwrap().clone();
            err.contains(&expected).then_some(err)
        })
        .await
    }

    /// Waits for its end. Returns its exit code and its standard output.
    fn ends(mut self) -> (i32, String) {
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (self.child.wait().unwrap().code().unwrap(), out)
    }
}

/// Ends the command if a test fails.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
    let route = Running::start(&place, &["route", "--dry-run", "--json"]);
    let err = route.waits("AccessShareLock on table public.outbox", pid, &place).await;
    assert_eq!(err.lines().count(), 1, "{err}");
    client.batch_execute("COMMIT").await.unwrap();
    let (code, out) = route.ends();
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, shown.as_array().unwrap().len()), (0, 1), "{out}");
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
        let command = Running::start(&place, arguments);
        command.waits(&format!("{mode} on table outbox_router.dead_letters"), pid, &place).await;
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(command.ends(), (0, "[]\n".to_owned()));
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
    let advance = Running::start(&place, &["slot", "advance", "--yes", "--to", end.trim()]);
    advance.waits("an advisory lock", pid, &place).await;
    client.batch_execute("SELECT pg_advisory_unlock_all(); COMMIT").await.unwrap();
    let (code, out) = advance.ends();
    assert!(code == 0 && out.contains("The router resumes at"), "{out}");
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
    let init = Running::start(&place, &["init"]);
    init.waits("the end of a transaction", pid, &place).await;
    place.psql(&format!("SET lock_timeout = '1ms'; {emit}"));
    writer.batch_execute("COMMIT").await.unwrap();
    let (code, out) = init.ends();
    assert!(code == 0 && out.contains(&format!("publication \"{}\": created", place.name)), "{out}");
    // also while init itself waits for a lock
    place.psql(&format!("DROP PUBLICATION {}", place.name));
    let (_index, _) = busy(&place, "LOCK TABLE outbox IN SHARE UPDATE EXCLUSIVE MODE").await;
    let init = Running::start(&place, &["init"]);
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'outbox'::regclass AND NOT granted";
    eventually("init waits", async || (place.psql(waiting).trim() == "1").then_some(())).await;
    place.psql(&format!("SET lock_timeout = '1ms'; {emit}"));
    drop(init);
}
