//! The program under test, as a process.

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;

use super::eventually::eventually;
use super::namespace::Namespace;
use super::process;
use super::settings::Settings;
use super::signal::{Signal, send};

/// A running `outbox-router run`. Dropped, it is killed; of a test that fails the log is shown.
pub(crate) struct Router {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    _folder: TempDir,
}

/// What a router leaves behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) log: String,
}

impl Router {
    /// Starts one with this configuration file.
    pub(crate) fn start(settings: &Settings) -> Self {
        Self::with(settings, &[], &[])
    }

    /// Starts one with this configuration file and these arguments of `run`.
    pub(crate) fn with_arguments(settings: &Settings, arguments: &[&str]) -> Self {
        Self::with(settings, arguments, &[])
    }

    /// Starts one with these variables besides. Of the test's own environment it sees nothing.
    pub(crate) fn with_variables(settings: &Settings, variables: &[(&str, &str)]) -> Self {
        Self::with(settings, &[], variables)
    }

    fn with(settings: &Settings, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(Command::new(settings.program()), settings, arguments, variables)
    }

    /// Starts one in a network of its own. Its admin endpoint cannot be reached from here.
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
        // `ip netns exec` has given it mounts of its own
        let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
        command.args(prefix).args(["sh", "-c", script, resolv_conf]).arg(settings.program());
        Self::spawn(command, settings, &[], &[])
    }

    /// Starts one that may have so many files open.
    pub(crate) fn with_files(settings: &Settings, files: u32) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={files}")).arg(settings.program());
        Self::spawn(command, settings, &[], &[])
    }

    /// Starts one whose standard error is a full pipe, which nobody reads before [`Router::read`].
    pub(crate) fn unread(settings: &Settings, variables: &[(&str, &str)]) -> (Self, PipeReader) {
        let (pipe, mut full) = std::io::pipe().unwrap();
        // pipe(7): what a pipe holds
        full.write_all(&[b'\n'; 65536]).unwrap();
        (Self::writing_to(full.into(), Command::new(settings.program()), settings, &[], variables), pipe)
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
        Router { child, log: Arc::default(), reader: None, _folder: folder }
    }

    /// Reads its log from now on.
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

    /// Starts one and waits until it is active.
    pub(crate) async fn active(settings: &Settings) -> Self {
        let mut router = Self::start(settings);
        router.ready().await;
        router
    }

    /// Waits until `/readyz` says that it is active or waits for the slot.
    pub(crate) async fn ready(&mut self) {
        eventually("the router is ready", async || {
            self.assert_running();
            self.get("/readyz").filter(|(status, _)| *status == 200).map(drop)
        })
        .await;
    }

    /// Waits until the log has this text.
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

    /// Waits until the log has this text so many times.
    pub(crate) async fn logs_times(&mut self, text: &str, times: usize) {
        eventually(&format!("the log says {text:?} {times} times"), async || {
            self.assert_running();
            (self.log().matches(text).count() >= times).then_some(())
        })
        .await;
    }

    /// Waits until `/status` has what `wanted` looks for.
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

    /// `/status`, if it answers.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        let (status, body) = self.get("/status")?;
        assert_eq!(status, 200, "{body}");
        Some(serde_json::from_str(&body).unwrap())
    }

    /// The status and body of a page of the admin endpoint.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        page(self.admin_port()?, path)
    }

    /// The port that it listens at. The configuration leaves the choice to the system, so that no two tests clash.
    pub(crate) fn admin_port(&self) -> Option<u16> {
        let process = format!("/proc/{}", self.pid());
        let sockets: Vec<_> = fs::read_dir(format!("{process}/fd"))
            .ok()?
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect();
        // proc(5): number, local address, remote address, state (0A: listening), then the inode in the tenth field
        let table = fs::read_to_string(format!("{process}/net/tcp")).ok()?;
        table.lines().find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let listening = *fields.get(3)? == "0A" && sockets.iter().any(|inode| inode == fields[9]);
            let port = fields[1].rsplit_once(':')?.1;
            listening.then(|| u16::from_str_radix(port, 16).unwrap())
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The most memory that it ever had, in bytes (`VmHWM`).
    pub(crate) fn peak_memory(&self) -> u64 {
        process::peak_memory(self.pid())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        assert!(send(signal, self.pid()), "no process {}", self.pid());
    }

    /// Kills it as a power failure would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // shown if the test fails later
        println!("--- log of router {}, killed\n{}---", self.pid(), self.log());
    }

    /// Asks it to stop, and sees that it did as asked.
    pub(crate) async fn stop(self) -> Ended {
        self.signal(Signal::Terminate);
        let ended = self.ended().await;
        assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
        ended
    }

    /// Waits until it ends with this code.
    pub(crate) async fn exits(self, code: i32) -> Ended {
        let ended = self.ended().await;
        assert_eq!(ended.status.code(), Some(code), "{:?}\n{}", ended.status, ended.log);
        ended
    }

    /// Waits until it ends.
    pub(crate) async fn ended(mut self) -> Ended {
        let status = eventually("the router ends", async || self.child.try_wait().unwrap()).await;
        // all that it wrote is in the pipe by now
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        let log = self.log();
        // shown if the test fails later
        println!("--- log of router {}\n{log}---", self.pid());
        Ended { status, log }
    }

    /// Fails with the log if it has ended.
    pub(crate) fn assert_running(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("the router has ended: {status:?}");
        }
    }
}

/// The status and body of a page of the admin endpoint at this port.
pub(crate) fn page(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

impl Ended {
    /// The line that says why it ended: the last, unless everything is logged, also what threads do after it.
    pub(crate) fn last_line(&self) -> &str {
        let mut lines = self.log.lines().rev();
        lines.clone().find(|line| line.starts_with("error: ")).or_else(|| lines.next()).unwrap_or_default()
    }

    /// The position that the last line says `--accept-gap` would go on at.
    pub(crate) fn goes_on_at(&self) -> &str {
        let (_, rest) = self.last_line().split_once("`outbox-router run --accept-gap ").unwrap();
        rest.split_once('`').unwrap().0
    }

    /// Fails unless the last line has all of these in it.
    pub(crate) fn says(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.last_line().contains(part), "no {part:?} in the last line of\n{}", self.log);
        }
        self
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of router {}\n{}---", self.pid(), self.log());
        }
    }
}
