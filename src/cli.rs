//! What a user types.

pub mod contracts;
pub mod dead_letters;
pub mod import_debezium;
pub mod shards;
pub mod slot;
pub mod tail;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use pg_logical::{Lsn, Secret};

use crate::logging::LogFormat;
use contracts::ContractsCommand;
use dead_letters::DeadLettersArgs;
use import_debezium::ImportDebeziumArgs;
use shards::{ShardArgs, ShardsCommand};
use slot::SlotArgs;
use tail::TailArgs;

// A paragraph is one line here; clap breaks it to fit the terminal.

const AFTER_HELP: &str = "\
Configuration, the first of these that exists:
  the file named by -c
  ./outbox-router.toml
  /etc/outbox-router/outbox-router.toml

Environment variables override the file, or replace it. A key is written in capitals, with two underscores between its levels:
  OUTBOX_ROUTER_POSTGRES__URL=postgres://outbox_router@db/shop
  OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS=kafka:9092

Only these two are required. RUST_LOG and NO_COLOR are honoured.

Exit codes:
  0      stopped as asked
  1      a server gave a definite answer at start: password, privilege, wal_level, a missing table
  2      usage or configuration
  3      continuing could lose events; operator action is needed
  128+n  ended at once by a second signal n

To begin:
  outbox-router init --url postgres://postgres@db/shop --role outbox_router
  outbox-router check
  outbox-router run";

const INIT_HELP: &str = "\
Existing objects are left unchanged, so it can be run again at any time. That includes an outbox table of your own with other \
column names.

Exit codes:
  0  everything exists
  1  Postgres refused, or cannot be reached
  2  usage or configuration

Examples:
  outbox-router init                       as the user of the configuration
  outbox-router init --url postgres://postgres@db/shop --role outbox_router
  outbox-router init --print-sql | less    to read it, or to have it run by somebody else
  outbox-router init --print-acls          the Kafka ACLs to grant";

const RUN_HELP: &str = "\
While a server is unreachable, the router keeps reconnecting and logs why; it needs no restart. SIGTERM, SIGINT and SIGQUIT \
stop it: it reads no more events, and waits up to `shutdown_timeout` for those in flight. A second of these signals ends it at \
once. Nothing is lost either way; events that were in flight may be sent again at the next start. SIGHUP, SIGUSR1 and SIGUSR2 are \
ignored with a line in the log: a changed configuration needs a restart.

Exit codes:
  0      stopped as asked, or caught up with --until-caught-up
  1      a server gave a definite answer at start: password, privilege, wal_level, a missing table
  2      usage or configuration, or the address of the admin endpoint is in use
  3      continuing could lose events: slot missing, foreign, lost or moved, publication missing, an event that cannot be sent
  128+n  ended at once by a second signal n

After 1, restart once the server is fixed. After 2 and 3 an operator has to act first, on the last line of the log \
(systemd: RestartPreventExitStatus=2 3).

Examples:
  outbox-router run
  outbox-router run --until-caught-up
  outbox-router run --accept-gap 16/B374D848
  outbox-router -c /etc/shop/outbox.toml --log-format json run";

const CHECK_HELP: &str = "\
It changes nothing and sends nothing, and can run beside a running router. Each problem is printed with its remedy.

Exit codes:
  0  no errors
  1  something would lose or block events, or a server cannot be reached
  2  usage or configuration

Examples:
  outbox-router check
  outbox-router check --json | jq .
  outbox-router check --print-config    what is in effect, without secrets";

const STATUS_HELP: &str = "\
The report comes from the router at `listen` in [admin], by default 127.0.0.1:8084. If no router answers, the command shows the \
slot as Postgres knows it.

Exit codes:
  0  a router answers and is active, or a standby
  1  no router answers, or it is not connected, stuck, stopping or has refused to continue
  2  usage or configuration

Examples:
  outbox-router status
  outbox-router status --watch
  outbox-router status --json | jq .router.lag";

const PREVIEW_HELP: &str = "\
Rows are read from the outbox table, the newest first. That needs the SELECT privilege, which the router's role lacks: give a role \
that has it with --url. With --stdin they are JSON objects, one \
on each line, with members named like the columns. All lines are read unless --limit is given. The command uses neither the slot \
nor Kafka. Values that only the log has, such as source.lsn, are shown as zero, and the commit time is the current time.

