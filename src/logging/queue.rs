//! Queues log lines, which a thread writes to standard error. A reader that has stopped, or a full disk, only blocks that
//! thread.

use std::io::{self, ErrorKind, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The limit of waiting bytes; further lines are dropped. A single longer line still passes an empty queue.
const CAPACITY: usize = 1024 * 1024;

/// How long to wait before the next attempt if standard error is non-blocking and full.
const RETRY: Duration = Duration::from_millis(20);

/// Lines to be written. Adding to it never blocks.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Signals that there is something to write.
    filled: Condvar,
    /// Signals that everything is written.
    emptied: Condvar,
}

#[derive(Default)]
struct State {
    text: Vec<u8>,
    /// The number of lines that found the queue full.
    dropped: u64,
    /// Whether the thread is writing what it took.
    writing: bool,
}

impl Queue {
    /// Starts the thread that writes to `out`. `note` formats the line about dropped lines.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        note: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self::default());
        let from = Arc::clone(&queue);
        thread::Builder::new().name("log".to_owned()).spawn(move || from.write_all_to(out, note))?;
        Ok(queue)
    }

    /// Waits until everything is written, at most for `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let waits = |state: &mut State| state.writing || !state.text.is_empty();
        // what is unwritten by now is lost
        drop(self.emptied.wait_timeout_while(self.lock(), timeout, waits));
    }

    /// Takes what is to be written.
    pub(super) fn take(&self) -> Vec<u8> {
        mem::take(&mut self.lock().text)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all_to(&self, mut out: impl Write, note: impl Fn(u64) -> Vec<u8>) {
        let mut lost = 0;
        loop {
            let (text, dropped) = self.next();
            let mut works = false;
            for line in text.split_inclusive(|byte| *byte == b'\n') {
                works = is_written(&mut out, line);
                lost += u64::from(!works);
            }
            lost += dropped;
            if lost > 0 && works && is_written(&mut out, &note(lost)) {
                lost = 0;
            }
        }
    }

    /// Waits for lines. Dropped lines came after these.
    fn next(&self) -> (Vec<u8>, u64) {
        let mut state = self.lock();
        state.writing = false;
        if state.text.is_empty() {
            self.emptied.notify_all();
        }
        let waits = |state: &mut State| state.text.is_empty();
        let mut state = self.filled.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        (mem::take(&mut state.text), mem::take(&mut state.dropped))
    }
}

impl Write for &Queue {
    /// `lines` are complete lines. They are queued or dropped together.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        if state.text.is_empty() || state.text.len() + lines.len() <= CAPACITY {
            state.text.extend_from_slice(lines);
            self.filled.notify_one();
        } else {
            state.dropped += lines.iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>();
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes one line, if possible: the other end may be closed, or the disk full.
fn is_written(out: &mut impl Write, mut line: &[u8]) -> bool {
    while !line.is_empty() {
        match out.write(line) {
            Ok(0) => return false,
            Ok(written) => line = line.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY),
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LONG: Duration = Duration::from_secs(60);

    /// Announces each write, and completes it with this result when told to.
    struct Gate {
        about_to: Sender<Vec<u8>>,
        told: Receiver<io::Result<()>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.about_to.send(bytes.to_vec()).unwrap();
            self.told.recv().unwrap().map(|()| bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated() -> (Arc<Queue>, Receiver<Vec<u8>>, Sender<io::Result<()>>) {
        let ((about_to, writes), (tell, told)) = (channel(), channel());
        let note = |lines| format!("{lines} dropped\n").into_bytes();
        (Queue::start(Gate { about_to, told }, note).unwrap(), writes, tell)
    }

    #[test]
    fn what_finds_the_queue_full_is_dropped_and_counted() {
        let (queue, writes, tell) = gated();
        (&*queue).write_all(b"first\n").unwrap();
        assert_eq!(writes.recv().unwrap(), b"first\n");
        // the thread is blocked in writing the first
        let long = [vec![b'x'; CAPACITY - 1], vec![b'\n']].concat();
        (&*queue).write_all(&long).unwrap();
        (&*queue).write_all(b"dropped\n").unwrap();
        (&*queue).write_all(b"dropped\n    with it\n").unwrap();
        queue.flush(Duration::ZERO);
        for expected in [long.as_slice(), b"3 dropped\n"] {
            tell.send(Ok(())).unwrap();
            assert_eq!(writes.recv().unwrap(), expected);
        }
        tell.send(Ok(())).unwrap();
        queue.flush(LONG);
        (&*queue).write_all(b"again\n").unwrap();
        assert_eq!(writes.recv().unwrap(), b"again\n");
    }

    #[test]
    fn what_cannot_be_written_is_counted_until_writing_works() {
        let (queue, writes, tell) = gated();
        for kind in [ErrorKind::BrokenPipe, ErrorKind::StorageFull] {
            (&*queue).write_all(b"lost\n").unwrap();
            assert_eq!(writes.recv().unwrap(), b"lost\n");
            tell.send(Err(kind.into())).unwrap();
            queue.flush(LONG);
            assert!(writes.try_recv().is_err(), "it tried again");
        }
        (&*queue).write_all(b"works\n").unwrap();
        for (expected, result) in [
            (&b"works\n"[..], Err(ErrorKind::Interrupted.into())),
            (b"works\n", Err(ErrorKind::WouldBlock.into())),
            (b"works\n", Ok(())),
            (b"2 dropped\n", Ok(())),
        ] {
            assert_eq!(writes.recv().unwrap(), expected);
            tell.send(result).unwrap();
        }
        queue.flush(LONG);
        assert!(writes.try_recv().is_err());
    }
}
