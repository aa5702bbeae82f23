//! A Postgres of a test's own, made by `scripts/services` and deleted with its guard.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pg_logical::connect::Startup;
use pg_logical::conninfo::{ChannelBinding, ConnInfo, Host, HostAddr, SslMode, TargetSessionAttrs, Tcp};
use pg_logical::session::Session;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::instance::Instance;

/// No more private servers than this at a time.
static PLACES: Semaphore = Semaphore::const_new(2);

/// A private server; dropped, it is gone with its data.
pub(crate) struct PrivatePostgres {
    instance: Instance,
    _place: SemaphorePermit<'static>,
}

/// How a server is stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shutdown {
    /// Clients are sent away, and the log is written to its end.
    Fast,
    /// As good as a crash.
    Immediate,
}

impl PrivatePostgres {
    /// Brings one up, of the major version `TEST_POSTGRES_MAJOR` if that is set, with `pg_hba` (lines of `pg_hba.conf`)
    /// and settings as `name=value`. Superuser `postgres` comes in by the unix socket, whatever `pg_hba` says.
    pub(crate) async fn start(pg_hba: &str, settings: &[&str]) -> Self {
        let major = std::env::var("TEST_POSTGRES_MAJOR").ok();
        Self::of_major(major.as_deref(), pg_hba, settings, PLACES.acquire().await.unwrap())
    }

    /// Two that know how to hand over logical slots: a primary, and a standby that follows it through the slot `standby`.
    /// They are of the suite's major version if that is 17 or later, else of 17.
    pub(crate) async fn pair(pg_hba: &str, settings: &[&str], standby_settings: &[&str]) -> (Self, Self) {
        let mut places = PLACES.acquire_many(2).await.unwrap();
        let place = places.split(1).unwrap();
        let major = std::env::var("TEST_POSTGRES_MAJOR").ok().filter(|major| major.as_str() >= "17");
        let primary = Self::of_major(Some(major.as_deref().unwrap_or("17")), pg_hba, settings, places);
        primary.execute(&["SELECT pg_create_physical_replication_slot('standby', true)"]).await;
        let options = ["--in-memory", "--standby-of", primary.instance.name()];
        let instance = Instance::up("postgres", &options, standby_settings);
        (primary, PrivatePostgres { instance, _place: place })
    }

    fn of_major(
        major: Option<&str>,
        pg_hba: &str,
        settings: &[&str],
        place: SemaphorePermit<'static>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let hba = folder.path().join("pg_hba.conf");
        fs::write(&hba, format!("local all postgres trust\n{pg_hba}")).unwrap();
        let mut options = vec!["--in-memory", "--hba", hba.to_str().unwrap()];
        if let Some(major) = major {
            options.extend(["--postgres", major]);
        }
        let instance = Instance::up("postgres", &options, settings);
        PrivatePostgres { instance, _place: place }
    }

    /// A variable of `scripts/services env`.
    pub(crate) fn variable(&self, name: &str) -> &str {
        self.instance.variable(name)
    }

    /// The postmaster.
    pub(crate) fn pid(&self) -> u32 {
        self.instance.pid()
    }

    pub(crate) fn port(&self) -> u16 {
        self.variable("TEST_POSTGRES_PORT").parse().unwrap()
    }

    pub(crate) fn data(&self) -> &Path {
        Path::new(self.variable("TEST_POSTGRES_DATA"))
    }

    /// By TCP, under a name that only a certificate knows.
    pub(crate) fn tcp(&self, name: &str) -> Host {
        let addr = HostAddr::Tcp { name: name.to_owned(), hostaddr: Some("127.0.0.1".to_owned()) };
        Host { addr, port: self.port() }
    }

    /// By its unix socket.
    pub(crate) fn unix(&self) -> Host {
        let directory = PathBuf::from(self.variable("TEST_POSTGRES_SOCKET"));
        Host { addr: HostAddr::Unix(directory), port: self.port() }
    }

    /// A session of the superuser.
    pub(crate) async fn superuser(&self) -> Session {
        let conninfo = conninfo([self.unix()], "postgres");
        Session::connect(&conninfo, &Startup::default()).await.unwrap()
    }

    /// Runs SQL as the superuser.
    pub(crate) async fn execute(&self, statements: &[&str]) {
        let mut session = self.superuser().await;
        for sql in statements {
            session.query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
    }

    /// Changes settings and comes back when every new connection sees them.
    pub(crate) async fn configure(&self, settings: &[(&str, &str)]) {
        const LOADED: &str = "SELECT pg_conf_load_time()";
        let mut session = self.superuser().await;
        let before = session.query_one(LOADED).await.unwrap();
        for (name, value) in settings {
            session.query(&format!("ALTER SYSTEM SET {name} = '{value}'")).await.unwrap();
        }
        session.query("SELECT pg_reload_conf()").await.unwrap();
        // A new connection inherits what the postmaster has loaded.
        while self.superuser().await.query_one(LOADED).await.unwrap() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Puts a file where the server may read it and nobody else.
    pub(crate) fn install(&self, name: &str, contents: &str) {
        let path = self.data().join(name);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let owner = self.data().metadata().unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }

    /// Stops and starts it with more settings.
    pub(crate) fn restart(&self, settings: &[&str]) {
        self.stop(Shutdown::Fast);
        self.instance.start(settings);
    }

    /// Ends it at once, as a power failure would.
    pub(crate) fn kill(&self) {
        self.instance.kill();
    }

    /// Comes back when it is down; fails if that takes a minute.
    pub(crate) fn stop(&self, shutdown: Shutdown) {
        let mode = match shutdown {
            Shutdown::Fast => "fast",
            Shutdown::Immediate => "immediate",
        };
        self.instance.stop(&["--mode", mode]);
    }

    /// Starts it again after [`PrivatePostgres::stop`].
    pub(crate) fn start_again(&self) {
        self.instance.start(&[]);
    }

    /// Without a database, for the superuser by TCP.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}", self.port())
    }
}

/// The least that a connection needs: no TLS, no password.
pub(crate) fn conninfo(hosts: impl IntoIterator<Item = Host>, user: &str) -> ConnInfo {
    ConnInfo {
        hosts: hosts.into_iter().collect(),
        user: user.to_owned(),
        dbname: "postgres".to_owned(),
        password: None,
        passfile: None,
        ssl_mode: SslMode::Disable,
        ssl_root_cert: None,
        ssl_client: None,
        channel_binding: ChannelBinding::Prefer,
        target_session_attrs: TargetSessionAttrs::Any,
        connect_timeout: None,
        tcp: Tcp::default(),
        application_name: None,
        options: None,
    }
}
