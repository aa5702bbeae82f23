//! PLAIN and SCRAM with a real broker, over TLS.

use super::{SecureKafka, assert_delivers};
use crate::support::outbox::Outbox;
use crate::support::private_kafka::kafka_tool;
use crate::support::router::Router;

const PASSWORD: &str = "opensesame-2c7d";
const WRONG: &str = "wrong-one-83aa";

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn kafka_passwords_of_every_mechanism_are_accepted_and_wrong_ones_refused() {
    let plain = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    let broker = SecureKafka::start(
        "SASL_SSL",
        &[
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            &format!("listener.name.sasl_ssl.plain.sasl.jaas.config={plain} user_router=\"{PASSWORD}\";"),
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=\
             org.apache.kafka.common.security.scram.ScramLoginModule required;",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
             org.apache.kafka.common.security.scram.ScramLoginModule required;",
        ],
    )
    .await;
    let (outbox, kafka) = (Outbox::new().await, broker.broker.client());
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
        let credentials = format!("{mechanism}=[password={PASSWORD}]");
        let who =
            ["--alter", "--entity-type", "users", "--entity-name", "router", "--add-config", &credentials];
        let arguments = [&["--bootstrap-server", &kafka.bootstrap], &who[..]].concat();
        let ran = kafka_tool("kafka.admin.ConfigCommand", &arguments);
        assert_eq!(ran.code, 0, "{ran:?}");
    }

    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
        let settings = broker
            .settings(&outbox, "sasl_ssl")
            .set("kafka.'sasl.mechanism'", mechanism)
            .set("kafka.'sasl.username'", "router")
            .set("kafka.'sasl.password'", PASSWORD)
            .set("kafka.debug", "all");
        assert_delivers(mechanism, &settings, &outbox, &kafka).await;
        for (property, value) in [("password", WRONG), ("username", "nobody")] {
            let wrong = settings.clone().set(&format!("kafka.'sasl.{property}'"), value);
            let ended = Router::with_variables(&wrong, &[("RUST_LOG", "trace")]).exits(1).await;
            ended.says(&["refused the credentials", "sasl.password"]);
            for secret in [PASSWORD, WRONG] {
                assert!(!ended.log.contains(secret), "{mechanism}: {secret} is in\n{}", ended.log);
            }
        }
    }
    assert_eq!(kafka.count(&outbox.name).await, Ok(3));
}
