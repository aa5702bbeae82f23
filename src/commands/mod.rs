//! The commands, one file each, and what they share.

pub mod check;
mod columns;
mod config;
pub mod contracts;
pub mod dead_letters;
mod hourly;
pub mod import_debezium;
pub mod inbox;
pub mod init;
pub mod maintain;
mod manual;
mod partitions;
mod progress;
mod prune;
mod replay;
pub mod route;
pub mod run;
mod server;
pub mod shards;
mod signals;
pub mod slot;
pub mod status;
mod stored_position;
mod table;
pub mod tail;
mod temporary_slot;
mod times;

use std::future::Future;
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, Password};
use pg_logical::lock_wait::{LockWait, LockWatcher};
use pg_logical::session::Session;
use pg_logical::{Environment, Lsn, Secret};

use crate::advice::{self, OrRemedy};
use crate::cli::config::ConfigCommand;
use crate::cli::init::InitArgs;
use crate::cli::shards::ShardArgs;
use crate::cli::{Cli, Command, RouteArgs};
use crate::config::Config;
use crate::config::load::{self, Brokers, ConfigFile, load_file};
use crate::config::log::Log;
use crate::error::{Effect, Error, ErrorCode, Exit, Peer, repeat_config_file};
use crate::sink::kafka::cluster_info;
use crate::terminal;

/// How long one attempt to connect to Postgres may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long Postgres may take to answer a question about the catalogues.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How a command that completed ended, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Completion {
    /// No problem was found.
    Success = 0,
    /// The command found something for which its help promises this code.
    ProblemsFound = 1,
    /// The configuration is invalid, which the output says.
    Invalid = 2,
}

/// What a command reads before it begins. Logging depends on it.
pub struct Inputs {
    env: Result<Environment, Error>,
    file: Result<Option<ConfigFile>, Error>,
}

impl Inputs {
    /// Reads the environment, and the configuration file unless the command needs none.
    pub fn read(cli: &Cli) -> Self {
        let file = if cli.command.reads_file() { ConfigFile::find(cli.config.as_deref()) } else { Ok(None) };
        if let (Some(named), Ok(Some(_))) = (&cli.config, &file)
            && !load::is_found_without_name(named)
        {
            repeat_config_file(named);
        }
        Inputs { env: crate::config::environment::process(), file }
    }

    /// How to log.
    pub fn log(&self, cli: &Cli) -> Log {
        let file = self.file.as_ref().ok().and_then(Option::as_ref);
        let log = self.env.as_ref().map_or_else(|_| Log::default(), |env| load::log(file, env));
        Log { format: cli.log_format.unwrap_or(log.format), ..log }
    }
}

/// Runs the command of the command line.
///
/// # Errors
/// What stopped the command; [`exit_code`] turns it into the process's exit code.
pub fn execute(cli: Cli, inputs: Inputs) -> Result<Completion, Error> {
    let prepares = matches!(cli.command, Command::Init(_));
    perform(cli, inputs).map_err(|error| match error {
        // before `init` nothing retains events
        Error::Definite(definite)
            if prepares
                && definite.events.effect == Effect::Late
                && definite.events == definite.code.into() =>
        {
            Error::from(definite).meaning(Effect::None, "")
        }
        error => error,
    })
}

