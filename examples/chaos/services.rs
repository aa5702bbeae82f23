//! The servers: ended and started again by `scripts/services`, and watched for the moment at which they are back.

use std::fs;
use std::path::{Path, PathBuf};
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

    async fn run(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let what = || format!("{} {}", Path::new("scripts/services").display(), arguments.join(" "));
        let mut script = Command::new(&self.script);
        script.args(arguments).args(["--instance", &self.instance]);
        script.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let output = script.output().await.with_context(what)?;
        if !output.status.success() {
            bail!("{} failed: {}", what(), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}
