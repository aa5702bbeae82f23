//! `contracts`: checks and renders the contracts of events. It needs no server, and only the directory of the contracts and the
//! topics of the events from the configuration.

mod check;
mod pages;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pg_logical::Environment;

use crate::cli::contracts::{ContractsAsyncapiArgs, ContractsCommand};
use crate::commands::Completion;
use crate::config::contracts::ContractConfig;
use crate::config::load::{ConfigFile, load_for_contracts};
use crate::contracts::asyncapi::{self, Info};
use crate::contracts::{Contract, Contracts, Topic};
use crate::error::{Error, ErrorCode};
use crate::routing::contract_topic;
use crate::terminal;

/// Runs the subcommand. The exit code is 1 if `check` found an error, or pages are out of date.
///
/// # Errors
/// No directory is configured, a contract is faulty (for commands other than `check`), or a file cannot be written.
pub fn contracts(
    file: Option<&ConfigFile>,
    command: &ContractsCommand,
    env: &Environment,
) -> Result<Completion, Error> {
    let settings = load_for_contracts(file, env)?;
    match command {
        ContractsCommand::Check(args) => check::check(&directory(&args.directory, &settings)?, args),
        ContractsCommand::Docs(args) => {
            let contracts = load(&directory(&args.directory, &settings)?)?;
            pages::docs(&contracts, args, |contract| topic_of(contract, &settings))
        }
        ContractsCommand::Asyncapi(args) => {
            let contracts = load(&directory(&args.directory, &settings)?)?;
            write_asyncapi(&contracts, args, &settings).map(|()| Completion::Success)
        }
    }
}

fn directory(named: &Option<PathBuf>, settings: &ContractConfig) -> Result<PathBuf, Error> {
    let configured = || settings.contracts.as_ref().map(|contracts| contracts.directory.clone());
    named.clone().or_else(configured).ok_or_else(|| {
        Error::usage(
            ErrorCode::CommandLine,
            "No directory of contracts is configured",
            "Give the directory as an argument, or set `directory` under [contracts]",
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
    let text = document.map_err(|error| {
        Error::usage(
            ErrorCode::Bug,
            format!("The document cannot be written as JSON: {error}"),
            "Report this as a bug",
        )
    })?;
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
        ErrorCode::InputOutput,
        format!("{} cannot be written: {error}", path.display()),
        "Give a path that can be written to",
    )
}
