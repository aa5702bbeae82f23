//! A Postgres of a test's own, made by `scripts/services` and deleted with its guard.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_router::config::conninfo::{
    ChannelBinding, ConnInfo, Host, HostAddr, SslMode, TargetSessionAttrs, Tcp,
};
use outbox_router::postgres::connect::Startup;
use outbox_router::postgres::session::Session;
use tokio::sync::{Semaphore, SemaphorePermit};

/// No more private servers than this at a time.
static PLACES: Semaphore = Semaphore::const_new(2);

/// A private server; dropped, it is gone with its data.
pub(crate) struct PrivatePostgres {
    instance: String,
    variables: BTreeMap<String, String>,
    _place: SemaphorePermit<'static>,
}

impl PrivatePostgres {
    /// Brings one up, of the major version `TEST_POSTGRES_MAJOR` if that is set, with `pg_hba` (lines of `pg_hba.conf`) and settings as `name=value`. Superuser `postgres` comes in
    /// by the unix socket, whatever `pg_hba` says.
    pub(crate) async fn start(pg_hba: &str, settings: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let place = PLACES.acquire().await.unwrap();
        let instance = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut server = PrivatePostgres { instance, variables: BTreeMap::new(), _place: place };
        let folder = tempfile::tempdir().unwrap();
        let hba = folder.path().join("pg_hba.conf");
        fs::write(&hba, format!("local all postgres trust\n{pg_hba}")).unwrap();
        let mut up = server.services("up");
        up.args(["--only", "postgres", "--hba"]).arg(&hba);
        if let Ok(major) = std::env::var("TEST_POSTGRES_MAJOR") {
            up.args(["--postgres", &major]);
        }
        for setting in settings {
            up.args(["--postgres-setting", setting]);
        }
        succeed(up);
        server.variables = server.exported();
        server
    }

    /// A variable of `scripts/services env`.
    pub(crate) fn variable(&self, name: &str) -> &str {
        &self.variables[name]
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
        let mut stop = self.services("stop");
        stop.arg("postgres");
        succeed(stop);
        let mut start = self.services("start");
        start.arg("postgres");
        for setting in settings {
            start.args(["--postgres-setting", setting]);
        }
        succeed(start);
    }

    fn services(&self, command: &str) -> Command {
        let mut services = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/services"));
        services.args([command, "--instance", &self.instance]);
        services
    }

    /// What `env` exports, with the shell's quotes undone by a shell.
    fn exported(&self) -> BTreeMap<String, String> {
        let lines = succeed(self.services("env")).stdout;
        let mut shell = Command::new("bash");
        shell.args(["-c", "eval \"$1\"; env -0", "bash", &String::from_utf8(lines).unwrap()]);
        let variables = String::from_utf8(succeed(shell).stdout).unwrap();
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        variables.split('\0').filter(|line| line.starts_with("TEST_")).filter_map(pair).collect()
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        let down = self.services("down").output();
        if !std::thread::panicking() {
            assert!(down.unwrap().status.success(), "instance {} did not go down", self.instance);
        }
    }
}

fn succeed(mut command: Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
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
