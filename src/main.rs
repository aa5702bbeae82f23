//! The command line: parse, log, do, and say once what went wrong.

use clap::Parser;

use outbox_router::cli::{Cli, Command};
use outbox_router::commands;
use outbox_router::error::{Error, Exit};
use outbox_router::logging::{self, LogFormat, Writes};
use outbox_router::terminal;

fn main() -> ! {
    logging::end(code().into())
}

/// What the process ends with.
fn code() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // help or the fault
        Err(error) => {
            return match terminal::written(error.print()) {
                Ok(()) if error.exit_code() == 0 => 0,
                Ok(()) => Exit::Usage as u8,
                Err(error) => failed(LogFormat::default(), &error),
            };
        }
    };
    let log_format = cli.log_format;
    let writes = if matches!(cli.command, Command::Run(_)) { Writes::Queued } else { Writes::Synchronous };
    match logging::init(log_format, writes).and_then(|()| commands::execute(cli)) {
        Ok(verdict) => verdict as u8,
        Err(error) => failed(log_format, &error),
    }
}

fn failed(log_format: LogFormat, error: &Error) -> u8 {
    logging::report(log_format, error);
    commands::exit_code(error)
}
