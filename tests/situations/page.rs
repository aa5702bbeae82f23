//! docs/errors.md: the codes, what they mean, and the messages that the tests have seen. `UPDATE_DOCS=1` writes it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{Code, PROOFS, Proof};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SNAPSHOTS: &str = "tests/situations/snapshots";

/// Compares the message of this test with the one on the page. Texts of other versions of Postgres may differ.
pub(super) fn keep(code: Code, message: &str) {
    if std::env::var_os("TEST_POSTGRES_MAJOR").is_some() {
        return;
    }
    let thread = std::thread::current();
    let (_, test) = thread.name().unwrap().rsplit_once("situation_").unwrap();
    insta::assert_snapshot!(format!("{code}_{test}"), without_numbers(message));
}

/// Hides the positions and transaction ids in names of tables and in SQL.
fn without_numbers(message: &str) -> String {
    let mut text = message.to_owned();
    for (before, name) in [("unsent_NAME_", "NUMBER"), ("age('", "XID")] {
        let mut parts = text.split(before);
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let rest = part.trim_start_matches(|c: char| c.is_ascii_hexdigit() || c == '_');
            shown.extend([before, name, rest]);
        }
        text = shown;
    }
    text
}

/// The messages with this code, each with the situations in which it was seen.
fn messages(code: Code) -> BTreeMap<String, Vec<String>> {
    let prefix = format!("main__situations__page__{code}_");
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(Path::new(ROOT).join(SNAPSHOTS)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        let Some(name) = name.strip_prefix(&prefix).and_then(|name| name.strip_suffix(".snap")) else {
            continue;
        };
        let snapshot = fs::read_to_string(&path).unwrap();
        let (_, message) = snapshot.split_once("\n---\n").unwrap();
        // only a router that has delivered events knows up to where
        let message = message.trim_end().replace("; every event before LSN is in Kafka or parked", "");
        found.entry(message).or_default().push(name.replace('_', " "));
    }
    found.values_mut().for_each(|situations| situations.sort());
    found
}

const INTRODUCTION: &str = "\
# Error codes

<!-- Made by tests/situations/page.rs of the table of codes and of messages that the tests have seen; UPDATE_DOCS=1 writes it. -->

A refusal is printed like this: a code, what was found, what that means for events, and numbered steps with what to type. Where there
are several ways out, the one that keeps all events comes first. Commands can be typed as they are: those of the router
in a shell, statements in psql. Typed twice, they do nothing the second time, or are refused. `NAME`, `HOST`, `LSN`, `NUMBER` and `XID` stand for what a message fills in.

- On standard error the refusal is the last thing that a process prints. With `--log-format json` it is one line with the fields `code`,
  `effect`, `events` and `remedy`.
- `check` reports what `run` would refuse, with the same code. `check --json` has `code`, `effect` (`none`, `late`, `doubled`, `lost`),
  `events`, and `routes` with `steps`, each with `text` and `commands`.
- `status` and `/status` show the code of a router that a person has to act on.

`run` ends with exit code 1, 2 or 3. With 3, going on could lose events, or send them twice without saying so.
";

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (code, proof) in PROOFS {
        let meaning = code.meaning();
        let meaning = if meaning.is_empty() { String::new() } else { format!(": {meaning}") };
        page.push_str(&format!(
            "\n## {code}: {}\n\nEvents: {}{meaning}.\n",
            code.title(),
            code.effect().in_words()
        ));
        for (message, situations) in messages(*code) {
            page.push_str(&format!("\nSeen with: {}.\n\n```text\n{message}\n```\n", situations.join("; ")));
        }
        page.push_str(&match proof {
            Proof::Typed(tests) => {
                let tests: Vec<String> = tests.iter().map(|test| format!("`{test}`")).collect();
                format!("\nTyped as printed by {}.\n", tests.join(", "))
            }
            Proof::Decides(why) => format!("\nNo test types the steps: {why}.\n"),
        });
    }
    page
}

#[test]
fn situations_are_on_the_page_of_error_codes() {
    let file = Path::new(ROOT).join("docs/errors.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &page).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), page, "write it with UPDATE_DOCS=1");
}

/// All Rust files below a folder, as one text.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
    text
}

#[test]
fn situations_name_tests_that_exist() {
    let sources = sources(&Path::new(ROOT).join("tests"));
    for (code, proof) in PROOFS {
        let Proof::Typed(tests) = proof else { continue };
        for test in *tests {
            assert!(sources.contains(&format!("fn {test}(")), "{code}: no test {test}");
        }
    }
}

#[test]
fn situations_are_shown_without_numbers() {
    for (message, shown) in [
        ("x unsent_NAME_0_1a2b\" y", "x unsent_NAME_NUMBER\" y"),
        ("age(xmin) <= age('754'::xid)", "age(xmin) <= age('XID'::xid)"),
    ] {
        assert_eq!(without_numbers(message), shown);
    }
}
