//! Tests with the server of `TEST_POSTGRES_URL`, as a superuser; `scripts/test` starts one. Each test has its own database.

// tests fail by panicking
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::time::Duration;

use pg_logical::bulk_read::{self, Extent};
use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, SslMode};
use pg_logical::pgoutput::{Message, Value};
use pg_logical::replication::{
    Answer, Receiving, ReplicationMessage, ReplicationStream, StandbyStatus, StreamOf,
};
use pg_logical::session::Session;
use pg_logical::stream::Stream;
use pg_logical::{Environment, Error, Lsn, Remedy};
use tokio::time::timeout;

/// The time limit of each step of the server.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

fn server() -> ConnInfo {
    let url = std::env::var("TEST_POSTGRES_URL").expect("TEST_POSTGRES_URL names a server");
    ConnInfo::parse(&url, &Environment::process("PG").unwrap()).unwrap()
}

/// A database with a table of one column, and a publication for it.
struct Database {
    conninfo: ConnInfo,
    session: Session,
}

impl Database {
    async fn create(test: &str) -> Self {
        let dbname = format!("pg_logical_{test}_{}", std::process::id());
        let mut administrator = Session::connect(&server(), &Startup::default()).await.unwrap();
        administrator.query(&format!("CREATE DATABASE {dbname}")).await.unwrap();
        let conninfo = ConnInfo { dbname, ..server() };
        let mut session = Session::connect(&conninfo, &Startup::default()).await.unwrap();
        for sql in
            ["CREATE TABLE events (text text NOT NULL)", "CREATE PUBLICATION \"its events\" FOR TABLE events"]
        {
            session.query(sql).await.unwrap();
        }
        Database { conninfo, session }
    }

    async fn insert(&mut self, texts: &[&str]) {
        let rows: Vec<String> = texts.iter().map(|text| format!("('{text}')")).collect();
        self.session.query(&format!("INSERT INTO events VALUES {}", rows.join(", "))).await.unwrap();
    }

    async fn drop(self) {
        let mut administrator = Session::connect(&server(), &Startup::default()).await.unwrap();
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.conninfo.dbname);
        administrator.query(&sql).await.unwrap();
    }
}

/// Consumes the next message, and stores the text of an insert or the end of a transaction. Returns whether one had arrived.
fn take(stream: &mut ReplicationStream<Stream>, texts: &mut Vec<String>, ends: &mut Vec<Lsn>) -> bool {
    let Some((message, length)) = stream.peek().unwrap() else { return false };
    if let ReplicationMessage::XLogData { data, .. } = message {
        match Message::decode(data).unwrap() {
            Message::Insert(insert) => {
                let Some(Value::Text(text)) = insert.new.values().next() else { panic!("not text") };
                texts.push(String::from_utf8(text.to_vec()).unwrap());
            }
            Message::Commit(commit) => ends.push(commit.end_lsn),
            _ => {}
        }
    }
    stream.consume(length);
    true
}

#[tokio::test]
async fn the_stream_returns_commits_in_order_and_a_confirmation_moves_the_slot() {
    stream_of("stream_tls", SslMode::Require).await;
    stream_of("stream_tcp", SslMode::Disable).await;
}

