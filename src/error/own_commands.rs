//! The router's commands in a remedy repeat `-c FILE`. Without it, whoever types one could change another router.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

/// `-c FILE`, if the commands need it.
static OPTION: OnceLock<String> = OnceLock::new();

/// The commands that read the configuration file.
const COMMANDS: [&str; 14] = [
    "check",
    "config",
    "contracts",
    "dead-letters",
    "init",
    "preview",
    "prune",
    "replay",
    "route",
    "run",
    "shards",
    "slot",
    "status",
    "tail",
];

/// From now on, the commands in remedies name this configuration file.
pub fn repeat_config_file(file: &Path) {
    // there is one file in a process
    let _ = OPTION.set(option(file));
}

/// A pipe cannot be read again, and a name that has to be quoted would break the commands that SQL makes: both become `FILE`.
fn option(file: &Path) -> String {
    let name = std::path::absolute(file).ok().filter(|file| file.is_file());
    let name = name.as_deref().and_then(Path::to_str).filter(|name| shell_word(name) == *name);
    format!("-c {}", name.unwrap_or("FILE"))
}

/// The text with `-c FILE` in each of the router's commands.
pub fn with_config_file(text: impl Into<String>) -> String {
    let text = text.into();
    match OPTION.get() {
        Some(option) => inserted(&text, option),
        None => text,
    }
}

fn inserted(text: &str, option: &str) -> String {
    const PROGRAM: &str = "outbox-router ";
    let mut done = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(PROGRAM) {
        done.push_str(before);
        done.push_str(PROGRAM);
        let end = after.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(after.len());
        if after.get(..end).is_some_and(|word| COMMANDS.contains(&word)) {
            done.push_str(option);
            done.push(' ');
        }
        rest = after;
    }
    done + rest
}

/// Quotes any text as one word of a shell command.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:,/@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', "'\\''")).into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn each_command_of_the_router_gets_the_option_once() {
        for (text, expected) in [
            ("outbox-router slot reset --to 0/1", "outbox-router -c F slot reset --to 0/1"),
            (
                "Run `outbox-router check`, then outbox-router run.",
                "Run `outbox-router -c F check`, then outbox-router -c F run.",
            ),
            (
                "format('outbox-router slot advance --to %s')",
                "format('outbox-router -c F slot advance --to %s')",
            ),
            ("outbox-router -c F slot list", "outbox-router -c F slot list"),
            ("outbox-router inbox list --url URL", "outbox-router inbox list --url URL"),
            (
                "outbox-router does not see it; outbox-router running",
                "outbox-router does not see it; outbox-router running",
            ),
            ("outbox-router ", "outbox-router "),
            ("Edit /etc/outbox-router/outbox-router.toml", "Edit /etc/outbox-router/outbox-router.toml"),
        ] {
            assert_eq!(inserted(text, "-c F"), expected);
            assert_eq!(inserted(expected, "-c F"), expected);
        }
    }

    #[test]
    fn the_file_is_named_as_it_can_be_typed_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("a.toml");
        std::fs::write(&plain, "").unwrap();
        assert_eq!(option(&plain), format!("-c {}", plain.display()));
        let spaced = folder.path().join("it's.toml");
        std::fs::write(&spaced, "").unwrap();
        for file in [&spaced, &folder.path().join("none.toml"), Path::new("/dev/stdin")] {
            assert_eq!(option(file), "-c FILE", "{}", file.display());
        }
    }

    #[test]
    fn every_command_that_reads_the_file_is_known() {
        // these read no configuration file
        let without = ["inbox", "maintain", "import-debezium", "completions", "man"];
        let command = Cli::command();
        let mut names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        names.retain(|name| !without.contains(name));
        names.sort_unstable();
        assert_eq!(names, COMMANDS);
    }
}
