//! The servers: ended and started again by `scripts/services`, and watched for the moment at which they are back.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::time::sleep;

use crate::writers::connect;

const LOOK_EVERY: Duration = Duration::from_millis(20);
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// What a broker says when it serves requests, which is later than when its port is open.
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
    /// Where Postgres answers without a proxy.
    pub(crate) postgres: String,
    pub(crate) kafka_log: PathBuf,
    /// Where the brokers answer without a proxy.
    pub(crate) brokers: String,
    /// Of Kafka's own tools.
    pub(crate) kafka_classpath: String,
    /// The instance with a standby that `synchronized_standby_slots` names.
    pub(crate) standby: Option<String>,
}

impl Services {
    /// Ends it as a crash of its machine would.
    pub(crate) async fn kill(&self, server: Server) -> anyhow::Result<()> {
        self.run(&["kill", server.name()]).await
    }

    /// Ends it in good order; `mode` is how Postgres is to end.
    pub(crate) async fn stop(&self, server: Server, mode: &str) -> anyhow::Result<()> {
        self.run(&["stop", server.name(), "--mode", mode]).await
    }

    /// Starts it again. Returns the moment at which it served again.
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
            ensure!(Instant::now() < deadline, "Postgres does not come back");
            sleep(LOOK_EVERY).await;
        }
    }

    async fn kafka_back(&self) -> anyhow::Result<Instant> {
        let deadline = Instant::now() + BACK_WITHIN;
        loop {
            if fs::read_to_string(&self.kafka_log).is_ok_and(|log| log.contains(SERVES)) {
                return Ok(Instant::now());
            }
            ensure!(Instant::now() < deadline, "Kafka does not come back");
            sleep(LOOK_EVERY).await;
        }
    }

    /// Freezes the broker, or lets it go on.
    pub(crate) fn signal_broker(&self, signal: Signal) -> anyhow::Result<()> {
        let file = self.kafka_log.with_file_name("pid");
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
        let number = number.and_then(Pid::from_raw).context("the broker's process number")?;
        kill_process(number, signal).context("send the broker a signal")
    }

    /// Ends the standby, or starts it again.
    pub(crate) async fn standby(&self, order: &[&str]) -> anyhow::Result<()> {
        let standby = self.standby.as_ref().context("there is no standby")?;
        self.run_for(standby, order).await
    }

    /// Runs one of Kafka's own tools.
    pub(crate) async fn kafka_tool(&self, class: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let mut java = Command::new("java");
        // over before the JVM's second compiler has done anything for it
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
