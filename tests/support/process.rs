//! Starts programs, and keeps ports from being closed meanwhile.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock};

/// Locked for reading while a program starts. Between fork and exec, the new process has copies of all files of this one,
/// including listening sockets, so a port that is closed at that moment is not free.
static STARTING: RwLock<()> = RwLock::new(());

/// Starts a program.
pub(crate) fn start(command: &mut Command) -> Child {
    let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    command.spawn().unwrap()
}

/// Runs a program until it exits, and returns its output.
pub(crate) fn output(command: &mut Command) -> Output {
    start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
        .wait_with_output()
        .unwrap()
}

/// The peak memory of a process without its program, in bytes (`VmHWM` less `RssFile`): a debug build has much more code than the
/// one that is released.
pub(crate) fn peak_heap(pid: u32) -> u64 {
    peak_memory(pid) - status(pid, "RssFile:")
}

/// The peak memory of a process, in bytes (`VmHWM`).
pub(crate) fn peak_memory(pid: u32) -> u64 {
    status(pid, "VmHWM:")
}

fn status(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// Runs an action that relies on a closed port being free.
pub(crate) fn while_nothing_starts<T>(action: impl FnOnce() -> T) -> T {
    let _still = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    action()
}
