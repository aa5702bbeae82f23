//! A private Postgres server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pg_logical::connect::Startup;
use pg_logical::conninfo::{ChannelBinding, ConnInfo, Host, HostAddr, SslMode, TargetSessionAttrs, Tcp};
use pg_logical::session::Session;

use super::instance::Instance;

/// A private server. Deleted on drop.
pub(crate) struct PrivatePostgres {
    instance: Instance,
}

/// How a server is stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shutdown {
    /// The server disconnects its clients and writes a checkpoint.
    Fast,
    /// Like a crash.
    Immediate,
}

impl PrivatePostgres {
    /// Starts a server of the major version `TEST_POSTGRES_MAJOR`, if that is set, with these lines of `pg_hba.conf` and settings
    /// as `name=value`. The superuser `postgres` may always connect by the unix socket.
    pub(crate) async fn start(pg_hba: &str, settings: &[&str]) -> Self {
        let major = std::env::var("TEST_POSTGRES_MAJOR").ok();
        Self::of_major(major.as_deref(), pg_hba, settings)
    }

    /// Starts a primary, and a standby that follows it through the slot `standby`. They can synchronize logical slots: their
    /// major version is the suite's if that is 17 or later, else 17.
    pub(crate) async fn pair(pg_hba: &str, settings: &[&str], standby_settings: &[&str]) -> (Self, Self) {
        let major = std::env::var("TEST_POSTGRES_MAJOR").ok().filter(|major| major.as_str() >= "17");
        let primary = Self::of_major(Some(major.as_deref().unwrap_or("17")), pg_hba, settings);
        primary.execute(&["SELECT pg_create_physical_replication_slot('standby', true)"]).await;
        let options = ["--in-memory", "--standby-of", primary.instance.name()];
        let instance = Instance::up("postgres", &options, standby_settings);
        (primary, PrivatePostgres { instance })
    }

    fn of_major(major: Option<&str>, pg_hba: &str, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let hba = folder.path().join("pg_hba.conf");
        fs::write(&hba, format!("local all postgres trust\n{pg_hba}")).unwrap();
        let mut options = vec!["--in-memory", "--hba", hba.to_str().unwrap()];
        if let Some(major) = major {
            options.extend(["--postgres", major]);
        }
        let instance = Instance::up("postgres", &options, settings);
        PrivatePostgres { instance }
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

    /// The TCP address, with a host name that need not resolve because only certificates contain it.
    pub(crate) fn tcp(&self, name: &str) -> Host {
        let addr = HostAddr::Tcp { name: name.to_owned(), hostaddr: Some("127.0.0.1".to_owned()) };
        Host { addr, port: self.port() }
    }

    /// The unix socket.
    pub(crate) fn unix(&self) -> Host {
        let directory = PathBuf::from(self.variable("TEST_POSTGRES_SOCKET"));
        Host { addr: HostAddr::Unix(directory), port: self.port() }
    }

    /// A session of the superuser.
    pub(crate) async fn superuser(&self) -> Session {
        self.superuser_in("postgres").await
    }

    /// The same in this database.
    pub(crate) async fn superuser_in(&self, database: &str) -> Session {
        let conninfo = ConnInfo { dbname: database.to_owned(), ..conninfo([self.unix()], "postgres") };
        Session::connect(&conninfo, &Startup::default()).await.unwrap()
    }

    /// The process that logs the running transactions every 15 s, after which a walsender saves its slot.
    pub(crate) async fn background_writer(&self) -> u32 {
        let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'";
        self.superuser().await.query_one(sql).await.unwrap().unwrap().parse().unwrap()
    }

    /// Runs SQL as the superuser.
    pub(crate) async fn execute(&self, statements: &[&str]) {
        let mut session = self.superuser().await;
        for sql in statements {
            session.query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
    }

    /// Changes settings, and returns when every new connection has them.
    pub(crate) async fn configure(&self, settings: &[(&str, &str)]) {
        const LOADED: &str = "SELECT pg_conf_load_time()";
        let mut session = self.superuser().await;
        let before = session.query_one(LOADED).await.unwrap();
        for (name, value) in settings {
            session.query(&format!("ALTER SYSTEM SET {name} = '{value}'")).await.unwrap();
        }
        session.query("SELECT pg_reload_conf()").await.unwrap();
        // a new connection inherits the settings that the postmaster has loaded
        while self.superuser().await.query_one(LOADED).await.unwrap() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Puts a file into the data directory, where only the server may read it.
    pub(crate) fn install(&self, name: &str, contents: &str) {
        let path = self.data().join(name);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let owner = self.data().metadata().unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }

    /// Restarts the server with more settings.
    pub(crate) fn restart(&self, settings: &[&str]) {
        self.stop(Shutdown::Fast);
        self.instance.start(settings);
    }

    /// Kills the server, as a power failure would.
    pub(crate) fn kill(&self) {
        self.instance.kill();
    }

    /// Returns when the server has stopped. Fails if that takes a minute.
    pub(crate) fn stop(&self, shutdown: Shutdown) {
        let mode = match shutdown {
            Shutdown::Fast => "fast",
            Shutdown::Immediate => "immediate",
        };
        self.instance.stop(&["--mode", mode]);
    }

    /// Starts the server again after [`PrivatePostgres::stop`].
    pub(crate) fn start_again(&self) {
        self.instance.start(&[]);
    }

    /// The superuser's URL by TCP, without a database.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}", self.port())
    }
}

/// Minimal connection parameters: no TLS, no password.
pub(crate) fn conninfo(hosts: impl IntoIterator<Item = Host>, user: &str) -> ConnInfo {
    ConnInfo {
        hosts: hosts.into_iter().collect(),
        user: user.to_owned(),
        dbname: "postgres".to_owned(),
        password: None,
        file: None,
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
