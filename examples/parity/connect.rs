//! Kafka Connect: its standalone worker as a process, and its REST interface.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

const READY_WITHIN: Duration = Duration::from_secs(120);
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
const ANSWER_WITHIN: Duration = Duration::from_secs(90);

/// The installation of Connect and Debezium.
#[derive(Debug, Clone, Args)]
pub(crate) struct Installation {
    #[arg(long, default_value = "java")]
    pub(crate) java: PathBuf,

    /// Classpath of Kafka Connect
    #[arg(long)]
    pub(crate) connect_classpath: String,

    /// Folder of Debezium's plugin
    #[arg(long)]
    pub(crate) plugins: PathBuf,

    /// Folder of the same plugin with OpenTelemetry
    #[arg(long)]
    pub(crate) plugins_with_tracing: PathBuf,

    /// Logging configuration of Connect
    #[arg(long, default_value = "scripts/lib/debezium/log4j2.properties")]
    pub(crate) log_settings: PathBuf,
}

/// The state of a connector's only task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    /// It runs or is about to.
    Running,
    /// It failed with these exceptions, the outermost first.
    Failed(String),
}

/// The options of a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    /// Whether OpenTelemetry is on the class path.
    pub(crate) tracing: bool,
    /// Whether to use the positions that an earlier worker stored.
    pub(crate) keep_offsets: bool,
    /// The interval at which positions are stored.
    pub(crate) flush: Duration,
}

/// A running worker; dropping it kills the process.
pub(crate) struct Worker {
    process: Child,
    at: SocketAddr,
    log: PathBuf,
}