fn perform(cli: Cli, Inputs { env, file }: Inputs) -> Result<Completion, Error> {
    // these need no configuration
    match &cli.command {
        Command::ImportDebezium(args) => return import_debezium::import_debezium(args),
        Command::Completions(args) => return manual::completions(args).map(|()| Completion::Success),
        Command::Man(args) => return manual::man(args).map(|()| Completion::Success),
        Command::Config(ConfigCommand::Schema) => return config::schema(),
        _ => {}
    }
    let env = env?;
    if let Command::Config(ConfigCommand::Validate(args)) = &cli.command {
        return config::validate(file, &env, args);
    }
    // these need only --url
    let of_a_consumer = match &cli.command {
        Command::Init(args @ InitArgs { consumer: true, .. }) => {
            Some(block_on(init::init_consumer(args, &env)))
        }
        Command::Inbox(args) => Some(block_on(inbox::inbox(args, &env))),
        Command::Maintain(args) => Some(block_on(maintain::maintain(args, &env))),
        _ => None,
    };
    if let Some(done) = of_a_consumer {
        return done.map(|()| Completion::Success);
    }
    let file = file?;
    match &cli.command {
        Command::Config(_) => return config::show(file.as_ref(), &env),
        Command::Contracts(args) => return contracts::contracts(file.as_ref(), args, &env),
        _ => {}
    }
    let brokers = match cli.command {
        Command::Tail(_)
        | Command::Preview(_)
        | Command::Route(_)
        | Command::Init(InitArgs { print_acls: false, .. }) => Brokers::Optional,
        _ => Brokers::Required,
    };
    let mut loaded = load_file(file.as_ref(), &env, brokers)?;
    if let Some(url) = cli.command.url() {
        loaded.config.postgres.conninfo = connection_of(url, &loaded.config, &env)?;
    }
    // check lists them among its findings
    if !matches!(cli.command, Command::Check(_)) {
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
    }
    let config = &loaded.config;
    refuse_without_log(config, &cli.command)?;
    // faults that can be found without a server are reported first
    cluster_info::verify(config)?;
    // `init` handles signals while it creates a slot, and before and after that they end it
    let init = matches!(cli.command, Command::Init(_));
    if init || matches!(config.postgres.conninfo.password, Some(Password::Command(_))) {
        signals::end_password_command_too()?;
    }
    block_on(async {
        match &cli.command {
            Command::Init(args) => init::init(config, args, &env).await?,
            Command::Run(args) => run::run(config, args).await?,
            Command::Slot(args) => slot::slot(config, args).await?,
            Command::Shards(args) => shards::shards(config, args).await?,
            Command::DeadLetters(args) => dead_letters::dead_letters(config, args).await?,
            Command::Replay(args) => return replay::replay(config, args).await,
            Command::Prune(args) => return prune::prune(config, args).await,
            Command::Tail(args) => tail::tail(config, args).await?,
            Command::Check(args) => return check::check(&loaded, args, &env).await,
            Command::Preview(args) | Command::Route(RouteArgs { preview: args, .. }) => {
                return route::route(config, args, &env).await;
            }
            Command::Status(args) => return status::status(config, args).await,
            // handled above, without a complete configuration
            Command::ImportDebezium(_)
            | Command::Inbox(_)
            | Command::Maintain(_)
            | Command::Config(_)
            | Command::Contracts(_)
            | Command::Completions(_)
            | Command::Man(_) => {}
        }
        Ok(Completion::Success)
    })
}

/// Refuses what needs the log if the router polls.
fn refuse_without_log(config: &Config, command: &Command) -> Result<(), Error> {
    let needs_log = matches!(command, Command::Slot(_) | Command::Shards(_) | Command::Tail(_));
    if config.polling.is_none() || !needs_log {
        return Ok(());
    }
    Err(Error::usage(
        ErrorCode::CommandLine,
        "this command is about the replication slot, and `[source] mode` is \"poll\"",
        "Query the outbox table: the status of each row tells what has become of it",
    ))
}

/// The exit code of the process after `error`. The commands do not retry, so an unreachable server counts like a refusal.
pub fn exit_code(error: &Error) -> u8 {
    let exit = match error {
        Error::Transient(_) => Exit::Refused,
        Error::Definite(definite) => definite.exit,
    };
    exit as u8
}

/// The connection of `--url`, which leads to the router's database.
fn connection_of(url: &Secret, config: &Config, env: &Environment) -> Result<ConnInfo, Error> {
    let conninfo = advice::connection_string(url.reveal(), env)?.prefer_primary();
    let (given, wanted) = (&conninfo.dbname, &config.postgres.conninfo.dbname);
    if given == wanted {
        return Ok(conninfo);
    }
    Err(Error::usage(
        ErrorCode::CommandLine,
        format!("--url leads to the database {given}, and `[postgres] url` to {wanted}"),
        format!("End --url with /{wanted}: a slot and a publication belong to one database"),
    ))
}

/// A session named after `command`. Unlike `run`, a command gives up: attempts to connect time out (unless the user set a
/// timeout), and so do queries. While a query waits for a lock, the session that holds it is reported.
async fn connect(config: &Config, command: &str, startup: Startup<'_>) -> Result<Session, Error> {
    let application_name = format!("{} {command}", config.name);
    let pooled = config.polling.is_some();
    let startup = Startup { application_name: &application_name, pooled, ..startup };
    connect_to(config.postgres.conninfo.clone(), startup).await
}

/// A session as by [`connect`] whose queries may take as long as they need.
async fn connect_for_long(config: &Config, command: &str) -> Result<Session, Error> {
    let mut session = connect(config, command, Startup::default()).await?;
    session.set_answer_timeout(None);
    Ok(session)
}

