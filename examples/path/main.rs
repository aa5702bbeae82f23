//! The way of an event from the bytes of an Insert to a record and to its acknowledgement, again and again: for instruction
//! counts, which unlike times are the same in each run.
//!
//! `scripts/instructions` counts them; its `--help` says the rest.

use anyhow::Result;
use clap::{Parser, ValueEnum};

mod event;

use event::Path;

/// What is done with each event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Bytes to a message
    Decode,
    /// Bytes to an event
    Event,
    /// Bytes to a record
    Record,
    /// Numbers out, acknowledgements in
    Progress,
}

/// Does one part of an event's way again and again.
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
