//! The command line: parse, log, do, and say once what went wrong.

use clap::Parser;

use outbox_router::cli::{self, Cli, Command};
use outbox_router::commands::{self, Inputs};
use outbox_router::error::{Error, Exit};
use outbox_router::logging::{self, Writes};
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
                Ok(_) if error.exit_code() == 0 => 0,
                Ok(_) => {
                    print_json(&cli::usage_error(&error));
                    Exit::Usage as u8
                }
                Err(error) => failed(&error),
            };
        }
    };
    let inputs = Inputs::read(&cli);
    let writes = if matches!(cli.command, Command::Run(_) | Command::Maintain(_)) {
        Writes::Queued
    } else {
        Writes::Synchronous
    };
    match logging::init(inputs.log(&cli), writes).and_then(|()| commands::execute(cli, inputs)) {
        Ok(verdict) => verdict as u8,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> u8 {
    print_json(error);
    logging::report(error);
    commands::exit_code(error)
}

/// Prints the error as JSON after `--json`, also if the rest of the command line cannot be parsed.
fn print_json(error: &Error) {
    if std::env::args_os().skip(1).any(|argument| argument == "--json") {
        // there is no other place to report that standard output cannot be written
        let _ = terminal::print_json_line(error);
    }
}
