//! Contracts: a JSON Schema for the payload of each event type.
//!
//! ```text
//!   contracts/<aggregate>/<event>.json --load--> Contracts --check--> Verdict    for each event, in `routing`
//!                                                    |
//!                                                    +--> compatibility          against the former version
//!                                                    +--> markdown, asyncapi     for people and tools
//! ```
//!
//! Reading the directory is the only I/O: references stay within the directory, and nothing is fetched from the network.

pub mod asyncapi;
mod bounds;
pub mod compatibility;
mod directory;
mod documents;
mod facts;
pub mod fault;
mod json;
mod keywords;
pub mod markdown;
mod payload;
mod rule;
#[cfg(test)]
mod tests;
mod topic;
mod violation;

use std::collections::BTreeMap;
use std::convert::identity;
use std::fmt;
use std::path::Path;

use jsonschema::{Registry, Validator};
use serde_json::Value;

use crate::config::Config;
use crate::error::Error;
pub use directory::SourceFile;
use documents::{Documents, Node, address};
pub use facts::Facts;
use fault::{Fault, Faults};
pub use rule::Rule;
pub use topic::Topic;
use violation::KnownNames;

/// The contracts of a directory, with their validators.
#[derive(Debug, Default)]
pub struct Contracts {
    documents: Documents,
    by_event: BTreeMap<String, BTreeMap<String, Contract>>,
    names: KnownNames,
    warnings: Vec<Fault>,
}

/// The contract of one event type.
#[derive(Debug)]
pub struct Contract {
    /// The aggregate's type: the directory's name.
    pub aggregate_type: String,
    /// The event's type: the file's name without `.json`.
    pub event_type: String,
    /// The file, relative to the directory.
    pub path: String,
    /// Its annotations.
    pub facts: Facts,
    document: usize,
    validator: Validator,
}

impl Contract {
    /// The rule for changes; without `x-compatibility` it is [`Rule::Full`].
    pub fn rule(&self) -> Rule {
        self.facts.compatibility.unwrap_or_default()
    }

    /// `order/OrderPlaced`
    pub fn name(&self) -> String {
        format!("{}/{}", self.aggregate_type, self.event_type)
    }
}

/// The result of checking a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The event type has no contract.
    NoContract,
    /// The payload satisfies its contract.
    Valid,
    /// The payload violates its contract.
    Violated(Violation),
}

/// How a payload violates its contract. It quotes nothing from the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The contract's file, relative to the directory.
    pub contract: String,
    /// Where and why, a sentence without a full stop that continues "the payload".
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the payload violates the contract {}: {}", self.contract, self.what)
    }
}

impl Contracts {
    /// Reads the contracts of a directory.
    ///
    /// # Errors
    /// All their faults.
    pub fn load(directory: &Path) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let files = directory::read(directory, &mut faults);
        Self::read(files, faults)
    }

    /// Reads the contracts that the configuration names; `None` if it names none.
    ///
    /// # Errors
    /// All their faults, with exit code 2.
    pub fn configured(config: &Config) -> Result<Option<Self>, Error> {
        let Some(settings) = &config.contracts else { return Ok(None) };
        let contracts = Self::load(&settings.directory);
        contracts.map(Some).map_err(|faults| faults.into_error(&settings.directory))
    }

    /// Builds contracts from files that were already read.
    ///
    /// # Errors
    /// All their faults.
    pub fn of(files: Vec<SourceFile>) -> Result<Self, Faults> {
        Self::read(files, Vec::new())
    }

    fn read(files: Vec<SourceFile>, mut faults: Vec<Fault>) -> Result<Self, Faults> {
        let mut warnings = Vec::new();
        let documents = Documents::of(files, &mut faults, &mut warnings);
        check_against_the_drafts(&documents, &mut faults);
        let mut by_event: BTreeMap<String, BTreeMap<String, Contract>> = BTreeMap::new();
        let mut names = KnownNames::default();
        // otherwise the meta-schemas would report the same faults again
        if faults.is_empty() {
            for contract in compile(&documents, &mut faults) {
                let events = by_event.entry(contract.aggregate_type.clone()).or_default();
                events.insert(contract.event_type.clone(), contract);
            }
            for (_, document) in documents.iter() {
                names.add(&document.schema);
            }
            for contract in by_event.values().flat_map(BTreeMap::values) {
                check_examples(contract, &names, &mut faults);
            }
        }
        if faults.is_empty() {
            return Ok(Contracts { documents, by_event, names, warnings });
        }
        faults.sort();
        // several vocabularies of a draft report a value that is no schema at all
        faults.dedup();
        Err(Faults(faults))
    }

    /// Checks the payload of one event. A NULL payload is checked as JSON `null`. Without a contract this costs one look-up.
    pub fn check(&self, aggregate_type: &str, event_type: &str, payload: Option<&[u8]>) -> Verdict {
        let Some(contract) = self.get(aggregate_type, event_type) else { return Verdict::NoContract };
        let validate = |value: &Value| {
            let validated = contract.validator.validate(value);
            validated.map_err(|error| self.names.sentence(&error))
        };
        let checked = match payload {
            None => validate(&Value::Null),
            Some(json) => payload::read(json, validate).and_then(identity),
        };
        let Err(what) = checked else { return Verdict::Valid };
        Verdict::Violated(Violation { contract: contract.path.clone(), what })
    }

    /// Checks the columns of a row, and returns the violation, if any. A type that is NULL or not UTF-8 has no contract.
    pub fn violation(
        &self,
        aggregate_type: Option<&[u8]>,
        event_type: Option<&[u8]>,
        payload: Option<&[u8]>,
    ) -> Option<Violation> {
        match self.check(str::from_utf8(aggregate_type?).ok()?, str::from_utf8(event_type?).ok()?, payload) {
            Verdict::Violated(violation) => Some(violation),
            Verdict::NoContract | Verdict::Valid => None,
        }
    }

    /// The contract of an event type.
    pub fn get(&self, aggregate_type: &str, event_type: &str) -> Option<&Contract> {
        self.by_event.get(aggregate_type)?.get(event_type)
    }

    /// All contracts, by aggregate and event.
    pub fn iter(&self) -> impl Iterator<Item = &Contract> {
        self.by_event.values().flat_map(BTreeMap::values)
    }

    /// Warnings about the files, such as unknown keywords.
    pub fn warnings(&self) -> &[Fault] {
        &self.warnings
    }

    fn root(&self, contract: &Contract) -> Option<Node<'_>> {
        self.documents.root(contract.document)
    }
}