async fn stream_of(name: &str, mode: SslMode) {
    let mut database = Database::create(name).await;
    database.conninfo.ssl_mode = mode;
    let slot = database.conninfo.dbname.clone();
    let create = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
    database.session.query(&create).await.unwrap();
    database.insert(&["one", "two"]).await;

    let startup = Startup { replication: true, ..Startup::default() };
    let session = Session::connect(&database.conninfo, &startup).await.unwrap();
    assert_eq!(session.is_tls(), mode == SslMode::Require);
    let (socket, unread, _) = session.into_parts();
    let what = StreamOf { slot: &slot, publication: "its events", start: Lsn::INVALID, messages: false };
    let mut stream = ReplicationStream::new(socket, unread).start(what).await.unwrap();
    database.insert(&["three"]).await;

    let (mut texts, mut ends) = (Vec::new(), Vec::new());
    timeout(STEP_TIMEOUT, async {
        while ends.len() < 2 {
            if !take(&mut stream, &mut texts, &mut ends) && !stream.gather().unwrap() {
                stream.io(Receiving::AtOnce).await.unwrap();
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(texts, ["one", "two", "three"]);
    let end = ends[1];

    stream.queue_status(StandbyStatus { written: end, flushed: end }, false);
    drop(stream.finish(None).await.unwrap());
    let position = format!("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'");
    let position: Lsn = database.session.query_one(&position).await.unwrap().unwrap().parse().unwrap();
    assert!(position >= end, "{position} is before {end}");

    let terminate = format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
    );
    database.session.query(&terminate).await.unwrap();
    let drop_slot = format!("SELECT pg_drop_replication_slot('{slot}')");
    timeout(STEP_TIMEOUT, async { while database.session.query(&drop_slot).await.is_err() {} })
        .await
        .unwrap();
    database.drop().await;
}

#[tokio::test]
async fn a_bulk_read_returns_the_same_messages_and_the_position_of_the_slot() {
    let mut database = Database::create("bulk").await;
    let mut reader = Session::connect(&database.conninfo, &Startup::default()).await.unwrap();
    let slot = database.conninfo.dbname.clone();
    let create = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', true)");
    reader.query(&create).await.unwrap();
    database.insert(&["one", "two"]).await;
    database.insert(&["three"]).await;

    let (socket, unread, _) = reader.into_parts();
    let mut stream = ReplicationStream::new(socket, unread);
    let extent = Extent { upto: Lsn(u64::MAX), rows: 1_000 };
    stream.bulk_read(&bulk_read::read_query(&slot, "its events", false, extent));
    let (mut texts, mut ends) = (Vec::new(), Vec::new());
    let answer = timeout(STEP_TIMEOUT, async {
        loop {
            while take(&mut stream, &mut texts, &mut ends) {}
            if let Some(answer) = stream.answer() {
                break answer;
            }
            stream.io(Receiving::AtOnce).await.unwrap();
        }
    })
    .await
    .unwrap();
    assert_eq!(texts, ["one", "two", "three"]);
    let Answer::BulkRead(read, position) = answer else { panic!("{answer:?}") };
    // two transactions of Begin and Commit, one Relation, three rows
    assert_eq!(read.rows, 8);
    let position: Lsn = position[0].as_deref().unwrap().parse().unwrap();
    assert!(position >= ends[1], "{position} is before {}", ends[1]);
    drop(stream);
    database.drop().await;
}

#[tokio::test]
async fn a_notification_is_kept_until_somebody_waits_for_it() {
    let mut database = Database::create("notification").await;
    let mut listener = Session::connect(&database.conninfo, &Startup::default()).await.unwrap();
    listener.query("LISTEN inserts").await.unwrap();
    // the wait is given up before anything arrives
    let waited = timeout(Duration::ZERO, listener.notification()).await;
    assert!(waited.is_err());
    for _ in 0..2 {
        database.session.query("NOTIFY inserts").await.unwrap();
        // one may come with the answer to a query
        listener.query("SELECT 1").await.unwrap();
        timeout(STEP_TIMEOUT, listener.notification()).await.unwrap().unwrap();
    }
    assert_eq!(listener.query_one("SELECT 1").await.unwrap().as_deref(), Some("1"));
    let terminate = format!("SELECT pg_terminate_backend({})", listener.backend_pid());
    database.session.query(&terminate).await.unwrap();
    let ended = timeout(STEP_TIMEOUT, listener.notification()).await.unwrap().unwrap_err();
    assert_eq!(ended.code().map(|code| code.code()), Some("57P01"), "{ended}");
    database.drop().await;
}

#[tokio::test]
async fn a_missing_database_is_a_definite_error_with_remedy_and_sqlstate() {
    let nowhere = ConnInfo { dbname: "nowhere".to_owned(), ..server() };
    let error = Session::connect(&nowhere, &Startup::default()).await.unwrap_err();
    assert_eq!(error.code().map(|code| code.code()), Some("3D000"), "{error}");
    let Error::Definite(error) = error else { panic!("{error}") };
    assert_eq!(error.remedy, Remedy::CorrectDatabase { dbname: "nowhere".to_owned() });
}

#[tokio::test]
async fn a_missing_slot_is_an_error_with_the_servers_sqlstate() {
    use pg_logical::replication::NotStarted;
    let startup = Startup { replication: true, ..Startup::default() };
    let (socket, unread, _) = Session::connect(&server(), &startup).await.unwrap().into_parts();
    let what = StreamOf { slot: "no_such_slot", publication: "p", start: Lsn::INVALID, messages: false };
    match ReplicationStream::new(socket, unread).start(what).await {
        Err(NotStarted::Server(error)) => assert_eq!(error.code.code(), "42704", "{error}"),
        other => panic!("{:?}", other.err()),
    }
}
