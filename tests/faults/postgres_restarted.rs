//! Postgres restarts while applications write.

use rand::Rng;

use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::{PrivatePostgres, Shutdown};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

const RESTARTS: usize = 3;

async fn restarted(shutdown: Shutdown, by_socket: bool) {
    let mut random = seed::random();
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let mut settings = Settings::new(&outbox, &kafka);
    if by_socket {
        let (directory, port) = (server.variable("TEST_POSTGRES_SOCKET"), server.port());
        let url = format!("host={directory} port={port} user=postgres dbname={}", outbox.name);
        settings = settings.set("postgres.url", url);
    }
    let mut router = Router::active(&settings).await;
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for _ in 0..RESTARTS {
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        // fails if the router's sessions keep the server from stopping
        server.stop(shutdown);
        seen = kafka.count(&outbox.name).await.unwrap();
        server.start_again();
    }
    kafka.holds(&outbox.name, seen + 1).await;
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(RESTARTS)).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn postgres_restarted_immediately_loses_nothing_and_keeps_order_per_aggregate() {
    restarted(Shutdown::Immediate, false).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn postgres_restarted_fast_is_not_held_up_by_the_router() {
    restarted(Shutdown::Fast, false).await;
}

/// On a socket, a write fails before the router has read the server's last message.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn postgres_restarted_fast_is_not_held_up_by_a_router_on_its_unix_socket() {
    restarted(Shutdown::Fast, true).await;
}
