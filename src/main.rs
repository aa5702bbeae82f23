//! The command line: parse, log, do, and say once what went wrong.

use clap::Parser;

use outbox_router::cli::Cli;
use outbox_router::commands;
use outbox_router::error::Exit;
use outbox_router::logging;
use outbox_router::terminal;

fn main() -> ! {
    terminal::end(code().into())
}

/// What the process ends with.
fn code() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // help or the fault; a pipe that was closed does not matter
            let _ = error.print();
            return if error.exit_code() == 0 { 0 } else { Exit::Usage as u8 };
        }
    };
    let log_format = cli.log_format;
    match logging::init(log_format).and_then(|()| commands::execute(cli)) {
        Ok(verdict) => verdict as u8,
        Err(error) => {
            logging::report(log_format, &error);
            commands::exit_code(&error)
        }
    }
}
