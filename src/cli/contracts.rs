//! `contracts`

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(super) const HELP: &str = "\
A contract is a file <aggregate>/<event>.json in the directory that `directory` in [contracts] or the command line names: a \
JSON Schema of the event's payload, with notes for consumers. Neither Postgres nor Kafka is needed, and nothing is fetched from \
the network.

Exit codes:
  0  no problems
  1  check: a contract is faulty, or a change breaks consumers; docs --check: pages are not up to date
  2  usage or configuration; docs, asyncapi: a contract is faulty

Examples:
  outbox-router contracts check
  outbox-router contracts check contracts --against /tmp/former/contracts
  outbox-router contracts docs --output docs/events
  outbox-router contracts asyncapi --output asyncapi.json";

const CHECK_HELP: &str = "\
Reads every file, and checks the examples against their schemas. With --against, each contract is compared with its former \
version under its rule, `x-compatibility`: backward, forward, full (the default) or none.

The former version is another directory, for instance that of the main branch:
  mkdir /tmp/former && git archive origin/main contracts | tar -x -C /tmp/former
  outbox-router contracts check contracts --against /tmp/former/contracts

Exit codes:
  0  no errors
  1  a contract is faulty, or a change breaks consumers or cannot be judged
  2  usage or configuration; the former version cannot be read";

/// `contracts ...`
#[derive(Debug, Clone, Subcommand)]
pub enum ContractsCommand {
    /// Check the contracts for faults, and for changes that break consumers
    #[command(after_help = CHECK_HELP)]
    Check(ContractsCheckArgs),
    /// Write a Markdown page for each, and one that lists them
    Docs(ContractsDocsArgs),
    /// Write them as an AsyncAPI 3 document, in JSON
    Asyncapi(ContractsAsyncapiArgs),
}

/// `contracts check`
#[derive(Debug, Clone, Args)]
pub struct ContractsCheckArgs {
    /// The directory of the contracts, instead of `directory` in `[contracts]`
    pub directory: Option<PathBuf>,

    /// The directory of their former version, to compare with
    #[arg(long, value_name = "DIRECTORY")]
    pub against: Option<PathBuf>,

    /// Accept changes that cannot be judged automatically, after you have checked them
    #[arg(long, requires = "against")]
    pub allow_unjudged: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `contracts docs`
#[derive(Debug, Clone, Args)]
pub struct ContractsDocsArgs {
    /// The directory of the contracts, instead of `directory` in `[contracts]`
    pub directory: Option<PathBuf>,

    /// The directory of the pages, AGGREGATE/EVENT.md. Pages of removed contracts are deleted
    #[arg(long, value_name = "DIRECTORY", default_value = "docs/events")]
    pub output: PathBuf,

    /// Write nothing, and list the pages that are not up to date
    #[arg(long)]
    pub check: bool,

    /// Print the pages that were not up to date as JSON
    #[arg(long)]
    pub json: bool,
}

/// `contracts asyncapi`
#[derive(Debug, Clone, Args)]
pub struct ContractsAsyncapiArgs {
    /// The directory of the contracts, instead of `directory` in `[contracts]`
    pub directory: Option<PathBuf>,

    /// The file to write, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// `info.title` of the document
    #[arg(long, default_value = "Events")]
    pub title: String,

    /// `info.version` of the document
    #[arg(long, value_name = "VERSION", default_value = "1.0.0")]
    pub document_version: String,
}