Exit codes:
  0  every row has an outcome
  1  a row could not be sent: the router would stop before it. Or Postgres cannot be reached, or refuses
  2  usage or configuration

Examples:
  outbox-router preview --url postgres://postgres@db/shop
  outbox-router preview --id 7f0c1cde-6f0e-4f8e-9f0a-0d2b1a2c3d4e --json
  outbox-router preview --stdin < rows.jsonl";

const COMPLETIONS_HELP: &str = "\
Examples:
  outbox-router completions bash > /etc/bash_completion.d/outbox-router
  outbox-router completions zsh > \"${fpath[1]}/_outbox-router\"
  outbox-router completions fish > ~/.config/fish/completions/outbox-router.fish";

const MAN_HELP: &str = "\
Examples:
  outbox-router man | man -l -
  outbox-router man --output /usr/local/share/man/man1";

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    format!("{} (librdkafka {librdkafka})", env!("CARGO_PKG_VERSION"))
});

/// Transactional outbox: sends the committed rows of an outbox table from the Postgres write-ahead log to Kafka
///
/// Applications insert rows into a table, in the transaction that changes their own. The router reads them from a
/// replication slot, sends them to Kafka in commit order, and moves the slot only after the broker has acknowledged:
/// nothing is lost, and nothing polls.
#[derive(Debug, Parser)]
#[command(name = "outbox-router", version = VERSION.as_str(), after_long_help = AFTER_HELP, max_term_width = 110)]
pub struct Cli {
    /// The configuration file
    #[arg(short, long, global = true, value_name = "FILE", display_order = 100)]
    pub config: Option<PathBuf>,

    /// The form of the log lines, which go to standard error
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", display_order = 101)]
    pub log_format: LogFormat,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create what is missing in Postgres: schema, outbox table, publication, replication slot
    #[command(after_long_help = INIT_HELP)]
    Init(InitArgs),
    /// Send events from Postgres to Kafka until stopped
    #[command(after_long_help = RUN_HELP)]
    Run(RunArgs),
    /// Show the position, go back to a bookmark, or skip events
    #[command(after_long_help = slot::HELP)]
    Slot(SlotArgs),
    /// Change the number of shards
    #[command(subcommand, after_long_help = shards::HELP)]
    Shards(ShardsCommand),
    /// Show, retry or discard parked events
    #[command(after_long_help = dead_letters::HELP)]
    DeadLetters(DeadLettersArgs),
    /// Check configuration, Postgres and Kafka for problems and risks
    #[command(after_long_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Show the state of the running router
    #[command(after_long_help = STATUS_HELP)]
    Status(StatusArgs),
    /// Show the records that `run` would send, without Kafka
    #[command(after_long_help = tail::HELP)]
    Tail(TailArgs),
    /// Show the records that rows would become
    #[command(after_long_help = PREVIEW_HELP)]
    Preview(PreviewArgs),
    /// The same as `preview`, with --dry-run
    #[command(after_long_help = PREVIEW_HELP)]
    Route(RouteArgs),
    /// Translate the configuration of a Debezium connector with the outbox event router
    #[command(after_long_help = import_debezium::HELP)]
    ImportDebezium(ImportDebeziumArgs),
    /// Check the contracts of events, and render them for people and tools
    #[command(subcommand, after_long_help = contracts::HELP)]
    Contracts(ContractsCommand),
    /// Print a script that completes this command line in a shell
    #[command(after_long_help = COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write one for each command
    #[command(after_long_help = MAN_HELP)]
    Man(ManArgs),
}

/// `run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Resume at this position although events before it may be missing
    ///
    /// For one start after exit code 3, with the position from the router's message. Any other problem stops the router again.
    #[arg(long, value_name = "LSN")]
    pub accept_gap: Option<Lsn>,

    /// Stop with exit code 0 when everything that was committed before the start is in Kafka
    ///
    /// For jobs and tests. A router that waits as a standby goes on waiting.
    #[arg(long)]
    pub until_caught_up: bool,

    /// Which shards.
    #[command(flatten)]
    pub shards: ShardArgs,
}

