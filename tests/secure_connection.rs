//! The whole router over TLS.

use crate::support::certificates::Authority;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;
use crate::support::settings::Settings;

const PG_HBA: &str = "host all postgres 127.0.0.1/32 trust\nhostssl all router 127.0.0.1/32 scram-sha-256\n";

#[tokio::test]
async fn encrypted_by_tls_verify_full_and_scram_with_channel_binding() {
    let authority = Authority::new("the authority");
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let identity = authority.issue("localhost", &["localhost"]);
    server.install("server.crt", &identity.certificate);
    server.install("server.key", &identity.key);
    server.configure(&[("ssl", "on")]).await;
    server.execute(&["CREATE ROLE router LOGIN REPLICATION PASSWORD 'sesame'"]).await;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.crt");
    std::fs::write(&root, &authority.certificate).unwrap();

    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let url = |host: &str, options: &str| {
        format!(
            "postgres://router:sesame@{host}:{}/{}?sslmode=verify-full&sslrootcert={}{options}",
            server.port(),
            outbox.name,
            root.display()
        )
    };
    let settings = |url: String| Settings::new(&outbox, &kafka).set("postgres.url", url);

    let router = Router::active(&settings(url("localhost", "&channel_binding=require"))).await;
    outbox.insert("order", "a", "{\"n\": 1}").await;
    kafka.holds(&outbox.name, 1).await;
    outbox.all_confirmed().await;
    let unencrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'router' AND NOT ssl";
    assert_eq!(outbox.query(unencrypted).await[0].get::<_, i64>(0), 0);
    router.stop().await;

    // the certificate knows another name
    let ended = Router::start(&settings(url("127.0.0.1", ""))).exits(1).await;
    ended.says(&["127.0.0.1", "localhost"]);

    // and nobody else's certificate will do
    let stranger = Authority::new("a stranger");
    std::fs::write(&root, &stranger.certificate).unwrap();
    let ended = Router::start(&settings(url("localhost", ""))).exits(1).await;
    ended.says(&["signed by"]);
}
