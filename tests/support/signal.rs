//! Signals to processes of a test.

use std::process::Command;

use super::process;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Interrupt,
    Terminate,
    Quit,
    HangUp,
    User1,
    User2,
    Kill,
    /// Freezes the process until [`Signal::Continue`].
    Stop,
    Continue,
}

/// Sends a signal, and returns whether the process existed.
pub(crate) fn send(signal: Signal, pid: u32) -> bool {
    let name = match signal {
        Signal::Interrupt => "INT",
        Signal::Terminate => "TERM",
        Signal::Quit => "QUIT",
        Signal::HangUp => "HUP",
        Signal::User1 => "USR1",
        Signal::User2 => "USR2",
        Signal::Kill => "KILL",
        Signal::Stop => "STOP",
        Signal::Continue => "CONT",
    };
    let mut shell = Command::new("sh");
    shell.args(["-c", "kill -s \"$1\" \"$2\" 2>/dev/null", "sh", name, &pid.to_string()]);
    process::output(&mut shell).status.success()
}
