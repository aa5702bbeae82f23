//! A command of the router that goes on while the test does something else.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::eventually::eventually;
use super::place::Ran;
use super::process;

/// The command, and its standard error so far. Killed on drop.
pub(crate) struct Running {
    child: Child,
    err: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = process::start(command);
        let err = Arc::new(Mutex::new(String::new()));
        let (lines, text) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&err));
        let reader = std::thread::spawn(move || {
            lines.for_each(|line| *text.lock().unwrap() += &(line.unwrap() + "\n"));
        });
        Running { child, err, reader: Some(reader) }
    }

    /// Waits until standard error has this text, and returns all of it.
    pub(crate) async fn says(&self, text: &str) -> String {
        eventually(&format!("the command says {text:?}"), async || {
            let err = self.err.lock().unwrap().clone();
            err.contains(text).then_some(err)
        })
        .await
    }

    /// Waits for its end.
    pub(crate) async fn ends(mut self) -> Ran {
        let status = eventually("the command ends", async || self.child.try_wait().unwrap()).await;
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.reader.take().unwrap().join().unwrap();
        Ran { code: status.code().unwrap_or(-1), out, err: self.err.lock().unwrap().clone() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // it has ended already, unless the test fails
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
