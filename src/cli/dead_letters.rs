//! `dead-letters`

use clap::{Args, Subcommand};

use super::UrlArgs;
use super::shards::ShardArgs;
use crate::unsendable::Reason;

pub(super) const HELP: &str = "\
With `policy = \"park\"` in [dead_letters] an event that cannot be sent is stored in the table outbox_router.dead_letters, and so \
is every later event of its aggregate, to preserve their order; events of other aggregates are sent.

`retry` and `discard` mark rows, and the running router acts on the marks. Once an aggregate has no parked events left, its new \
events are sent again. An event that was parked only because of an earlier one (reason `behind`) is sent automatically after it. \
A retried event is routed with the configuration of the running router: correct that, the topic or the broker first.

Reasons: unroutable (no record can be built), contract, too-large, topic (it is not usable), refused (by the broker), behind.

Exit codes:
  0  done, or shown
  1  no event has the id or aggregate, or Postgres refuses or cannot be reached
  2  usage or configuration

Examples:
  outbox-router dead-letters list
  outbox-router dead-letters show --id 7f0c1cde-6f0e-4f8e-9f0a-0d2b1a2c3d4e
  outbox-router dead-letters retry --reason too-large --dry-run
  outbox-router dead-letters retry --aggregate order-4711
  outbox-router dead-letters discard --id 7f0c1cde-6f0e-4f8e-9f0a-0d2b1a2c3d4e";

/// `dead-letters`
#[derive(Debug, Args)]
pub struct DeadLettersArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DeadLettersCommand,

    /// Which shards.
    #[command(flatten)]
    pub shards: ShardArgs,

    /// How to connect.
    #[command(flatten)]
    pub connection: UrlArgs,
}

impl DeadLettersCommand {
    /// Which events it is about, if an id or an aggregate names them and the command does not only list.
    pub fn names_event(&self) -> Option<&ChooseArgs> {
        let choose = match self {
            DeadLettersCommand::List { .. } => return None,
            DeadLettersCommand::Show { choose, .. } => choose,
            DeadLettersCommand::Retry(decide) | DeadLettersCommand::Discard { decide, .. } => &decide.choose,
        };
        (choose.id.is_some() || choose.aggregate.is_some()).then_some(choose)
    }

    /// Whether it prints JSON.
    pub fn json(&self) -> bool {
        match self {
            DeadLettersCommand::List { json, .. } | DeadLettersCommand::Show { json, .. } => *json,
            DeadLettersCommand::Retry(decide) | DeadLettersCommand::Discard { decide, .. } => decide.json,
        }
    }
}

/// What to do with parked events.
#[derive(Debug, Subcommand)]
pub enum DeadLettersCommand {
    /// Show which events are parked, in the order in which they were committed
    List {
        /// Which.
        #[command(flatten)]
        choose: ChooseArgs,
        /// The largest number of events to show
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show events in full, with their payloads
    Show {
        /// Which.
        #[command(flatten)]
        choose: ChooseArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Have the running router send events again, followed by those parked behind them
    Retry(DecideArgs),
    /// Have the running router discard events: they are never sent
    Discard {
        /// What.
        #[command(flatten)]
        decide: DecideArgs,
        /// Do not ask for confirmation
        #[arg(long, conflicts_with = "dry_run")]
        yes: bool,
    },
}

/// Which parked events; several conditions narrow it down.
#[derive(Debug, Args)]
pub struct ChooseArgs {
    /// The event with this id
    #[arg(long)]
    pub id: Option<String>,
    /// The events of the aggregate with this id
    #[arg(long, value_name = "ID")]
    pub aggregate: Option<String>,
    /// The events that were parked for this reason
    #[arg(long, value_parser = reason)]
    pub reason: Option<Reason>,
}

impl ChooseArgs {
    /// Whether there is no condition.
    pub fn chooses_all(&self) -> bool {
        self.id.is_none() && self.aggregate.is_none() && self.reason.is_none()
    }
}

fn reason(text: &str) -> Result<Reason, String> {
    let known = Reason::ALL.into_iter().find(|reason| reason.name() == text);
    known.ok_or_else(|| format!("expected one of {}", Reason::ALL.map(Reason::name).join(", ")))
}

/// `dead-letters retry`, `dead-letters discard`
#[derive(Debug, Args)]
pub struct DecideArgs {
    /// Which.
    #[command(flatten)]
    pub choose: ChooseArgs,
    /// All parked events
    #[arg(long, conflicts_with_all = ["id", "aggregate", "reason"])]
    pub all: bool,
    /// Only show which events would be marked
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
