use super::*;
use crate::postgres::stream::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::UnixStream;

fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend((body.len() as u32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// How much the other side may leave unread.
const PIPE: usize = 4096;

fn at_rest() -> (ReplicationStream<DuplexStream>, DuplexStream) {
    let (ours, theirs) = duplex(PIPE);
    (ReplicationStream::at_rest(ours, Vec::new(), ""), theirs)
}

async fn started() -> (ReplicationStream<DuplexStream>, DuplexStream) {
    let (stream, mut theirs) = at_rest();
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

#[tokio::test]
async fn feedback_never_starves_while_reading_is_held_back() {
    let (mut stream, mut theirs) = started().await;
    stream.queue_status(StandbyStatus { written: Lsn(3), flushed: Lsn(2) }, true);
    let mut update = [0; 39];
    tokio::select! {
        error = stream.io(Receiving::Not) => panic!("ended: {error:?}"),
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
    let stream = ReplicationStream::at_rest(Stream::Unix(ours), Vec::new(), "").start(what).await.unwrap();
    let mut command = vec![0; 4096];
    assert_ne!(theirs.read(&mut command).await.unwrap(), 0);
    (stream, theirs)
}

#[tokio::test]
async fn what_has_come_is_gathered_without_the_runtime() {
    let (mut stream, theirs) = over_a_unix_socket().await;
    assert!(!stream.gather().unwrap(), "nothing comes");
    for wal_end in [1, 2] {
        theirs.try_write(&keepalive(wal_end, 0)).unwrap();
    }
    assert!(stream.gather().unwrap());
    assert_eq!((next(&mut stream), next(&mut stream), next(&mut stream)), (Some(1), Some(2), None));
    // the end is for the reader that waits
    drop(theirs);
    assert!(!stream.gather().unwrap());
    assert!(stream.io(Receiving::AtOnce).await.is_err());
}

#[tokio::test]
async fn where_only_the_runtime_can_read_nothing_is_gathered_and_all_is_read_at_once() {
    let (mut stream, mut theirs) = started().await;
    for wal_end in [1, 2] {
        theirs.write_all(&keepalive(wal_end, 0)).await.unwrap();
    }
    assert!(!stream.gather().unwrap());
    stream.io(Receiving::AtOnce).await.unwrap();
    assert!(stream.peek().unwrap().is_some());
}

#[tokio::test]
async fn a_read_that_brings_much_is_a_flood_and_one_that_brings_little_its_end() {
    let (mut stream, mut theirs) = over_a_unix_socket().await;
    fill(&mut theirs, 0);
    stream.io(Receiving::AtOnce).await.unwrap();
    assert!(stream.is_flooded());
    while next(&mut stream).is_some() {}
    theirs.try_write(&keepalive(0, 0)).unwrap();
    stream.io(Receiving::AtOnce).await.unwrap();
    assert!(!stream.is_flooded());
}

#[tokio::test]
async fn the_last_word_of_a_server_that_reads_nothing_more_is_seen() {
    for gathers in [true, false] {
        let (mut stream, theirs) = over_a_unix_socket().await;
        stream.queue_status(StandbyStatus { written: Lsn(1), flushed: Lsn(1) }, false);
        let sent = poll_fn(|context| std::task::Poll::Ready(stream.poll_io(context, false))).await;
        assert!(sent.is_pending(), "sent, and nothing is waited for");
        theirs.try_write(&frame(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating\0\0")).unwrap();
        // what it has not read makes of its end an error
        drop(theirs);
        // nor can anything be sent any more
        stream.queue_status(StandbyStatus { written: Lsn(1), flushed: Lsn(1) }, false);
        match gathers {
            true => assert!(stream.gather().unwrap()),
            false => stream.io(Receiving::Not).await.unwrap(),
        }
        assert!(stream.peek().is_err());
        assert!(stream.was_sent_away(), "{gathers}");
        assert!(stream.io(Receiving::AtOnce).await.is_err());
    }
}

#[tokio::test]
async fn the_last_word_behind_messages_that_were_not_read_is_heard() {
    let (mut stream, theirs) = over_a_unix_socket().await;
    theirs.try_write(&change(1)).unwrap();
    theirs.try_write(&frame(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating\0\0")).unwrap();
    drop(theirs);
    assert!(!stream.was_sent_away());
    stream.hear_out().await;
    assert!(stream.was_sent_away());
}

/// A change of a few hundred bytes.
fn change(number: u64) -> Vec<u8> {
    let mut body = vec![b'w'];
    body.extend([0; 8]);
    body.extend(number.to_be_bytes());
    body.extend([0; 408]);
    frame(b'd', &body)
}

/// Writes changes until the socket takes no more, numbered on from `from`; returns the next number.
fn fill(socket: &mut UnixStream, mut from: u64) -> u64 {
    let socket = socket2::SockRef::from(&*socket);
    // such a socket takes a message so small whole, or not at all
    while let Ok(written) = std::io::Write::write(&mut &*socket, &change(from)) {
        assert_eq!(written, change(from).len());
        from += 1;
    }
    from
}

/// The number of the next message, which is dropped.
fn next(stream: &mut ReplicationStream<Stream>) -> Option<u64> {
    let (message, length) = stream.peek().unwrap()?;
    let (ReplicationMessage::PrimaryKeepAlive { wal_end, .. } | ReplicationMessage::XLogData { wal_end, .. }) =
        message;
    stream.consume(length);
    Some(wal_end.0)
}

#[tokio::test]
async fn a_socket_that_holds_little_is_emptied_while_messages_are_worked_off() {
    for gathers in [true, false] {
        let (mut stream, mut theirs) = over_a_unix_socket().await;
        let whole = LOOK_EVERY.div_ceil(change(0).len()) as u64;
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
        // nothing is lost of it, and nothing comes twice
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
async fn what_is_taken_meanwhile_is_bounded() {
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
    // a server that always has more keeps nobody from the other things to do
    while let Some(number) = next(&mut stream) {
        assert_eq!(number, seen);
        seen += 1;
    }
    assert!(seen as usize * length < 3 * GATHERED, "{seen}");
    drop(stream);
    server.join().unwrap();
}

#[tokio::test]
async fn a_status_update_that_cannot_be_sent_does_not_keep_data_from_being_read() {
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
async fn the_servers_refusal_to_start_keeps_its_code() {
    let (stream, mut theirs) = at_rest();
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

fn row(values: &[Option<&str>]) -> Vec<u8> {
    let mut body = (values.len() as u16).to_be_bytes().to_vec();
    for value in values {
        body.extend(value.map_or(-1, |value| value.len() as i32).to_be_bytes());
        body.extend(value.unwrap_or_default().as_bytes());
    }
    frame(b'D', &body)
}

fn copied(lsn: u64, data: &[u8]) -> Vec<u8> {
    let mut body = [&2u16.to_be_bytes()[..], &8u32.to_be_bytes(), &lsn.to_be_bytes()].concat();
    body.extend((data.len() as u32).to_be_bytes());
    body.extend(data);
    body
}

const COPY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// Takes a command off the wire, and answers.
async fn answer(theirs: &mut DuplexStream, answer: &[Vec<u8>]) -> String {
    let mut head = [0; 5];
    theirs.read_exact(&mut head).await.unwrap();
    let mut body = vec![0; u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4];
    theirs.read_exact(&mut body).await.unwrap();
    theirs.write_all(&answer.concat()).await.unwrap();
    assert_eq!(body.pop(), Some(0));
    String::from_utf8(body).unwrap()
}

#[tokio::test]
async fn what_comes_together_with_the_start_is_not_lost() {
    let (stream, mut theirs) = at_rest();
    theirs.write_all(&[frame(b'W', &[0, 0, 0]), change(1), change(2)].concat()).await.unwrap();
    let what = StreamOf { slot: "s", publication: "p", start: Lsn(0), messages: false };
    let mut stream = stream.start(what).await.unwrap();
    let (message, _) = stream.peek().unwrap().unwrap();
    assert!(matches!(message, ReplicationMessage::XLogData { wal_end: Lsn(1), .. }), "{message:?}");
}

#[tokio::test]
async fn a_statement_is_answered_by_the_last_row_once_the_server_is_ready() {
    let (mut stream, mut theirs) = at_rest();
    stream.ask("SELECT 1; SELECT 2, NULL");
    assert!(!stream.is_at_rest());
    let rows = [frame(b'T', b""), row(&[Some("1")]), frame(b'C', b"SELECT 1\0"), row(&[Some("2"), None])];
    let server = answer(&mut theirs, &rows);
    let (_, statement) = tokio::join!(stream.io(Receiving::AtOnce), server);
    assert_eq!(statement, "SELECT 1; SELECT 2, NULL");
    assert_eq!(stream.peek().unwrap(), None);
    assert_eq!(stream.answer(), None);
    theirs.write_all(&frame(b'Z', b"I")).await.unwrap();
    assert_eq!(stream.answered().await.unwrap(), Answer::Row(vec![Some("2".into()), None]));
    assert!(stream.is_at_rest());
}

#[tokio::test]
async fn the_rows_of_a_bite_come_as_those_of_the_stream_do() {
    let (mut stream, mut theirs) = at_rest();
    stream.bite("COPY ...; SELECT ...");
    let rows = [
        frame(b'H', b"\x01\0\x02\0\x01\0\x01"),
        frame(b'd', &[COPY_HEADER, &copied(3, b"one")].concat()),
        frame(b'd', &copied(4, b"two")),
        frame(b'd', &[255, 255]),
        frame(b'c', b""),
        frame(b'C', b"COPY 2\0"),
        row(&[Some("0/4")]),
        frame(b'Z', b"I"),
    ];
    let (_, statement) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &rows));
    assert_eq!(statement, "COPY ...; SELECT ...");
    for (lsn, data) in [(3, b"one"), (4, b"two")] {
        // looked at twice, as one that is held back
        stream.peek().unwrap();
        let (message, length) = stream.peek().unwrap().unwrap();
        assert_eq!(message, ReplicationMessage::XLogData { wal_end: Lsn(lsn), data });
        assert_eq!(stream.answer(), None, "there is more");
        stream.consume(length);
    }
    assert_eq!(stream.peek().unwrap(), None);
    let bytes = rows[1].len() + rows[2].len();
    assert_eq!(stream.answer(), Some(Answer::Bitten(Bitten { rows: 2, bytes }, vec![Some("0/4".into())])));
}

#[tokio::test]
async fn a_bite_without_rows_is_one_too() {
    let (mut stream, mut theirs) = at_rest();
    stream.bite("COPY ...; SELECT ...");
    let rows = [frame(b'd', &[COPY_HEADER, &[255, 255]].concat()), frame(b'Z', b"I")];
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &rows));
    assert_eq!(stream.answered().await.unwrap(), Answer::Bitten(Bitten::default(), Vec::new()));
}

#[tokio::test]
async fn a_bite_can_be_asked_for_while_another_comes() {
    let (mut stream, mut theirs) = at_rest();
    stream.bite("first");
    let bite = |lsn| {
        let data = frame(b'd', &[COPY_HEADER, &copied(lsn, b"data")].concat());
        [data, frame(b'd', &[255, 255]), frame(b'Z', b"I")]
    };
    let (one, two) = (bite(1), bite(2));
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &one));
    let (_, length) = stream.peek().unwrap().unwrap();
    stream.consume(length);
    assert_eq!(stream.bitten(), 1);
    stream.bite("second");
    let (_, second) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &two));
    assert_eq!(second, "second");
    // neither is shown what belongs to the other
    assert_eq!(stream.peek().unwrap(), None);
    assert!(matches!(stream.answer(), Some(Answer::Bitten(Bitten { rows: 1, .. }, _))));
    assert!(!stream.is_at_rest());
    assert_eq!(stream.bitten(), 0);
    let (message, length) = stream.peek().unwrap().unwrap();
    assert_eq!(message, ReplicationMessage::XLogData { wal_end: Lsn(2), data: b"data" });
    stream.consume(length);
    assert!(matches!(stream.answered().await.unwrap(), Answer::Bitten(Bitten { rows: 1, .. }, _)));
    assert!(stream.is_at_rest());
}

/// Behind a bite, and before another.
#[tokio::test]
async fn what_nobody_needs_is_asked_for_when_nothing_was_for_a_while() {
    let (mut stream, mut theirs) = at_rest();
    stream.bite("first");
    stream.remind(Duration::from_secs(60));
    stream.remind(Duration::ZERO);
    stream.bite("second");
    let one = [
        frame(b'T', b""),
        frame(b'D', &[0, 1, 0, 0, 0, 1, b'1']),
        frame(b'C', b"SELECT 1\0"),
        frame(b'Z', b"I"),
    ];
    let bite = |lsn| {
        let data = frame(b'd', &[COPY_HEADER, &copied(lsn, b"data")].concat());
        [data, frame(b'd', &[255, 255]), frame(b'Z', b"I")]
    };
    let messages = [&bite(1)[..], &one, &bite(2)].concat();
    let (_, first) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &messages));
    assert_eq!(first, "first");
    for lsn in [1, 2] {
        let (message, length) = stream.peek().unwrap().unwrap();
        assert_eq!(message, ReplicationMessage::XLogData { wal_end: Lsn(lsn), data: b"data" });
        stream.consume(length);
        assert!(matches!(stream.answered().await.unwrap(), Answer::Bitten(Bitten { rows: 1, .. }, _)));
    }
    assert!(stream.is_at_rest());
    stream.remind(Duration::ZERO);
    stream.ask("third");
    assert!(!stream.is_at_rest());
    for message in one.iter().chain(&one) {
        theirs.write_all(message).await.unwrap();
    }
    assert_eq!(stream.answered().await.unwrap(), Answer::Row(vec![Some("1".into())]));
    assert!(stream.is_at_rest());
}

#[tokio::test]
async fn what_nobody_deals_with_is_passed_over_up_to_what_is_fatal() {
    let (mut stream, mut theirs) = at_rest();
    stream.bite("first");
    stream.remind(Duration::ZERO);
    let refused =
        |severity: &str| frame(b'E', format!("S{severity}\0V{severity}\0C57014\0Mno\0\0").as_bytes());
    let data = frame(b'd', &[COPY_HEADER, &copied(1, b"data")].concat());
    let messages = [data, refused("ERROR"), frame(b'Z', b"I"), frame(b'Z', b"I")];
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &messages));
    stream.pass_over_all().unwrap();
    assert!(stream.is_at_rest());
    stream.bite("second");
    let fatal = [refused("FATAL")];
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &fatal));
    assert!(stream.pass_over_all().is_err());
}

