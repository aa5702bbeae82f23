//! `config`: the configuration itself, without a server.

use std::path::Path;

use pg_logical::Environment;
use serde::Serialize;

use crate::cli::config::ConfigValidateArgs;
use crate::commands::Completion;
use crate::config::load::{Brokers, ConfigFile, load_file, validate as load};
use crate::config::{Place, Problem, schema};
use crate::contracts::Contracts;
use crate::error::{Error, ErrorCode};
use crate::logging;
use crate::sink::kafka::cluster_info;
use crate::terminal;

/// Prints the JSON Schema of the configuration file.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn schema() -> Result<Completion, Error> {
    terminal::print_json(&schema::json_schema())?;
    Ok(Completion::Success)
}

/// Prints the configuration in effect.
///
/// # Errors
/// It is invalid, or standard output cannot be written.
pub(super) fn show(file: Option<&ConfigFile>, env: &Environment) -> Result<Completion, Error> {
    let loaded = load_file(file, env, Brokers::Required)?;
    terminal::print(&loaded.config.to_redacted_toml())?;
    Ok(Completion::Success)
}

/// Checks the configuration, and everything that it refers to and that can be found without a server.
///
/// # Errors
/// The configuration is invalid and JSON is not wanted, or standard output cannot be written.
pub(super) fn validate(
    file: Result<Option<ConfigFile>, Error>,
    env: &Environment,
    args: &ConfigValidateArgs,
) -> Result<Completion, Error> {
    let mut report = Report::default();
    match file {
        Ok(file) => report.check(file.as_ref(), env),
        Err(error) => report.errors.push(error),
    }
    report.print(args.json)
}

/// What `validate` found.
#[derive(Default)]
struct Report {
    file: Option<String>,
    /// What overrides the file, for a sentence about it.
    overridden: String,
    problems: Vec<Problem>,
    /// Faults that have no place in the file.
    errors: Vec<Error>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    file: &'a Option<String>,
    valid: bool,
    problems: Vec<JsonProblem>,
    warnings: &'a [String],
}

#[derive(Default, Serialize)]
struct JsonProblem {
    code: String,
    file: Option<String>,
    line: Option<usize>,
    column: Option<usize>,
    variable: Option<String>,
    problem: String,
    remedy: String,
}

impl Report {
    fn check(&mut self, file: Option<&ConfigFile>, env: &Environment) {
        self.file = file.map(|file| in_words(file.path()));
        match load(file, env) {
            Ok(loaded) => {
                self.errors.extend(cluster_info::verify(&loaded.config).err());
                self.errors.extend(Contracts::configured(&loaded.config).err());
                self.overridden = loaded.overridden();
                self.warnings = loaded.warnings;
            }
            Err(problems) => self.problems = problems,
        }
    }

    fn print(mut self, json: bool) -> Result<Completion, Error> {
        let valid = self.problems.is_empty() && self.errors.is_empty();
        if json {
            let located = self.problems.iter().map(JsonProblem::from);
            let problems = located.chain(self.errors.iter().map(JsonProblem::from)).collect();
            terminal::print_json(&JsonReport {
                file: &self.file,
                valid,
                problems,
                warnings: &self.warnings,
            })?;
            return Ok(if valid { Completion::Success } else { Completion::Invalid });
        }
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        if !self.problems.is_empty() {
            return Err(self.problems.into());
        }
        let Some(last) = self.errors.pop() else {
            terminal::print(&match &self.file {
                Some(file) => format!("{file}{}: the configuration is valid\n", self.overridden),
                None => "the configuration is valid (environment only, no file)\n".to_owned(),
            })?;
            return Ok(Completion::Success);
        };
        for error in &self.errors {
            logging::report(error);
        }
        Err(last)
    }
}

impl From<&Problem> for JsonProblem {
    fn from(problem: &Problem) -> Self {
        let json = JsonProblem {
            code: ErrorCode::Configuration.to_string(),
            problem: problem.what.clone(),
            remedy: problem.remedy.clone(),
            ..JsonProblem::default()
        };
        match &problem.place {
            Place::File { path, line, column } => {
                JsonProblem { file: Some(in_words(path)), line: Some(*line), column: Some(*column), ..json }
            }
            Place::Variable(name) => JsonProblem { variable: Some(name.clone()), ..json },
            Place::Nowhere => json,
        }
    }
}

impl From<&Error> for JsonProblem {
    fn from(error: &Error) -> Self {
        match error {
            Error::Definite(definite) => JsonProblem {
                code: definite.code.to_string(),
                problem: definite.what.clone(),
                remedy: definite.remedy.to_string(),
                ..JsonProblem::default()
            },
            Error::Transient(transient) => JsonProblem {
                code: transient.code().to_string(),
                problem: transient.to_string(),
                ..JsonProblem::default()
            },
        }
    }
}

fn in_words(path: &Path) -> String {
    path.display().to_string()
}
