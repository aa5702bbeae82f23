//! What REPLICATION allows. Postgres has no lesser right for reading a slot, so a stolen password of the router's role is worth
//! more than the outbox. Only pg_hba.conf limits it, and only as far as shown here.

use pg_logical::Environment;
use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::session::Session;

use crate::support::kafka::Kafka;
use crate::support::place::psql;
use crate::support::postgres::PrivatePostgres;
use crate::support::settings::Settings;

/// Admits the router's role to one database only.
const PG_HBA: &str = "host all postgres 127.0.0.1/32 trust\nhost shop router 127.0.0.1/32 trust\n";

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn replication_role_reads_all_changes_and_files_where_pg_hba_admits_it() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let url =
        |role: &str, database: &str| format!("postgres://{role}@127.0.0.1:{}/{database}", server.port());
    server.execute(&["CREATE DATABASE shop", "CREATE DATABASE bank"]).await;
    let settings = Settings::default()
        .set("postgres.url", url("postgres", "shop"))
        .set("kafka.'bootstrap.servers'", Kafka::shared().bootstrap);
    let init = settings.run(&["init", "--role", "router"]);
    assert_eq!(init.code, 0, "{init:?}");
    let as_router = |sql: &str| psql(&url("router", "shop"), &["-c", sql]);

    // it cannot read another role's table
    let made = psql(&url("postgres", "shop"), &["-c", "CREATE TABLE salaries (amount int)"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert!(as_router("TABLE salaries").err.contains("permission denied"));
    // but it can read every change of that table
    let made = as_router("SELECT pg_create_logical_replication_slot('curious', 'test_decoding')");
    assert_eq!(made.code, 0, "{made:?}");
    psql(&url("postgres", "shop"), &["-c", "INSERT INTO salaries VALUES (4711)"]);
    let read = as_router("SELECT data FROM pg_logical_slot_get_changes('curious', NULL, NULL)");
    assert!(read.out.contains("salaries") && read.out.contains("4711"), "{read:?}");
    // and it can drop another role's slot
    let made = psql(
        &url("postgres", "shop"),
        &["-c", "SELECT pg_create_physical_replication_slot('standby', true)"],
    );
    assert_eq!(made.code, 0, "{made:?}");
    let dropped = as_router("SELECT pg_drop_replication_slot('standby')");
    assert_eq!(dropped.code, 0, "{dropped:?}");

    // no line of pg_hba.conf names the database `replication`, so no role can stream physically like a standby
    let physical = psql(&format!("{}?replication=true", url("router", "")), &["-c", "IDENTIFY_SYSTEM"]);
    assert!(physical.err.contains("no pg_hba.conf entry for replication connection"), "{physical:?}");
    let elsewhere = psql(&url("router", "bank"), &["-c", "SELECT 1"]);
    assert!(elsewhere.err.contains("no pg_hba.conf entry"), "{elsewhere:?}");
    // but a walsender of that one database can copy all files, including those with the password hashes
    let conninfo = ConnInfo::parse(&url("router", "shop"), &Environment::empty()).unwrap();
    let startup = Startup { replication: true, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await.unwrap();
    let version = psql(&url("postgres", "shop"), &["-c", "SHOW server_version_num"]).out;
    let new_syntax = version.trim().parse::<u32>().unwrap() >= 150_000;
    let backup = if new_syntax { "BASE_BACKUP (CHECKPOINT 'fast')" } else { "BASE_BACKUP FAST" };
    let error = session.query(backup).await.unwrap_err();
    // `query` fails on the copy data, but not with a server error, so the backup was started
    assert!(error.server_error().is_none(), "{error}");
}
