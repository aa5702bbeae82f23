//! `status`: the report of the running router or, if none answers, what Postgres knows.

mod known_to_postgres;
mod table;

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::time::Duration;

use serde::Serialize;

use crate::admin::client;
use crate::cli::StatusArgs;
use crate::commands::Completion;
use crate::commands::table::TableStyle;
use crate::config::Config;
use crate::error::{Error, ErrorCode};
use crate::monitor::StatusReport;
use crate::terminal;

/// Clears the screen and moves to its first line (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What was found, in the shape that `--json` prints.
#[derive(Debug, Serialize)]
struct Found<P> {
    /// The reason for the exit code 1, or null.
    error_code: Option<ErrorCode>,
    /// The router's report, as at `/status`; null if it does not answer.
    router: Option<StatusReport>,
    /// Why it does not answer.
    no_answer: Option<String>,
    /// What Postgres knows; null if the router answers, or Postgres does not.
    postgres: Option<P>,
    /// Why Postgres does not answer.
    postgres_error: Option<String>,
}

/// Prints the report of the router of `config` or, if it does not answer, of its slot in Postgres. The exit code is 0 if a
/// router answers, is ready and its main loop is alive, else 1.
///
/// # Errors
/// Standard output cannot be written to. A router that does not answer is a result, not an error.
pub async fn status(config: &Config, args: &StatusArgs) -> Result<Completion, Error> {
    loop {
        let from_postgres = async || known_to_postgres::ask(config).await;
        let found = find(config.admin.listen.as_deref(), from_postgres).await;
        let text = match (args.json, args.watch) {
            (true, _) => terminal::in_json(&found)?,
            (false, None) => show(&found, &config.name, &TableStyle::for_stdout()),
            (false, Some(_)) => instead_of_the_last(&show(&found, &config.name, &TableStyle::for_stdout())),
        };
        let read = terminal::print_to_reader(&text)?;
        let Some(seconds) = args.watch.filter(|_| read) else { return Ok(completion(found.error_code)) };
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// On a terminal the text replaces what it shows, elsewhere it follows after an empty line.
fn instead_of_the_last(text: &str) -> String {
    if io::stdout().is_terminal() { format!("{CLEAR}{text}") } else { format!("{text}\n") }
}

fn completion(problem: Option<ErrorCode>) -> Completion {
    problem.map_or(Completion::Success, |_| Completion::ProblemsFound)
}

/// The code of the refusal, or of a router that does not run or is not ready.
fn problem(report: Option<&StatusReport>) -> Option<ErrorCode> {
    match report {
        Some(router) if router.ready && router.healthy => None,
        router => Some(router.and_then(|router| router.code).unwrap_or(ErrorCode::RouterNotReady)),
    }
}

async fn find<P>(listen: Option<&str>, from_postgres: impl AsyncFnOnce() -> Result<P, Error>) -> Found<P> {
    let why = match listen {
        None => "the admin endpoint is off: `listen` in [admin] is false".to_owned(),
        Some(listen) => match client::status(listen).await {
            Ok(report) => {
                return Found {
                    error_code: problem(Some(&report)),
                    router: Some(report),
                    no_answer: None,
                    postgres: None,
                    postgres_error: None,
                };
            }
            Err(why) => why,
        },
    };
    let (postgres, error) = match from_postgres().await {
        Ok(known) => (Some(known), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let error_code = problem(None);
    Found { error_code, router: None, no_answer: Some(why), postgres, postgres_error: error }
}

/// The text output.
fn show<P: Display>(found: &Found<P>, name: &str, style: &TableStyle) -> String {
    let Some(report) = &found.router else {
        let why = found.no_answer.as_deref().unwrap_or_default();
        let known = match (&found.postgres, &found.postgres_error) {
            (Some(postgres), _) => postgres.to_string(),
            (None, Some(error)) => {
                format!("Asking Postgres failed too: {}", terminal::harmless(&error.to_string()))
            }
            (None, None) => String::new(),
        };
        return format!("{why}\n\n{}\n", known.trim_end());
    };
    let table = table::render(report, style);
    match report.name == name {
        true => table,
        false => {
            format!("This is {}. The router of this configuration is called {name}.\n\n{table}", report.name)
        }
    }
}

#[cfg(test)]
mod tests;
