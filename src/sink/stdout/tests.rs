use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use pg_logical::pgoutput::LogicalMessage;
use pg_logical::{Lsn, PgTimestamp};
use tokio::time::timeout;

use super::*;
use crate::config::minimal_with;
use crate::contracts::Contracts;
use crate::monitor::Monitor;
use crate::outbox::Outbox;
use crate::pipeline::{Change, Pipeline};
use crate::progress::Landmark;
use crate::routing::Router;

const PLAIN: Style = Style { json: false, payload: false, colours: false };

/// One event of each kind, as `emit_message` writes them.
const EVENTS: &[&str] = &[
    r#"{"id":"1","aggregate_type":"order","aggregate_id":"42","event_type":"placed","payload":{"total": 99}}"#,
    r#"{"id":"2","aggregate_type":"fixed","aggregate_id":"42","event_type":"placed","payload":null,"headers":{"tenant":"a\u001b[2Jcme","none":null}}"#,
    r#"{"id":"3","aggregate_type":"order","aggregate_id":null,"event_type":"broken","payload":"x"}"#,
    r#"{"id":"4","aggregate_type":"secret","aggregate_id":"1","event_type":"placed","payload":{}}"#,
    r#"{"id":"5","aggregate_type":"no topic","aggregate_id":"1","event_type":"placed","payload":{}}"#,
];

