//! `completions` and `man`: the command line, rendered for shells and for `man`.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::error::{Error, ErrorCode};
use crate::terminal;

/// Prints a script that completes the command line.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn completions(args: &CompletionsArgs) -> Result<(), Error> {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    terminal::print(&String::from_utf8_lossy(&script))
}

/// Prints the manual page, or writes one for each command into a folder.
///
/// # Errors
/// A page, or standard output, cannot be written.
pub(super) fn man(args: &ManArgs) -> Result<(), Error> {
    let Some(folder) = &args.output else {
        let mut page = Vec::new();
        Man::new(Cli::command())
            .render(&mut page)
            .map_err(|error| not_written(Path::new("standard output"), &error))?;
        return terminal::print(&String::from_utf8_lossy(&page));
    };
    let written = fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    written.map_err(|error| not_written(folder, &error))
}

fn not_written(path: &Path, error: &std::io::Error) -> Error {
    Error::usage(
        ErrorCode::InputOutput,
        format!("Cannot write the manual to {}: {error}", path.display()),
        "Name a folder that you may write to with --output",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("man");
        man(&ManArgs { output: Some(output.clone()) }).unwrap();
        for page in ["outbox-router.1", "outbox-router-run.1", "outbox-router-slot-reset.1"] {
            let text = fs::read_to_string(output.join(page)).unwrap();
            assert!(text.contains(".SH SYNOPSIS") || text.contains(".SH NAME"), "{page}: {text}");
        }
        let taken = output.join("outbox-router.1");
        let error = man(&ManArgs { output: Some(taken) }).unwrap_err();
        assert!(error.to_string().contains("Cannot write the manual"), "{error}");
    }
}
