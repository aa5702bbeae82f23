//! The role of `init --role` can run the router, but can read and change no table except the router's own. What REPLICATION still allows it is in
//! `security::replication_role`.

use pg_logical::Environment;
use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::session::Session;

use super::check::Found;
use crate::support::eventually::eventually;
use crate::support::place::{Place, psql};
use crate::support::process;

fn role(place: &Place) -> String {
    let role = format!("{}_router", place.name);
    let ran = place.run(&["init", "--role", &role]);
    assert_eq!(ran.code, 0, "{ran:?}");
    role
}

#[tokio::test]
async fn it_can_stream_the_outbox() {
    let place = Place::new();
    let role = role(&place);
    // PUBLIC may connect by default; a careful administrator revokes that
    place.psql(&format!("REVOKE ALL ON DATABASE {} FROM PUBLIC", place.name));
    let conninfo = ConnInfo::parse(&place.url(&role), &Environment::empty()).unwrap();
    let startup = Startup { replication: true, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await.unwrap();
    place.psql("SELECT outbox_router.emit('order', '1', 'placed', '{}')");
    let sql = format!(
        "START_REPLICATION SLOT {0} LOGICAL 0/0 (proto_version '1', publication_names '{0}')",
        place.name
    );
    // `query` fails on CopyBoth, but not with a server error, so the stream was started
    let error = session.query(&sql).await.unwrap_err();
    assert!(error.server_error().is_none(), "{error}");
}

#[test]
fn it_cannot_do_anything_else() {
    let place = Place::new();
    let role = role(&place);
    place.psql("CREATE TABLE orders (id int)");
    for (sql, refusal) in [
        ("TABLE public.outbox", "permission denied for table outbox"),
        ("TABLE public.orders", "permission denied for table orders"),
        ("INSERT INTO public.outbox DEFAULT VALUES", "permission denied for table outbox"),
        ("SELECT outbox_router.emit('a', 'b', 'c', NULL)", "permission denied for"),
        ("CREATE SCHEMA mine", "permission denied for database"),
        ("CREATE ROLE mine", "permission denied to create role"),
        ("CREATE DATABASE mine", "permission denied to create database"),
        ("SELECT pg_read_file('postgresql.conf')", "permission denied for function pg_read_file"),
    ] {
        let ran = psql(&place.url(&role), &["-c", sql]);
        assert!(ran.code != 0 && ran.err.contains(refusal), "{sql}: {ran:?}");
    }
}

#[test]
fn it_reads_and_writes_the_tables_of_the_router_and_no_other() {
    let place = Place::new().with("DEAD_LETTERS__POLICY", "park");
    let role = role(&place);
    for sql in [
        "TABLE outbox_router.dead_letters",
        "DELETE FROM outbox_router.dead_letters",
        "INSERT INTO outbox_router.slots (slot) VALUES ('s')",
        "UPDATE outbox_router.slots SET router = 'r'",
        "TABLE outbox_router.slots",
    ] {
        let ran = psql(&place.url(&role), &["-c", sql]);
        assert_eq!(ran.code, 0, "{sql}: {ran:?}");
    }
    for (sql, refusal) in [
        ("TRUNCATE outbox_router.dead_letters", "permission denied for table dead_letters"),
        ("DELETE FROM outbox_router.slots", "permission denied for table slots"),
        (
            "TABLE outbox_router.refinery_schema_history",
            "permission denied for table refinery_schema_history",
        ),
        ("TABLE public.outbox", "permission denied for table outbox"),
        ("SELECT outbox_router.emit('a', 'b', 'c', NULL)", "permission denied"),
    ] {
        let ran = psql(&place.url(&role), &["-c", sql]);
        assert!(ran.code != 0 && ran.err.contains(refusal), "{sql}: {ran:?}");
    }
}

#[test]
fn check_accepts_it() {
    let place = Place::new();
    let role = role(&place);
    let place = {
        let url = place.url(&role);
        place.with("POSTGRES__URL", &url)
    };
    let ran = place.run(&["check"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("is not a superuser"), "{ran:?}");
}

#[tokio::test]
async fn a_running_router_is_named_as_the_reader_of_the_slot() {
    let place = Place::new();
    let role = role(&place);
    let url = place.url(&role);
    let place = place.with("POSTGRES__URL", &url);
    let mut router = process::start(&mut place.command(&["run"]));
    let reader = format!("application_name {0}.{0}", place.name);
    let found = eventually("check names the router", async || {
        Some(Found::at(&place)).filter(|found| found.of("slot").contains(&reader))
    })
    .await;
    assert!(found.code == 0 && found.of("slot").starts_with("ok"), "{}", found.of("slot"));
    assert!(place.run(&["status"]).out.contains(&reader));
    router.kill().unwrap();
    router.wait().unwrap();
}
