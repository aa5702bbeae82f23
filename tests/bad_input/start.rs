//! What is found at the start, and what is waited for.

use std::net::Ipv4Addr;

use tokio::net::TcpSocket;

use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

#[tokio::test]
async fn bad_input_in_the_configuration_ends_with_2_before_any_server_is_asked() {
    let settings = Settings::default()
        .set("postgres.url", "postgres://nobody@192.0.2.1/nowhere")
        .set("kafka.'bootstrap.servers'", "192.0.2.1:9092")
        .set("admin.listen", "127.0.0.1:0");
    for (key, value, parts) in [
        ("postgres.publicaton", "x", ["[postgres]", "`publication`"]),
        ("delivery.shutdown_timeout", "soon", ["shutdown_timeout", "duration"]),
        ("kafka.'enable.idempotence'", "false", ["enable.idempotence", "reorder"]),
        ("kafka.'linger.mss'", "5", ["linger.mss", "linger.ms"]),
        ("route.topic", "a${b", ["route", "not closed"]),
        ("admin.listen", "127.0.0.1:port", ["listen", "port"]),
    ] {
        let ended = Router::start(&settings.clone().set(key, value)).exits(2).await;
        for part in parts {
            assert!(ended.log.contains(part), "no {part:?} in\n{}", ended.log);
        }
    }
}

/// Each answer is definite, and says what to do.
#[tokio::test]
async fn bad_input_that_a_server_answers_at_once_ends_with_1() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let url = outbox.url();
    for (key, value, parts) in [
        ("outbox.table", "public.outbax", ["public.outbax", "does not exist"]),
        ("postgres.publication", "outbax", ["publication outbax", "does not exist"]),
        ("postgres.url", &url.replace("postgres@", "nobody_knows@"), ["role", "nobody_knows"]),
        ("postgres.url", &url.replace(&outbox.name, "nowhere_known"), ["database", "nowhere_known"]),
    ] {
        let ended = Router::start(&settings.clone().set(key, value)).exits(1).await;
        ended.says(&parts);
    }

    outbox.execute("ALTER PUBLICATION outbox_router SET (publish = 'delete')").await;
    Router::start(&settings).exits(1).await.says(&["does not publish inserts"]);
    outbox.execute("ALTER PUBLICATION outbox_router DROP TABLE outbox").await;
    Router::start(&settings).exits(1).await.says(&["does not publish the outbox table"]);
}

/// The rows of a backlog may be of a time when the table still had the column, so only a row can tell.
#[tokio::test]
async fn bad_input_of_columns_stops_the_router_at_the_first_row() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    outbox.insert("order", "a", "{}").await;
    for (key, value, part) in [
        ("outbox.columns.payload", "body", "no column \"body\""),
        ("outbox.columns.headers", "meta", "no column \"meta\""),
        ("route.topic", "x.${region}", "no column \"region\""),
    ] {
        Router::start(&settings.clone().set(key, value)).exits(3).await.says(&["public.outbox", part]);
        outbox.released().await;
    }
    let router = Router::start(&settings);
    kafka.holds(&outbox.name, 1).await;
    outbox.all_confirmed().await;
    router.stop().await;
}

