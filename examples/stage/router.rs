//! The router as a process, with its configuration and log files in a folder.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use outbox_router::monitor::{StateKind, StatusReport};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::log_reader::LogReader;

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of log lines in an error.
const LOG_LINES: usize = 12;

/// Runs commands with the configuration of a router.
#[derive(Debug, Clone)]
pub(crate) struct AdminCommands {
    program: PathBuf,
    config: PathBuf,
}

impl AdminCommands {
    /// Runs a command; returns whether it succeeded.
    pub(crate) async fn run(&self, arguments: &[&str]) -> bool {
        self.command(arguments).status().await.is_ok_and(|status| status.success())
    }

    /// Starts a command, which dropping ends.
    pub(crate) fn start(&self, arguments: &[&str]) -> std::io::Result<Child> {
        self.command(arguments).spawn()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(&self.config).args(arguments).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OUTBOX_ROUTER_"))
        {
            command.env_remove(name);
        }
        command
    }
}

/// One router, running or not. Dropping it kills the process.
pub(crate) struct Router {
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    admin: SocketAddr,
    process: Option<Child>,
    /// Reads standard error from a pipe; `None`: the process writes to the file itself.
    reader: Option<Arc<LogReader>>,
}

impl Router {
    /// Writes the configuration to `folder`, with `more` lines such as `postgres.slot = "a"`. Does not start the router.
    pub(crate) fn new(
        program: &Path,
        folder: &Path,
        postgres: &str,
        brokers: &str,
        more: &str,
    ) -> anyhow::Result<Self> {
        if !program.is_file() {
            bail!("no router at {}; build it with the same profile: cargo build", program.display());
        }
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let admin = free_port().context("find a free port")?;
        let config = folder.join("outbox-router.toml");
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let text = format!(
            "postgres.url = {}\nkafka.\"bootstrap.servers\" = {}\nadmin.listen = \"{admin}\"\n{more}",
            quoted(postgres),
            quoted(brokers)
        );
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let log = folder.join("router.log");
        Ok(Router { program: program.to_owned(), config, log, admin, process: None, reader: None })
    }

    /// Another router with the same configuration except for the admin address. Does not start it.
    pub(crate) fn sibling(&self) -> anyhow::Result<Self> {
        let admin = free_port().context("find a free port")?;
        let text =
            fs::read_to_string(&self.config).with_context(|| format!("read {}", self.config.display()))?;
        let config = self.config.with_file_name(format!("outbox-router-{}.toml", admin.port()));
        fs::write(&config, text.replace(&self.admin.to_string(), &admin.to_string()))
            .with_context(|| format!("write {}", config.display()))?;
        let (program, log, reader) = (self.program.clone(), self.log.clone(), self.reader.clone());
        Ok(Router { program, config, log, admin, process: None, reader })
    }

    /// Replaces a text in the configuration, for the next start.
    pub(crate) fn replace_setting(&self, from: &str, to: &str) -> anyhow::Result<()> {
        let text =
            fs::read_to_string(&self.config).with_context(|| format!("read {}", self.config.display()))?;
        fs::write(&self.config, text.replace(from, to))
            .with_context(|| format!("write {}", self.config.display()))
    }

    /// Its state by `/status`; `None` if it does not answer.
    pub(crate) async fn state(&self) -> Option<StateKind> {
        timeout(Duration::from_secs(1), status(self.admin)).await.ok()?.ok().map(|now| now.state)
    }

    /// Runs `init`.
    pub(crate) async fn init(&self) -> anyhow::Result<()> {
        self.run_command(&["init"]).await.map(drop)
    }

    /// Runs `init`, so that the outbox has partitions of a day.
    pub(crate) async fn init_partitioned(&self) -> anyhow::Result<()> {
        self.run_command(&["init", "--partitioned", "day"]).await.map(drop)
    }

    /// Commands with the same configuration, which can outlive the router.
    pub(crate) fn admin_commands(&self) -> AdminCommands {
        AdminCommands { program: self.program.clone(), config: self.config.clone() }
    }