fn pipeline(contracts: &tempfile::TempDir) -> Pipeline {
    std::fs::create_dir(contracts.path().join("order")).unwrap();
    std::fs::write(contracts.path().join("order/broken.json"), r#"{"type": "object"}"#).unwrap();
    let config = minimal_with(&format!(
        "outbox.message_prefix = \"outbox\"\ncontracts.directory = {:?}\ncontracts.on_violation = \"warn\"\n\
         [[route.rules]]\nmatch.aggregate_type = \"fixed\"\npartition = \"3\"\n\
         [[route.rules]]\nmatch.aggregate_type = \"secret\"\ndrop = true\n",
        contracts.path()
    ));
    let router =
        Router::of(&config).with_contracts(&config, Contracts::configured(&config).unwrap().map(Arc::new));
    let outbox = Outbox::of(&config, router.extra_columns());
    let mut pipeline =
        Pipeline::new(outbox, router, None, Lsn(0), config.outbox.on_update, Monitor::new("tail"));
    pipeline.begin(Landmark { final_lsn: Lsn(0x16_b374), xid: 7, commit_time: PgTimestamp(0) });
    pipeline
}

/// Runs each content through the pipeline, all in one transaction.
fn each(contents: &[&str], mut take: impl FnMut(&Made<'_>, u64)) {
    let contracts = tempfile::tempdir().unwrap();
    let mut pipeline = pipeline(&contracts);
    for (content, number) in contents.iter().zip(1..) {
        let message = LogicalMessage {
            transactional: true,
            lsn: Lsn(1),
            prefix: "outbox",
            content: content.as_bytes(),
        };
        take(&pipeline.make(Change::Message(message), number).unwrap().unwrap(), number);
    }
}

fn printed(style: Style) -> String {
    let mut text = String::new();
    each(EVENTS, |made, _| text.push_str(&style.line(made)));
    text
}

#[test]
fn for_people() {
    insta::assert_snapshot!(printed(PLAIN));
}

#[test]
fn for_people_on_a_terminal_with_payloads() {
    let text = printed(Style { payload: true, colours: true, ..PLAIN });
    insta::assert_snapshot!(text.replace('\u{1b}', "ESC"));
}

#[test]
fn for_programs_one_object_a_line() {
    insta::assert_snapshot!(printed(Style { json: true, ..PLAIN }));
}

#[test]
fn for_programs_with_payloads() {
    let text = printed(Style { json: true, payload: true, ..PLAIN });
    let values: Vec<_> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap().get("value").cloned())
        .collect();
    let string = |text: &str| Some(serde_json::Value::from(text));
    assert_eq!(values, [string(r#"{"total": 99}"#), Some(serde_json::Value::Null), string(r#""x""#), None]);
}

#[test]
fn the_number_of_printed_headers_is_limited() {
    let headers: Vec<_> = (0..30).map(|n| format!(r#""h{n}":1"#)).collect();
    let event = format!(
        r#"{{"id":"1","aggregate_type":"order","aggregate_id":"42","event_type":"t","payload":1,"headers":{{{}}}}}"#,
        headers.join(",")
    );
    each(&[&event], |made, _| {
        let block = PLAIN.line(made);
        assert_eq!(block.lines().count(), 22, "{block}");
        assert!(block.ends_with("    and 12 more headers\n"), "{block}");
    });
}

fn sink(out: &impl AsFd) -> (StdoutSink, CancellationToken) {
    let stop = CancellationToken::new();
    (StdoutSink::new(out, PLAIN, stop.clone()).unwrap(), stop)
}

/// Sends the same event `times` times.
fn send(sink: &mut StdoutSink, times: usize) {
    each(&vec![EVENTS[0]; times], |made, number| {
        assert!(matches!(sink.send(made, Sequence(number)), Ok(Sent::Record(_))));
    });
}

fn delivered(sink: &mut StdoutSink) -> Vec<u64> {
    let mut delivered = Vec::new();
    let refused = sink.reports(&mut |event| {
        let Event::Delivered(Sequence(number)) = event else { panic!("{event:?}") };
        delivered.push(number);
        None
    });
    assert_eq!(refused, None);
    delivered
}

#[tokio::test]
async fn written_lines_are_delivered_and_counted() {
    let (mut reader, writer) = io::pipe().unwrap();
    let (mut sink, stop) = sink(&writer);
    drop(writer);
    send(&mut sink, 3);
    let mut numbers = Vec::new();
    while numbers.len() < 3 {
        sink.changed().await.unwrap();
        numbers.extend(delivered(&mut sink));
    }
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!((sink.printed, sink.in_flight), (Printed { events: 3, reader_gone: false }, 0));
    assert!(!stop.is_cancelled());
    drop(sink);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text.matches("outbox.event.order").count(), 3, "{text}");
}

#[tokio::test]
async fn unread_lines_stay_in_flight_and_dropped_events_do_not() {
    let (reader, writer) = io::pipe().unwrap();
    let (mut sink, stop) = sink(&writer);
    each(&[EVENTS[3]], |made, number| assert_eq!(sink.send(made, Sequence(number)), Ok(Sent::Nothing)));
    // more than a pipe holds
    send(&mut sink, 5_000);
    let all_written = async {
        while sink.in_flight > 0 {
            sink.changed().await.unwrap();
            delivered(&mut sink);
        }
    };
    assert!(timeout(Duration::from_millis(200), all_written).await.is_err());
    let events = sink.printed.events;
    assert!(events < 5_000 && !stop.is_cancelled(), "{events}");
    drop(reader);
    while sink.in_flight > 0 {
        sink.changed().await.unwrap();
        delivered(&mut sink);
    }
    assert_eq!(sink.printed, Printed { events, reader_gone: true });
    assert!(stop.is_cancelled());
}

#[tokio::test]
async fn a_reader_that_leaves_is_noticed_while_nothing_is_written() {
    let (reader, writer) = io::pipe().unwrap();
    let (mut sink, stop) = sink(&writer);
    assert!(timeout(Duration::from_millis(50), sink.changed()).await.is_err());
    drop(reader);
    sink.changed().await.unwrap();
    assert!(stop.is_cancelled() && sink.printed.reader_gone);
    // reported once only
    assert!(timeout(Duration::from_millis(50), sink.changed()).await.is_err());
}

#[tokio::test]
async fn a_write_error_ends_the_session_with_its_reason() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (mut sink, stop) = sink(&full);
    send(&mut sink, 1);
    let error = sink.changed().await.unwrap_err().to_string();
    assert!(error.contains("Cannot write to standard output"), "{error}");
    assert!(!stop.is_cancelled());
}
