//! `contracts`: checks the contracts of events, and renders them. It needs no server, and from the configuration only the
//! directory of the contracts and the topics of the events.

mod check;
mod pages;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pg_logical::Environment;

use crate::cli::contracts::{ContractsAsyncapiArgs, ContractsCommand};
use crate::commands::Verdict;
use crate::config::contracts::ContractConfig;
use crate::config::load::load_for_contracts;
use crate::contracts::asyncapi::{self, Info};
use crate::contracts::{Contract, Contracts, Topic};
use crate::error::Error;
use crate::routing::contract_topic;
use crate::terminal;

/// Does what the arguments say. The exit code is 1 if something was found.
///
/// # Errors
/// There is no directory, something in it is wrong (for commands other than `check`), or something cannot be written.
pub fn contracts(
    config: Option<&Path>,
    command: &ContractsCommand,
    env: &Environment,
) -> Result<Verdict, Error> {
    let settings = load_for_contracts(config, env)?;
    match command {
        ContractsCommand::Check(args) => check::check(&directory(&args.directory, &settings)?, args),
        ContractsCommand::Docs(args) => {
            let contracts = load(&directory(&args.directory, &settings)?)?;
            pages::docs(&contracts, args, |contract| topic_of(contract, &settings))
        }
        ContractsCommand::Asyncapi(args) => {
            let contracts = load(&directory(&args.directory, &settings)?)?;
            write_asyncapi(&contracts, args, &settings).map(|()| Verdict::Fine)
        }
    }
}

fn directory(named: &Option<PathBuf>, settings: &ContractConfig) -> Result<PathBuf, Error> {
    let configured = || settings.contracts.as_ref().map(|contracts| contracts.directory.clone());
    named.clone().or_else(configured).ok_or_else(|| {
        Error::usage(
            "It is not known where the contracts are",
            "Name their directory, or set `directory` under [contracts]",
        )
    })
}

fn load(directory: &Path) -> Result<Contracts, Error> {
    Contracts::load(directory).map_err(|faults| faults.into_error(directory))
}

fn topic_of(contract: &Contract, settings: &ContractConfig) -> Topic {
    contract_topic(contract, &settings.topic, &settings.columns)
}

fn write_asyncapi(
    contracts: &Contracts,
    args: &ContractsAsyncapiArgs,
    settings: &ContractConfig,
) -> Result<(), Error> {
    let info = Info { title: args.title.clone(), version: args.document_version.clone() };
    let document = asyncapi::document(contracts, &info, |contract| topic_of(contract, settings));
    let text =
        document.map_err(|error| Error::usage(format!("No JSON: {error}"), "Report this as a fault"))?;
    match &args.output {
        None => terminal::print(&text),
        Some(path) => {
            fs::write(path, text).map_err(|error| unwritable(path, &error))?;
            terminal::print(&format!("{} written, {} events\n", path.display(), contracts.iter().count()))
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Error {
    Error::usage(
        format!("{} cannot be written: {error}", path.display()),
        "Name a place that can be written to",
    )
}
