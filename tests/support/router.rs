//! The router under test, as a process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;

use super::eventually::eventually;
use super::namespace::Namespace;
use super::outbox::Outbox;
use super::process;
use super::settings::Settings;
use super::shared;
use super::signal::{Signal, send};
use crate::situations::page::keep;

/// A running `outbox-router run`. Killed on drop. If the test fails, its log is printed.
pub(crate) struct Router {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    admin_port: OnceLock<u16>,
    _folder: TempDir,
}

/// A router that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) log: String,
}

impl Router {
    /// Starts a router with this configuration file.
    pub(crate) fn start(settings: &Settings) -> Self {
        Self::with(settings, &[], &[])
    }

    /// The same with these arguments of `run`.
    pub(crate) fn with_arguments(settings: &Settings, arguments: &[&str]) -> Self {
        Self::with(settings, arguments, &[])
    }

    /// The same with these environment variables. The router never gets the test's own environment.
    pub(crate) fn with_variables(settings: &Settings, variables: &[(&str, &str)]) -> Self {
        Self::with(settings, &[], variables)
    }

    fn with(settings: &Settings, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(Command::new(settings.program()), settings, arguments, variables)
    }

    /// Starts a router in a network namespace. The test cannot reach its admin endpoint.
    pub(crate) fn inside(settings: &Settings, namespace: &Namespace) -> Self {
        let [program, prefix @ ..] = namespace.prefix();
        let mut command = Command::new(program);
        command.args(prefix).arg(settings.program());
        Self::spawn(command, settings, &[], &[])
    }

    /// The same with this file as its `/etc/resolv.conf`.
    pub(crate) fn inside_with(settings: &Settings, namespace: &Namespace, resolv_conf: &str) -> Self {
        let [program, prefix @ ..] = namespace.prefix();
        let mut command = Command::new(program);
        // `ip netns exec` runs it in a mount namespace of its own
        let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
        command.args(prefix).args(["sh", "-c", script, resolv_conf]).arg(settings.program());
        Self::spawn(command, settings, &[], &[])
    }

