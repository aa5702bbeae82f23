mod commands;

use std::future::poll_fn;

use super::*;
use crate::frames::GATHER_SIZE;
use crate::stream::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::UnixStream;

fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend((body.len() as u32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// How many bytes the server's side may leave unread.
const PIPE: usize = 4096;

fn idle_stream() -> (ReplicationStream<DuplexStream>, DuplexStream) {
    let (ours, theirs) = duplex(PIPE);
    (ReplicationStream::new(ours, Vec::new()), theirs)
}

async fn started() -> (ReplicationStream<DuplexStream>, DuplexStream) {
    let (stream, mut theirs) = idle_stream();
    theirs.write_all(&frame(b'W', &[0, 0, 0])).await.unwrap();
    let what = StreamOf { slot: "s\"lot", publication: "pub'lication", start: Lsn(0x10), messages: true };
    let stream = stream.start(what).await.unwrap();
    let expected = "START_REPLICATION SLOT \"s\"\"lot\" LOGICAL 0/10 (proto_version '1', publication_names \
                    '\"pub''lication\"', messages 'true')\0";
    let mut command = vec![0; expected.len() + 5];
    theirs.read_exact(&mut command).await.unwrap();
    assert_eq!(std::str::from_utf8(&command[5..]).unwrap(), expected);
    (stream, theirs)
}

fn keepalive(wal_end: u64, reply: u8) -> Vec<u8> {
    let mut body = vec![b'k'];
    body.extend(wal_end.to_be_bytes());
    body.extend(5i64.to_be_bytes());
    body.push(reply);
    frame(b'd', &body)
}

#[tokio::test]
async fn messages_are_borrowed_until_consumed() {
    let (mut stream, mut theirs) = started().await;
    let mut data = vec![b'w'];
    data.extend([0; 8]);
    data.extend(7u64.to_be_bytes());
    data.extend([0; 8]);
    data.extend(b"payload");
    theirs.write_all(&frame(b'N', b"\0")).await.unwrap();
    theirs.write_all(&frame(b'd', &data)).await.unwrap();
    theirs.write_all(&keepalive(9, 1)).await.unwrap();
    stream.io(Receiving::AtOnce).await.unwrap();
    for _ in 0..2 {
        let (message, _) = stream.peek().unwrap().unwrap();
        assert_eq!(message, ReplicationMessage::XLogData { wal_end: Lsn(7), data: b"payload" });
    }
    let (_, length) = stream.peek().unwrap().unwrap();
    stream.consume(length);
    let (message, length) = stream.peek().unwrap().unwrap();
    assert_eq!(
        message,
        ReplicationMessage::PrimaryKeepAlive { wal_end: Lsn(9), sent: PgTimestamp(5), reply_requested: true }
    );
    stream.consume(length);
    assert_eq!(stream.peek().unwrap(), None);
}

fn xlog_data(data: &[u8]) -> Vec<u8> {
    frame(b'd', &[b"w", &[0; 24][..], data].concat())
}

#[tokio::test]
async fn looking_ahead_sees_what_has_arrived_and_consumes_nothing() {
    let (mut stream, mut theirs) = started().await;
    let ahead = |stream: &ReplicationStream<_>| -> Vec<String> {
        let shown = |message| match message {
            ReplicationMessage::XLogData { data, .. } => String::from_utf8_lossy(data).into_owned(),
            ReplicationMessage::PrimaryKeepAlive { wal_end, .. } => wal_end.to_string(),
        };
        stream.look_ahead().map(shown).collect()
    };
    let partial = xlog_data(b"partial");
    let wire = [
        xlog_data(b"current"),
        xlog_data(b"a"),
        keepalive(9, 1),
        xlog_data(b"b"),
        frame(b'N', b"\0"),
        xlog_data(b"c"),
        partial[..9].to_vec(),
    ];
    theirs.write_all(&wire.concat()).await.unwrap();
    stream.io(Receiving::AtOnce).await.unwrap();
    for _ in 0..2 {
        let (current, _) = stream.peek().unwrap().unwrap();
        let ReplicationMessage::XLogData { data, .. } = current else { panic!("{current:?}") };
        assert_eq!(data, b"current");
        assert_eq!(ahead(&stream), ["a", "0/9", "b"], "a notice is handled first");
    }
    for _ in 0..4 {
        let (_, length) = stream.peek().unwrap().unwrap();
        stream.consume(length);
    }
    let (_, length) = stream.peek().unwrap().unwrap();
    assert_eq!(ahead(&stream), [""; 0], "the next one is incomplete");
    theirs.write_all(&partial[9..]).await.unwrap();
    stream.io(Receiving::AtOnce).await.unwrap();
    assert_eq!(ahead(&stream), ["partial"]);
    stream.consume(length);
    assert_eq!(ahead(&stream), [""; 0]);
}

#[tokio::test]
async fn feedback_never_starves_while_reading_is_paused() {
    let (mut stream, mut theirs) = started().await;
    stream.queue_status(StandbyStatus { written: Lsn(3), flushed: Lsn(2) }, true);
    let mut update = [0; 39];
    tokio::select! {
        error = stream.io(Receiving::Paused) => panic!("ended: {error:?}"),
        read = theirs.read_exact(&mut update) => { read.unwrap(); }
    }
    assert_eq!(update[..6], [b'd', 0, 0, 0, 38, b'r']);
    assert_eq!(
        update[6..30],
        [[0, 0, 0, 0, 0, 0, 0, 3], [0, 0, 0, 0, 0, 0, 0, 2], [0, 0, 0, 0, 0, 0, 0, 2]].concat()
    );
    assert_eq!(update[38], 1, "asks for a reply");
}

async fn over_a_unix_socket() -> (ReplicationStream<Stream>, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&frame(b'W', &[0, 0, 0])).await.unwrap();
    let what = StreamOf { slot: "s", publication: "p", start: Lsn(0), messages: false };
    let stream = ReplicationStream::new(Stream::Unix(ours), Vec::new()).start(what).await.unwrap();
    let mut command = vec![0; 4096];
    assert_ne!(theirs.read(&mut command).await.unwrap(), 0);
    (stream, theirs)
}

#[tokio::test]
async fn gather_reads_without_the_runtime() {
    let (mut stream, theirs) = over_a_unix_socket().await;
    assert!(!stream.gather().unwrap(), "nothing has arrived");
    for wal_end in [1, 2] {
        theirs.try_write(&keepalive(wal_end, 0)).unwrap();
    }
    assert!(stream.gather().unwrap());
    assert_eq!((next(&mut stream), next(&mut stream), next(&mut stream)), (Some(1), Some(2), None));
    // only a waiting reader sees the end of the stream
    drop(theirs);
    assert!(!stream.gather().unwrap());
    assert!(stream.io(Receiving::AtOnce).await.is_err());
}

#[tokio::test]
async fn last_read_was_large_after_a_large_read_only() {
    let (mut stream, mut theirs) = over_a_unix_socket().await;
    fill(&mut theirs, 0);
    stream.io(Receiving::AtOnce).await.unwrap();
    assert!(stream.last_read_was_large());
    while next(&mut stream).is_some() {}
    theirs.try_write(&keepalive(0, 0)).unwrap();
    stream.io(Receiving::AtOnce).await.unwrap();
    assert!(!stream.last_read_was_large());
}

#[tokio::test]
async fn the_last_message_of_a_server_that_closed_the_connection_is_read() {
    for gathers in [true, false] {
        let (mut stream, theirs) = over_a_unix_socket().await;
        stream.queue_status(StandbyStatus { written: Lsn(1), flushed: Lsn(1) }, false);
        let sent = poll_fn(|context| std::task::Poll::Ready(stream.poll_io(context, false))).await;
        assert!(sent.is_pending(), "sent, and nothing is waited for");
        theirs.try_write(&frame(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating\0\0")).unwrap();
        // closing with unread bytes turns the end into an error
        drop(theirs);
        // sending fails from now on
        stream.queue_status(StandbyStatus { written: Lsn(1), flushed: Lsn(1) }, false);
        match gathers {
            true => assert!(stream.gather().unwrap()),
            false => stream.io(Receiving::Paused).await.unwrap(),
        }
        assert!(stream.peek().is_err());
        assert!(stream.was_terminated(), "{gathers}");
        assert!(stream.io(Receiving::AtOnce).await.is_err());
    }
}

#[tokio::test]
async fn the_last_message_after_unread_changes_is_read() {
    let (mut stream, theirs) = over_a_unix_socket().await;
    theirs.try_write(&change(1)).unwrap();
    theirs.try_write(&frame(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating\0\0")).unwrap();
    drop(theirs);
    assert!(!stream.was_terminated());
    stream.read_final_message().await;
    assert!(stream.was_terminated());
}

/// A change of a few hundred bytes.
fn change(number: u64) -> Vec<u8> {
    let mut body = vec![b'w'];
    body.extend([0; 8]);
    body.extend(number.to_be_bytes());
    body.extend([0; 408]);
    frame(b'd', &body)
}

/// Writes changes until the socket is full, numbered from `from`; returns the next number.
fn fill(socket: &mut UnixStream, mut from: u64) -> u64 {
    let socket = socket2::SockRef::from(&*socket);
    // a unix socket accepts a small message completely or not at all
    while let Ok(written) = std::io::Write::write(&mut &*socket, &change(from)) {
        assert_eq!(written, change(from).len());
        from += 1;
    }
    from
}

/// The number of the next message, which is consumed.
fn next(stream: &mut ReplicationStream<Stream>) -> Option<u64> {
    let (message, length) = stream.peek().unwrap()?;
    let (ReplicationMessage::PrimaryKeepAlive { wal_end, .. } | ReplicationMessage::XLogData { wal_end, .. }) =
        message;
    stream.consume(length);
    Some(wal_end.0)
}

#[tokio::test]
async fn a_socket_with_a_small_buffer_is_read_while_messages_are_processed() {
    for gathers in [true, false] {
        let (mut stream, mut theirs) = over_a_unix_socket().await;
        let whole = READ_EVERY.div_ceil(change(0).len()) as u64;
        for number in 0..whole + 1 {
            theirs.write_all(&change(number)).await.unwrap();
        }
        match gathers {
            true => assert!(stream.gather().unwrap()),
            false => stream.io(Receiving::AtOnce).await.unwrap(),
        }
        let end = fill(&mut theirs, whole + 1);
        for number in 0..whole {
            assert_eq!(next(&mut stream), Some(number));
        }
        let room = fill(&mut theirs, end) > end;
        assert_eq!(room, gathers);
        // nothing is lost, and nothing arrives twice
        for number in whole..end {
            let seen = match next(&mut stream) {
                Some(seen) => seen,
                None => {
                    stream.io(Receiving::AtOnce).await.unwrap();
                    next(&mut stream).unwrap()
                }
            };
            assert_eq!(seen, number);
        }
    }
}

#[tokio::test]
async fn reading_between_messages_is_bounded() {
    let (mut stream, theirs) = over_a_unix_socket().await;
    let server = std::thread::spawn(move || {
        let mut theirs = theirs.into_std().unwrap();
        theirs.set_nonblocking(false).unwrap();
        let mut number = 0;
        while std::io::Write::write_all(&mut theirs, &change(number)).is_ok() {
            number += 1;
        }
    });
    stream.io(Receiving::AtOnce).await.unwrap();
    stream.gather().unwrap();
    let (mut seen, length) = (0, change(0).len());
    // a server that never stops sending must not keep the reader from other work
    while let Some(number) = next(&mut stream) {
        assert_eq!(number, seen);
        seen += 1;
    }
    assert!(seen as usize * length < 3 * GATHER_SIZE, "{seen}");
    drop(stream);
    server.join().unwrap();
}

#[tokio::test]
async fn data_is_read_while_a_status_update_cannot_be_sent() {
    let (mut stream, mut theirs) = started().await;
    for _ in 0..2 * PIPE / 39 {
        stream.queue_status(StandbyStatus { written: Lsn(1), flushed: Lsn(1) }, false);
    }
    theirs.write_all(&keepalive(5, 0)).await.unwrap();
    stream.io(Receiving::AtOnce).await.unwrap();
    assert!(stream.peek().unwrap().is_some());
}

#[tokio::test]
async fn the_end_of_the_stream_is_transient() {
    for bytes in [frame(b'c', b""), frame(b'd', b""), frame(b'd', b"x"), vec![b'd', 0, 0, 0, 0], vec![]] {
        let (mut stream, mut theirs) = started().await;
        theirs.write_all(&bytes).await.unwrap();
        drop(theirs);
        let failed = match stream.io(Receiving::AtOnce).await {
            Ok(()) => stream.peek().map(|_| ()),
            Err(error) => Err(error),
        };
        assert!(matches!(failed, Err(Error::Transient(_))), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_is_called_so() {
    let (mut stream, theirs) = over_a_unix_socket().await;
    stream.failed =
        Some(io::Error::new(io::ErrorKind::UnexpectedEof, "without TLS close_notify: https://docs.rs"));
    drop(theirs);
    let error = stream.io(Receiving::AtOnce).await.unwrap_err();
    assert_eq!(error.to_string(), "the replication stream broke: the server closed the connection");
}

#[tokio::test]
async fn the_servers_refusal_to_start_keeps_its_code() {
    let (stream, mut theirs) = idle_stream();
    let body = b"SERROR\0VERROR\0C55006\0Mreplication slot \"x\" is active for PID 7\0\0";
    theirs.write_all(&frame(b'E', body)).await.unwrap();
    let what = StreamOf { slot: "x", publication: "p", start: Lsn(0), messages: false };
    match stream.start(what).await {
        Err(NotStarted::Server(error)) => assert_eq!(error.code.code(), "55006"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn finishing_waits_until_the_server_has_read_everything() {
    let (mut stream, mut theirs) = started().await;
    stream.queue_status(StandbyStatus { written: Lsn(3), flushed: Lsn(3) }, false);
    let server = async {
        let mut bytes = [0; 39 + 5];
        theirs.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes[39..], [b'c', 0, 0, 0, 4]);
        theirs.write_all(&keepalive(5, 0)).await.unwrap();
        theirs.write_all(&frame(b'c', b"")).await.unwrap();
        theirs.write_all(&frame(b'C', b"COPY 0\0")).await.unwrap();
        theirs.write_all(&frame(b'Z', b"I")).await.unwrap();
    };
    let (finished, ()) = tokio::join!(stream.finish(None), server);
    finished.unwrap();
}
