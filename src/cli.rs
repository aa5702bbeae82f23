//! What a user types.

pub mod config;
pub mod contracts;
pub mod dead_letters;
pub mod import_debezium;
pub mod inbox;
pub mod init;
pub mod maintain;
pub mod prune;
pub mod replay;
pub mod shards;
pub mod slot;
pub mod tail;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;
use pg_logical::{Lsn, Secret};

use crate::config::log::LogFormat;
use crate::error::{Error, ErrorCode};
use config::ConfigCommand;
use contracts::ContractsCommand;
use dead_letters::DeadLettersArgs;
use import_debezium::ImportDebeziumArgs;
use inbox::InboxArgs;
use init::InitArgs;
use maintain::MaintainArgs;
use prune::PruneArgs;
use replay::ReplayArgs;
use shards::{ShardArgs, ShardsCommand};
use slot::SlotArgs;
use tail::TailArgs;

/// What marks the event of `check --end-to-end`: its aggregate type, unless another is chosen, a member of its payload, and a header.
pub const END_TO_END_MARK: &str = "outbox-router-check";

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

With --end-to-end, and without errors, it sends one event: consumers of the topic see a record with the header outbox-router-check. \
The transaction that inserts the row deletes it, so none remains, even if the command is interrupted. Its role needs INSERT, SELECT and \
DELETE on the table, and the router's principal READ on the topic.

Exit codes:
  0  no errors
  1  something would lose or block events, or a server cannot be reached
  2  usage or configuration

Examples:
  outbox-router check
  outbox-router check --json | jq .
  outbox-router check --end-to-end --url postgres://postgres@db/shop";

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
#[command(name = "outbox-router", version = VERSION.as_str(), after_help = AFTER_HELP, max_term_width = 110,
    disable_help_flag = true)]
pub struct Cli {
    /// The configuration file
    #[arg(short, long, global = true, value_name = "FILE", display_order = 100)]
    pub config: Option<PathBuf>,

    /// The form of the log lines on standard error [default: `log.format`, or text]
    #[arg(long, global = true, value_enum, value_name = "FORMAT", display_order = 101)]
    pub log_format: Option<LogFormat>,

    /// Print help
    // the short form has a line for each option, and fits on a screen
    #[arg(short, long, global = true, action = ArgAction::HelpShort, display_order = 102)]
    pub help: Option<bool>,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create what is missing in Postgres: schema, outbox table, publication, replication slot
    #[command(after_help = init::HELP)]
    Init(InitArgs),
    /// Send events from Postgres to Kafka until stopped
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Show the position, go back to a bookmark, or skip events
    #[command(after_help = slot::HELP)]
    Slot(SlotArgs),
    /// Change the number of shards
    #[command(subcommand, after_help = shards::HELP)]
    Shards(ShardsCommand),
    /// Show, retry or discard parked events
    #[command(after_help = dead_letters::HELP)]
    DeadLetters(DeadLettersArgs),
    /// Send rows of the outbox table again
    #[command(after_help = replay::HELP)]
    Replay(ReplayArgs),
    /// Delete old rows of the outbox table, or archive them
    #[command(after_help = prune::HELP)]
    Prune(PruneArgs),
    /// Show the events of a consumer's inbox, and retry, discard or forget them
    #[command(after_help = inbox::HELP)]
    Inbox(InboxArgs),
    /// Delete what a consumer's inbox need not keep any more, and serve its metrics
    #[command(after_help = maintain::HELP)]
    Maintain(MaintainArgs),
    /// Show or check the configuration, or print its JSON Schema
    #[command(subcommand, after_help = config::HELP)]
    Config(ConfigCommand),
    /// Check configuration, Postgres and Kafka for problems and risks
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Show the state of the running router
    #[command(after_help = STATUS_HELP)]
    Status(StatusArgs),
    /// Show the records that `run` would send, without Kafka
    #[command(after_help = tail::HELP)]
    Tail(TailArgs),
    /// Show the records that rows would become
    #[command(after_help = PREVIEW_HELP)]
    Preview(PreviewArgs),
    /// The same as `preview`, with --dry-run
    #[command(after_help = PREVIEW_HELP)]
    Route(RouteArgs),
    /// Translate the configuration of a Debezium connector with the outbox event router
    #[command(after_help = import_debezium::HELP)]
    ImportDebezium(ImportDebeziumArgs),
    /// Check the contracts of events, and render them for people and tools
    #[command(subcommand, after_help = contracts::HELP)]
    Contracts(ContractsCommand),
    /// Print a script that completes this command line in a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write one for each command
    #[command(after_help = MAN_HELP)]
    Man(ManArgs),
}