    /// Starts a router that may have this many files open.
    pub(crate) fn with_max_files(settings: &Settings, files: u32) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={files}")).arg(settings.program());
        Self::spawn(command, settings, &[], &[])
    }

    /// Starts a router whose standard error is a full pipe. Nobody reads it before [`Router::read`].
    pub(crate) fn unread(settings: &Settings, variables: &[(&str, &str)]) -> (Self, PipeReader) {
        let (pipe, mut full) = std::io::pipe().unwrap();
        // pipe(7): the capacity of a pipe
        full.write_all(&[b'\n'; 65536]).unwrap();
        (Self::writing_to(full.into(), Command::new(settings.program()), settings, &[], variables), pipe)
    }

    /// Starts another command that runs until it is stopped.
    pub(crate) fn of(mut command: Command) -> Self {
        let child = process::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
        let folder = tempfile::tempdir().unwrap();
        let mut router = Router::new(child, folder);
        let pipe = router.child.stderr.take().unwrap();
        router.read(pipe);
        router
    }

    fn spawn(command: Command, settings: &Settings, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut router = Self::writing_to(Stdio::piped(), command, settings, arguments, variables);
        let pipe = router.child.stderr.take().unwrap();
        router.read(pipe);
        router
    }

    fn writing_to(
        stderr: Stdio,
        mut command: Command,
        settings: &Settings,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outbox-router.toml");
        fs::write(&file, settings.text()).unwrap();
        command.arg("-c").arg(&file).arg("run").args(arguments).current_dir(folder.path());
        command.env_clear().env("HOME", folder.path()).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let child = process::start(&mut command);
        Router::new(child, folder)
    }

    fn new(child: Child, folder: TempDir) -> Self {
        Router { child, log: Arc::default(), reader: None, admin_port: OnceLock::new(), _folder: folder }
    }

    /// Reads the router's log from now on.
    pub(crate) fn read(&mut self, pipe: impl Read + Send + 'static) {
        let written = Arc::clone(&self.log);
        self.reader = Some(std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                written.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        }));
    }

    /// Starts a router and waits until it is ready.
    pub(crate) async fn active(settings: &Settings) -> Self {
        let mut router = Self::start(settings);
        router.ready().await;
        router
    }

    /// Waits until `/readyz` says that the router is active or a standby.
    pub(crate) async fn ready(&mut self) {
        eventually("the router is ready", async || {
            self.assert_running();
            self.get("/readyz").filter(|(status, _)| *status == 200).map(drop)
        })
        .await;
    }

    /// Waits until the router is ready, and returns true, or until it has ended.
    pub(crate) async fn is_ready_or_ended(&mut self) -> bool {
        eventually("the router is ready or ends", async || match self.child.try_wait().unwrap() {
            Some(_) => Some(false),
            None => self.get("/readyz").filter(|(status, _)| *status == 200).map(|_| true),
        })
        .await
    }

    /// Waits until the log contains this text.
    pub(crate) async fn logs(&mut self, text: &str) {
        eventually(&format!("the log says {text:?}"), async || {
            if self.log().contains(text) {
                return Some(());
            }
            self.assert_running();
            None
        })
        .await;
    }

    /// Waits until the log contains this text this many times.
    pub(crate) async fn logs_times(&mut self, text: &str, times: usize) {
        eventually(&format!("the log says {text:?} {times} times"), async || {
            self.assert_running();
            (self.log().matches(text).count() >= times).then_some(())
        })
        .await;
    }

    /// Waits until `wanted` returns a value for `/status`.
    pub(crate) async fn shows<T>(
        &mut self,
        what: &str,
        wanted: impl Fn(&serde_json::Value) -> Option<T>,
    ) -> T {
        eventually(what, async || {
            self.assert_running();
            wanted(&self.status()?)
        })
        .await
    }

    /// `/status`; `None` if there is no answer.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        let (status, body) = self.get("/status")?;
        assert_eq!(status, 200, "{body}");
        Some(serde_json::from_str(&body).unwrap())
    }

    /// HTTP status and body of a page of the admin endpoint.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        page(self.admin_port()?, path)
    }

    /// The same, once there is an answer.
    pub(crate) async fn get_now(&self, path: &str) -> (u16, String) {
        eventually(&format!("the router answers {path}"), async || self.get(path)).await
    }

    /// The port of the admin endpoint. The operating system chooses it, so that tests do not collide.
    pub(crate) fn admin_port(&self) -> Option<u16> {
        if let Some(known) = self.admin_port.get() {
            return Some(*known);
        }
        // to look for it is expensive where many connections are open
        let port = self.listening_port()?;
        Some(*self.admin_port.get_or_init(|| port))
    }

    fn listening_port(&self) -> Option<u16> {
        let process = format!("/proc/{}", self.pid());
        let sockets: Vec<_> = fs::read_dir(format!("{process}/fd"))
            .ok()?
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect();
        // proc(5): number, local address, remote address, state (0A: listening); the tenth field is the inode
        let table = BufReader::new(File::open(format!("{process}/net/tcp")).ok()?);
        // the listening ones come first, and to list all others is expensive
        let lines = table.lines().skip(1).map_while(Result::ok);
        let mut listening = lines.take_while(|line| line.split_whitespace().nth(3) == Some("0A"));
        listening.find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let (_, port) = fields[1].rsplit_once(':')?;
            sockets.iter().any(|inode| inode == fields[9]).then(|| u16::from_str_radix(port, 16).unwrap())
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The router's peak memory, in bytes (`VmHWM`).
    pub(crate) fn peak_memory(&self) -> u64 {
        process::peak_memory(self.pid())
    }

    /// The same without the program itself.
    pub(crate) fn peak_heap(&self) -> u64 {
        process::peak_heap(self.pid())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        assert!(send(signal, self.pid()), "no process {}", self.pid());
    }

    /// Kills the router, as a power failure would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // the test harness shows this if the test fails later
        println!("--- log of router {}, killed\n{}---", self.pid(), self.log());
    }

    /// Stops the router with SIGTERM, and asserts that it exits with code 0.
    pub(crate) async fn stop(self) -> Ended {
        self.signal(Signal::Terminate);
        let ended = self.ended().await;
        assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
        ended
    }

    /// Waits until the router ends, and asserts its exit code.
    pub(crate) async fn exits(self, code: i32) -> Ended {
        let ended = self.ended().await;
        assert_eq!(ended.status.code(), Some(code), "{:?}\n{}", ended.status, ended.log);
        ended
    }

    /// Waits until the router ends.
    pub(crate) async fn ended(mut self) -> Ended {
        let status = eventually("the router ends", async || self.child.try_wait().unwrap()).await;
        // everything that the router wrote is in the pipe by now
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        let log = self.log();
        // the test harness shows this if the test fails later
        println!("--- log of router {}\n{log}---", self.pid());
        Ended { status, log }
    }

    /// Fails if the router has ended.
    pub(crate) fn assert_running(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("the router has ended: {status:?}");
        }
    }
}

