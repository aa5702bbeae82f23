//! While the broker blocks, the router goes on answering Postgres.

use pg_logical::connect::Startup;
use pg_logical::session::Session;

use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::{PrivatePostgres, conninfo};
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::signal::{Signal, send};

pub(crate) const PG_HBA: &str = "host all all 127.0.0.1/32 trust\n";

/// Router and server give each other up after it. A busy machine leaves either without processor time for a while.
pub(crate) const TIMEOUT: &str = "6s";

/// A server that gives up its own sessions after [`TIMEOUT`].
pub(crate) async fn server_with_timeout() -> PrivatePostgres {
    PrivatePostgres::start(PG_HBA, &[&format!("wal_sender_timeout={TIMEOUT}")]).await
}

/// Starts a second replication session that answers nothing, and returns when Postgres has dropped it. By then more than
/// `wal_sender_timeout` has passed for the router too.
pub(crate) async fn a_silent_reader_is_dropped(server: &PrivatePostgres) {
    let conninfo = conninfo([server.unix()], "postgres");
    let startup = Startup { replication: true, application_name: "silent", ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await.unwrap();
    session.query("CREATE_REPLICATION_SLOT silent TEMPORARY LOGICAL test_decoding").await.unwrap();
    let (mut stream, _, _) = session.into_parts();
    let start = b"START_REPLICATION SLOT silent LOGICAL 0/0\0";
    let mut message = vec![b'Q'];
    message.extend((start.len() as u32 + 4).to_be_bytes());
    message.extend(start);
    tokio::io::AsyncWriteExt::write_all(&mut stream, &message).await.unwrap();
    let mut superuser = server.superuser().await;
    let mut count = async |what: &str| {
        let sql = format!("SELECT count(*) FROM {what} = 'silent'");
        superuser.query_one(&sql).await.unwrap().unwrap()
    };
    eventually("the silent reader streams", async || {
        (count("pg_stat_replication WHERE state = 'streaming' AND application_name").await == "1")
            .then_some(())
    })
    .await;
    eventually("the silent reader is dropped", async || {
        (count("pg_stat_replication WHERE application_name").await == "0").then_some(())
    })
    .await;
    drop(stream);
}

/// Rows that fill every buffer between Postgres and the broker, so that no byte moves.
const MANY: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
     SELECT 'order', 'a', jsonb_build_object('n', n, 'text', repeat('x', 100000)) FROM generate_series(101, 500) n";

#[tokio::test]
async fn feedback_never_starves_while_the_broker_is_frozen() {
    broker_frozen(None).await;
}

/// With the role of `init --role`, to which Postgres shows only parts of `pg_stat_activity`.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn feedback_never_starves_while_the_broker_is_frozen_with_the_role_of_init() {
    broker_frozen(Some("router")).await;
}

/// Waits until the server has an answer of this session that the router has sent since this call.
async fn answers_again(outbox: &Outbox, walsender: i32) {
    let now: String = outbox.query("SELECT clock_timestamp()::text").await[0].get(0);
    let answered =
        format!("SELECT 1 FROM pg_stat_replication WHERE pid = {walsender} AND reply_time > '{now}'");
    eventually("the router answers Postgres", async || outbox.query(&answered).await.pop()).await;
}

async fn broker_frozen(role: Option<&str>) {
    let server = server_with_timeout().await;
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
    let mut settings = Settings::new(&outbox, &kafka)
        .set("postgres.wal_sender_timeout", TIMEOUT)
        .set("delivery.window.records", 50);
    if let Some(role) = role {
        let ran = settings.run(&["init", "--role", role]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let url = outbox.url().replace("//postgres@", &format!("//{role}@"));
        assert!(url.contains(role), "{url}");
        settings = settings.set("postgres.url", url);
    }
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..101).await;
    outbox.all_confirmed().await;
    let walsender = outbox.active_pid().await;

    broker.freeze();
    outbox.execute(MANY).await;
    a_silent_reader_is_dropped(&server).await;
    answers_again(&outbox, walsender).await;
    let active = outbox.slot().await.unwrap().active_pid;
    assert_eq!(active, Some(walsender), "Postgres dropped the session\n{}", router.log());
    broker.thaw();

    outbox.insert_numbers("order", "a", 501..521).await;
    outbox.all_confirmed().await;
    let active = outbox.slot().await.unwrap().active_pid;
    let log = router.stop().await.log;
    // librdkafka may forget a broker that comes back (its issue 5301); the router then starts a new session and logs the reason
    let forgotten = log.contains("the producer no longer finds the brokers");
    assert!(forgotten || active == Some(walsender), "Postgres dropped the session\n{log}");
    let repeats = if forgotten { Repeats::Restarts(1) } else { Repeats::Never };
    same(&outbox, &kafka.records(&outbox.name).await, repeats).await;
}

/// The router asks a silent server for a reply, and gives up the session if none comes.
#[tokio::test]
async fn feedback_never_starves_and_a_silent_server_is_detected() {
    let server = server_with_timeout().await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("postgres.wal_sender_timeout", TIMEOUT);
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    kafka.holds(&outbox.name, 10).await;
    let walsender = u32::try_from(outbox.active_pid().await).unwrap();
    assert!(send(Signal::Stop, walsender));
    router
        .shows("the status reports a silent Postgres", |status| {
            status["last_problem"]["what"].as_str()?.contains("silent").then_some(())
        })
        .await;
    outbox.insert_numbers("order", "a", 11..21).await;
    assert!(send(Signal::Continue, walsender));
    kafka.holds(&outbox.name, 20).await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}
