//! Detects that the reader of the output is gone.

use std::fs::File;
use std::future::pending;
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::net::unix::pipe;

/// The output as a pipe or terminal whose errors can be watched; `None` if it cannot, as with a file.
pub(super) struct Reader(Option<pipe::Sender>);

impl Reader {
    /// Watches `out`.
    pub(super) fn of(out: &impl AsFd) -> Self {
        let copy = out.as_fd().try_clone_to_owned();
        // unchecked, because the checked constructor would make the pipe non-blocking for every process that writes to it
        Reader(copy.and_then(|copy| pipe::Sender::from_file_unchecked(File::from(copy))).ok())
    }

    /// Waits until the reader is gone. A pipe without a reader signals an error even while nothing is written.
    pub(super) async fn gone(&self) {
        match &self.0 {
            Some(pipe) if pipe.ready(Interest::ERROR).await.is_ok() => {}
            _ => pending().await,
        }
    }
}