/// HTTP status and body of a page of the admin endpoint at this port.
pub(crate) fn page(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Whether the router waits for a server, with or without a connection: a session may end meanwhile.
pub(crate) fn waits(status: &serde_json::Value) -> bool {
    status["state"] == "reconnecting" || status["state"] == "stalled"
}

impl Ended {
    /// Why the router ended, with the steps or, without an error, the last line. At debug level, threads may log after the error.
    pub(crate) fn message(&self) -> &str {
        let error = if self.log.starts_with("error: ") {
            Some(0)
        } else {
            self.log.rfind("\nerror: ").map(|at| at + 1)
        };
        let Some(begin) = error else { return self.log.lines().next_back().unwrap_or_default() };
        let text = &self.log[begin..];
        // a log line begins with its time
        let end =
            text.match_indices('\n').find(|(at, _)| text[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
        &text[..end.map_or(text.len(), |(at, _)| at)]
    }

    /// The code of the refusal.
    pub(crate) fn code(&self) -> &str {
        let message = self.message();
        let at = message.find("OBR-").unwrap_or_else(|| panic!("no code in {}", self.log));
        &message[at..at + "OBR-0000".len()]
    }

    /// The first command to type that begins like this. Each is a line of its own.
    pub(crate) fn command(&self, beginning: &str) -> &str {
        let mut lines = self.message().lines().map(str::trim_start);
        lines
            .find(|line| line.starts_with(beginning))
            .unwrap_or_else(|| panic!("no {beginning} in {}", self.log))
    }

    /// The first statement that saves rows of the table.
    pub(crate) fn save_statement(&self) -> &str {
        self.command("SET row_security = off; CREATE TABLE ")
    }

    /// The position that the message suggests for `--accept-gap`.
    pub(crate) fn accept_gap_position(&self) -> &str {
        let command = self.command("outbox-router run --accept-gap ");
        command.split(' ').nth(3).unwrap()
    }

    /// Keeps the message of this test for docs/errors, with the outbox's name and address masked.
    pub(crate) fn shown(&self, outbox: &Outbox) -> &Self {
        let broker = shared::variable("TEST_KAFKA");
        keep(self.message(), &[(outbox.address(), "HOST"), (&outbox.name, "NAME"), (&broker, "BROKER")]);
        self
    }

    /// Asserts that the message contains all these parts.
    pub(crate) fn says(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.message().contains(part), "no {part:?} in the message of\n{}", self.log);
        }
        self
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // the router may have ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of router {}\n{}---", self.pid(), self.log());
        }
    }
}
