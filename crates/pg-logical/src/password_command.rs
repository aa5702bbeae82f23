//! The program that prints the password of a connection.
//!
//! It runs in a process group of its own. The group is killed after the time limit, when nobody waits for the password any more, and
//! when this process ends because of a signal. What a program leaves behind that has ended by itself goes on.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::error::{Error, Remedy};
use crate::secret::Secret;

/// How long the program may take, unless `connect_timeout` is set.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The longest output, in bytes.
const MAX_OUTPUT: u64 = 64 << 10;

/// How much of the first line on standard error is repeated, in characters.
const MAX_REASON: usize = 300;

/// Variables of sd_notify(3) and sd_watchdog_enabled(3) that are meant for this process only.
const NOT_INHERITED: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// The programs that run now.
static RUNNING: Mutex<BTreeMap<u64, Child>> = Mutex::new(BTreeMap::new());

static NEXT: AtomicU64 = AtomicU64::new(0);

fn running() -> MutexGuard<'static, BTreeMap<u64, Child>> {
    // every change is a single call
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it exists, no program is started, and none is seen to have ended.
#[derive(Debug)]
pub struct Killed(
    #[expect(dead_code, reason = "it is held, not used")] MutexGuard<'static, BTreeMap<u64, Child>>,
);

/// Kills the programs that run now. A process that ends because of a signal keeps the result until it has ended: otherwise
/// another thread could report the program's end, and exit with another code.
pub fn kill_all() -> Killed {
    let running = running();
    running.values().for_each(kill);
    Killed(running)
}

fn kill(child: &Child) {
    // none: its end was seen, so the number may be that of another process
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(group) = group {
        // fails if all its processes have ended
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A program that is killed when this is dropped, unless it has ended.
struct Program(u64);

impl Program {
    fn start(command: &mut Command) -> io::Result<(Self, impl AsyncRead + Unpin, impl AsyncRead + Unpin)> {
        let mut running = running();
        let mut child = command.spawn()?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::Error::other("it has no output"));
        };
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        running.insert(key, child);
        Ok((Program(key), stdout, stderr))
    }

    /// Cancel-safe.
    async fn ended(&self) -> io::Result<ExitStatus> {
        poll_fn(|context| match running().get_mut(&self.0) {
            Some(child) => pin!(child.wait()).poll(context),
            None => std::task::Poll::Ready(Err(io::Error::other("it was killed"))),
        })
        .await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = running().remove(&self.0) {
            kill(&child);
        }
    }
}

/// Runs the program, whose name and arguments are `words`, and returns what it printed without the line break at its end.
/// `limit` is how long it may take.
///
/// # Errors
/// It cannot be run, takes too long, fails, or prints no password.
pub(crate) async fn run(words: &[String], limit: Option<Duration>) -> Result<Secret, Error> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(Error::definite("no program prints the password", Remedy::PasswordCommand));
    };
    let what = |reason: &str| format!("the program {program}, which prints the password, {reason}");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    for name in NOT_INHERITED {
        command.env_remove(name);
    }
    let (child, stdout, stderr) = Program::start(&mut command).map_err(|error| {
        let what = what(&format!("cannot be run: {error}"));
        if stays(&error) { Error::definite(what, Remedy::PasswordCommand) } else { Error::transient(what) }
    })?;
    let limit = limit.unwrap_or(TIME_LIMIT);
    let ended = timeout(limit, async {
        let (printed, reason) = tokio::try_join!(read_some(stdout), read_some(stderr))?;
        // only now: until its end is seen, the group can be killed, even if the program has left another process behind
        Ok::<_, io::Error>((printed, reason, child.ended().await?))
    });
    let (printed, reason, status) = match ended.await {
        Err(_) => {
            let late = format!("was killed because it took longer than {} s", limit.as_secs_f32());
            return Err(Error::transient(what(&late)));
        }
        Ok(Err(error)) => return Err(Error::transient(what(&format!("cannot be read: {error}")))),
        Ok(Ok(ended)) => ended,
    };
    if !status.success() {
        let reason = first_line(&reason);
        let colon = if reason.is_empty() { "" } else { ": " };
        return Err(Error::transient(what(&format!("failed ({status}){colon}{reason}"))));
    }
    let unusable = |reason| Err(Error::definite(what(reason), Remedy::PasswordCommand));
    if printed.len() as u64 > MAX_OUTPUT {
        return unusable("printed more than 64 KiB");
    }
    let Ok(text) = String::from_utf8(printed) else { return unusable("printed what is not UTF-8") };
    let password = text.strip_suffix('\n').unwrap_or(&text);
    match password.strip_suffix('\r').unwrap_or(password) {
        "" => unusable("printed nothing"),
        password if password.contains('\0') => unusable("printed a zero byte"),
        password => Ok(Secret::new(password)),
    }
}

