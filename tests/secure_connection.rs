//! All commands over TLS, connections that must be refused, and a password that changes while the router runs.

use std::fs;
use std::path::PathBuf;

use crate::support::certificates::Authority;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::place::Place;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;
use crate::support::sentences::Sentences;
use crate::support::settings::Settings;

/// Requires TLS and a password of all roles except `postgres`.
const PG_HBA: &str = "host all postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";

/// A server with a certificate for `localhost`, and a database in which `init` was run over TLS.
struct Setup {
    place: Place,
    server: PrivatePostgres,
    root: PathBuf,
    settings: Settings,
}

impl Setup {
    async fn new() -> Self {
        let authority = Authority::new("the authority");
        let server = PrivatePostgres::start(PG_HBA, &[]).await;
        let identity = authority.issue("localhost", &["localhost"]);
        server.install("server.crt", &identity.certificate);
        server.install("server.key", &identity.key);
        server.configure(&[("ssl", "on")]).await;
        server.execute(&["CREATE ROLE admin LOGIN SUPERUSER PASSWORD 'open'"]).await;
        let place = Place::on(&server.url());
        let root = place.folder().join("root.crt");
        fs::write(&root, &authority.certificate).unwrap();
        let settings = Settings::default()
            .set("postgres.slot", place.name.as_str())
            .set("postgres.publication", place.name.as_str())
            .set("kafka.'bootstrap.servers'", Kafka::shared().bootstrap)
            .set("route.topic", format!("{}.${{aggregate_type}}", place.name));
        let mut setup = Setup { place, server, root, settings };
        setup.init();
        setup
    }

    /// Runs `init` as an administrator, and gives the new role a password.
    fn init(&mut self) {
        let (administrator, router) = (self.url("admin:open", "localhost"), self.url("router", "localhost"));
        self.place.set("POSTGRES__URL", &router);
        let ran = self.place.run(&["init", "--url", &administrator, "--role", "router"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        self.place.psql("ALTER ROLE router PASSWORD 'sesame'");
    }

    fn url(&self, who: &str, host: &str) -> String {
        format!(
            "postgres://{who}@{host}:{}/{}?hostaddr=127.0.0.1&sslmode=verify-full&channel_binding=require&sslrootcert={}",
            self.server.port(),
            self.place.name,
            self.root.display()
        )
    }

    fn with(&self, url: String) -> Settings {
        self.settings.clone().set("postgres.url", url)
    }

    fn insert(&self, n: u32) {
        self.place.psql(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'x', '{n}')"
        ));
    }

    /// Waits until everything is confirmed.
    async fn all_confirmed(&self) {
        let end = self.place.psql("SELECT pg_current_wal_flush_lsn()");
        let sql = format!(
            "SELECT confirmed_flush_lsn >= '{}' FROM pg_replication_slots WHERE slot_name = '{}'",
            end.trim(),
            self.place.name
        );
        eventually("everything is confirmed", async || (self.place.psql(&sql).trim() == "t").then_some(()))
            .await;
    }
}

