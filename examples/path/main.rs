//! Runs one part of the pipeline repeatedly, from the bytes of an Insert to the record and its acknowledgement, to count
//! instructions. Unlike times, these are the same in each run.
//!
//! `scripts/instructions` counts them; see its `--help`.

use anyhow::Result;
use clap::{Parser, ValueEnum};

mod event;

use event::Path;

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
    let mut path = Path::of("")?;
    match part {
        Part::Decode => (0..times).try_for_each(|_| event::decode(&insert)),
        Part::Event => (0..times).try_for_each(|_| path.event(&insert)),
        Part::Record => (0..times).try_for_each(|n| path.record(&insert, n)),
        Part::Progress => event::progress(times),
    }
}
