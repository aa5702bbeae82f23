//! Queries in an open session, and the choice of a host among real servers.

use std::fs;
use std::net::Ipv4Addr;

use outbox_router::error::{Error, Transient};
use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, Host, HostAddr, TargetSessionAttrs};
use pg_logical::session::Session;
use tokio::net::TcpSocket;
use tokio_postgres::error::SqlState;

use super::{Case, Expect, PLAIN, try_all};
use crate::support::postgres::{PrivatePostgres, conninfo};

const PG_HBA: &str = "host all all 127.0.0.1/32 trust\n";

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn sessions_run_queries_and_hosts_are_tried_in_order() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    queries(&server).await;
    walsender(&server).await;
    several_hosts(&server).await;
    read_only_server(&server).await;
    server_that_starts_up(&server).await;
}

async fn queries(server: &PrivatePostgres) {
    let conninfo =
        ConnInfo { options: Some("-c geqo=off".into()), ..conninfo([server.tcp("db")], "postgres") };
    let settings = [("search_path", r#""a b", c\d"#), ("wal_sender_timeout", "7s")];
    let startup =
        Startup { application_name: "shop.outbox router", settings: &settings, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await.unwrap();

    let rows = session.query("SELECT 'ä', NULL, '' UNION ALL SELECT 'b', 'c', 'd'").await.unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].get(0), rows[0].get(1), rows[0].get(2)), (Some("ä"), None, Some("")));
    assert_eq!((rows[0].len(), rows[0].get(3)), (3, None));
    for (setting, value) in [
        ("geqo", "off"),
        ("wal_sender_timeout", "7s"),
        ("search_path", r#""a b", c\d"#),
        ("application_name", "shop.outbox router"),
    ] {
        let shown = session.query_one(&format!("SHOW {setting}")).await.unwrap();
        assert_eq!(shown.as_deref(), Some(value), "{setting}");
    }
    assert_eq!(session.parameters()["in_hot_standby"], "off");
    let pid = session.query_one("SELECT pg_backend_pid()").await.unwrap().unwrap();
    assert_eq!(pid, session.backend_pid().to_string());
    assert!(session.query("").await.unwrap().is_empty());

    let refused = session.query("SELECT 1/0").await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::DIVISION_BY_ZERO));
    assert_eq!(refused.server_error().unwrap().severity, "ERROR");
    assert_eq!(
        session.query_one("SELECT 1").await.unwrap().as_deref(),
        Some("1"),
        "the session is still usable"
    );

    server.execute(&[&format!("SELECT pg_terminate_backend({pid}, 60000)")]).await;
    let ended = session.query("SELECT 1").await.unwrap_err();
    let Error::Transient(Transient { what, .. }) = ended.into() else { panic!("definite") };
    assert!(what.contains("db:"), "{what}");
}

async fn walsender(server: &PrivatePostgres) {
    let conninfo = conninfo([server.unix()], "postgres");
    let startup = Startup { replication: true, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await.unwrap();
    let system = session.query("IDENTIFY_SYSTEM").await.unwrap();
    assert_eq!((system.len(), system[0].get(3)), (1, Some("postgres")));
    assert_eq!(session.query_one("SELECT 2 + 3").await.unwrap().as_deref(), Some("5"));

    let twice = "CREATE_REPLICATION_SLOT s LOGICAL pgoutput";
    session.query(twice).await.unwrap();
    assert_eq!(session.query(twice).await.unwrap_err().code(), Some(&SqlState::DUPLICATE_OBJECT));
    session.query("DROP_REPLICATION_SLOT s").await.unwrap();

    let (_stream, unread, info) = session.into_parts();
    assert!(unread.is_empty());
    assert!(info.place.ends_with(&format!(".s.PGSQL.{}", server.port())), "{}", info.place);

    server.execute(&["CREATE ROLE weak LOGIN"]).await;
    let weak = ConnInfo { user: "weak".into(), ..self::conninfo([server.tcp("db")], "weak") };
    let refused = Session::connect(&weak, &startup).await.map_err(Error::from);
    let Err(Error::Definite(refused)) = refused else { panic!("accepted") };
    assert!(refused.what.contains("42501"), "{refused}");
    assert!(refused.remedy.to_string().contains("ALTER ROLE \"weak\" LOGIN REPLICATION"), "{refused}");
}

async fn several_hosts(server: &PrivatePostgres) {
    // bound but not listening, so connections are refused and no other process can take the port
    let dead = TcpSocket::new_v4().unwrap();
    dead.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let dead_host = || Host {
        addr: HostAddr::Tcp { name: "127.0.0.1".into(), hostaddr: None },
        port: dead.local_addr().unwrap().port(),
    };
    let no_socket = Host { addr: HostAddr::Unix("/nowhere".into()), port: 1 };
    let no_name = Host { addr: HostAddr::Tcp { name: "db.invalid".into(), hostaddr: None }, port: 5432 };
    try_all(vec![
        Case {
            name: "first dead",
            conninfo: conninfo([dead_host(), no_socket.clone(), server.tcp("db")], "postgres"),
            expect: PLAIN,
        },
        Case {
            name: "all dead",
            conninfo: conninfo([dead_host(), no_socket, no_name], "postgres"),
            expect: Expect::Transient(&[
                "user \"postgres\"",
                ": connection refused; /nowhere/.s.PGSQL.1: no such socket",
                "db.invalid:5432: cannot find the address",
            ]),
        },
    ])
    .await;
}

async fn read_only_server(server: &PrivatePostgres) {
    use TargetSessionAttrs as Attrs;
    let wanting = |target_session_attrs| ConnInfo {
        target_session_attrs,
        ..conninfo([server.tcp("db"), server.unix()], "postgres")
    };
    let read_only = Expect::Transient(&["db:", "read-only", "; /"]);
    try_all(vec![
        Case { name: "read-write", conninfo: wanting(Attrs::ReadWrite), expect: PLAIN },
        Case {
            name: "read-only",
            conninfo: wanting(Attrs::ReadOnly),
            expect: Expect::Transient(&["not read-only"]),
        },
    ])
    .await;
    server.configure(&[("default_transaction_read_only", "on")]).await;
    try_all(vec![
        Case { name: "any of a read-only server", conninfo: wanting(Attrs::Any), expect: PLAIN },
        Case {
            name: "read-write of a read-only server",
            conninfo: wanting(Attrs::ReadWrite),
            expect: read_only,
        },
        Case { name: "read-only of a read-only server", conninfo: wanting(Attrs::ReadOnly), expect: PLAIN },
        Case { name: "primary", conninfo: wanting(Attrs::Primary), expect: PLAIN },
        Case {
            name: "standby",
            conninfo: wanting(Attrs::Standby),
            expect: Expect::Transient(&["not a standby"]),
        },
        Case { name: "prefer-standby", conninfo: wanting(Attrs::PreferStandby), expect: PLAIN },
    ])
    .await;
    server.configure(&[("default_transaction_read_only", "off")]).await;
}

/// A standby without hot standby refuses connections for ever, as a server does while it starts up.
async fn server_that_starts_up(server: &PrivatePostgres) {
    fs::write(server.data().join("standby.signal"), "").unwrap();
    server.restart(&["hot_standby=off"]);
    try_all(vec![Case {
        name: "starting up",
        conninfo: conninfo([server.tcp("db"), server.unix()], "postgres"),
        expect: Expect::Transient(&["SQLSTATE 57P03", "db:", "; /"]),
    }])
    .await;
}
