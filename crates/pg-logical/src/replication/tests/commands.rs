//! Sequences of commands: statements, bulk reads, the stream and its end.

use super::*;

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

/// Reads a command from the wire, and answers it.
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
async fn changes_that_arrive_with_the_start_are_not_lost() {
    let (stream, mut theirs) = idle_stream();
    theirs.write_all(&[frame(b'W', &[0, 0, 0]), change(1), change(2)].concat()).await.unwrap();
    let what = StreamOf { slot: "s", publication: "p", start: Lsn(0), messages: false };
    let mut stream = stream.start(what).await.unwrap();
    let (message, _) = stream.peek().unwrap().unwrap();
    assert!(matches!(message, ReplicationMessage::XLogData { wal_end: Lsn(1), .. }), "{message:?}");
}

#[tokio::test]
async fn a_statement_is_answered_with_its_last_row_once_the_server_is_ready() {
    let (mut stream, mut theirs) = idle_stream();
    stream.query("SELECT 1; SELECT 2, NULL");
    assert!(!stream.is_idle());
    let rows = [frame(b'T', b""), row(&[Some("1")]), frame(b'C', b"SELECT 1\0"), row(&[Some("2"), None])];
    let server = answer(&mut theirs, &rows);
    let (_, statement) = tokio::join!(stream.io(Receiving::AtOnce), server);
    assert_eq!(statement, "SELECT 1; SELECT 2, NULL");
    assert_eq!(stream.peek().unwrap(), None);
    assert_eq!(stream.answer(), None);
    theirs.write_all(&frame(b'Z', b"I")).await.unwrap();
    assert_eq!(stream.wait_for_answer().await.unwrap(), Answer::Row(vec![Some("2".into()), None]));
    assert!(stream.is_idle());
}

#[tokio::test]
async fn rows_of_a_bulk_read_are_returned_like_those_of_the_stream() {
    let (mut stream, mut theirs) = idle_stream();
    stream.bulk_read("COPY ...; SELECT ...");
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
        // peeking twice returns the same message
        stream.peek().unwrap();
        let (message, length) = stream.peek().unwrap().unwrap();
        assert_eq!(message, ReplicationMessage::XLogData { wal_end: Lsn(lsn), data });
        assert_eq!(stream.answer(), None, "there is more");
        stream.consume(length);
    }
    assert_eq!(stream.peek().unwrap(), None);
    let bytes = rows[1].len() + rows[2].len();
    assert_eq!(
        stream.answer(),
        Some(Answer::BulkRead(BulkRead { rows: 2, bytes }, vec![Some("0/4".into())]))
    );
}

#[tokio::test]
async fn a_bulk_read_may_have_no_rows() {
    let (mut stream, mut theirs) = idle_stream();
    stream.bulk_read("COPY ...; SELECT ...");
    let rows = [frame(b'd', &[COPY_HEADER, &[255, 255]].concat()), frame(b'Z', b"I")];
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &rows));
    assert_eq!(stream.wait_for_answer().await.unwrap(), Answer::BulkRead(BulkRead::default(), Vec::new()));
}

#[tokio::test]
async fn a_bulk_read_can_be_requested_while_another_arrives() {
    let (mut stream, mut theirs) = idle_stream();
    stream.bulk_read("first");
    let part = |lsn| {
        let data = frame(b'd', &[COPY_HEADER, &copied(lsn, b"data")].concat());
        [data, frame(b'd', &[255, 255]), frame(b'Z', b"I")]
    };
    let (one, two) = (part(1), part(2));
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &one));
    let (_, length) = stream.peek().unwrap().unwrap();
    stream.consume(length);
    assert_eq!(stream.rows_read(), 1);
    stream.bulk_read("second");
    let (_, second) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &two));
    assert_eq!(second, "second");
    // the rows of the two are kept apart
    assert_eq!(stream.peek().unwrap(), None);
    assert!(matches!(stream.answer(), Some(Answer::BulkRead(BulkRead { rows: 1, .. }, _))));
    assert!(!stream.is_idle());
    assert_eq!(stream.rows_read(), 0);
    let (message, length) = stream.peek().unwrap().unwrap();
    assert_eq!(message, ReplicationMessage::XLogData { wal_end: Lsn(2), data: b"data" });
    stream.consume(length);
    assert!(matches!(stream.wait_for_answer().await.unwrap(), Answer::BulkRead(BulkRead { rows: 1, .. }, _)));
    assert!(stream.is_idle());
}