    /// Runs a command; returns its standard output.
    pub(crate) async fn run_command(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let name = arguments.join(" ");
        let mut command = self.command()?;
        command.args(arguments).stdout(Stdio::piped());
        let running = command.spawn().map(|process| process.wait_with_output());
        let output = running.with_context(|| format!("run outbox-router {name}"))?.await?;
        if !output.status.success() {
            bail!("outbox-router {name} failed ({}){}", output.status, self.end_of_log());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts the router; returns its process id without waiting.
    pub(crate) fn start(&mut self) -> anyhow::Result<u32> {
        let mut command = self.command()?;
        if self.reader.is_some() {
            command.stderr(Stdio::piped());
        }
        let mut process = command.arg("run").spawn().context("start outbox-router run")?;
        if let (Some(reader), Some(stderr)) = (&self.reader, process.stderr.take()) {
            reader.follow(stderr)?;
        }
        let number = process.id().context("the router has ended already")?;
        self.process = Some(process);
        Ok(number)
    }

    /// From the next start, reads its standard error from a pipe. Returns the reader.
    pub(crate) fn with_pipe(&mut self) -> Arc<LogReader> {
        let reader = LogReader::new(self.log.clone());
        self.reader = Some(Arc::clone(&reader));
        reader
    }

    /// Waits until `/readyz` reports ready.
    pub(crate) async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            self.check_running()?;
            let answer = timeout(Duration::from_secs(1), is_ready(self.admin)).await;
            if matches!(answer, Ok(Ok(true))) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the router was not ready after {} s{}", READY_TIMEOUT.as_secs(), self.end_of_log());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until `/status` reports this state.
    pub(crate) async fn wait_for_state(&mut self, state: StateKind) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            self.check_running()?;
            if let Ok(Ok(now)) = timeout(Duration::from_secs(1), status(self.admin)).await
                && now.state == state
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the router is not {state:?} after {} s{}", READY_TIMEOUT.as_secs(), self.end_of_log());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// # Errors
    /// The router ended by itself.
    pub(crate) fn check_running(&mut self) -> anyhow::Result<()> {
        let Some(process) = &mut self.process else { bail!("the router was not started") };
        if let Some(status) = process.try_wait().context("check the router's process")? {
            bail!("the router ended by itself ({status}){}", self.end_of_log());
        }
        Ok(())
    }

    /// Its process id, while it runs.
    pub(crate) fn process(&self) -> Option<u32> {
        self.process.as_ref().and_then(Child::id)
    }

    /// Its admin address.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Stops the process with SIGSTOP, until `thaw`.
    pub(crate) fn freeze(&mut self) -> anyhow::Result<()> {
        self.check_running()?;
        self.signal(Signal::STOP)
    }

    pub(crate) fn thaw(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let number = self.process().and_then(|number| i32::try_from(number).ok()).and_then(Pid::from_raw);
        let number = number.context("the router is not running")?;
        kill_process(number, signal).context("send the router a signal")
    }

    /// Ends it with SIGKILL.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.check_running()?;
        if let Some(mut process) = self.process.take() {
            process.kill().await.context("kill the router")?;
        }
        Ok(())
    }

    /// Ends it with SIGTERM, and waits.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        self.check_running()?;
        self.signal(Signal::TERM)?;
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let status: ExitStatus = match timeout(STOP_TIMEOUT, process.wait()).await {
            Ok(status) => status.context("wait for the router")?,
            Err(_) => bail!(
                "the router did not stop within {} s of SIGTERM{}",
                STOP_TIMEOUT.as_secs(),
                self.end_of_log()
            ),
        };
        if !status.success() {
            bail!("after SIGTERM the router ended with {status}{}", self.end_of_log());
        }
        Ok(())
    }

    fn command(&self) -> anyhow::Result<Command> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("open {}", self.log.display()))?;
        let mut process = Command::new(&self.program);
        process.arg("-c").arg(&self.config);
        // variables of the user's shell would override the file
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("OUTBOX_ROUTER_") || text.starts_with("PG") {
                process.env_remove(name);
            }
        }
        let to_log = log.try_clone().context("share the log")?;
        process.stdin(Stdio::null()).stdout(to_log).stderr(log).kill_on_drop(true);
        Ok(process)
    }

    /// Its log file.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    fn end_of_log(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default();
        let mut text = format!("; the end of its log, {}:", self.log.display());
        for line in last {
            text.push_str("\n    ");
            text.push_str(line);
        }
        text
    }
}

/// A port that is free now. The router listens on the same port after each start.
fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Whether `/readyz` answers 200.
async fn is_ready(admin: SocketAddr) -> io::Result<bool> {
    Ok(get(admin, "/readyz").await?.starts_with(b"HTTP/1.1 200 "))
}

/// The status code and text of `/readyz`.
pub(crate) async fn readiness(admin: SocketAddr) -> anyhow::Result<(u16, String)> {
    let answer = String::from_utf8_lossy(&get(admin, "/readyz").await?).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer of /readyz has no body")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.context("the answer of /readyz has no status code")?, body.trim_end().to_owned()))
}

/// The answer of `/status`.
pub(crate) async fn status(admin: SocketAddr) -> anyhow::Result<StatusReport> {
    let answer = get(admin, "/status").await?;
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").and_then(|end| answer.get(end + 4..));
    serde_json::from_slice(body.unwrap_or_default()).context("read the router's status")
}

async fn get(admin: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}
