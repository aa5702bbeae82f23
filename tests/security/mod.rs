//! The statements of docs/security.md: who may do what, and what a row's author or an attacker on the network can cause.

mod acls;
mod advisory_locks;
mod hostile_rows;
mod identifiers;
mod kafka_encryption;
mod kafka_passwords;
mod kafka_tokens;
mod readable_files;
mod replication_role;
mod row_security;
mod terminal;

use std::path::Path;

use crate::support::certificates::Authority;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::settings::Settings;

/// A broker with TLS on its extra port. Its certificate is for `localhost` only.
struct SecureKafka {
    broker: PrivateKafka,
    /// Certificates and keys. `root.crt` is the authority's.
    folder: tempfile::TempDir,
    authority: Authority,
}

impl SecureKafka {
    /// `protocol` is SSL or SASL_SSL.
    async fn start(protocol: &str, settings: &[&str]) -> Self {
        let authority = Authority::new("the authority");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("root.crt"), &authority.certificate).unwrap();
        let store = keystore(folder.path(), "broker", &authority.issue("localhost", &["localhost"]));
        let mut all = vec![
            format!(
                "listeners=PLAINTEXT://127.0.0.1:{{port}},{protocol}://127.0.0.1:{{extra_port}},\
                 CONTROLLER://127.0.0.1:{{controller_port}}"
            ),
            format!(
                "advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},{protocol}://localhost:{{extra_port}}"
            ),
            "ssl.keystore.type=PEM".to_owned(),
            store,
            "ssl.truststore.type=PEM".to_owned(),
            format!("ssl.truststore.location={}/root.crt", folder.path().display()),
        ];
        all.extend(settings.iter().map(|&setting| setting.to_owned()));
        let broker = PrivateKafka::start(&all.iter().map(String::as_str).collect::<Vec<_>>()).await;
        SecureKafka { broker, folder, authority }
    }

    /// Settings of a router that trusts the authority and has no credentials.
    fn settings(&self, outbox: &Outbox, protocol: &str) -> Settings {
        Settings::new(outbox, &self.broker.client())
            .set("kafka.'bootstrap.servers'", self.broker.extra().replace("127.0.0.1", "localhost"))
            // localhost may resolve to ::1, where the broker does not listen
            .set("kafka.'broker.address.family'", "v4")
            .set("kafka.'security.protocol'", protocol)
            .set("kafka.'ssl.ca.location'", self.path("root.crt"))
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

/// Writes a file with this certificate and its key, and returns the broker's setting for it.
fn keystore(folder: &Path, name: &str, identity: &crate::support::certificates::Identity) -> String {
    let path = folder.join(format!("{name}.pem"));
    std::fs::write(&path, format!("{}{}", identity.certificate, identity.key)).unwrap();
    format!("ssl.keystore.location={}", path.display())
}

/// Sends one event and checks that it arrives.
async fn assert_delivers(
    what: &str,
    settings: &Settings,
    outbox: &Outbox,
    kafka: &crate::support::kafka::Kafka,
) {
    let before = kafka.count(&outbox.name).await.unwrap();
    let router = crate::support::router::Router::start(settings);
    outbox.insert("order", "a", &format!("{{\"with\": \"{what}\"}}")).await;
    outbox.all_confirmed().await;
    let ended = router.stop().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(before + 1), "{what}: {}", ended.log);
}