#[tokio::test]
async fn secure_connection_for_every_command_with_verify_full_and_channel_binding() {
    let mut setup = Setup::new().await;
    let kafka = Kafka::shared();
    let url = setup.url("router:sesame", "localhost");
    let router = Router::active(&setup.with(url.clone())).await;
    setup.insert(1);
    kafka.holds(&setup.place.name, 1).await;
    setup.all_confirmed().await;

    // the walsender and the catalogue watch; for a moment there may be one that looks for locks
    let sessions = "SELECT count(*), bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE usename = 'router'";
    eventually("both sessions are encrypted", async || {
        (setup.place.psql(sessions).trim() == "2|t").then_some(())
    })
    .await;

    setup.place.set("POSTGRES__URL", &url);
    setup.place.set("ADMIN__LISTEN", &format!("127.0.0.1:{}", router.admin_port().unwrap()));
    let check = setup.place.run(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");
    let status = setup.place.run(&["status"]);
    assert_eq!(status.code, 0, "{status:?}");
    // tail connects before it checks the position
    let tail = setup.place.run(&["tail", "--since", "FFFF/0"]);
    assert!(tail.code == 1 && tail.err.contains("is past the end"), "{tail:?}");
    router.stop().await;
    let status = setup.place.run(&["status"]);
    assert_eq!(status.code, 1, "{status:?}");
    assert!(status.out.contains(&setup.place.name), "nothing about Postgres: {status:?}");
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn secure_connection_to_the_wrong_server_is_refused_and_explained() {
    let setup = Setup::new().await;
    let mut sentences = Sentences::default();
    let port = format!(":{}", setup.server.port());
    let known = [(setup.place.name.as_str(), "NAME"), (port.as_str(), ":PORT")];
    let named = setup.url("router:sesame", "localhost");
    let stranger = Authority::new("a stranger").certificate;
    let other = setup.place.folder().join("stranger.crt");
    fs::write(&other, stranger).unwrap();
    for (case, url) in [
        ("another host name than the certificate's", setup.url("router:sesame", "127.0.0.1")),
        ("another authority", named.replace(setup.root.to_str().unwrap(), other.to_str().unwrap())),
        ("no authority", named.replace("root.crt", "missing.crt")),
        ("without TLS", named.replace("verify-full", "disable").replace("&channel_binding=require", "")),
        ("a wrong password", named.replace("sesame", "wrong")),
    ] {
        let ended = Router::start(&setup.with(url)).ended().await;
        sentences.add(case, &ended, &known);
    }
    insta::assert_snapshot!(sentences.text());
    assert_eq!(Kafka::shared().count(&setup.place.name).await, Ok(0));
}

/// A running router retries after a refused password, and reads the password file again at each attempt.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn secure_connection_recovers_after_a_password_change() {
    let setup = Setup::new().await;
    let kafka = Kafka::shared();
    let file = setup.place.folder().join("password");
    fs::write(&file, "sesame\n").unwrap();
    let settings =
        setup.with(setup.url("router", "localhost")).set("postgres.password_file", file.to_str().unwrap());
    let mut router = Router::active(&settings).await;
    setup.insert(1);
    kafka.holds(&setup.place.name, 1).await;

    setup.place.psql("ALTER ROLE router PASSWORD 'changed'");
    setup.insert(2);
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'router'";
    setup.place.psql(cut);
    router
        .shows("the old password is refused repeatedly", |status| {
            let refused = status["last_problem"]["what"].as_str()?.contains("password authentication failed");
            let named = status["peer"] == "postgres" && status["code"] == "OBR-1002";
            (refused && named && status["reconnects"]["postgres"].as_u64()? >= 3).then_some(())
        })
        .await;
    let (status, body) = router.get_now("/readyz").await;
    let says = ["to postgres: OBR-1002: ", "password authentication failed", "Correct the password"];
    assert!(status == 503 && says.iter().all(|part| body.contains(part)), "{status} {body}");

    fs::write(&file, "changed\n").unwrap();
    router.ready().await;
    setup.insert(3);
    setup.all_confirmed().await;
    let ended = router.stop().await;
    let logged: Vec<&str> =
        ended.log.lines().filter(|line| line.contains("password authentication failed")).collect();
    assert!(!ended.log.contains("sesame") && !ended.log.contains("changed\n"), "{}", ended.log);
    // by the session, and perhaps by the catalogue watch
    assert!((1..=2).contains(&logged.len()), "{}", ended.log);
    assert!(logged.iter().all(|line| line.contains("code=OBR-1002")), "{}", ended.log);
    let records = kafka.records(&setup.place.name).await;
    let mut texts: Vec<_> = records.iter().map(|record| record.text()).collect();
    texts.dedup();
    assert_eq!(texts, ["1", "2", "3"]);
}