/// Adds a fault for each place where a schema is invalid under its draft.
fn check_against_the_drafts(documents: &Documents, faults: &mut Vec<Fault>) {
    for (_, document) in documents.iter() {
        let Ok(validator) = jsonschema::meta::validator_for(&document.schema) else { continue };
        for error in validator.iter_errors(&document.schema) {
            faults.push(Fault::new(
                &document.path,
                error.instance_path().as_str(),
                format!("this is not a valid JSON Schema: {error}"),
                "Correct it according to the draft in `$schema`",
            ));
        }
    }
}

/// The contracts among the documents, each with its validator.
fn compile(documents: &Documents, faults: &mut Vec<Fault>) -> Vec<Contract> {
    let all = documents.iter().map(|(number, document)| (address(number), &document.schema));
    let registry = Registry::new().extend(all).and_then(jsonschema::RegistryBuilder::prepare);
    let registry = match registry {
        Ok(registry) => registry,
        Err(error) => {
            faults.push(Fault::new(
                "",
                "",
                format!("the references cannot be resolved: {error}"),
                "Correct them",
            ));
            return Vec::new();
        }
    };
    let mut contracts = Vec::new();
    for (number, document) in documents.iter().filter(|(_, document)| !directory::is_part(&document.path)) {
        let parts: Vec<&str> = document.path.trim_end_matches(".json").split('/').collect();
        let [aggregate_type, event_type] = parts.as_slice() else {
            faults.push(Fault::new(
                &document.path,
                "",
                "a contract is a file <aggregate>/<event>.json",
                "Move it; the name of a file that only has shared parts must begin with an underscore",
            ));
            continue;
        };
        let options = jsonschema::options().with_base_uri(address(number)).with_registry(&registry);
        let validator = bounds::with_exact_bounds(options)
            .should_validate_formats(true)
            .offline()
            .build(&document.schema);
        match (validator, documents.root(number)) {
            (Ok(validator), Some(root)) => contracts.push(Contract {
                aggregate_type: (*aggregate_type).to_owned(),
                event_type: (*event_type).to_owned(),
                path: document.path.clone(),
                facts: Facts::of(root, &document.path, faults),
                document: number,
                validator,
            }),
            (Err(error), _) => faults.push(Fault::new(
                &document.path,
                error.instance_path().as_str(),
                format!("no validator can be built from this schema: {error}"),
                "Correct the schema",
            )),
            (Ok(_), None) => {}
        }
    }
    contracts
}

fn check_examples(contract: &Contract, names: &KnownNames, faults: &mut Vec<Fault>) {
    for (number, example) in contract.facts.examples.iter().enumerate() {
        if let Err(error) = contract.validator.validate(example) {
            faults.push(Fault::new(
                &contract.path,
                format!("/examples/{number}"),
                format!("the example violates the schema: {}", names.sentence(&error)),
                "Correct the example or the schema",
            ));
        }
    }
}
