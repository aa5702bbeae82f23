//! Code blocks of README.md and of the site: readers copy them, so they are what they say they are.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use outbox_router::config::load::load;
use pg_logical::Environment;

use super::{ROOT, book, read};

/// What a block may be. `console` shows commands after `$` and what they print.
const LANGUAGES: [&str; 15] = [
    "toml",
    "json",
    "sql",
    "sh",
    "console",
    "text",
    "yaml",
    "dockerfile",
    "ini",
    "python",
    "java",
    "js",
    "go",
    "rust",
    "properties",
];

/// A fenced code block.
struct Block {
    /// Page and line.
    place: String,
    language: String,
    text: String,
}

/// The pages whose blocks are checked, relative to the project.
fn checked() -> Vec<String> {
    let chapters = book::chapters().into_iter().map(|page| format!("docs/{}", page.display()));
    std::iter::once("README.md".to_owned()).chain(chapters).collect()
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut open): (Vec<Block>, bool) = (Vec::new(), false);
    for (number, line) in read(page).lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            if !open {
                let place = format!("{page}:{}", number + 1);
                blocks.push(Block { place, language: language.to_owned(), text: String::new() });
            }
            open = !open;
        } else if let Some(block) = blocks.last_mut().filter(|_| open) {
            block.text.push_str(line);
            block.text.push('\n');
        }
    }
    assert!(!open, "{page}: a code block is not closed");
    blocks
}

/// All blocks in this language.
fn all_in(language: &str) -> Vec<Block> {
    let all: Vec<_> = checked().iter().flat_map(|page| blocks(page)).collect();
    let found: Vec<_> = all.into_iter().filter(|block| block.language == language).collect();
    assert!(!found.is_empty(), "no block is in {language}");
    found
}

#[test]
fn every_block_has_a_language() {
    let pages = checked();
    let all = pages.iter().flat_map(|page| blocks(page));
    let unknown = all.filter(|block| !LANGUAGES.contains(&block.language.as_str()));
    let unknown: Vec<_> = unknown.map(|block| format!("{} {:?}", block.place, block.language)).collect();
    assert!(unknown.is_empty(), "mark these blocks with one of {LANGUAGES:?}: {unknown:?}");
}

/// Indented blocks have no language, and nothing colours or checks them.
#[test]
fn every_block_is_fenced() {
    let mut indented = Vec::new();
    for page in checked() {
        let text = read(&page);
        let (mut inside, mut after_blank) = (false, false);
        for (number, line) in text.lines().enumerate() {
            inside ^= line.trim_start().starts_with("```");
            if !inside && after_blank && line.starts_with("    ") && !line.trim_start().starts_with("```") {
                indented.push(format!("{page}:{}", number + 1));
            }
            after_blank = line.trim().is_empty();
        }
    }
    assert!(indented.is_empty(), "put these blocks between ``` and a language: {indented:?}");
}

/// With the required settings in the environment, a block may show only the ones that its page is about.
#[test]
fn toml_is_configuration() {
    let env = Environment::empty()
        .with_user("me")
        .with_variable("OUTBOX_ROUTER_POSTGRES__URL", "postgres://outbox_router@db/shop")
        .with_variable("OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS", "kafka:9092");
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = folder.path().join("outbox-router.toml");
    for block in all_in("toml") {
        fs::write(&file, &block.text).unwrap_or_else(|error| panic!("{error}"));
        // files with secrets are not there
        match load(Some(&file), &env).map_err(|error| error.to_string()) {
            Err(error) if !error.contains("No such file") => panic!("{}: {error}", block.place),
            _ => {}
        }
    }
}

#[test]
fn json_is_json() {
    for block in all_in("json") {
        // a document, or one in each line
        let documents = serde_json::Deserializer::from_str(&block.text).into_iter::<serde_json::Value>();
        for document in documents {
            document.unwrap_or_else(|error| panic!("{}: {error}", block.place));
        }
    }
}

#[test]
fn commands_have_a_syntax() {
    for block in all_in("sh") {
        check_commands(&block.place, &block.text);
    }
    for block in all_in("console") {
        let typed: Vec<_> = block.text.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
        assert!(!typed.is_empty(), "{}: no line begins with `$ `", block.place);
        check_commands(&block.place, &(typed.join("\n") + "\n"));
    }
}

/// Lets the shell read commands without running them.
fn check_commands(place: &str, commands: &str) {
    let child = Command::new("bash")
        .arg("-n")
        .current_dir(Path::new(ROOT))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| panic!("bash: {error}"));
    let mut input = child.stdin.take().unwrap_or_else(|| panic!("bash has no input"));
    input.write_all(commands.as_bytes()).unwrap_or_else(|error| panic!("bash: {error}"));
    drop(input);
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("bash: {error}"));
    assert!(output.status.success(), "{place}: {}", String::from_utf8_lossy(&output.stderr));
}
