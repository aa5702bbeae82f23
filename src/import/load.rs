//! Loads the written configuration as the router will.

use pg_logical::Environment;

use super::findings::{Finding, Level, shown};
use super::write::Document;
use crate::config::load::problems;
use crate::config::{Place, Problem};

/// A finding for each value that the router's loader refuses. `variables`: those that other findings ask the user to set.
pub(super) fn check(document: &Document, variables: &[String]) -> Vec<Finding> {
    // a value that the loader accepts for every variable but this one, whose choices are libpq's
    let set = variables.iter().filter(|variable| *variable != "PGSSLMODE");
    let env = set.fold(Environment::empty().with_user("router"), |env, name| env.with_variable(name, "1"));
    let finding = |problem: Problem| {
        let entry = match problem.place {
            Place::File { line, .. } => document.at_line(line),
            // the value of a variable is not known
            Place::Variable(_) => return None,
            Place::Nowhere => None,
        };
        let (setting, value) = match entry {
            Some(entry) => (entry.from.clone(), Some(shown(&entry.from, &entry.value, false))),
            None => ("configuration".to_owned(), None),
        };
        let meaning = format!("Every command refuses it: {}. {}", problem.what, problem.remedy);
        Some(Finding { level: Level::Differs, setting, value, meaning })
    };
    problems(&document.loadable(), &env).into_iter().filter_map(finding).collect()
}
