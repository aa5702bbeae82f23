//! The command line: parse, log, do, and say once what went wrong.

use std::process::ExitCode;

use clap::Parser;

use outbox_router::cli::Cli;
use outbox_router::commands;
use outbox_router::logging;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // help or the fault; a pipe that was closed does not matter here
            let _ = error.print();
            return ExitCode::from(if error.exit_code() == 0 { 0 } else { 2 });
        }
    };
    let log_format = cli.log_format;
    match logging::init(log_format).and_then(|()| commands::execute(cli)) {
        Ok(code) => code,
        Err(error) => {
            logging::report(log_format, &error);
            commands::exit_code(&error)
        }
    }
}