/// Whether a program that could not be started needs somebody who acts. A lack of memory, processes or files passes, and so does a
/// file that is being written.
fn stays(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound, PermissionDenied};
    // invalid: an argument contains a zero byte
    matches!(error.kind(), NotFound | PermissionDenied | NotADirectory | InvalidInput)
        || Errno::from_io_error(error) == Some(Errno::NOEXEC)
}

/// Everything up to one byte more than may be used. The rest is read too, so that the program can end.
async fn read_some(mut from: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    (&mut from).take(MAX_OUTPUT + 1).read_to_end(&mut read).await?;
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    Ok(read)
}

/// The first line that is not empty, without control characters, which a terminal would obey.
fn first_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().chars().filter(|character| !character.is_control()).take(MAX_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    /// More than a script takes on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    async fn shell(script: &str, limit: Duration) -> Result<String, String> {
        let printed = run(&words(&["sh", "-c", script]), Some(limit)).await;
        printed.map(|password| password.reveal().to_owned()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn the_output_is_the_password_without_its_line_break() {
        for (script, password) in [
            ("echo 'a b '", "a b "),
            ("printf 'a\\r\\n'", "a"),
            ("printf a", "a"),
            ("printf 'a\\n\\n'", "a\n"),
            ("echo a; echo warning >&2", "a"),
            ("head -c 65536 /dev/zero | tr '\\0' a", &"a".repeat(65536)),
        ] {
            assert_eq!(shell(script, LONG).await.as_deref(), Ok(password), "{script}");
        }
        assert_eq!(
            run(&words(&["echo", "$HOME; id"]), None).await.unwrap().reveal(),
            "$HOME; id",
            "there is no shell"
        );
    }

    #[tokio::test]
    async fn a_failure_names_the_program_but_not_its_output() {
        for (script, reason) in [
            (
                "echo secret; printf '\\n\\033[1mno token\\nmore\\n' >&2; exit 3",
                "failed (exit status: 3): [1mno token",
            ),
            ("echo secret; kill -9 $$", "failed (signal: 9 (SIGKILL))"),
            ("echo secret; sleep 60", "was killed because it took longer than 1 s"),
            ("echo secret; sleep 60 & exit 0", "was killed because it took longer than 1 s"),
            ("yes secret | head -c 1000000", "printed more than 64 KiB"),
            ("yes secret", "was killed because it took longer than 1 s"),
            ("printf 'secret\\377'", "printed what is not UTF-8"),
            ("printf 'secret\\0'", "printed a zero byte"),
            ("echo", "printed nothing"),
        ] {
            let limit = if reason.starts_with("was killed") { Duration::from_secs(1) } else { LONG };
            let error = shell(script, limit).await.unwrap_err();
            assert_eq!(error, format!("the program sh, which prints the password, {reason}"), "{script}");
        }
        let missing = run(&words(&["/no/such program"]), None).await.unwrap_err().to_string();
        assert!(
            missing.starts_with("the program /no/such program, which prints the password, cannot be run: "),
            "{missing}"
        );
    }

    #[test]
    fn a_lack_of_resources_passes() {
        let stay = |errno: Errno| stays(&io::Error::from(errno));
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOTDIR, Errno::NOEXEC] {
            assert!(stay(errno), "{errno}");
        }
        for errno in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::TXTBSY] {
            assert!(!stay(errno), "{errno}");
        }
    }

    /// Whether a process of this group runs. One that has ended may still be listed, as a zombie.
    fn lives(group: &str) -> bool {
        let listed = std::process::Command::new("ps").args(["-eo", "pgid=,stat="]).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let mut processes = listed.lines().filter_map(|line| line.trim().split_once(' '));
        processes.any(|(of, state)| of == group.trim() && !state.trim().starts_with('Z'))
    }

    async fn eventually(is_so: impl Fn() -> bool) {
        let so = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, so).await.unwrap();
    }

    #[tokio::test]
    async fn a_program_that_nobody_waits_for_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $$ > {0}.new; mv {0}.new {0}; wait", file.display());
        let words = words(&["sh", "-c", &script]);
        let running = tokio::spawn(async move { run(&words, Some(Duration::from_secs(1000))).await });
        eventually(|| file.exists()).await;
        let group = std::fs::read_to_string(&file).unwrap();
        assert!(lives(&group));
        running.abort();
        eventually(|| !lives(&group)).await;
    }
}
