//! A server cannot be reached: the router logs it once, and retries until it can or the router is stopped.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::sentences::masked;
use crate::support::settings::Settings;

/// A socket that is bound but not listening: connections are refused, and no other process can take the port.
pub(crate) fn dead() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[tokio::test]
async fn bad_input_of_unreachable_servers_is_retried_and_logged_once() {
    let (outbox, other, kafka) = (Outbox::new().await, Outbox::new().await, Kafka::shared());
    let (_dead, address) = dead();
    let dead = address.to_string();
    let cases = [
        ("kafka.'bootstrap.servers'", dead.clone(), "kafka", dead.as_str()),
        ("kafka.'bootstrap.servers'", "broker.invalid:9092".into(), "kafka", "broker.invalid"),
        ("postgres.url", format!("postgres://postgres@{dead}/x"), "postgres", dead.as_str()),
        ("postgres.url", "postgres://postgres@db.invalid/x".into(), "postgres", "db.invalid"),
        ("postgres.url", "postgres://postgres@%2Fnowhere/x".into(), "postgres", "/nowhere"),
    ];
    // at the same time, because most of the time they only wait; those that connect to Postgres have slots of their own
    let mut outboxes = [&outbox, &other].into_iter().cycle();
    let routers = cases.each_ref().map(|(key, value, ..)| {
        let settings = Settings::new(outboxes.next().unwrap(), &kafka);
        Router::start(&settings.set(key, value.as_str()))
    });
    let mut warnings = String::new();
    for ((key, value, peer, part), mut router) in cases.iter().zip(routers) {
        router
            .shows(&format!("several attempts at {part}"), |status| {
                let problem = status["last_problem"]["what"].as_str()?;
                assert!(problem.contains(part), "{problem}");
                (status["reconnects"][*peer].as_u64()? >= 3).then_some(())
            })
            .await;
        // during an attempt it says only that
        eventually(&format!("readiness names {part}"), async || {
            let (status, body) = router.get("/readyz")?;
            assert_eq!(status, 503, "{body}");
            body.contains(part).then_some(())
        })
        .await;
        assert_eq!(router.get_now("/healthz").await.0, 200);
        let ended = router.stop().await;
        assert!(ended.message().contains("stopped; no events were in flight"), "{}", ended.log);
        let of_peer = format!("peer=\"{peer}\"");
        let lines: Vec<_> =
            ended.log.lines().filter(|line| line.contains("WARN") && line.contains(&of_peer)).collect();
        assert_eq!(lines.len(), 1, "{}", ended.log);
        let line = lines[0].split_once("WARN").unwrap().1.trim();
        warnings.push_str(&format!("{key} = {value:?}\n    {line}\n"));
    }
    // the message depends on the machine's resolver
    for reason in ["Name or service not known", "Temporary failure in name resolution"] {
        warnings = warnings.replace(reason, "RESOLVER'S REASON");
    }
    insta::assert_snapshot!(masked(&warnings, &[(&dead, "HOST:PORT"), (&outbox.name, "NAME")]));
}

/// The server starts to listen while the router retries.
#[tokio::test]
async fn bad_input_of_an_address_that_answers_later_needs_no_restart() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (socket, address) = dead();
    let settings = Settings::new(&outbox, &kafka).reached_at(&outbox, &address.to_string());
    let mut router = Router::start(&settings);
    outbox.insert("order", "a", "{\"n\": 1}").await;
    router
        .shows("several attempts", |status| (status["reconnects"]["postgres"].as_u64()? >= 2).then_some(()))
        .await;
    let listener = socket.listen(16).unwrap();
    let server = outbox.address().to_owned();
    let proxy = tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = tokio::net::TcpStream::connect(&server).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await.ok() });
        }
    });
    kafka.holds(&outbox.name, 1).await;
    outbox.all_confirmed().await;
    router.stop().await;
    proxy.abort();
}
