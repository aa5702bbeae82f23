//! How far REPLICATION reaches, which Postgres knows no lesser right for: a stolen password of the router's role is worth more than
//! the outbox. What keeps it in is pg_hba.conf, and only as far as shown here.

use pg_logical::Environment;
use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::session::Session;

use crate::support::kafka::Kafka;
use crate::support::place::psql;
use crate::support::postgres::PrivatePostgres;
use crate::support::settings::Settings;

/// Who is not the tests' own superuser comes into one database, and in no other way.
const PG_HBA: &str = "host all postgres 127.0.0.1/32 trust\nhost shop router 127.0.0.1/32 trust\n";

#[tokio::test]
async fn replication_role_reads_all_changes_and_all_files_where_pg_hba_lets_it_in() {
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

    // a table of its own is what it cannot read
    let made = psql(&url("postgres", "shop"), &["-c", "CREATE TABLE salaries (amount int)"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert!(as_router("TABLE salaries").err.contains("permission denied"));
    // and yet each change of it
    let made = as_router("SELECT pg_create_logical_replication_slot('curious', 'test_decoding')");
    assert_eq!(made.code, 0, "{made:?}");
    psql(&url("postgres", "shop"), &["-c", "INSERT INTO salaries VALUES (4711)"]);
    let read = as_router("SELECT data FROM pg_logical_slot_get_changes('curious', NULL, NULL)");
    assert!(read.out.contains("salaries") && read.out.contains("4711"), "{read:?}");
    // nor does a slot of another's outlast it
    let made = psql(
        &url("postgres", "shop"),
        &["-c", "SELECT pg_create_physical_replication_slot('standby', true)"],
    );
    assert_eq!(made.code, 0, "{made:?}");
    let dropped = as_router("SELECT pg_drop_replication_slot('standby')");
    assert_eq!(dropped.code, 0, "{dropped:?}");

    // no line of pg_hba.conf names the database `replication`, so nobody streams the cluster as a standby does
    let physical = psql(&format!("{}?replication=true", url("router", "")), &["-c", "IDENTIFY_SYSTEM"]);
    assert!(physical.err.contains("no pg_hba.conf entry for replication connection"), "{physical:?}");
    let elsewhere = psql(&url("router", "bank"), &["-c", "SELECT 1"]);
    assert!(elsewhere.err.contains("no pg_hba.conf entry"), "{elsewhere:?}");
    // but a walsender of the one database copies all files too, those with the hashes of passwords among them
    let conninfo = ConnInfo::parse(&url("router", "shop"), &Environment::empty()).unwrap();
    let startup = Startup { replication: true, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await.unwrap();
    let version = psql(&url("postgres", "shop"), &["-c", "SHOW server_version_num"]).out;
    let at_once = version.trim().parse::<u32>().unwrap() >= 150_000;
    let backup = if at_once { "BASE_BACKUP (CHECKPOINT 'fast')" } else { "BASE_BACKUP FAST" };
    let error = session.query(backup).await.unwrap_err();
    // the copy that comes is no answer to a query: that it comes is the point
    assert!(error.server_error().is_none(), "{error}");
}
