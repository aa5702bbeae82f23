//! The whole router over TLS: every command, a wrong name, and a password that changes under it.

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

/// Who is not the tests' own superuser comes in by TLS and with a password, or not at all.
const PG_HBA: &str = "host all postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";

/// A server with a certificate for `localhost`, and a database on it where `init` has been, over TLS.
struct Setting {
    place: Place,
    server: PrivatePostgres,
    root: PathBuf,
    settings: Settings,
}

impl Setting {
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
            .set("route.topic", format!("{}.${{aggregate_type}}", place.name))
            .set("admin.listen", "127.0.0.1:0");
        let mut setting = Setting { place, server, root, settings };
        setting.init();
        setting
    }

    /// As `init` is run by an administrator, for a role that is then given a password.
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

    /// Waits until all that was inserted is confirmed.
    async fn all_confirmed(&self) {
        let end = self.place.psql("SELECT pg_current_wal_insert_lsn()");
        let sql = format!(
            "SELECT confirmed_flush_lsn >= '{}' FROM pg_replication_slots WHERE slot_name = '{}'",
            end.trim(),
            self.place.name
        );
        eventually("all is confirmed", async || (self.place.psql(&sql).trim() == "t").then_some(())).await;
    }
}

#[tokio::test]
async fn secure_connection_for_every_command_with_verify_full_and_channel_binding() {
    let mut setting = Setting::new().await;
    let kafka = Kafka::shared();
    let url = setting.url("router:sesame", "localhost");
    let router = Router::active(&setting.with(url.clone())).await;
    setting.insert(1);
    kafka.holds(&setting.place.name, 1).await;
    setting.all_confirmed().await;

    // the walsender and the watch
    let sessions = "SELECT count(*), bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE usename = 'router'";
    assert_eq!(setting.place.psql(sessions).trim(), "2|t");

    setting.place.set("POSTGRES__URL", &url);
    setting.place.set("ADMIN__LISTEN", &format!("127.0.0.1:{}", router.admin_port().unwrap()));
    let check = setting.place.run(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");
    let status = setting.place.run(&["status"]);
    assert_eq!(status.code, 0, "{status:?}");
    // its sessions are there before the position is refused
    let tail = setting.place.run(&["tail", "--since", "FFFF/0"]);
    assert!(tail.code == 1 && tail.err.contains("is past the end"), "{tail:?}");
    router.stop().await;
    let status = setting.place.run(&["status"]);
    assert_eq!(status.code, 1, "{status:?}");
    assert!(status.out.contains(&setting.place.name), "nothing of Postgres: {status:?}");
}

#[tokio::test]
async fn secure_connection_to_the_wrong_server_is_refused_and_explained() {
    let setting = Setting::new().await;
    let mut sentences = Sentences::default();
    let port = format!(":{}", setting.server.port());
    let known = [(setting.place.name.as_str(), "NAME"), (port.as_str(), ":PORT")];
    let named = setting.url("router:sesame", "localhost");
    let stranger = Authority::new("a stranger").certificate;
    let other = setting.place.folder().join("stranger.crt");
    fs::write(&other, stranger).unwrap();
    for (case, url) in [
        ("another host name than the certificate's", setting.url("router:sesame", "127.0.0.1")),
        ("another authority", named.replace(setting.root.to_str().unwrap(), other.to_str().unwrap())),
        ("no authority", named.replace("root.crt", "missing.crt")),
        ("without TLS", named.replace("verify-full", "disable").replace("&channel_binding=require", "")),
        ("a wrong password", named.replace("sesame", "wrong")),
    ] {
        let ended = Router::start(&setting.with(url)).ended().await;
        sentences.add(case, &ended, &known);
    }
    insta::assert_snapshot!(sentences.text());
    assert_eq!(Kafka::shared().count(&setting.place.name).await, Ok(0));
}

/// While it runs a refused password may pass: its file is read again at each attempt.
#[tokio::test]
async fn secure_connection_outlasts_a_password_that_is_changed_under_it() {
    let setting = Setting::new().await;
    let kafka = Kafka::shared();
    let file = setting.place.folder().join("password");
    fs::write(&file, "sesame\n").unwrap();
    let settings = setting
        .with(setting.url("router", "localhost"))
        .set("postgres.password_file", file.to_str().unwrap());
    let mut router = Router::active(&settings).await;
    setting.insert(1);
    kafka.holds(&setting.place.name, 1).await;

    setting.place.psql("ALTER ROLE router PASSWORD 'changed'");
    setting.insert(2);
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'router'";
    setting.place.psql(cut);
    router
        .shows("the old password is refused, again and again", |status| {
            let refused = status["last_problem"]["what"].as_str()?.contains("password authentication failed");
            (refused && status["reconnects"]["postgres"].as_u64()? >= 3).then_some(())
        })
        .await;
    let (status, body) = router.get("/readyz").unwrap();
    assert!(status == 503 && body.contains("password authentication failed"), "{status} {body}");

    fs::write(&file, "changed\n").unwrap();
    router.ready().await;
    setting.insert(3);
    setting.all_confirmed().await;
    let ended = router.stop().await;
    let told = ended.log.matches("password authentication failed").count();
    assert!(!ended.log.contains("sesame") && !ended.log.contains("changed\n"), "{}", ended.log);
    // by the session, and at most once more by the watch beside it
    assert!((1..=2).contains(&told), "{}", ended.log);
    let records = kafka.records(&setting.place.name).await;
    let mut texts: Vec<_> = records.iter().map(|record| record.text()).collect();
    texts.dedup();
    assert_eq!(texts, ["1", "2", "3"]);
}
