//! The machine of the measurement.

use std::fs;
use std::thread;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::ground::Ground;

/// The machine, and the versions of the programs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    cores: usize,
    processor: String,
    kernel: String,
    /// The load averages before and after, since other processes may have run.
    load_before: String,
    load_after: String,
    /// The router's version, with librdkafka's.
    router: String,
    postgres: String,
    kafka: String,
}

impl Machine {
    pub(crate) async fn look(ground: &Ground, kafka: &str) -> anyhow::Result<Self> {
        let version = ground.client.query_one("SHOW server_version", &[]).await.context("ask Postgres")?;
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = processors.lines().find(|line| line.starts_with("model name"));
        Ok(Machine {
            cores: thread::available_parallelism()?.get(),
            processor: model
                .and_then(|line| line.split_once(": "))
                .map_or("unknown", |(_, name)| name)
                .to_owned(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            load_before: load(),
            load_after: String::new(),
            router: ground.router_version().await?,
            postgres: version.try_get(0)?,
            kafka: kafka.to_owned(),
        })
    }

    pub(crate) fn at_the_end(self) -> Self {
        Machine { load_after: load(), ..self }
    }

    /// The lines of the report: machine and versions.
    pub(crate) fn lines(&self) -> [(&'static str, String); 2] {
        let Machine { cores, processor, kernel, load_before, load_after, router, postgres, kafka } = self;
        [
            (
                "machine",
                format!(
                    "{cores} cores, {processor}, Linux {kernel}; load {load_before}, at the end {load_after}"
                ),
            ),
            ("versions", format!("{router}, Postgres {postgres}, Kafka {kafka}")),
        ]
    }
}

/// The load averages of the last 1, 5 and 15 minutes.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}
