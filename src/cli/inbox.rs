//! `inbox`

use clap::{Args, Subcommand};
use pg_logical::Secret;

use super::secret;

pub(super) const HELP: &str = "\
It works in the database where `init --consumer` has installed the inbox, and reads no configuration file. The connection has to be \
that of the administrator who ran it, or of a superuser.

An event waits in the queue, has failed (no attempt is left), is leased to a handler, or its lease has expired before the handler \
ended. `retry` makes an event of the queue due at once, with all its attempts. `discard` counts an event as processed although no \
handler has done it. `clear` forgets one event, so that its next delivery is processed again. An event that a worker has is refused. \
Each is noted in the table outbox_router.inbox_audit, with role, time and reason; `show` prints that. No command runs a handler.

Exit codes:
  0  done, or shown
  1  no such event, a worker has it, or Postgres refuses or cannot be reached
  2  usage

Examples (with --url postgres://postgres@db/shipping):
  outbox-router inbox list --state failed
  outbox-router inbox show 3f1c
  outbox-router inbox retry --all --reason 'carrier is back'
  outbox-router inbox discard 3f1c --reason 'order was cancelled'
  outbox-router inbox clear 3f1c --consumer shipping --reason 'parcel was lost'
  outbox-router inbox status --json";

/// `inbox`
#[derive(Debug, Args)]
pub struct InboxArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: InboxCommand,

    /// The consumer's database; required. Give the password with PGPASSWORD or the passfile, because other users can read command
    /// lines
    #[arg(long, value_parser = secret, global = true)]
    pub url: Option<Secret>,
}

/// What to do with the events of an inbox.
#[derive(Debug, Subcommand)]
pub enum InboxCommand {
    /// Show which events wait, have failed, are leased, or have an expired lease
    List {
        /// Only those of this consumer
        #[arg(long, value_name = "NAME")]
        consumer: Option<String>,
        /// Only those in this state
        #[arg(long, value_parser = ["waiting", "failed", "leased", "expired"])]
        state: Option<String>,
        /// The largest number of events to show
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show an event in full, with its payload, its result, and what was decided about it
    Show {
        /// Which.
        #[command(flatten)]
        event: EventArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Have events processed as soon as a worker is free, with all their attempts
    Retry {
        /// Which.
        #[command(flatten)]
        choose: ChooseArgs,
        /// Why, for the audit table
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// How.
        #[command(flatten)]
        how: HowArgs,
    },
    /// Count events as processed, although no handler has done it
    Discard {
        /// Which.
        #[command(flatten)]
        choose: ChooseArgs,
        /// How.
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Forget one event, so that its next delivery is processed again
    Clear {
        /// Which.
        #[command(flatten)]
        event: EventArgs,
        /// How.
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Show how many events are in which state, and what the functions counted
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// One event.
#[derive(Debug, Args)]
pub struct EventArgs {
    /// The id of the event
    pub id: String,
    /// The consumer that has it, if there are several
    #[arg(long, value_name = "NAME")]
    pub consumer: Option<String>,
}

/// One event, or all that have failed.
#[derive(Debug, Args)]
pub struct ChooseArgs {
    /// The id of the event
    #[arg(required_unless_present = "all")]
    pub id: Option<String>,
    /// All failed events
    #[arg(long, conflicts_with = "id")]
    pub all: bool,
    /// Of this consumer
    #[arg(long, value_name = "NAME")]
    pub consumer: Option<String>,
}

/// How a decision is made that needs a reason and a confirmation.
#[derive(Debug, Args)]
pub struct ConfirmArgs {
    /// Why, for the audit table
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Do not ask for confirmation
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// How.
    #[command(flatten)]
    pub how: HowArgs,
}

/// How a decision is made.
#[derive(Debug, Clone, Copy, Args)]
pub struct HowArgs {
    /// Only show which events are meant
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
