//! A private server of a test, which `scripts/services` starts and deletes.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use super::process;

/// One server, deleted on drop.
pub(crate) struct Instance {
    name: String,
    server: &'static str,
    variables: BTreeMap<String, String>,
}

impl Instance {
    /// Starts `server`, which is postgres or kafka, with settings as `name=value`.
    pub(crate) fn up(server: &'static str, options: &[&str], settings: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut instance = Instance { name, server, variables: BTreeMap::new() };
        let mut up = instance.services("up");
        up.args(["--only", server]).args(options);
        instance.add_settings(&mut up, settings);
        succeed(up);
        instance.variables = instance.exported();
        instance
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A variable of `scripts/services env`.
    pub(crate) fn variable(&self, name: &str) -> &str {
        &self.variables[name]
    }

    /// The process of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.pid_of(self.server)
    }

    /// The process of one of several brokers, by its name in `scripts/services`.
    pub(crate) fn pid_of(&self, server: &str) -> u32 {
        let status = process::output(&mut self.services("status")).stdout;
        let status = String::from_utf8(status).unwrap();
        let line = status.lines().find(|line| line.starts_with(&format!("{server} ")));
        let line = line.unwrap_or_else(|| panic!("no {server} in {status:?}"));
        let (_, rest) = line.split_once(", process ").unwrap_or_else(|| panic!("no process in {status:?}"));
        rest.split(',').next().unwrap().parse().unwrap()
    }

    /// Runs `stop`, `kill` or `start` for one of several brokers.
    pub(crate) fn run_for(&self, server: &str, command: &str) {
        let mut services = self.services(command);
        services.arg(server);
        succeed(services);
    }

    /// Returns when the server has stopped.
    pub(crate) fn stop(&self, options: &[&str]) {
        let mut stop = self.services("stop");
        stop.arg(self.server).args(options);
        succeed(stop);
    }

    /// Kills the server, as a power failure would.
    pub(crate) fn kill(&self) {
        self.run_for(self.server, "kill");
    }

    /// Starts the server again with more settings. Returns when it accepts connections.
    pub(crate) fn start(&self, settings: &[&str]) {
        let mut start = self.services("start");
        start.arg(self.server);
        self.add_settings(&mut start, settings);
        succeed(start);
    }

    fn add_settings(&self, command: &mut Command, settings: &[&str]) {
        for setting in settings {
            command.args([&format!("--{}-setting", self.server), *setting]);
        }
    }

    fn services(&self, command: &str) -> Command {
        let mut services = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/services"));
        services.args([command, "--instance", &self.name]);
        services
    }

    /// The variables that `scripts/services env` exports. A shell evaluates them because it prints shell code.
    fn exported(&self) -> BTreeMap<String, String> {
        let lines = succeed(self.services("env")).stdout;
        let mut shell = Command::new("bash");
        shell.args(["-c", "eval \"$1\"; env -0", "bash", &String::from_utf8(lines).unwrap()]);
        let variables = String::from_utf8(succeed(shell).stdout).unwrap();
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        variables.split('\0').filter(|line| line.starts_with("TEST_")).filter_map(pair).collect()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let down = process::output(&mut self.services("down"));
        if !std::thread::panicking() {
            assert!(down.status.success(), "instance {} did not stop", self.name);
        }
    }
}

fn succeed(mut command: Command) -> Output {
    let output = process::output(&mut command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
