//! `contracts check`: finds faults in the contracts, and changes that break consumers.

use std::path::Path;

use super::load;
use crate::cli::contracts::ContractsCheckArgs;
use crate::commands::Completion;
use crate::commands::check::finding::{Finding, Findings, Level};
use crate::commands::check::report;
use crate::contracts::Rule;
use crate::contracts::compatibility::{Change, Direction, compare};
use crate::contracts::fault::Fault;
use crate::contracts::{Contract, Contracts};
use crate::error::{Error, ErrorCode};

/// Checks and prints the findings. The exit code is 1 if one of them is an error.
pub(super) fn check(directory: &Path, args: &ContractsCheckArgs) -> Result<Completion, Error> {
    // a fault in the former contracts is a failure, not a finding about the new ones
    let former = args.against.as_deref().map(load).transpose()?;
    let findings = findings(directory, former.as_ref(), args.allow_unjudged);
    report::print(&findings, args.json)?;
    let bad = findings.iter().any(|finding| finding.level == Level::Error);
    Ok(if bad { Completion::ProblemsFound } else { Completion::Success })
}

pub(super) fn findings(directory: &Path, former: Option<&Contracts>, allow_unjudged: bool) -> Vec<Finding> {
    let mut findings = Findings::default();
    let contracts = match Contracts::load(directory) {
        Ok(contracts) => contracts,
        Err(faults) => {
            for fault in faults.0 {
                findings.error("contracts", ErrorCode::Contracts, describe(&fault), fault.remedy);
            }
            return findings.0;
        }
    };
    let (number, examples) = contracts
        .iter()
        .fold((0, 0), |(number, examples), contract| (number + 1, examples + contract.facts.examples.len()));
    findings.ok("contracts", format!("{number} in {}, with {examples} examples", directory.display()));
    for warning in contracts.warnings() {
        findings.warning("contracts", describe(warning), warning.remedy.clone());
    }
    if let Some(former) = former {
        for contract in contracts.iter() {
            match former.get(&contract.aggregate_type, &contract.event_type) {
                None => findings.ok("compatibility", format!("{} is new", contract.name())),
                Some(old) => {
                    check_changes((former, old), (&contracts, contract), allow_unjudged, &mut findings)
                }
            }
        }
        for old in former.iter().filter(|old| contracts.get(&old.aggregate_type, &old.event_type).is_none()) {
            check_removed(old, &mut findings);
        }
    }
    findings.0
}

fn describe(fault: &Fault) -> String {
    match fault.place().as_str() {
        "" => fault.what.clone(),
        place => format!("{place}: {}", fault.what),
    }
}

fn check_changes(
    old: (&Contracts, &Contract),
    new: (&Contracts, &Contract),
    allow_unjudged: bool,
    findings: &mut Findings,
) {
    let (name, rule, before) = (new.1.name(), new.1.rule(), old.1.rule());
    if rule != before {
        findings.warning(
            "compatibility",
            format!("{name}: the rule was `{}` and is now `{}`", before.word(), rule.word()),
            "Make sure that the consumers of the event know",
        );
    }
    if rule == Rule::None {
        return findings.skipped("compatibility", format!("{name}: the rule is `none`"));
    }
    let changes = compare(old, new);
    if changes.is_empty() {
        findings.ok("compatibility", format!("{name} follows its rule `{}`", rule.word()));
    }
    for change in changes {
        let what = sentence(&name, &change);
        if change.judged {
            findings.error("compatibility", ErrorCode::ContractChange, what, remedy(&change));
        } else if allow_unjudged {
            findings.warning("compatibility", what, "Accepted by --allow-unjudged");
        } else {
            let remedy =
                "Check by hand whether this change breaks consumers; to accept it, use --allow-unjudged";
            findings.error("compatibility", ErrorCode::ContractChange, what, remedy);
        }
    }
}

fn sentence(name: &str, change: &Change) -> String {
    let place = if change.at.is_empty() { String::new() } else { format!(" at {}", change.at) };
    let who = match change.direction {
        Some(Direction::Backward) => "former events for new consumers: ",
        Some(Direction::Forward) => "new events for former consumers: ",
        None => "",
    };
    format!("{name}{place}: {who}{}", change.what)
}

fn remedy(change: &Change) -> &'static str {
    match change.direction {
        Some(Direction::Backward) => {
            "Make the new contract accept the events that are already in the topic, or give the event another type"
        }
        Some(Direction::Forward) => {
            "Keep new events valid under the former contract, or give the event another type"
        }
        None => "Revert the change, or give the event another type",
    }
}

fn check_removed(old: &Contract, findings: &mut Findings) {
    let what = format!("{}: the contract was removed", old.name());
    if old.facts.deprecated || old.rule() == Rule::None {
        findings.ok("compatibility", format!("{what}, which its deprecation or its rule allows"));
    } else {
        let remedy = "Set `\"deprecated\": true` in it first, and remove it in a later version";
        findings.error("compatibility", ErrorCode::ContractChange, what, remedy);
    }
}