impl Command {
    /// Whether the command reads the configuration file.
    pub fn reads_file(&self) -> bool {
        !matches!(
            self,
            Command::ImportDebezium(_)
                | Command::Inbox(_)
                | Command::Maintain(_)
                | Command::Completions(_)
                | Command::Man(_)
                | Command::Config(ConfigCommand::Schema)
        )
    }

    /// The connection of `--url`, if it replaces that of the configuration for the whole command.
    pub fn url(&self) -> Option<&Secret> {
        let connection = match self {
            Command::Slot(SlotArgs { connection, .. })
            | Command::DeadLetters(DeadLettersArgs { connection, .. })
            | Command::Replay(ReplayArgs { connection, .. })
            | Command::Prune(PruneArgs { connection, .. })
            | Command::Tail(TailArgs { connection, .. })
            | Command::Status(StatusArgs { connection, .. })
            | Command::Shards(ShardsCommand::Change { connection, .. }) => connection,
            _ => return None,
        };
        connection.url.as_ref()
    }
}

/// `run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Resume once, after exit code 3, at the position from the router's message, although events before it may be missing
    #[arg(long, value_name = "LSN")]
    pub accept_gap: Option<Lsn>,

    /// Stop with exit code 0 when everything that was committed before the start is in Kafka or parked, and the parked events that were
    /// marked by then are sent or discarded. A standby goes on waiting
    #[arg(long)]
    pub until_caught_up: bool,

    /// Which shards.
    #[command(flatten)]
    pub shards: ShardArgs,
}

/// `check`
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The same as `config show`
    #[arg(long, hide = true)]
    pub print_config: bool,

    /// Send one event through table, slot and topic, if there are no errors
    #[arg(long)]
    pub end_to_end: bool,

    /// The aggregate type of this event, which determines its topic
    #[arg(long, value_name = "TYPE", default_value = END_TO_END_MARK, requires = "end_to_end")]
    pub aggregate_type: String,

    /// How long it may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "end_to_end",
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,

    /// Write the event as this role, which needs INSERT, SELECT and DELETE on the table, to the same database. Give the password with
    /// PGPASSWORD or the passfile
    #[arg(long, value_parser = secret, requires = "end_to_end")]
    pub url: Option<Secret>,
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

    /// How to connect to Postgres if no router answers.
    #[command(flatten)]
    pub connection: UrlArgs,
}

/// `--url` of commands that move or show what the router does.
#[derive(Debug, Clone, Args)]
pub struct UrlArgs {
    /// Connect to Postgres as another role, to the same database. Give the password with PGPASSWORD or the passfile
    #[arg(long, value_parser = secret, global = true)]
    pub url: Option<Secret>,
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

/// The error of a command line that cannot be parsed, without the usage that clap appends.
pub fn usage_error(error: &clap::Error) -> Error {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let what = text.split("\n\n").next().unwrap_or_default();
    let what: Vec<&str> = what.split_whitespace().collect();
    Error::usage(ErrorCode::CommandLine, what.join(" "), "Correct the arguments; --help lists them")
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
            assert_eq!(cli.log_format, Some(LogFormat::Json));
            assert!(matches!(cli.command, Command::Status(StatusArgs { json: true, watch: None, .. })));
        }
    }

    #[test]
    fn the_former_name_of_the_text_format_is_accepted() {
        for word in ["text", "human"] {
            assert_eq!(parse(&["--log-format", word, "run"]).unwrap().log_format, Some(LogFormat::Text));
        }
    }

    #[test]
    fn a_fault_of_usage_exits_2_and_what_was_asked_for_0() {
        for (args, kind, code) in [
            (vec![], ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, 2),
            (vec!["runn"], ErrorKind::InvalidSubcommand, 2),
            (vec!["run", "--fast"], ErrorKind::UnknownArgument, 2),
            (vec!["--log-format", "xml", "run"], ErrorKind::InvalidValue, 2),
            (vec!["init", "--print-sql", "--print-acls"], ErrorKind::ArgumentConflict, 2),
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
        let mut text = command.render_help().to_string();
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            let help = sub.render_help().to_string();
            assert!(help.lines().count() <= 45, "more than a screen: {help}");
            if let Some((_, examples)) = help.split_once("\nExamples") {
                let wrapped = examples.lines().skip(1).find(|line| !line.starts_with(' '));
                assert_eq!(wrapped, None, "an example does not fit: {help}");
            }
            text += &format!("\n\n=== {} ===\n{help}", sub.get_name());
        }
        insta::assert_snapshot!(text);
    }
}
