//! Runs one part of the pipeline repeatedly, from the bytes of an Insert to the record and its acknowledgement, to count
//! instructions. Unlike times, these are the same in each run.
//!
//! `scripts/instructions` counts them; see its `--help`.

use anyhow::Result;
use clap::{Parser, ValueEnum};

mod event;
mod tls;

use event::Path;
use tls::Tls;

/// The part to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Decode bytes to a message
    Decode,
    /// Decode bytes to an event
    Event,
    /// Decode bytes to a record
    Record,
    /// Issue sequence numbers and acknowledge them
    Progress,
    /// Encrypt a TLS record, as the server does
    Encrypt,
    /// The same, and decrypt it
    Decrypt,
}

/// Runs one part of the pipeline repeatedly.
#[derive(Debug, Parser)]
struct Cli {
    part: Part,
    times: u64,
}

fn main() -> Result<()> {
    let Cli { part, times } = Cli::parse();
    let insert = event::insert();
    match part {
        Part::Decode => (0..times).try_for_each(|_| event::decode(&insert)),
        Part::Event => {
            let path = Path::of("")?;
            (0..times).try_for_each(|_| path.event(&insert))
        }
        Part::Record => {
            let mut path = Path::of("")?;
            (0..times).try_for_each(|n| path.record(&insert, n))
        }
        Part::Progress => event::progress(times),
        Part::Encrypt | Part::Decrypt => {
            let mut tls = Tls::connect()?;
            (0..times).try_for_each(|_| tls.send(&insert, part == Part::Decrypt))
        }
    }
}