#[tokio::test]
async fn what_comes_after_leaving_is_thrown_away_and_another_command_can_follow() {
    let (mut stream, mut theirs) = started().await;
    stream.leave();
    let mut done = [0; 5];
    for message in [change(1), frame(b'c', b""), change(2), frame(b'C', b"COPY 0\0"), frame(b'Z', b"I")] {
        theirs.write_all(&message).await.unwrap();
    }
    assert_eq!(stream.answered().await.unwrap(), Answer::Left);
    theirs.read_exact(&mut done).await.unwrap();
    assert_eq!(done, [b'c', 0, 0, 0, 4]);
    let what = StreamOf { slot: "s", publication: "p", start: Lsn(7), messages: false };
    stream.begin(what);
    let started = [frame(b'W', &[0, 0, 0]), change(5)];
    let (_, command) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &started));
    assert!(command.starts_with("START_REPLICATION SLOT \"s\" LOGICAL 0/7 "), "{command}");
    assert_eq!(stream.peek().unwrap(), None, "the answer comes first");
    assert_eq!(stream.answer(), Some(Answer::Streaming));
    assert!(stream.is_streaming());
    let (message, _) = stream.peek().unwrap().unwrap();
    assert!(matches!(message, ReplicationMessage::XLogData { wal_end: Lsn(5), .. }));
}

