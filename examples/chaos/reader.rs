//! The independent reader: Postgres's `pg_recvlogical` with `test_decoding` on its own slot. It shares only the write-ahead log
//! with the router, and also sees rows that were deleted later.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::decode::{deleted_by, row_of};
use crate::event::{Event, Id};

const SLOT: &str = "chaos_reader";
const RETRY_AFTER: Duration = Duration::from_millis(100);
const END_WITHIN: Duration = Duration::from_secs(120);

/// What was committed.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    /// In commit order, with the rows that were deleted later.
    pub(crate) events: Vec<Event>,
    /// Those that were deleted by the transactions that inserted them: only the log has them.
    pub(crate) never_visible: HashSet<Id>,
}

/// The running reader; dropping it ends it.
pub(crate) struct Reader {
    program: PathBuf,
    url: String,
    file: PathBuf,
    task: JoinHandle<()>,
}

impl Reader {
    /// Creates the slot, and starts reading.
    pub(crate) async fn start(
        postgres: &Client,
        url: &str,
        folder: &Path,
        programs: &Path,
    ) -> anyhow::Result<Self> {
        let sql = "SELECT pg_create_logical_replication_slot($1, 'test_decoding')";
        postgres.query(sql, &[&SLOT]).await.context("create the slot of the independent reader")?;
        let beside = programs.join("pg_recvlogical");
        let program = if beside.is_file() { beside } else { PathBuf::from("pg_recvlogical") };
        let file = folder.join("committed.txt");
        File::create(&file).with_context(|| format!("create {}", file.display()))?;
        let mut process = command(&program, url, &file);
        let task = tokio::spawn(async move {
            loop {
                // it ends whenever the server does
                let _ = process.status().await;
                sleep(RETRY_AFTER).await;
            }
        });
        Ok(Reader { program, url: url.to_owned(), file, task })
    }

    /// Reads up to the present end of the log. Call it after the last writer has ended.
    pub(crate) async fn finish(self, postgres: &Client) -> anyhow::Result<Committed> {
        self.task.abort();
        let row = postgres.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await?;
        let end: &str = row.try_get(0)?;
        let sql = "SELECT active_pid IS NULL FROM pg_replication_slots WHERE slot_name = $1";
        let free = async {
            while !postgres.query_one(sql, &[&SLOT]).await?.try_get::<_, bool>(0)? {
                sleep(RETRY_AFTER).await;
            }
            anyhow::Ok(())
        };
        timeout(END_WITHIN, free).await.context("the independent reader's slot stays active")??;
        let mut last = command(&self.program, &self.url, &self.file);
        let last = timeout(END_WITHIN, last.arg("--endpos").arg(end).status()).await;
        let status = last.context("pg_recvlogical does not reach the end of the log")??;
        ensure!(
            status.success(),
            "pg_recvlogical ended with {status}; see recvlogical.log beside {}",
            self.file.display()
        );
        let open = File::open(&self.file).with_context(|| format!("open {}", self.file.display()))?;
        let committed =
            committed(BufReader::new(open)).with_context(|| format!("read {}", self.file.display()))?;
        std::fs::remove_file(&self.file).context("delete the file of the independent reader")?;
        Ok(committed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn command(program: &Path, url: &str, file: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("--dbname").arg(url).args(["--slot", SLOT, "--start", "--no-loop"]).arg("--file").arg(file);
    // frequent status updates: a server that shuts down waits for them
    command
        .args(["--fsync-interval", "1", "--status-interval", "1"])
        .args(["--option", "skip-empty-xacts=1"]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    let log = File::options().create(true).append(true).open(file.with_file_name("recvlogical.log"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
    command.kill_on_drop(true);
    command
}

/// After a restart the text repeats some events, so each id counts once.
fn committed(text: impl BufRead) -> anyhow::Result<Committed> {
    let (mut committed, mut seen) = (Committed::default(), HashSet::new());
    let mut of_transaction = HashSet::new();
    for line in text.lines() {
        let line = line?;
        if line.starts_with("BEGIN") {
            of_transaction.clear();
        }
        if let Some(id) = deleted_by(&line).filter(|id| of_transaction.contains(id)) {
            committed.never_visible.insert(id);
        }
        let Some(row) = row_of(&line)? else { continue };
        let event = Event::of_row(&row).with_context(|| format!("the id is not a uuid: {}", row.id))?;
        of_transaction.insert(event.id);
        if seen.insert(event.id) {
            committed.events.push(event);
        }
    }
    Ok(committed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_row_that_its_own_transaction_deletes_was_never_visible() {
        let id = |number| format!("00000000-0000-0000-0000-{number:012x}");
        let insert = |number| {
            format!(
                "table public.outbox: INSERT: id[uuid]:'{}' aggregate_type[text]:'a' aggregate_id[text]:'b' event_type[text]:'c' \
                 payload[jsonb]:null headers[jsonb]:'{{}}'",
                id(number)
            )
        };
        let delete = |number| format!("table public.outbox: DELETE: id[uuid]:'{}'", id(number));
        let (begin, commit) = ("BEGIN 7".to_owned(), "COMMIT 7".to_owned());
        let first = [begin.clone(), insert(1), insert(2), delete(2), commit.clone()];
        let second = [begin, delete(1), insert(3), commit];
        // the reader was restarted after the first transaction
        let lines = [&first[..], &first, &second].concat().join("\n");
        let committed = committed(lines.as_bytes()).unwrap();
        assert_eq!(committed.events.iter().map(|event| event.id).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(committed.never_visible, HashSet::from([2]));
    }
}
