//! The broker answers some requests with errors.

use rdkafka::types::RDKafkaApiKey;
use rdkafka::types::RDKafkaRespErr::{self, *};

use crate::support::comparison::{Repeats, same};
use crate::support::mock::Mock;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Sends three hundred events while the broker answers one request with each of these errors.
async fn answered_with(errors: &[RDKafkaRespErr]) {
    let (outbox, mock) = (Outbox::new().await, Mock::start(1));
    for topic in ["order", "customer"] {
        mock.create_topic(&outbox.topic(topic), 2, 1);
    }
    let kafka = mock.client();
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.insert_numbers("customer", "b", 1..11).await;
    mock.cluster.request_errors(RDKafkaApiKey::Produce, errors);
    let both = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
                SELECT unnest(ARRAY['order', 'customer']), unnest(ARRAY['a', 'b']), jsonb_build_object('n', n) \
                FROM generate_series(11, 160) n";
    outbox.execute(both).await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Mocked).await;
}

#[tokio::test]
async fn broker_errors_that_are_temporary_are_retried_by_the_producer() {
    let errors = [
        RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RD_KAFKA_RESP_ERR__TRANSPORT,
    ];
    answered_with(&errors).await;
}

/// The producer does not retry these. The router creates a new one and resumes where the acknowledgements ended.
#[tokio::test]
async fn broker_errors_that_end_the_producer_lose_and_reorder_nothing() {
    for error in [
        RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
        RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
        RD_KAFKA_RESP_ERR_UNKNOWN,
    ] {
        answered_with(&[RD_KAFKA_RESP_ERR_NO_ERROR, error]).await;
    }
}

/// A producer requests a producer id before its first record. The next `times` requests are refused.
async fn producer_id_refused(times: usize) -> (Outbox, Mock) {
    let (outbox, mock) = (Outbox::new().await, Mock::start(1));
    mock.create_topic(&outbox.topic("order"), 2, 1);
    let refused = vec![RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; times];
    mock.cluster.request_errors(RDKafkaApiKey::InitProducerId, &refused);
    outbox.insert_numbers("order", "a", 1..11).await;
    (outbox, mock)
}

const NO_RIGHT_TO_WRITE: &str = "neither WRITE on any topic nor IDEMPOTENT_WRITE on the cluster";

/// That producer has failed for good, but no delivery report says so.
#[tokio::test]
async fn broker_errors_that_end_the_producer_before_its_first_record_are_noticed() {
    let (outbox, mock) = producer_id_refused(2).await;
    let kafka = mock.client();
    // with checkpoints, their producer would send the first request
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", false);
    let mut router = Router::start(&settings);
    router.logs(NO_RIGHT_TO_WRITE).await;
    outbox.all_confirmed().await;
    router.ready().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// The router starts no session before it has written a checkpoint, and it starts again once it has the right.
#[tokio::test]
async fn broker_errors_that_end_the_producer_of_checkpoints_end_the_start() {
    let (outbox, mock) = producer_id_refused(20).await;
    let kafka = mock.client();
    let settings = Settings::new(&outbox, &kafka);
    let refused = Router::start(&settings).exits(1).await;
    refused.says(&["the position cannot be written to the topic outbox-router.positions", NO_RIGHT_TO_WRITE]);
    mock.cluster.clear_request_errors(RDKafkaApiKey::InitProducerId);
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
