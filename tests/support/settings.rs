//! A configuration file for the router under test.

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
use super::place::Ran;
use super::process;
use super::router::Ended;

/// Keys and values of the file, and the program that reads it.
#[derive(Clone)]
pub(crate) struct Settings {
    values: BTreeMap<String, Value>,
    program: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { values: BTreeMap::new(), program: PathBuf::from(env!("CARGO_BIN_EXE_outbox-router")) }
    }
}

impl Settings {
    /// What a router between `outbox` and `kafka` needs. Its topics begin with the outbox's name.
    pub(crate) fn new(outbox: &Outbox, kafka: &Kafka) -> Self {
        Self::default()
            .set("postgres.url", outbox.url())
            .set("postgres.slot", outbox.name.as_str())
            .set("kafka.'bootstrap.servers'", kafka.bootstrap.as_str())
            .set("route.topic", outbox.topic("${aggregate_type}"))
            .set("admin.listen", "127.0.0.1:0")
    }

    /// The same for another version of the router.
    pub(crate) fn of_program(&self, program: impl Into<PathBuf>) -> Self {
        Settings { values: self.values.clone(), program: program.into() }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// `key` as it stands in TOML: `kafka.'linger.ms'`. A later value takes the place of an earlier one.
    pub(crate) fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.values.insert(key.to_owned(), value.into());
        self
    }

    /// Reaches Postgres by another address, a proxy's for instance.
    pub(crate) fn reached_at(self, outbox: &Outbox, address: &str) -> Self {
        self.set("postgres.url", outbox.url().replace(outbox.address(), address))
    }

    /// Takes a key back.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.values.remove(key);
        self
    }

    /// Runs another command of the router with this file, to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        let folder = tempfile::tempdir().unwrap();
        let file = self.write_to(&folder);
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(&file).args(arguments).current_dir(folder.path());
        command.env_clear().env("HOME", folder.path());
        Ran::of(process::output(&mut command))
    }

    /// The same, while other tasks of the test go on.
    pub(crate) async fn run_beside(&self, arguments: &[&str]) -> Ran {
        let (settings, arguments) =
            (self.clone(), arguments.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
        let run = move || settings.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    /// Runs another command and kills it after this time. Returns its exit code if it has ended before.
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

    /// Runs one on a terminal, and types `answer` to its question when `meanwhile` is done. Returns what stands there then.
    pub(crate) async fn asked(
        &self,
        arguments: &[&str],
        answer: &str,
        meanwhile: impl AsyncFnOnce(),
    ) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = self.write_to(&folder);
        let line = format!("{} -c {} {}", self.program.display(), file.display(), arguments.join(" "));
        // of util-linux: what it runs has a terminal
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env_clear().env("HOME", folder.path());
        let mut child = process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (mut typed, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (mut shown, mut byte) = (Vec::new(), [0]);
        while !shown.ends_with(b", to go on: ") {
            let read = screen.read(&mut byte).unwrap();
            assert_eq!(read, 1, "no question: {}", String::from_utf8_lossy(&shown));
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

    /// Runs the command that the router said would leave out what stopped it.
    pub(crate) fn obey(&self, ended: &Ended) {
        let (_, command) = ended.last_line().rsplit_once(": outbox-router ").unwrap();
        let arguments: Vec<_> = command.split(' ').chain(["--yes"]).collect();
        let ran = self.run(&arguments);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    }

    /// Leaves out everything that is committed by now.
    pub(crate) async fn leave_all_out(&self, outbox: &Outbox) {
        let rows = outbox.query("SELECT pg_current_wal_flush_lsn()::text").await;
        let ran = self.run(&["slot", "advance", "--yes", "--to", rows[0].get(0)]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    }

    /// The file.
    pub(crate) fn text(&self) -> String {
        self.values.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
    }
}
