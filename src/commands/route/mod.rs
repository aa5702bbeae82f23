//! `preview` and `route --dry-run`: prints the records that rows would become, without using the slot or Kafka.

pub(super) mod rows;
pub(super) mod show;

use std::sync::Arc;

use crate::cli::PreviewArgs;
use crate::commands::{Completion, connection_of};
use crate::config::Config;
use crate::contracts::Contracts;
use crate::error::{Error, ErrorCode};
use crate::outbox::{Outbox, OutboxEvent};
use crate::routing::{Origin, Routed, Router};
use crate::terminal;
use crate::unsendable::Unsendable;
use pg_logical::{Environment, Lsn, PgTimestamp};
use show::{Outcome, Shown};

/// Routes rows of the outbox, or JSON objects from standard input, and prints the records.
///
/// # Errors
/// Postgres cannot be reached or refuses, or the table or a line of standard input cannot be read.
pub async fn route(config: &Config, args: &PreviewArgs, env: &Environment) -> Result<Completion, Error> {
    let mut config = config.clone();
    if let Some(url) = &args.url {
        config.postgres.conninfo = connection_of(url, &config, env)?;
    }
    let mut dry = DryRun::new(&config)?;
    if args.stdin {
        rows::of_lines(std::io::stdin().lock(), &config, args.limit, &mut dry)?;
    } else {
        rows::of_tables(&config, args, &mut dry).await?;
    }
    if args.json {
        terminal::print_json(&dry.shown)?;
    } else {
        terminal::print(&show::text(&dry.shown))?;
    }
    let refused = dry.shown.iter().any(|shown| matches!(shown.outcome, Outcome::Refused { .. }));
    Ok(if refused { Completion::ProblemsFound } else { Completion::Success })
}

/// Routes events one by one and collects the output.
pub(super) struct DryRun {
    outbox: Outbox,
    router: Router,
    pub(super) shown: Vec<Shown>,
}

impl DryRun {
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        let contracts = Contracts::configured(config)?.map(Arc::new);
        let router = Router::of(config).with_contracts(config, contracts);
        let outbox = Outbox::of(config, router.extra_columns());
        Ok(DryRun { outbox, router, shown: Vec::new() })
    }

    /// The place in the log is unknown, so `ordinal` is the number of the row among those that were read.
    fn event(&mut self, event: &OutboxEvent<'_>, xid: u32, ordinal: u64) {
        let origin = Origin { final_lsn: Lsn::INVALID, xid, commit_time: PgTimestamp::now(), ordinal };
        let outcome = match self.router.route(event, &origin) {
            Ok(Routed::Record(record)) => Outcome::record(&record),
            Ok(Routed::Dropped) => Outcome::Dropped,
            Err(error) => {
                let error = Unsendable::from(error);
                let (reason, error_code) = (error.detail(), error.reason.code());
                Outcome::Refused { reason, what: error.what, error_code }
            }
        };
        self.shown.push(Shown { id: event.printable_id(), outcome });
    }

    /// Adds a row or line that cannot be decoded as an event.
    fn unreadable(&mut self, number: u64, reason: String) {
        let what = reason.clone();
        let outcome = Outcome::Refused { reason, what, error_code: ErrorCode::RowUndecodable };
        self.shown.push(Shown { id: format!("row {number}"), outcome });
    }
}
