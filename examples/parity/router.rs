//! The router's side of a case: the router with the configuration that `import-debezium` generates from the connector's file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use pg_logical::Lsn;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::case::{Case, Place};
use crate::database::Database;
use crate::outcome::Outcome;
use crate::topics::Broker;

/// How long the last row may take to arrive.
const WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);
/// The number of log lines in a failure.
const LOG_LINES: usize = 2;

/// The program and the folder for its files.
pub(crate) struct Router {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) brokers: String,
}

impl Router {
    /// Runs the router until the last row has arrived or it has ended.
    pub(crate) async fn run(
        &self,
        case: &Case,
        database: &Database,
        broker: &Broker,
    ) -> anyhow::Result<Outcome> {
        let config = match self.configuration(case, &database.place(database.router_slot())).await? {
            Ok(config) => config,
            Err(refused) => return Ok(Outcome { stored: Vec::new(), failure: Some(refused) }),
        };
        let mut running = self.start(&config)?;
        let deadline = Instant::now() + WITHIN;
        loop {
            let ended = running.ended()?;
            let stored = broker.read()?;
            if stored.iter().any(|stored| stored.record.id() == Some(&case.settings.last_id)) {
                running.stop().await?;
                return Ok(Outcome { stored: broker.read_settled().await?, failure: None });
            }
            if let Some(failure) = ended {
                return Ok(Outcome { stored: broker.read_settled().await?, failure: Some(failure) });
            }
            if Instant::now() > deadline {
                let failure = format!("the last row did not arrive: {}", end_of(&running.log));
                running.stop().await?;
                return Ok(Outcome { stored: broker.read_settled().await?, failure: Some(failure) });
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts `outbox-router run`.
    pub(crate) fn start(&self, config: &Path) -> anyhow::Result<Running> {
        self.start_with(config, &[])
    }

    /// The same, accepting that another program has moved the slot.
    pub(crate) fn start_after_another(&self, config: &Path, position: Lsn) -> anyhow::Result<Running> {
        self.start_with(config, &["--accept-gap", &position.to_string()])
    }

    fn start_with(&self, config: &Path, arguments: &[&str]) -> anyhow::Result<Running> {
        let log = self.folder.join("router.log");
        let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let errors = output.try_clone().context("share the log")?;
        let mut process = self.command();
        process.arg("-c").arg(config).arg("run").args(arguments).stdout(output).stderr(errors);
        Ok(Running { process: process.spawn().context("start outbox-router run")?, log })
    }

    /// Runs `outbox-router check`, which must succeed.
    pub(crate) async fn check(&self, config: &Path) -> anyhow::Result<()> {
        let mut check = self.command();
        let output = check.arg("-c").arg(config).arg("check").output().await.context("run check")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "outbox-router check, {}: {said}", output.status);
        Ok(())
    }

    /// The configuration file, or why there is none. A connector with settings that have no equivalent is translated as far as
    /// possible, and the comparison shows the effect on the records.
    pub(crate) async fn configuration(
        &self,
        case: &Case,
        place: &Place<'_>,
    ) -> anyhow::Result<Result<PathBuf, String>> {
        let config = self.folder.join("outbox-router.toml");
        let connector = self.folder.join("connector.json");
        let text = case.connector(place);
        fs::write(&connector, text).with_context(|| format!("write {}", connector.display()))?;
        let mut import = self.command();
        let output: Output =
            import.arg("import-debezium").arg(&connector).output().await.context("run import-debezium")?;
        if output.stdout.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or_default();
            return Ok(Err(format!("import-debezium, {}: {said}", output.status)));
        }
        let mut text = String::from_utf8(output.stdout).context("read what import-debezium printed")?;
        // a connector of several tables keeps its slot, but nobody reads the other tables of a case
        if !text.contains("\nslot = ") {
            let own = format!("[postgres]\nslot = \"{}\"\npublication = \"parity\"\n", place.slot);
            text = text.replacen("[postgres]\n", &own, 1);
        }
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        Ok(Ok(config))
    }

    /// The program with the brokers, which the connector's file does not contain.
    fn command(&self) -> Command {
        let mut process = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("OUTBOX_ROUTER_") || text.starts_with("PG") {
                process.env_remove(name);
            }
        }
        process
            .env("OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS", &self.brokers)
            .env("OUTBOX_ROUTER_ADMIN__LISTEN", "")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        process
    }
}

/// A running router; dropping it kills the process.
pub(crate) struct Running {
    process: Child,
    log: PathBuf,
}

impl Running {
    /// If it ended by itself: its exit status and last log lines.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<String>> {
        let status = self.process.try_wait().context("check the process of the router")?;
        Ok(status.map(|status| format!("{status}: {}", end_of(&self.log))))
    }

    /// Ends it with SIGTERM, and waits.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let number = self.process.id().and_then(|number| i32::try_from(number).ok()).and_then(Pid::from_raw);
        let number = number.context("the router ended by itself")?;
        kill_process(number, Signal::TERM).context("send SIGTERM to the router")?;
        match timeout(STOPPED_WITHIN, self.process.wait()).await {
            Ok(status) => {
                let status = status.context("wait for the router")?;
                ensure!(status.success(), "after SIGTERM the router ended with {status}");
                Ok(())
            }
            Err(_) => bail!("the router did not stop within {} s of SIGTERM", STOPPED_WITHIN.as_secs()),
        }
    }

    /// Ends it with SIGKILL.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill().await.context("kill the router")
    }
}

/// The router's error, or else the end of its log.
fn end_of(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.iter().rposition(|line| line.starts_with("error: "));
    let from = from.unwrap_or(lines.len().saturating_sub(LOG_LINES));
    lines.get(from..).unwrap_or_default().join(" / ")
}
