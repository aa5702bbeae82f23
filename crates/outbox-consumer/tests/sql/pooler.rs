//! The typed calls behind a transaction pooler, where each transaction may run in another session of the server.

use std::io;
use std::time::Duration;

use outbox_consumer::{Begun, Claim, IdempotencyKey, Inbox, KeyTimes, KnownKey, StoredResponse, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::{Client, Config, NoTls};

use crate::support::Database;

/// A client of a pooler that gives each transaction to the session that did not have the last one.
async fn pooled(database: &Database) -> Client {
    let config: Config = database.url().parse().unwrap();
    let tokio_postgres::config::Host::Tcp(host) = &config.get_hosts()[0] else { panic!("no TCP") };
    let server = (host.clone(), config.get_ports()[0]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let servers =
            [TcpStream::connect(server.clone()).await.unwrap(), TcpStream::connect(server).await.unwrap()];
        // ends with the client
        let _ = pool(client, servers).await;
    });
    let user = config.get_user().unwrap();
    let url = format!("postgres://{user}@127.0.0.1:{port}/{}", config.get_dbname().unwrap());
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn pool(mut client: TcpStream, mut servers: [TcpStream; 2]) -> io::Result<()> {
    let mut startup = client.read_u32().await?.to_be_bytes().to_vec();
    read_rest(&mut client, &mut startup).await?;
    for (n, server) in servers.iter_mut().enumerate() {
        server.write_all(&startup).await?;
        let (greeting, _) = answers(server).await?;
        if n == 0 {
            client.write_all(&greeting).await?;
        }
    }
    for turn in 0.. {
        let server = &mut servers[turn % 2];
        loop {
            let mut sent = Vec::new();
            // up to Sync or a simple query
            while !matches!(message(&mut client, &mut sent).await?, b'S' | b'Q') {}
            server.write_all(&sent).await?;
            let (answers, status) = answers(server).await?;
            client.write_all(&answers).await?;
            if status == b'I' {
                break;
            }
        }
    }
    Ok(())
}

/// The server's messages up to ReadyForQuery, and the status of the transaction in that.
async fn answers(server: &mut TcpStream) -> io::Result<(Vec<u8>, u8)> {
    let mut answers = Vec::new();
    while message(server, &mut answers).await? != b'Z' {}
    let status = answers[answers.len() - 1];
    Ok((answers, status))
}

/// Appends a message. Returns its type.
async fn message(from: &mut TcpStream, to: &mut Vec<u8>) -> io::Result<u8> {
    let kind = from.read_u8().await?;
    let mut message = from.read_u32().await?.to_be_bytes().to_vec();
    read_rest(from, &mut message).await?;
    to.push(kind);
    to.append(&mut message);
    Ok(kind)
}

/// The rest of a message that begins with its length.
async fn read_rest(from: &mut TcpStream, message: &mut Vec<u8>) -> io::Result<()> {
    let length = u32::from_be_bytes(message[..4].try_into().unwrap());
    message.resize(length as usize, 0);
    from.read_exact(&mut message[4..]).await.map(drop)
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn each_call_may_run_in_another_session() {
    let database = Database::new().await;
    let (client, inbox) = (pooled(&database).await, Inbox::new("pooled"));
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let pid = client.query_typed_one("SELECT pg_backend_pid()", &[]).await.unwrap();
        sessions.push(pid.get::<_, i32>(0));
    }
    assert!(sessions[0] != sessions[1] && sessions[0] == sessions[2], "{sessions:?}");

    assert_eq!(inbox.claim(&client, "a").await.unwrap(), Claim::Fresh);
    assert_eq!(inbox.claim(&client, "a").await.unwrap(), Claim::Done(None));
    assert_eq!(inbox.claim_batch(&client, &["a", "b"]).await.unwrap(), ["b"]);
    assert!(inbox.newer(&client, "order", 1).await.unwrap());
    assert!(!inbox.newer(&client, "order", 1).await.unwrap());
    let sequence = "000000000016b3740000000000000002";
    assert!(inbox.newer_in_log(&client, "customer", sequence).await.unwrap());
    assert!(!inbox.newer_in_log(&client, "customer", sequence).await.unwrap());

    let minute = Some(MINUTE);
    assert!(inbox.put(&client, "c", b"{}", None, Some("7")).await.unwrap());
    let next = inbox.next(&client, 10, minute).await.unwrap();
    assert_eq!((next[0].sequence.as_deref(), next[0].attempt), (Some("7"), 1));
    assert_eq!(next.iter().map(|event| event.id.as_str()).collect::<Vec<_>>(), ["c"]);
    assert!(inbox.next(&client, 10, minute).await.unwrap().is_empty());
    assert!(inbox.fail(&client, &next[0], "busy").await.unwrap());
    assert!(!inbox.fail(&client, &next[0], "busy").await.unwrap(), "it has no lease any more");
    assert!(!inbox.done(&client, &next[0]).await.unwrap());
    assert!(inbox.put(&client, "f", b"{}", None, None).await.unwrap());
    let next = inbox.next(&client, 10, minute).await.unwrap();
    assert_eq!(inbox.done_all(&client, &next).await.unwrap(), 1);
    assert_eq!(inbox.done_all(&client, &[]).await.unwrap(), 0);

    let (token, other) = (Token::random(), Token::random());
    for _ in 0..2 {
        assert_eq!(
            inbox.start(&client, "d", token, MINUTE).await.unwrap(),
            Claim::Fresh,
            "the answer was lost"
        );
    }
    assert!(matches!(inbox.start(&client, "d", other, MINUTE).await.unwrap(), Claim::Busy(Some(_))));
    assert!(inbox.extend(&client, "d", token, MINUTE).await.unwrap().is_some());
    assert_eq!(inbox.extend(&client, "d", other, MINUTE).await.unwrap(), None);
    assert!(!inbox.finish(&client, "d", other, None).await.unwrap());
    assert!(inbox.finish(&client, "d", token, Some("7")).await.unwrap());
    assert_eq!(inbox.start(&client, "d", other, MINUTE).await.unwrap(), Claim::Done(Some("7".to_owned())));

    let (key, times) =
        (IdempotencyKey::new("pooled", "k"), KeyTimes { lease: minute, ..KeyTimes::default() });
    assert_eq!(key.begin(&client, token, &[0; 32], times).await.unwrap(), Begun::New);
    let response = StoredResponse { status: 201, ..StoredResponse::default() };
    assert!(key.finish(&client, token, &response).await.unwrap());
    assert_eq!(
        key.begin(&client, other, &[0; 32], times).await.unwrap(),
        Begun::Known(KnownKey::Replay(response))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_with_several_calls_stays_in_one_session() {
    let database = Database::new().await;
    let (mut client, inbox) = (pooled(&database).await, Inbox::new("pooled"));
    for (event, commits) in [("a", false), ("a", true), ("b", true)] {
        let transaction = client.transaction().await.unwrap();
        assert_eq!(inbox.claim(&transaction, event).await.unwrap(), Claim::Fresh);
        inbox.store_result(&transaction, event, "7").await.unwrap();
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
    }
    assert_eq!(inbox.claim(&client, "a").await.unwrap(), Claim::Done(Some("7".to_owned())));
}