#[tokio::test]
async fn a_refusal_counts_when_the_server_is_ready_again_and_a_fatal_one_at_once() {
    for (severity, ready) in [("ERROR", true), ("FATAL", false)] {
        let (mut stream, mut theirs) = at_rest();
        stream.bite("COPY ...; SELECT ...");
        let body = format!("S{severity}\0V{severity}\0C42501\0Mno\0\0");
        let error = [frame(b'E', body.as_bytes())];
        let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &error));
        assert_eq!(stream.peek().unwrap(), None);
        if ready {
            assert_eq!(stream.answer(), None);
            theirs.write_all(&frame(b'Z', b"I")).await.unwrap();
        }
        let Answer::Refused(refused) = stream.answered().await.unwrap() else { panic!("no refusal") };
        assert_eq!((refused.severity.as_str(), refused.code.code()), (severity, "42501"));
        assert!(stream.is_at_rest());
    }
}

#[tokio::test]
async fn finishing_inside_a_bite_reads_it_to_its_end_and_moves_the_slot() {
    let (mut stream, mut theirs) = at_rest();
    stream.bite("COPY ...; SELECT ...");
    let rows = [frame(b'd', &[COPY_HEADER, &copied(3, b"one")].concat())];
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &rows));
    let server = async {
        let rest = [frame(b'd', &copied(4, b"two")), frame(b'd', &[255, 255]), frame(b'Z', b"I")];
        theirs.write_all(&rest.concat()).await.unwrap();
        answer(&mut theirs, &[row(&[Some("(s,0/4)")]), frame(b'Z', b"I")]).await
    };
    let (finished, moved) = tokio::join!(stream.finish(Some("SELECT advance")), server);
    finished.unwrap();
    assert_eq!(moved, "SELECT advance");
}