#[tokio::test]
async fn looking_ahead_sees_the_rows_of_one_bulk_read() {
    let (mut stream, mut theirs) = idle_stream();
    stream.bulk_read("first");
    let messages = [
        frame(b'd', &[COPY_HEADER, &copied(1, b"current")].concat()),
        frame(b'd', &copied(2, b"a")),
        frame(b'd', &copied(3, b"b")),
        frame(b'd', &[255, 255]),
        frame(b'd', &copied(4, b"of another")),
    ];
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &messages));
    let (_, length) = stream.peek().unwrap().unwrap();
    let ahead = |stream: &ReplicationStream<_>| stream.look_ahead().collect::<Vec<_>>().len();
    assert_eq!(ahead(&stream), 2);
    stream.consume(length);
    assert!(stream.peek().unwrap().is_some());
    assert_eq!(ahead(&stream), 1);
}

#[tokio::test]
async fn a_ping_between_two_bulk_reads_is_sent_only_after_a_pause() {
    let (mut stream, mut theirs) = idle_stream();
    stream.bulk_read("first");
    stream.ping(Duration::from_secs(60));
    stream.ping(Duration::ZERO);
    stream.bulk_read("second");
    let one = [
        frame(b'T', b""),
        frame(b'D', &[0, 1, 0, 0, 0, 1, b'1']),
        frame(b'C', b"SELECT 1\0"),
        frame(b'Z', b"I"),
    ];
    let part = |lsn| {
        let data = frame(b'd', &[COPY_HEADER, &copied(lsn, b"data")].concat());
        [data, frame(b'd', &[255, 255]), frame(b'Z', b"I")]
    };
    let messages = [&part(1)[..], &one, &part(2)].concat();
    let (_, first) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &messages));
    assert_eq!(first, "first");
    for lsn in [1, 2] {
        let (message, length) = stream.peek().unwrap().unwrap();
        assert_eq!(message, ReplicationMessage::XLogData { wal_end: Lsn(lsn), data: b"data" });
        stream.consume(length);
        assert!(matches!(
            stream.wait_for_answer().await.unwrap(),
            Answer::BulkRead(BulkRead { rows: 1, .. }, _)
        ));
    }
    assert!(stream.is_idle());
    stream.ping(Duration::ZERO);
    stream.query("third");
    assert!(!stream.is_idle());
    for message in one.iter().chain(&one) {
        theirs.write_all(message).await.unwrap();
    }
    assert_eq!(stream.wait_for_answer().await.unwrap(), Answer::Row(vec![Some("1".into())]));
    assert!(stream.is_idle());
}

#[tokio::test]
async fn discard_received_stops_at_a_fatal_error() {
    let (mut stream, mut theirs) = idle_stream();
    stream.bulk_read("first");
    stream.ping(Duration::ZERO);
    let refused =
        |severity: &str| frame(b'E', format!("S{severity}\0V{severity}\0C57014\0Mno\0\0").as_bytes());
    let data = frame(b'd', &[COPY_HEADER, &copied(1, b"data")].concat());
    let messages = [data, refused("ERROR"), frame(b'Z', b"I"), frame(b'Z', b"I")];
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &messages));
    stream.discard_received().unwrap();
    assert!(stream.is_idle());
    stream.bulk_read("second");
    let fatal = [refused("FATAL")];
    let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &fatal));
    assert!(stream.discard_received().is_err());
}

#[tokio::test]
async fn data_after_copy_done_is_discarded_and_another_command_can_follow() {
    let (mut stream, mut theirs) = started().await;
    stream.send_copy_done();
    let mut done = [0; 5];
    for message in [change(1), frame(b'c', b""), change(2), frame(b'C', b"COPY 0\0"), frame(b'Z', b"I")] {
        theirs.write_all(&message).await.unwrap();
    }
    assert_eq!(stream.wait_for_answer().await.unwrap(), Answer::Ended);
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
async fn an_error_is_returned_when_the_server_is_ready_again_and_a_fatal_one_at_once() {
    for (severity, ready) in [("ERROR", true), ("FATAL", false)] {
        let (mut stream, mut theirs) = idle_stream();
        stream.bulk_read("COPY ...; SELECT ...");
        let body = format!("S{severity}\0V{severity}\0C42501\0Mno\0\0");
        let error = [frame(b'E', body.as_bytes())];
        let (_, _) = tokio::join!(stream.io(Receiving::AtOnce), answer(&mut theirs, &error));
        assert_eq!(stream.peek().unwrap(), None);
        if ready {
            assert_eq!(stream.answer(), None);
            theirs.write_all(&frame(b'Z', b"I")).await.unwrap();
        }
        let Answer::Refused(refused) = stream.wait_for_answer().await.unwrap() else { panic!("no refusal") };
        assert_eq!((refused.severity.as_str(), refused.code.code()), (severity, "42501"));
        assert!(stream.is_idle());
    }
}

#[tokio::test]
async fn finishing_inside_a_bulk_read_reads_it_to_its_end_and_advances_the_slot() {
    let (mut stream, mut theirs) = idle_stream();
    stream.bulk_read("COPY ...; SELECT ...");
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
