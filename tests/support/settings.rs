//! The configuration file of a router under test.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use toml::Value;

use super::kafka::Kafka;
use super::outbox::Outbox;
use super::place::{Ran, succeeded};
use super::process;
use super::router::Ended;

/// The delivery modes.
pub(crate) const MODES: [&str; 2] = ["at-least-once", "exactly-once"];

/// The arguments of a command of the router.
fn words(command: &str) -> Vec<&str> {
    command.split_whitespace().skip(1).collect()
}

/// The positions topic of the routers of this outbox on the shared broker.
pub(crate) fn positions_topic(outbox: &Outbox) -> String {
    format!("positions-{}", outbox.name)
}

/// Keys and values of the file, and the router's program.
#[derive(Clone)]
pub(crate) struct Settings {
    values: BTreeMap<String, Value>,
    program: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        let settings =
            Settings { values: BTreeMap::new(), program: PathBuf::from(env!("CARGO_BIN_EXE_outbox-router")) };
        // at the default address another router of this machine may answer
        settings.set("admin.listen", "127.0.0.1:0")
    }
}

impl Settings {
    /// The settings that a router between `outbox` and `kafka` needs. The names of its topics begin with the outbox's name.
    pub(crate) fn new(outbox: &Outbox, kafka: &Kafka) -> Self {
        let settings = Self::default()
            .set("postgres.url", outbox.url())
            .set("postgres.slot", outbox.name.as_str())
            .set("kafka.'bootstrap.servers'", kafka.bootstrap.as_str())
            .set("route.topic", outbox.topic("${aggregate_type}"))
            // on a busy machine a router or server may get no processor time for longer than the defaults; tests of these limits set
            // their own
            .set("postgres.wal_sender_timeout", "60s")
            .set("delivery.shutdown_timeout", "10m");
        // a router that another test has killed in a transaction would delay starts until that transaction times out
        if kafka.is_shared() {
            return settings.set("delivery.positions_topic", positions_topic(outbox));
        }
        settings
    }

    /// The settings of a router that polls.
    pub(crate) fn polling(outbox: &Outbox, kafka: &Kafka) -> Self {
        Self::default()
            .set("postgres.url", outbox.url())
            .set("source.mode", "poll")
            .set("kafka.'bootstrap.servers'", kafka.bootstrap.as_str())
            .set("route.topic", outbox.topic("${aggregate_type}"))
    }

    /// The same settings for another version of the router.
    pub(crate) fn of_program(&self, program: impl Into<PathBuf>) -> Self {
        Settings { values: self.values.clone(), program: program.into() }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Sets a key as written in TOML: `kafka.'linger.ms'`. A later value replaces an earlier one.
    pub(crate) fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.values.insert(key.to_owned(), value.into());
        self
    }

    /// Connects to Postgres at another address, such as a proxy's.
    pub(crate) fn reached_at(self, outbox: &Outbox, address: &str) -> Self {
        self.set("postgres.url", outbox.url().replace(outbox.address(), address))
    }

    /// Removes a key.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.values.remove(key);
        self
    }

    /// Runs a command of the router with this file until it exits.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        let folder = tempfile::tempdir().unwrap();
        let file = self.write_to(&folder);
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(&file).args(arguments).current_dir(folder.path());
        command.env_clear().env("HOME", folder.path());
        Ran::of(process::output(&mut command))
    }

    /// The same without blocking other tasks of the test.
    pub(crate) async fn run_async(&self, arguments: &[&str]) -> Ran {
        let (settings, arguments) =
            (self.clone(), arguments.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
        let run = move || settings.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    /// Runs a command and kills it after this time. Returns its exit code if it has ended before.
    pub(crate) async fn run_killed_after(&self, arguments: &[&str], after: Duration) -> Option<i32> {
        let folder = tempfile::tempdir().unwrap();
        let file = self.write_to(&folder);
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(&file).args(arguments).current_dir(folder.path());
        command.env_clear().env("HOME", folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = process::start(&mut command);
        let deadline = Instant::now() + after;
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.kill().unwrap();
        child.wait().unwrap().code()
    }

    /// Runs a command on a terminal. At its prompt, waits for `meanwhile` and types `answer`. Returns everything on the screen.
    pub(crate) async fn run_on_terminal(
        &self,
        arguments: &[&str],
        answer: &str,
        meanwhile: impl AsyncFnOnce(),
    ) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = self.write_to(&folder);
        let line = format!("{} -c {} {}", self.program.display(), file.display(), arguments.join(" "));
        // part of util-linux; gives the command a terminal
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env_clear().env("HOME", folder.path());
        let mut child = process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (mut typed, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (mut shown, mut byte) = (Vec::new(), [0]);
        while !shown.ends_with(b", to go on: ") {
            let read = screen.read(&mut byte).unwrap();
            assert_eq!(read, 1, "no prompt: {}", String::from_utf8_lossy(&shown));
            shown.push(byte[0]);
        }
        meanwhile().await;
        typed.write_all(format!("{answer}\n").as_bytes()).unwrap();
        screen.read_to_end(&mut shown).unwrap();
        drop(typed);
        assert!(child.wait().unwrap().success(), "{}", String::from_utf8_lossy(&shown));
        String::from_utf8(shown).unwrap()
    }

    pub(crate) fn write_to(&self, folder: &TempDir) -> PathBuf {
        let file = folder.path().join("outbox-router.toml");
        fs::write(&file, self.text()).unwrap();
        file
    }

    /// Runs the command that the router suggested to skip the event that stopped it, after the one that counts what it skips.
    pub(crate) fn run_suggested_command(&self, ended: &Ended) {
        let counted = ended.command("outbox-router slot advance");
        succeeded(self.run(&words(counted)), &["Ahead from"]);
        let skip = counted.strip_suffix(" --dry-run").unwrap();
        assert!(ended.message().lines().any(|line| line.trim_start() == skip), "{}", ended.log);
        succeeded(self.run(&[&words(skip)[..], &["--yes"]].concat()), &[]);
    }

    /// Runs the first command of the message that begins with `outbox-router` and these words.
    pub(crate) fn run_command(&self, ended: &Ended, beginning: &str) {
        let command = words(ended.command(&format!("outbox-router {beginning}")));
        succeeded(self.run(&[&command[..], &["--yes"]].concat()), &[]);
    }

    /// Moves the position past everything committed so far.
    pub(crate) async fn advance_past_everything(&self, outbox: &Outbox) {
        let rows = outbox.query("SELECT pg_current_wal_flush_lsn()::text").await;
        let ran = self.run(&["slot", "advance", "--yes", "--to", rows[0].get(0)]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    }

    /// The text of the file.
    pub(crate) fn text(&self) -> String {
        self.values.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
    }
}
