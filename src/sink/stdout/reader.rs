//! Whether anybody still reads what is printed.

use std::fs::File;
use std::future::pending;
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::net::unix::pipe;

/// Whoever reads a pipe that is written to.
pub(super) struct Reader(Option<pipe::Sender>);

impl Reader {
    /// Of what is written to `out`. Of a file nothing can be said.
    pub(super) fn of(out: &impl AsFd) -> Self {
        let copy = out.as_fd().try_clone_to_owned();
        // unchecked, because it is not to stop waiting for its reader: others may write to it too
        Reader(copy.and_then(|copy| pipe::Sender::from_file_unchecked(File::from(copy))).ok())
    }

    /// Waits until it is gone: a pipe that nobody reads is in error, also while nothing is written.
    pub(super) async fn gone(&self) {
        match &self.0 {
            Some(pipe) if pipe.ready(Interest::ERROR).await.is_ok() => {}
            _ => pending().await,
        }
    }
}
