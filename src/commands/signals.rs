//! Signal handlers of commands that run for long, or that run a program.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use pg_logical::password_command;
use signal_hook::consts::TERM_SIGNALS;
use signal_hook::consts::signal::SIGHUP;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorCode};

/// The signals that the command itself handles.
static HANDLED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn handled() -> MutexGuard<'static, BTreeSet<i32>> {
    HANDLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A signal that ends the process ends the program that prints the password first, which is in a process group of its own. The process
/// still ends by the signal, also after a step that has handled it. A signal that it was started to ignore, as by nohup, remains ignored.
///
/// # Errors
/// The process cannot open another file, or start a thread.
pub(super) fn end_password_command_too() -> Result<(), Error> {
    // elsewhere than on Linux there is no such file, and none counts as ignored
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut ending = [TERM_SIGNALS, &[SIGHUP]].concat();
    ending.retain(|signal| !is_ignored(&status, *signal));
    let mut signals = Signals::new(ending).map_err(cannot_listen)?;
    let wait = move || {
        for signal in signals.forever() {
            if !handled().contains(&signal) {
                // held until the process has ended
                let _killed = password_command::kill_all();
                let _ = emulate_default_handler(signal);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop).map_err(cannot_listen)
}

/// Whether a process with this `/proc/PID/status` (proc_pid_status(5)) ignores the signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // the lowest bit is signal 1
    let from = u32::try_from(signal - 1).ok().and_then(|bit| mask.checked_shr(bit));
    from.is_some_and(|bits| bits & 1 == 1)
}

fn cannot_listen(error: io::Error) -> Error {
    Error::usage(
        ErrorCode::ProcessLimits,
        format!("Cannot listen for signals: {error}"),
        "Raise the limits of the process",
    )
}

/// Calls `act` for each signal of this kind.
///
/// # Errors
/// The process cannot open another file.
pub(super) fn at_signal(kind: SignalKind, mut act: impl FnMut() + Send + 'static) -> Result<(), Error> {
    let mut signals = signal(kind).map_err(cannot_listen)?;
    handled().insert(kind.as_raw_value());
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            act();
        }
    });
    Ok(())
}

/// A token that the first signal of one of these kinds cancels. Once it is dropped, these signals end the process again.
#[derive(Debug)]
pub(super) struct StopSignal {
    token: CancellationToken,
    kinds: Vec<i32>,
}

impl Deref for StopSignal {
    type Target = CancellationToken;

    fn deref(&self) -> &CancellationToken {
        &self.token
    }
}

impl Drop for StopSignal {
    fn drop(&mut self) {
        handled().retain(|signal| !self.kinds.contains(signal));
    }
}

/// A token that the first signal of one of these kinds cancels.
///
/// # Errors
/// The process cannot open another file.
pub(super) fn cancelled_by(kinds: &[SignalKind]) -> Result<StopSignal, Error> {
    let token = CancellationToken::new();
    for kind in kinds {
        let token = token.clone();
        at_signal(*kind, move || token.cancel())?;
    }
    Ok(StopSignal { token, kinds: kinds.iter().map(SignalKind::as_raw_value).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::signal::{SIGINT, SIGQUIT, SIGTERM};

    #[tokio::test]
    async fn a_signal_that_one_step_handled_ends_the_process_again_after_it() {
        let kind = SignalKind::user_defined2();
        let during = cancelled_by(&[kind]).unwrap();
        assert!(handled().contains(&kind.as_raw_value()) && !during.is_cancelled());
        drop(during);
        assert!(!handled().contains(&kind.as_raw_value()));
    }

    #[test]
    fn the_mask_says_which_signals_are_ignored() {
        let status = "SigBlk:\t0000000000000007\nSigIgn:\t0000000000001006\nSigCgt:\t0000000000004001\n";
        let ignored = |signal: &i32| is_ignored(status, *signal);
        let ignored: Vec<i32> = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(ignored).collect();
        assert_eq!(ignored, [SIGINT, SIGQUIT]);
        assert!(!is_ignored("", SIGHUP));
    }
}