#[tokio::test]
async fn bad_input_of_passwords_and_privileges_ends_with_1() {
    let hba = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    let server = PrivatePostgres::start(hba, &[]).await;
    server.execute(&["CREATE ROLE weak LOGIN PASSWORD 'sesame'"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let with = |user: &str| {
        Settings::new(&outbox, &kafka).set("postgres.url", outbox.url().replace("postgres@", user))
    };
    Router::start(&with("weak:wrong@")).exits(1).await.says(&["password authentication failed", "weak"]);
    Router::start(&with("weak@")).exits(1).await.says(&["password"]);
    Router::start(&with("weak:sesame@")).exits(1).await.says(&["42501", "REPLICATION"]);
    assert_eq!(kafka.count(&outbox.name).await, Ok(0));

    // with what `init` grants, it runs
    server.execute(&["ALTER ROLE weak REPLICATION"]).await;
    let router = Router::active(&with("weak:sesame@")).await;
    outbox.insert("order", "a", "{}").await;
    outbox.all_confirmed().await;
    router.stop().await;

    server.execute(&["ALTER SYSTEM SET wal_level = 'replica'"]).await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    server.restart(&[]);
    Router::start(&Settings::new(&outbox, &kafka)).exits(1).await.says(&["wal_level"]);
}

/// Nobody answers: it is said once, and tried until somebody does or the router is stopped.
#[tokio::test]
async fn bad_input_unreachable_servers_are_waited_for() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    // bound but not listening: whoever calls is refused, and nobody else can take the port
    let dead = TcpSocket::new_v4().unwrap();
    dead.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let dead = format!("127.0.0.1:{}", dead.local_addr().unwrap().port());
    let settings = Settings::new(&outbox, &kafka);
    let mut routers = Vec::new();
    for (key, value, peer, part) in [
        ("kafka.'bootstrap.servers'", dead.clone(), "kafka", dead.as_str()),
        ("kafka.'bootstrap.servers'", "broker.invalid:9092".into(), "kafka", "broker.invalid"),
        ("postgres.url", format!("postgres://postgres@{dead}/x"), "postgres", dead.as_str()),
        ("postgres.url", "postgres://postgres@db.invalid/x".into(), "postgres", "db.invalid"),
    ] {
        routers.push((Router::start(&settings.clone().set(key, value)), peer, part));
    }
    for (mut router, peer, part) in routers {
        router
            .shows(&format!("several attempts at {part}"), |status| {
                let problem = status["last_problem"]["what"].as_str()?;
                assert!(problem.contains(part), "{problem}");
                (status["reconnects"][peer].as_u64()? >= 3).then_some(())
            })
            .await;
        let (status, body) = router.get("/readyz").unwrap();
        assert!(status == 503 && body.contains(part), "{status} {body}");
        assert_eq!(router.get("/healthz").unwrap().0, 200);
        let ended = router.stop().await;
        assert_eq!(ended.log.matches("WARN").count(), 1, "{}", ended.log);
        assert!(ended.log.contains("not connected") && ended.log.contains(part), "{}", ended.log);
    }
}

/// Somebody else reads the slot: a second router waits, says for whom, and takes over.
#[tokio::test]
async fn a_second_router_waits_for_the_slot_and_takes_over() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let first = Router::active(&settings).await;
    let walsender = outbox.active_pid().await;
    let mut second = Router::start(&settings);
    second.shows("it waits", |status| (status["state"] == "waiting").then_some(())).await;
    assert!(second.log().contains(&walsender.to_string()), "{}", second.log());
    outbox.insert("order", "a", "1").await;
    outbox.all_confirmed().await;
    first.kill();
    outbox.insert("order", "a", "2").await;
    kafka.holds(&outbox.name, 2).await;
    second.shows("it is active", |status| (status["state"] == "active").then_some(())).await;
    outbox.all_confirmed().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(2));
    second.stop().await;
}

/// Of all that is missing, the first that would have to be made.
#[tokio::test]
async fn bad_input_an_empty_database_ends_with_a_hint_at_init() {
    let outbox = Outbox::bare(shared::postgres()).await;
    let settings = Settings::new(&outbox, &Kafka::shared());
    let ended = Router::start(&settings).ended().await;
    assert!(matches!(ended.status.code(), Some(1 | 3)), "{}", ended.log);
    ended.says(&["does not exist", "outbox-router init"]);
    outbox.create_slot("pgoutput").await;
    Router::start(&settings).exits(1).await.says(&["public.outbox", "outbox-router init"]);
    outbox.execute(TABLE).await;
    Router::start(&settings).exits(1).await.says(&["publication", "outbox-router init"]);
    outbox.execute(PUBLICATION).await;
}
