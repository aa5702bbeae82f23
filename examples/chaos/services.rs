//! Stops and starts the servers with `scripts/services`, and detects when they serve again.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::time::sleep;

use crate::writers::connect;

const POLL_EVERY: Duration = Duration::from_millis(20);
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// The broker's log line when it serves requests, which is later than when its port is open.
const SERVES: &str = "Kafka Server started";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Postgres,
    Kafka,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Server::Postgres => "postgres",
            Server::Kafka => "kafka",
        }
    }
}

/// One instance of `scripts/services`.
pub(crate) struct Services {
    pub(crate) script: PathBuf,
    pub(crate) instance: String,
    /// The URL of Postgres without the proxy.
    pub(crate) postgres: String,
    pub(crate) kafka_log: PathBuf,
    /// The bootstrap servers without the proxy.
    pub(crate) brokers: String,
    /// The classpath of Kafka's command-line tools.
    pub(crate) kafka_classpath: String,
    /// The instance of the standby that `synchronized_standby_slots` names.
    pub(crate) standby: Option<String>,
}

impl Services {
    /// Kills the server with SIGKILL.
    pub(crate) async fn kill(&self, server: Server) -> anyhow::Result<()> {
        self.run(&["kill", server.name()]).await
    }

    /// Stops the server; `mode` is the shutdown mode of Postgres.
    pub(crate) async fn stop(&self, server: Server, mode: &str) -> anyhow::Result<()> {
        self.run(&["stop", server.name(), "--mode", mode]).await
    }

    /// Starts the server. Returns when it served requests.
    pub(crate) async fn start(&self, server: Server) -> anyhow::Result<Instant> {
        if server == Server::Kafka {
            fs::write(&self.kafka_log, "").context("empty the broker's log")?;
        }
        let start = ["start", server.name()];
        let back = async {
            match server {
                Server::Postgres => self.postgres_back().await,
                Server::Kafka => self.kafka_back().await,
            }
        };
        let (_, back) = tokio::try_join!(self.run(&start), back)?;
        Ok(back)
    }

    async fn postgres_back(&self) -> anyhow::Result<Instant> {
        let deadline = Instant::now() + BACK_WITHIN;
        loop {
            if connect(&self.postgres).await.is_ok() {
                return Ok(Instant::now());
            }
            ensure!(Instant::now() < deadline, "Postgres does not serve requests again");
            sleep(POLL_EVERY).await;
        }
    }

    async fn kafka_back(&self) -> anyhow::Result<Instant> {
        let deadline = Instant::now() + BACK_WITHIN;
        loop {
            if fs::read_to_string(&self.kafka_log).is_ok_and(|log| log.contains(SERVES)) {
                return Ok(Instant::now());
            }
            ensure!(Instant::now() < deadline, "Kafka does not serve requests again");
            sleep(POLL_EVERY).await;
        }
    }

    /// Sends the broker a signal.
    pub(crate) fn signal_broker(&self, signal: Signal) -> anyhow::Result<()> {
        let file = self.kafka_log.with_file_name("pid");
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
        let number = number.and_then(Pid::from_raw).context("the broker's process number")?;
        kill_process(number, signal).context("send the broker a signal")
    }

    /// Runs a command of `scripts/services` for the standby.
    pub(crate) async fn standby(&self, command: &[&str]) -> anyhow::Result<()> {
        let standby = self.standby.as_ref().context("there is no standby")?;
        self.run_for(standby, command).await
    }

    /// Runs one of Kafka's command-line tools.
    pub(crate) async fn kafka_tool(&self, class: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let mut java = Command::new("java");
        // the tool ends before C2 or a parallel collector would pay off
        java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &self.kafka_classpath, class]);
        java.args(["--bootstrap-server", &self.brokers]).args(arguments);
        succeeds(java, &format!("{class} {}", arguments.join(" "))).await
    }

    async fn run(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.run_for(&self.instance, arguments).await
    }

    async fn run_for(&self, instance: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let mut script = Command::new(&self.script);
        script.args(arguments).args(["--instance", instance]);
        succeeds(script, &format!("scripts/services {}", arguments.join(" "))).await
    }
}

async fn succeeds(mut command: Command, what: &str) -> anyhow::Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = command.output().await.with_context(|| what.to_owned())?;
    if !output.status.success() {
        bail!("{what} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
