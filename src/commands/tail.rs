//! `tail`: shows the records that `run` would send.

use std::io;

use tokio::signal::unix::SignalKind;

use super::signals::cancelled_by;
use super::temporary_slot::{self, TemporarySlot};
use crate::cli::tail::TailArgs;
use crate::config::Config;
use crate::error::Error;
use crate::sink::stdout::{Printed, StdoutSink, Style};
use crate::terminal;

/// Prints what is committed from now on, or from a given position on, until it is stopped.
///
/// # Errors
/// Postgres cannot be reached or refuses, or the slot no longer has the log at the position.
pub async fn tail(config: &Config, args: &TailArgs) -> Result<(), Error> {
    let stop = cancelled_by(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()])?;
    let style = Style { json: args.json, payload: args.payload, colours: terminal::colours(&io::stdout()) };
    let sink = StdoutSink::new(&io::stdout(), style, stop.clone())?;
    let slot = TemporarySlot { command: "tail", shards: &args.shards, since: args.since };
    log_end(temporary_slot::run(config, slot, sink, &stop).await?.unwrap_or_default());
    Ok(())
}

/// Logs how many events were printed, unless the reader has closed standard output, as `head` does.
fn log_end(printed: Printed) {
    match printed {
        Printed { reader_gone: true, .. } => {}
        Printed { events: 1, .. } => tracing::info!("stopped; 1 event was shown"),
        Printed { events, .. } => tracing::info!("stopped; {events} events were shown"),
    }
}