impl Worker {
    /// Starts a worker without connectors, and waits until it answers.
    pub(crate) async fn start(
        installation: &Installation,
        setup: Setup,
        folder: &Path,
        brokers: &str,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let at = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|port| port.local_addr());
        let at = at.context("find a free port")?;
        let offsets = folder.join("connect.offsets");
        if !setup.keep_offsets {
            // positions of an earlier run belong to slots that no longer exist
            let _ = fs::remove_file(&offsets);
        }
        let plugins = if setup.tracing { &installation.plugins_with_tracing } else { &installation.plugins };
        let settings = [
            format!("bootstrap.servers={brokers}"),
            format!("listeners=http://{at}"),
            format!("offset.storage.file.filename={}", offsets.display()),
            format!("plugin.path={}", plugins.display()),
            "plugin.discovery=hybrid_warn".to_owned(),
            format!("offset.flush.interval.ms={}", setup.flush.as_millis()),
            "key.converter=org.apache.kafka.connect.json.JsonConverter".to_owned(),
            "value.converter=org.apache.kafka.connect.json.JsonConverter".to_owned(),
        ];
        let file = folder.join("connect.properties");
        fs::write(&file, settings.join("\n")).with_context(|| format!("write {}", file.display()))?;
        let log = folder.join(if setup.tracing { "connect-tracing.log" } else { "connect.log" });
        let output = File::options().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("create {}", log.display()))?;
        let errors = output.try_clone().context("share the log")?;
        let log_settings = fs::canonicalize(&installation.log_settings)
            .with_context(|| format!("find {}", installation.log_settings.display()))?;
        let process = Command::new(&installation.java)
            .args(["-Xms128m", "-Xmx768m", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"])
            .arg(format!("-Dlog4j2.configurationFile=file://{}", log_settings.display()))
            // spans are created but not exported
            .args(["-Dotel.java.global-autoconfigure.enabled=true", "-Dotel.propagators=tracecontext"])
            .args(["traces", "metrics", "logs"].map(|signal| format!("-Dotel.{signal}.exporter=none")))
            .arg("-cp")
            .arg(&installation.connect_classpath)
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", installation.java.display()))?;
        let mut worker = Worker { process, at, log };
        worker.wait_until_ready().await?;
        Ok(worker)
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Some(status) = self.process.try_wait().context("check the process of Connect")? {
                bail!("Kafka Connect ended by itself ({status}); its log is {}", self.log.display());
            }
            if matches!(self.ask(Method::GET, "/connectors", String::new()).await, Ok((StatusCode::OK, _))) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "Kafka Connect did not answer within {} s; its log is {}",
                READY_WITHIN.as_secs(),
                self.log.display()
            );
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Its process id, while it runs.
    pub(crate) fn process(&self) -> Option<u32> {
        self.process.id()
    }

    /// Starts a connector from its file, under `name`. Connect stores positions by this name, even after the connector is
    /// deleted.
    pub(crate) async fn create(&mut self, name: &str, file: &str) -> anyhow::Result<()> {
        let mut connector: Value = serde_json::from_str(file).context("parse connector.json")?;
        connector
            .as_object_mut()
            .context("connector.json is not an object")?
            .insert("name".to_owned(), name.into());
        let (status, body) = self.ask(Method::POST, "/connectors", connector.to_string()).await?;
        ensure!(status.is_success(), "Kafka Connect refuses the connector ({status}): {body}");
        Ok(())
    }

    /// The state of the connector's task.
    pub(crate) async fn task(&mut self, name: &str) -> anyhow::Result<Task> {
        let (status, body) =
            self.ask(Method::GET, &format!("/connectors/{name}/status"), String::new()).await?;
        if status == StatusCode::NOT_FOUND {
            return Ok(Task::Running);
        }
        ensure!(status.is_success(), "Kafka Connect answers {status}: {body}");
        let answer: Value = serde_json::from_str(&body).context("parse Connect's answer")?;
        let tasks = answer.get("tasks").and_then(Value::as_array).into_iter().flatten();
        for part in answer.get("connector").into_iter().chain(tasks) {
            if part.get("state").and_then(Value::as_str) == Some("FAILED") {
                let trace = part.get("trace").and_then(Value::as_str).unwrap_or_default();
                return Ok(Task::Failed(exceptions(trace)));
            }
        }
        Ok(Task::Running)
    }

    /// Deletes a connector.
    pub(crate) async fn delete(&mut self, name: &str) -> anyhow::Result<()> {
        self.demand(Method::DELETE, &format!("/connectors/{name}"), String::new()).await?;
        Ok(())
    }

    /// Changes the settings of a connector. A stopped one stays stopped.
    pub(crate) async fn configure(&mut self, name: &str, config: &Value) -> anyhow::Result<()> {
        self.demand(Method::PUT, &format!("/connectors/{name}/config"), config.to_string()).await?;
        Ok(())
    }

    /// Stops a connector, which ends its task.
    pub(crate) async fn stop(&mut self, name: &str) -> anyhow::Result<()> {
        self.demand(Method::PUT, &format!("/connectors/{name}/stop"), String::new()).await?;
        Ok(())
    }

    /// Resumes a stopped connector.
    pub(crate) async fn resume(&mut self, name: &str) -> anyhow::Result<()> {
        self.demand(Method::PUT, &format!("/connectors/{name}/resume"), String::new()).await?;
        Ok(())
    }

    /// The stored position of a connector with one task.
    pub(crate) async fn offset(&mut self, name: &str) -> anyhow::Result<Option<Value>> {
        let body = self.demand(Method::GET, &format!("/connectors/{name}/offsets"), String::new()).await?;
        let answer: Value = serde_json::from_str(&body).context("parse Connect's answer")?;
        Ok(answer.pointer("/offsets/0/offset").filter(|offset| !offset.is_null()).cloned())
    }

    /// Deletes the stored position of a connector, which must be stopped.
    pub(crate) async fn delete_offset(&mut self, name: &str) -> anyhow::Result<()> {
        self.demand(Method::DELETE, &format!("/connectors/{name}/offsets"), String::new()).await?;
        Ok(())
    }

    /// Ends the worker with SIGKILL.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill().await.context("kill Kafka Connect")
    }

    /// Ends the worker.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        let number = self.process.id().and_then(|number| i32::try_from(number).ok()).and_then(Pid::from_raw);
        if let Some(number) = number {
            kill_process(number, Signal::TERM).context("send SIGTERM to Kafka Connect")?;
        }
        if timeout(STOPPED_WITHIN, self.process.wait()).await.is_err() {
            self.process.kill().await.context("kill Kafka Connect")?;
        }
        Ok(())
    }

    /// The body of a successful answer.
    async fn demand(&self, method: Method, path: &str, body: String) -> anyhow::Result<String> {
        let (status, answer) = self.ask(method.clone(), path, body).await?;
        ensure!(status.is_success(), "Kafka Connect refuses {method} {path} ({status}): {answer}");
        Ok(answer)
    }

    async fn ask(&self, method: Method, path: &str, body: String) -> anyhow::Result<(StatusCode, String)> {
        let exchange = async {
            let stream = TcpStream::connect(self.at).await?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header(header::HOST, self.at.to_string())
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(body)))?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        timeout(ANSWER_WITHIN, exchange)
            .await
            .context("Kafka Connect does not answer")?
            .context("send a request to Kafka Connect")
    }
}

/// The lines of a Java stack trace that name exceptions.
fn exceptions(trace: &str) -> String {
    let named = trace.lines().filter(|line| !line.starts_with(char::is_whitespace) && !line.is_empty());
    let lines: Vec<&str> = named.map(|line| line.trim_start_matches("Caused by: ")).collect();
    lines.join(" <- ")
}
