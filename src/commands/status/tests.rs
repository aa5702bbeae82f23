use std::time::Duration;

use super::*;
use crate::admin::AdminServer;
use crate::error::Peer;
use crate::monitor::{Monitor, Slot, State};
use crate::postgres::polling::messages::CountedRows;

const PLAIN: TableStyle = TableStyle { colours: false, width: None };

fn busy() -> Monitor {
    crate::monitor::tests::busy().0
}

fn found(monitor: &Monitor) -> Found<String> {
    let router = StatusReport { version: "1.2.3".to_owned(), ..monitor.snapshot() };
    Found {
        error_code: problem(Some(&router)),
        router: Some(router),
        no_answer: None,
        postgres: None,
        postgres_error: None,
    }
}

#[test]
fn the_table_of_a_busy_router() {
    insta::assert_snapshot!(show(&found(&busy()), "shop.outbox_router", &PLAIN));
}

#[test]
fn the_table_of_a_router_in_trouble() {
    let (monitor, clock) = Monitor::for_test("shop.outbox_router");
    monitor.state(State::Reconnecting {
        peer: Peer::Kafka,
        code: None,
        reason: "all brokers are down".to_owned(),
    });
    monitor.slot(Slot { wal_status: Some("lost".to_owned()), ..Slot::default() });
    clock.advance(Duration::from_secs(42));
    insta::assert_snapshot!(show(&found(&monitor), "billing.outbox_router", &PLAIN));
}

#[test]
fn the_table_of_a_router_that_polls() {
    let (monitor, clock) = Monitor::for_test("shop.outbox_router");
    monitor.state(State::Active);
    let polled = clock.now();
    monitor.counted_rows(CountedRows { due: 3, oldest: Some(polled), failed: 1, refused: 2, polled });
    clock.advance(Duration::from_secs(2));
    insta::assert_snapshot!(show(&found(&monitor), "shop.outbox_router", &PLAIN));
}

#[test]
fn what_postgres_told_before_it_went_away_is_not_shown_as_current() {
    let (monitor, clock) = crate::monitor::tests::busy();
    let line = |name: &str| {
        let text = show(&found(&monitor), "shop.outbox_router", &PLAIN);
        text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned()
    };
    assert!(
        !line("lag").contains("as of") && !line("slot").contains("as of"),
        "{}{}",
        line("lag"),
        line("slot")
    );
    clock.advance(Duration::from_secs(600));
    monitor.state(State::Reconnecting { peer: Peer::Postgres, code: None, reason: "down".to_owned() });
    for name in ["lag", "slot"] {
        assert!(line(name).ends_with(", as of 2026-01-01T00:00:01.000Z"), "{}", line(name));
    }
}

#[test]
fn a_narrow_terminal_wraps_what_is_long() {
    let text = show(&found(&busy()), "shop.outbox_router", &TableStyle { colours: false, width: Some(50) });
    assert!(text.lines().all(|line| line.chars().count() <= 50), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn colours_only_if_wanted() {
    let show =
        |colours| show(&found(&busy()), "shop.outbox_router", &TableStyle { colours, width: Some(100) });
    assert!(show(true).contains('\u{1b}'));
    assert!(!show(false).contains('\u{1b}'));
}

#[tokio::test]
async fn a_router_that_answers_is_believed() {
    let serving = AdminServer::start("127.0.0.1:0", busy()).unwrap();
    let asked = async || -> Result<String, Error> { panic!("Postgres must not be asked") };
    let found = find(Some(&serving.address().to_string()), asked).await;
    assert_eq!(found.router, Some(busy().snapshot()));
    serving.end();
}

#[tokio::test]
async fn without_a_router_postgres_is_asked() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    drop(listener);
    let found = find(Some(&at), async || Ok("slot outbox_router: not active".to_owned())).await;
    let text = show(&found, "shop.outbox_router", &PLAIN).replace(&at, "<listen>");
    insta::assert_snapshot!(text, @r"
    no router answers at <listen>: nothing is listening there

    slot outbox_router: not active
    ");
}

#[tokio::test]
async fn without_anybody_both_reasons_are_said() {
    let found = find(None, async || {
        Err::<String, _>(Error::transient(Peer::Postgres, "connection refused at db:5432"))
    })
    .await;
    insta::assert_snapshot!(show(&found, "shop.outbox_router", &PLAIN), @r"
    the admin endpoint is off: `listen` in [admin] is false

    Asking Postgres failed too: connection refused at db:5432
    ");
    insta::assert_snapshot!(serde_json::to_string_pretty(&found).unwrap(), @r#"
    {
      "error_code": "OBR-2011",
      "router": null,
      "no_answer": "the admin endpoint is off: `listen` in [admin] is false",
      "postgres": null,
      "postgres_error": "connection refused at db:5432"
    }
    "#);
}

#[tokio::test]
async fn another_program_at_the_address_is_not_taken_for_a_router() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
    });
    let why = client::status(&at).await.unwrap_err();
    server.await.unwrap();
    assert!(why.contains("another program listens there"), "{why}");
}

#[test]
fn the_code_is_0_for_a_router_that_is_well_and_for_nothing_else() {
    let (monitor, clock) = Monitor::for_test("r");
    let code = || problem(Some(&monitor.snapshot()));
    assert_eq!(code(), Some(ErrorCode::RouterNotReady), "starting");
    monitor.state(State::Active);
    assert_eq!(code(), None, "active");
    clock.advance(Duration::from_secs(60));
    assert_eq!(code(), Some(ErrorCode::RouterNotReady), "stuck");
    monitor.state(State::Refused { code: ErrorCode::SlotLost, reason: "lost".to_owned() });
    assert_eq!(code(), Some(ErrorCode::SlotLost), "refused");
    assert_eq!(completion(problem(None)), Completion::ProblemsFound, "nobody");
    assert_eq!(completion(None), Completion::Success);
}