/// `init`
#[derive(Debug, Clone, Args)]
pub struct InitArgs {
    /// Connect as an administrator, to the same database. Give the password with PGPASSWORD or the passfile, because other users
    /// can read command lines
    #[arg(long, value_parser = secret, conflicts_with_all = ["print_sql", "print_acls"])]
    pub url: Option<Secret>,

    /// The role that `run` connects as: created unless it exists, and granted only what it needs
    #[arg(long)]
    pub role: Option<String>,

    /// Print the SQL instead of running it
    #[arg(long)]
    pub print_sql: bool,

    /// Print the Kafka ACLs that the router needs
    #[arg(long, conflicts_with = "print_sql")]
    pub print_acls: bool,
}

/// `check`
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print the configuration in effect, with its defaults and without its secrets
    #[arg(long)]
    pub print_config: bool,
}

/// `status`
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Show it again every few seconds, until Ctrl-C [default: 2]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub watch: Option<u64>,
}

/// `completions`
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `man`
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Write a page for each command into this folder
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
}

/// `route`
#[derive(Debug, Clone, Args)]
pub struct RouteArgs {
    /// Show records without sending them; required
    #[arg(long, required = true)]
    pub dry_run: bool,

    /// Which rows, and how.
    #[command(flatten)]
    pub preview: PreviewArgs,
}

/// `preview`
#[derive(Debug, Clone, Args)]
pub struct PreviewArgs {
    /// Connect as a role that may read the table, to the same database. Give the password with PGPASSWORD or the passfile
    #[arg(long, value_parser = secret, conflicts_with = "stdin")]
    pub url: Option<Secret>,

    /// How many rows, of each table or of standard input [default: 10 of each table, all of standard input]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: Option<u32>,

    /// The row with this id
    #[arg(long, conflicts_with = "stdin")]
    pub id: Option<String>,

    /// Read JSON objects from standard input instead
    #[arg(long)]
    pub stdin: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A `Secret` is not shown by `Debug`, in case the URL contains a password.
fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["outbox-router"], args].concat())
    }

    #[test]
    fn is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_stand_before_or_after_the_command() {
        for args in [
            ["-c", "a.toml", "--log-format", "json", "status", "--json"],
            ["status", "--json", "--log-format", "json", "-c", "a.toml"],
        ] {
            let cli = parse(&args).unwrap();
            assert_eq!(cli.config, Some(PathBuf::from("a.toml")));
            assert_eq!(cli.log_format, LogFormat::Json);
            assert!(matches!(cli.command, Command::Status(StatusArgs { json: true, watch: None })));
        }
    }

    #[test]
    fn a_fault_of_usage_exits_2_and_what_was_asked_for_0() {
        for (args, kind, code) in [
            (vec![], ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, 2),
            (vec!["runn"], ErrorKind::InvalidSubcommand, 2),
            (vec!["run", "--fast"], ErrorKind::UnknownArgument, 2),
            (vec!["--log-format", "xml", "run"], ErrorKind::InvalidValue, 2),
            (vec!["init", "--url", "x", "--print-sql"], ErrorKind::ArgumentConflict, 2),
            (vec!["--help"], ErrorKind::DisplayHelp, 0),
            (vec!["status", "--help"], ErrorKind::DisplayHelp, 0),
            (vec!["--version"], ErrorKind::DisplayVersion, 0),
        ] {
            let error = parse(&args).unwrap_err();
            assert_eq!((error.kind(), error.exit_code()), (kind, code), "{args:?}");
        }
    }

    #[test]
    fn the_version_names_librdkafka_too() {
        let text = parse(&["--version"]).unwrap_err().to_string();
        let librdkafka = rdkafka::util::get_rdkafka_version().1;
        assert_eq!(text, format!("outbox-router {} (librdkafka {librdkafka})\n", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn the_administrators_url_is_not_in_debug() {
        let cli = parse(&["init", "--url", "postgres://postgres:hunter2@db/shop"]).unwrap();
        assert!(!format!("{cli:?}").contains("hunter2"));
    }

    #[test]
    fn help_of_everything() {
        let mut command = Cli::command().term_width(100);
        command.build();
        let mut text = command.render_long_help().to_string();
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            let help = sub.render_long_help();
            text += &format!("\n\n=== {} ===\n{help}", sub.get_name());
        }
        insta::assert_snapshot!(text);
    }
}