/// A session as by [`connect`], with another connection, and the whole name.
async fn connect_to(mut conninfo: ConnInfo, startup: Startup<'_>) -> Result<Session, Error> {
    conninfo.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
    let mut session = Session::connect(&conninfo, &startup).await?;
    session.set_answer_timeout(Some(ANSWER_TIMEOUT));
    session.set_watcher(
        LockWatcher::new(&conninfo, session.info(), startup.application_name)
            .describing_errors_with(advice::in_words)
            .reporting_to(say_wait),
    );
    Ok(session)
}

/// The end of the log, where the next record begins.
async fn log_end(session: &mut Session) -> Result<Lsn, Error> {
    // With a position inside a record, such as the flushed one, the last commit before it could end after it. The transaction id
    // makes the server write and flush a commit, and with it the log before.
    let end = session
        .query("SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_xact_id()")
        .await
        .map_err(|error| error.or_remedy("Connect to the primary, if this server is a standby"))?;
    let end = end.first().and_then(|row| row.get(0)?.parse().ok());
    end.ok_or_else(|| Error::transient(Peer::Postgres, "the end of the log cannot be read"))
}

/// On standard error, because a program may read the command's output.
fn say_wait(wait: &LockWait) {
    tracing::warn!("{wait}");
}

/// The configurations of the shards that a command is for: those on the command line, else those in `[shards] only`, else
/// all. Without shards, the only configuration.
fn chosen_shards(config: &Config, ShardArgs { chosen }: &ShardArgs) -> Result<Vec<Config>, Error> {
    let count = config.shards.count;
    if chosen.is_empty() {
        return Ok(config.local_shards());
    }
    let mut shards = config.every_shard();
    let number = |shard: &Config| shard.shard.map(|shard| shard.number);
    if let Some(none) =
        chosen.iter().find(|chosen| !shards.iter().any(|shard| number(shard) == Some(**chosen)))
    {
        let (what, remedy) = match count {
            1 => ("there are no shards".to_owned(), "Omit --shard, or set `[shards] count`".to_owned()),
            _ => {
                (format!("there is no shard {none} of {count}"), format!("Name one from 0 to {}", count - 1))
            }
        };
        return Err(Error::usage(ErrorCode::CommandLine, format!("--shard {none}: {what}"), remedy));
    }
    shards.retain(|shard| number(shard).is_some_and(|number| chosen.contains(&number)));
    Ok(shards)
}

/// Prints a heading above the output of one of several shards.
fn heading(config: &Config) -> Result<(), Error> {
    match config.shard {
        Some(shard) => terminal::print(&format!("{shard}\n")),
        None => Ok(()),
    }
}

/// Asks the user to type the number of affected events, after the text `before`. Returns false if the answer differs.
fn confirm_by_count(before: &str, events: u64) -> Result<bool, Error> {
    confirm_by_typing(before, "the number of events", &events.to_string())
}

/// Asks the user to type `expected`, which is `what`, after the text `before`. Returns false if the answer differs.
fn confirm_by_typing(before: &str, what: &str, expected: &str) -> Result<bool, Error> {
    if !io::stdin().is_terminal() {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "Cannot ask for confirmation: standard input is not a terminal",
            "Add --yes to proceed without confirmation, or --dry-run to see what the command would do",
        ));
    }
    terminal::print(&format!("{before}Type {what}, {expected}, to go on: "))?;
    // the prompt has no line break, so it would stay in the buffer
    let _ = io::stdout().flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| {
        Error::usage(ErrorCode::InputOutput, format!("Cannot read the answer: {error}"), "Add --yes")
    })?;
    if answer.trim() == expected {
        return Ok(true);
    }
    terminal::print("Nothing was done.\n")?;
    Ok(false)
}

/// Runs a command on one thread, because commands mostly wait.
fn block_on<T>(command: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Error::usage(
            ErrorCode::ProcessLimits,
            format!("Cannot start: {error}"),
            "Raise the limit of the process on open files",
        )
    })?;
    let done = runtime.block_on(command);
    // background threads must not delay the exit
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Peer;

    #[test]
    fn every_failure_has_its_exit_code() {
        let code = |error: Error| exit_code(&error);
        assert_eq!(code(Error::transient(Peer::Kafka, "x")), 1);
        assert_eq!(code(Error::refused(ErrorCode::WalLevel, "x", "y")), 1);
        assert_eq!(code(Error::usage(ErrorCode::CommandLine, "x", "y")), 2);
        assert_eq!(code(Error::not_safe(ErrorCode::SlotLost, "x", "y")), 3);
    }
}
