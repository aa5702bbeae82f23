//! OAUTHBEARER with a real broker and tokens of an OpenID Connect server.

use super::SecureKafka;
use crate::support::certificates::Authority;
use crate::support::eventually::eventually;
use crate::support::outbox::Outbox;
use crate::support::router::{Router, waits};
use crate::support::settings::Settings;
use crate::support::token_server::{Answer, CLIENT, CLIENT_SECRET, TokenServer};

const WRONG: &str = "wrong-one-9d41";
const GOOD: Answer = Answer::Token { principal: "router", seconds: 300 };

async fn broker() -> SecureKafka {
    SecureKafka::start(
        "SASL_SSL",
        &[
            "sasl.enabled.mechanisms=OAUTHBEARER",
            // Kafka's default validator, which is meant for tests, accepts unsigned tokens
            "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=\
             org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"broker\";",
            // a client has to authenticate again before its token expires
            "connections.max.reauth.ms=3600000",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS;User:router",
        ],
    )
    .await
}

fn settings(broker: &SecureKafka, outbox: &Outbox, url: &str) -> Settings {
    broker
        .settings(outbox, "sasl_ssl")
        .set("kafka.'sasl.mechanism'", "OAUTHBEARER")
        .set("kafka.'sasl.oauthbearer.method'", "oidc")
        .set("kafka.'sasl.oauthbearer.token.endpoint.url'", url)
        .set("kafka.'sasl.oauthbearer.client.id'", CLIENT)
        .set("kafka.'sasl.oauthbearer.client.secret'", CLIENT_SECRET)
        .set("kafka.'sasl.oauthbearer.scope'", "events")
        .set("kafka.'https.ca.location'", broker.path("root.crt"))
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn kafka_tokens_of_an_openid_connect_server_are_accepted() {
    let broker = broker().await;
    let (outbox, kafka) = (Outbox::new().await, broker.broker.client());
    let tokens = TokenServer::start(Some(&broker.authority.issue("localhost", &["localhost"])), GOOD);
    let settings = settings(&broker, &outbox, &tokens.url()).set("kafka.debug", "all");

    // neither the client's secret nor a token is logged at any level
    let router = Router::with_variables(&settings, &[("RUST_LOG", "trace")]);
    outbox.insert("order", "a", "1").await;
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    assert_eq!(kafka.count(&outbox.name).await, Ok(1));
    let served = tokens.log.lock().unwrap().clone();
    assert!(
        served.iter().any(|line| line == "POST /token grant_type=client_credentials&scope=events"),
        "{served:?}"
    );
    let secrets =
        served.iter().filter(|line| !line.starts_with("POST ")).map(String::as_str).chain([CLIENT_SECRET]);
    for secret in secrets {
        assert!(!log.contains(secret), "{secret} is in\n{log}");
    }
    let check = settings.run(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");

    // first the token server refuses the client, then the brokers refuse the token
    let wrong = settings.clone().set("kafka.'sasl.oauthbearer.client.secret'", WRONG);
    let ended = Router::with_variables(&wrong, &[("RUST_LOG", "trace")]).exits(1).await;
    ended.says(&[
        "the token server at https://localhost",
        "invalid_client",
        "sasl.oauthbearer.client.secret",
    ]);
    assert!(!ended.log.contains(WRONG), "{}", ended.log);
    let check = wrong.run(&["check"]);
    assert!(check.code == 1 && check.out.contains("invalid_client"), "{check:?}");
    tokens.answers(Answer::Token { principal: "", seconds: 300 });
    Router::start(&settings).exits(1).await.says(&["refused the credentials", "audience, scope, subject"]);
}

/// The router waits for a token server that cannot be reached, and sends no request to one that it does not trust.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn kafka_tokens_are_waited_for_and_renewed_before_they_expire() {
    let broker = broker().await;
    let (outbox, kafka) = (Outbox::new().await, broker.broker.client());
    let identity = broker.authority.issue("localhost", &["localhost"]);
    let tokens = TokenServer::start(Some(&identity), Answer::Other(503, "{}"));
    let settings = settings(&broker, &outbox, &tokens.url());
    std::fs::write(broker.path("stranger.crt"), Authority::new("a stranger").certificate).unwrap();
    let (stranger, unreachable) = (broker.path("stranger.crt"), "https://localhost:1/token");
    for (key, value, why) in [
        ("kafka.'https.ca.location'", stranger.as_str(), "SSL certificate "),
        // the system's store, which lacks the authority
        ("kafka.'https.ca.location'", "probe", "SSL certificate "),
        ("kafka.'sasl.oauthbearer.token.endpoint.url'", unreachable, "Failed to connect to localhost"),
    ] {
        let settings = settings.clone().set(key, value);
        let mut router = Router::start(&settings);
        waits_because(&mut router, why).await;
        waits_because(&mut router, "https.ca.location").await;
        router.stop().await;
        let check = settings.run(&["check"]);
        assert!(check.code == 1 && check.out.contains("no token comes from https://localhost"), "{check:?}");
        assert!(
            check.out.contains("https.ca.location") && !check.out.contains("bootstrap.servers"),
            "{check:?}"
        );
    }
    assert_eq!(tokens.asked(), 0);

    let mut router = Router::start(&settings);
    waits_because(&mut router, &format!("no token comes from {}", tokens.url())).await;
    tokens.answers(Answer::Token { principal: "router", seconds: 5 });
    router.ready().await;
    outbox.insert("order", "a", "1").await;
    outbox.all_confirmed().await;
    let asked = tokens.asked();
    eventually("tokens are renewed", async || (tokens.asked() > asked + 2).then_some(())).await;

    // a client that is refused during a session may be accepted later, as with a password
    tokens.answers(Answer::Other(401, "{\"error\": \"invalid_client\"}"));
    outbox.insert("order", "a", "2").await;
    router.shows("events wait", |status| waits(status).then_some(())).await;
    outbox.insert("order", "a", "3").await;
    tokens.answers(GOOD);
    outbox.all_confirmed().await;
    router.ready().await;
    router.stop().await;
    let mut arrived: Vec<_> =
        kafka.records(&outbox.name).await.iter().map(|record| record.text().to_owned()).collect();
    arrived.dedup();
    assert_eq!(arrived, ["1", "2", "3"]);
}

async fn waits_because(router: &mut Router, why: &str) {
    router
        .shows(&format!("the router waits because of {why:?}"), |status| {
            (waits(status) && status["reason"].as_str()?.contains(why)).then_some(())
        })
        .await;
}
