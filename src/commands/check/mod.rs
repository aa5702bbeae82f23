//! `check`: checks the configuration, Postgres and Kafka, and prints a remedy for each problem.
//!
//! Postgres and Kafka are checked concurrently, so that a failure of one does not hide the findings of the other. A finding
//! is an error if it would lose or block events, and a warning if it works but is a risk.

mod address;
mod allowed_topics;
mod backfill;
mod bookmarks;
mod dead_letters;
mod end_to_end;
mod failover;
pub(in crate::commands) mod finding;
mod kafka;
mod outbox;
mod partitions;
mod polling;
mod positions;
mod postgres;
mod publication;
pub(in crate::commands) mod report;
mod role;
mod row_sizes;
mod rows_changed;
mod rows_kept;
mod server;
mod shards;
mod slot;
mod topics;

use pg_logical::Environment;

pub use finding::{Finding, Level};

use crate::admin::{LISTEN_REMEDY, client};
use crate::cli::CheckArgs;
use crate::commands::Completion;
use crate::config::Config;
use crate::config::load::Loaded;
use crate::contracts::Contracts;
use crate::error::Error;
use crate::terminal;
use finding::Findings;

/// Checks and prints the findings. The exit code is 1 if one of them is an error.
///
/// # Errors
/// Standard output cannot be written to.
pub async fn check(loaded: &Loaded, args: &CheckArgs, env: &Environment) -> Result<Completion, Error> {
    let config = &loaded.config;
    if args.print_config {
        terminal::print(&config.to_redacted_toml())?;
        return Ok(Completion::Success);
    }
    let mut findings = Findings::default();
    configuration(loaded, &mut findings);
    contracts(config, &mut findings);
    admin_endpoint(config, &mut findings).await;
    let ((postgres, outbox, router_states), (kafka, kafka_state)) =
        tokio::join!(postgres::check(config), kafka::check(config));
    findings.0.extend(postgres.0);
    findings.0.extend(kafka.0);
    allowed_topics::check(config, outbox.as_ref(), &mut findings);
    if let Some(kafka_state) = &kafka_state {
        topics::check(config, kafka_state, outbox.as_ref(), &mut findings);
    }
    if config.polling.is_none() {
        positions::check(config, kafka_state.as_ref(), &router_states, &mut findings).await;
    }
    if args.end_to_end {
        end_to_end::check(config, args, env, &mut findings).await;
    }
    if outbox.is_some() && router_states.is_empty() && config.polling.is_none() {
        findings.without_slot();
    }
    report::print(&findings.0, args.json)?;
    Ok(if findings.has_error() { Completion::ProblemsFound } else { Completion::Success })
}

/// Checks the contracts; `run` refuses to start if they are faulty.
fn contracts(config: &Config, findings: &mut Findings) {
    match Contracts::configured(config) {
        Ok(None) => {}
        Ok(Some(contracts)) => {
            findings.ok("contracts", format!("{} event types have a contract", contracts.iter().count()));
        }
        Err(error) => findings.failure("contracts", error, "Run check again"),
    }
}

/// `run` does not start if another router has its address.
async fn admin_endpoint(config: &Config, findings: &mut Findings) {
    let Some(listen) = &config.admin.listen else { return };
    if let Ok(router) = client::status(listen).await
        && router.name != config.name
    {
        findings.warning(
            "admin_endpoint",
            format!("the router {} has the address {listen}, so this one cannot run beside it", router.name),
            LISTEN_REMEDY,
        );
    }
}

fn configuration(loaded: &Loaded, findings: &mut Findings) {
    let from = match &loaded.file {
        Some(file) => format!("read from {}{}", file.display(), loaded.overridden()),
        None => "read from the environment alone".to_owned(),
    };
    findings.ok("configuration", from);
    for warning in &loaded.warnings {
        // the remedy is part of the sentence
        let (what, remedy) = warning.split_once("; ").unwrap_or((warning, "Change the setting"));
        findings.warning("configuration", what, remedy);
    }
}
