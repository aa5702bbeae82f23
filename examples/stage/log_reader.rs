//! Copies the standard error of routers from pipes to a file, and can stop reading so that the pipes fill up.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::OFlags;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::sleep;

const POLL_EVERY: Duration = Duration::from_millis(5);
/// The largest write to a pipe that is atomic (`PIPE_BUF`).
const PAGE: [u8; 4096] = [b'\n'; 4096];

/// What was read, and when.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogSummary {
    /// When each warning and each error was read.
    pub(crate) warnings: Vec<Instant>,
    /// From when to when reading was stopped.
    pub(crate) unread: Vec<(Instant, Option<Instant>)>,
}

/// Copies the pipes of all routers of a program to one file.
#[derive(Debug)]
pub(crate) struct LogReader {
    file: PathBuf,
    summary: Mutex<LogSummary>,
}

impl LogReader {
    pub(crate) fn new(file: PathBuf) -> Arc<Self> {
        Arc::new(LogReader { file, summary: Mutex::default() })
    }

    /// Copies `from` to its end, in the background.
    pub(crate) fn follow(
        self: &Arc<Self>,
        mut from: impl AsyncRead + Unpin + Send + 'static,
    ) -> anyhow::Result<()> {
        let file = File::options().create(true).append(true).open(&self.file);
        let mut file = file.with_context(|| format!("open {}", self.file.display()))?;
        let reader = Arc::clone(self);
        tokio::spawn(async move {
            let (mut buffer, mut lines) = (vec![0; 16 * 1024], Vec::new());
            loop {
                while reader.is_blocked() {
                    sleep(POLL_EVERY).await;
                }
                // treat an error as the end
                let length = from.read(&mut buffer).await.unwrap_or_default();
                lines.extend_from_slice(buffer.get(..length).unwrap_or_default());
                let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                let whole = if length == 0 { lines.len() } else { whole };
                let text: Vec<u8> = lines.drain(..whole).collect();
                // the file is only for people
                let _ = file.write_all(&reader.take(&text));
                if length == 0 {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Stops reading, and fills the pipe of the standard error of `process`, so that its next write blocks.
    pub(crate) async fn block(&self, process: u32) -> anyhow::Result<()> {
        self.lock().unread.push((Instant::now(), None));
        let path = format!("/proc/{process}/fd/2");
        // a second open file, so that O_NONBLOCK applies only here and not to the process
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let mut pipe = File::options()
            .write(true)
            .custom_flags(nonblocking)
            .open(&path)
            .with_context(|| format!("open {path}"))?;
        // a read that had begun may make room once more
        while fill(&mut pipe) > 0 {
            sleep(POLL_EVERY * 4).await;
        }
        Ok(())
    }

    /// Continues reading.
    pub(crate) fn unblock(&self) {
        if let Some((_, until)) = self.lock().unread.last_mut() {
            *until = Some(Instant::now());
        }
    }

    pub(crate) fn summary(&self) -> LogSummary {
        self.lock().clone()
    }

    fn is_blocked(&self) -> bool {
        self.lock().unread.last().is_some_and(|(_, until)| until.is_none())
    }

    /// Records the warnings among complete lines, and removes the empty lines that filled the pipe.
    fn take(&self, text: &[u8]) -> Vec<u8> {
        let mut kept = Vec::with_capacity(text.len());
        for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| *line != b"\n") {
            let line_text = String::from_utf8_lossy(line);
            if line_text.contains(" WARN ") || line_text.contains(" ERROR ") {
                self.lock().warnings.push(Instant::now());
            }
            kept.extend_from_slice(line);
        }
        kept
    }

    fn lock(&self) -> MutexGuard<'_, LogSummary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes empty lines until the pipe is full; returns the number of bytes written.
fn fill(pipe: &mut File) -> usize {
    let mut written = 0;
    // whole pages first, then single bytes
    for bytes in [&PAGE[..], b"\n"] {
        while let Ok(length) = pipe.write(bytes) {
            written += length;
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::process::Command;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn blocked_reader_blocks_writer_and_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        let reader = LogReader::new(file.clone());
        let script = "read go; i=0; while [ $i -lt 20 ]; do echo \"time WARN line $i\" >&2; i=$((i+1)); done";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdin(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut shell = shell.spawn().unwrap();
        reader.follow(shell.stderr.take().unwrap()).unwrap();
        reader.block(shell.id().unwrap()).await.unwrap();
        // lets the script start
        drop(shell.stdin.take());
        assert!(timeout(Duration::from_millis(300), shell.wait()).await.is_err(), "the writer did not block");
        reader.unblock();
        shell.wait().await.unwrap();
        let all_read = async {
            while reader.summary().warnings.len() < 20 {
                sleep(POLL_EVERY).await;
            }
        };
        assert!(timeout(Duration::from_secs(60), all_read).await.is_ok(), "{:?}", reader.summary().warnings);
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), 20, "{text}");
        assert!(text.ends_with("WARN line 19\n"), "{text}");
    }
}
