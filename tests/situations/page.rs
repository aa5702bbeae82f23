//! docs/errors.md and the pages in docs/errors: the codes, what they mean, and the messages that the tests have seen. `UPDATE_DOCS=1`
//! writes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::typist::ways;
use super::{Code, PROOFS, Proof};
use crate::support::sentences::masked;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SNAPSHOTS: &str = "tests/situations/snapshots";

/// Compares the message of this test with the one on the page. `known` has texts that differ from run to run and their replacements.
/// Texts of other versions of Postgres may differ.
pub(crate) fn keep(message: &str, known: &[(&str, &str)]) {
    if std::env::var_os("TEST_POSTGRES_MAJOR").is_some() {
        return;
    }
    let message = &message[message.find("OBR-").unwrap_or_else(|| panic!("no code in {message}"))..];
    let code = &message[.."OBR-0000".len()];
    let thread = std::thread::current();
    let test = thread.name().unwrap().rsplit("::").next().unwrap();
    let test = test.strip_prefix("situation_").unwrap_or(test);
    let message = format!("error: {}", masked(message.trim_end(), known));
    insta::assert_snapshot!(format!("{code}_{test}"), without_numbers(&message));
}

/// Hides the positions and transaction ids in names of tables and in SQL, and distances in the log.
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
    // "236.0 KiB before that"
    for after in [" before that", " before the router's position"] {
        let mut parts: Vec<&str> = text.split(after).collect();
        let last = parts.pop().unwrap_or_default();
        let distances = parts.into_iter().map(|part| {
            let (before, _) = part.rsplit_once(", ").unwrap();
            format!("{before}, SIZE{after}")
        });
        text = distances.collect::<String>() + last;
    }
    // "transaction is 827, committed 2026-11-26T14:49:53.261Z at LSN"
    if let Some((before, rest)) = text.split_once("transaction is ")
        && let Some((_, after)) = rest.split_once("Z at LSN")
    {
        text = format!("{before}transaction is XID, committed TIME at LSN{after}");
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

/// The first message with this code in the snapshots of other tests, where it follows `error: ` or the name of a case and an exit code.
fn in_other_snapshots(code: Code) -> Option<String> {
    let mut files = snapshots(&Path::new(ROOT).join("tests"));
    files.sort();
    files.iter().find_map(|file| {
        let text = fs::read_to_string(file).unwrap();
        let begins = |line: &str| {
            let line = line
                .strip_prefix("error: ")
                .or_else(|| line.trim_start().split_once(": ").map(|(_, rest)| rest));
            line.is_some_and(|line| line.starts_with(&format!("{code}: ")))
        };
        let mut lines = text.lines().skip_while(|line| !begins(line));
        let first = lines.next()?;
        let rest = lines.take_while(|line| line.starts_with("  ") && !line.starts_with("    1: OBR"));
        let first = format!("error: {}", &first[first.find("OBR-")?..]);
        Some(std::iter::once(first.as_str()).chain(rest).collect::<Vec<_>>().join("\n"))
    })
}

/// All snapshots below a folder.
fn snapshots(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(snapshots(&path));
        } else if path.extension().is_some_and(|extension| extension == "snap") {
            found.push(path);
        }
    }
    found
}

const INTRODUCTION: &str = "\
# Error codes

<!-- Generated by tests/situations/page.rs from the table of codes and the messages that its tests have seen: UPDATE_DOCS=1. -->

A refusal shows a code, what was found, what it means for events, and the steps to take. If there are several ways out, each says when it
applies. Run the router's commands in a shell and the statements in psql, exactly as printed. To run a step again is harmless; if a
*first* attempt fails, stop.

- On standard error the refusal is the last thing that a process prints. If it has several lines, `run` adds one that repeats code and cause. With `--log-format json` it is one line with the fields `code`,
  `effect`, `events` and `remedy`.
- `check` reports what `run` would refuse, with the same code. `check --json` has `code`, `effect` (`none`, `late`, `doubled`, `lost`),
  `events`, and `ways` with `steps`, each with `text` and `commands`. A command with `--json` that fails prints
  [one object](commands.md#failures-as-json) with `error_code`, `message`, `effect`, `events` and `ways`.
- `status` and `/status` show the code of a router that a person has to act on.

After a refusal `run` exits with 1, 2 or 3; 3 means that going on could lose or duplicate events.
";

/// The pages, by the first two digits of their codes.
const GROUPS: [(u16, &str); 15] = [
    (10, "the connection to Postgres"),
    (11, "the Postgres server"),
    (20, "configuration and commands"),
    (30, "the replication slot"),
    (31, "checkpoint and position"),
    (40, "the publication"),
    (41, "the outbox table"),
    (50, "Kafka"),
    (60, "events"),
    (61, "parked events"),
    (70, "shards"),
    (80, "the end-to-end check"),
    (81, "the inbox of a consumer"),
    (82, "replays, backfills and prunes of rows"),
    (90, "bugs"),
];

/// The pages: their paths and texts.
fn pages() -> Vec<(String, String)> {
    let mut index = INTRODUCTION.to_owned();
    let mut pages = Vec::new();
    for (group, name) in GROUPS {
        let file = format!("errors/{group}xx.md");
        index.push_str(&format!("\n## {group}xx: {name}\n\n| code | | events |\n|---|---|---|\n"));
        let mut page = format!(
            "# Error codes {group}xx: {name}\n\n<!-- Generated by tests/situations/page.rs: UPDATE_DOCS=1. -->\n\n[Error codes](../errors.md) \
             says how to read a refusal. `NAME`, `HOST`, `LSN`, `SIZE`, `NUMBER`, `TIME` and `XID` stand for what\na message fills in.\n"
        );
        for (code, proof) in PROOFS.iter().filter(|(code, _)| code.number() / 100 == group) {
            let (title, effect) = (code.title(), code.effect().in_words());
            let anchor = anchor(&format!("{code}: {title}"));
            index.push_str(&format!("| [{code}]({file}#{anchor}) | {title} | {effect} |\n"));
            page.push_str(&section(*code, proof));
        }
        pages.push((file, page));
    }
    pages.push(("errors.md".to_owned(), index));
    pages
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn section(code: Code, proof: &Proof) -> String {
    let meaning = code.meaning();
    let meaning = if meaning.is_empty() { String::new() } else { format!(": {meaning}") };
    let mut page =
        format!("\n## {code}: {}\n\nEvents: {}{meaning}.\n", code.title(), code.effect().in_words());
    let seen = messages(code);
    for (message, situations) in &seen {
        page.push_str(&format!("\nSeen with: {}.\n\n```text\n{message}\n```\n", situations.join("; ")));
    }
    if let Some(message) = in_other_snapshots(code).filter(|_| seen.is_empty()) {
        page.push_str(&format!("\nFor example:\n\n```text\n{message}\n```\n"));
    }
    page.push_str(&match proof {
        Proof::Typed(tests) => {
            let tests: Vec<String> = tests.iter().map(|test| format!("`{test}`")).collect();
            format!("\nTests that type the steps: {}.\n", tests.join(", "))
        }
        Proof::Decides(why) => format!("\nNo test types steps for it: {why}.\n"),
    });
    page
}

#[test]
fn situations_are_on_the_pages_of_error_codes() {
    let folder = Path::new(ROOT).join("docs");
    for (file, page) in pages() {
        let file = folder.join(file);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&file, &page).unwrap();
        }
        let written = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(written, page, "{}: write it with UPDATE_DOCS=1", file.display());
    }
}

#[test]
fn situations_have_a_page_for_every_code() {
    let missing: Vec<_> = PROOFS
        .iter()
        .filter(|(code, _)| !GROUPS.iter().any(|(group, _)| code.number() / 100 == *group))
        .map(|(code, _)| code)
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
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

/// A message whose test is gone must not stay on the page.
#[test]
fn situations_with_a_message_have_a_test() {
    let sources = sources(&Path::new(ROOT).join("tests"));
    for code in Code::ALL {
        for name in messages(*code).into_values().flatten() {
            let name = name.replace(' ', "_");
            let tests = [format!("fn situation_{name}("), format!("fn {name}(")];
            assert!(tests.iter().any(|test| sources.contains(test)), "delete the snapshot of {code} {name}");
        }
    }
}

/// Where events may be missing, one way sends them and another goes on without them, unless the next start prints both.
#[test]
fn situations_with_missing_events_have_both_ways() {
    const SENDS: [&str; 5] =
        ["INSERT INTO ", "slot reset --to ", "init --backfill", "as before, and start", "Insert them again"];
    // the last two are of OBR-6103 and OBR-7001: their line about events says how to send them, and their only way goes on
    const LATER: [&str; 5] = [
        "the next start",
        "it stops again, and prints",
        "it stops with OBR-3109, and prints",
        "in the outbox table unless they were deleted; insert them again",
        "Give the columns one type, or read the tables by two routers of different names",
    ];
    for code in Code::ALL {
        for (message, situations) in messages(*code) {
            if !message.contains("\n  Events: some may be missing in Kafka")
                || LATER.iter().any(|words| message.contains(words))
            {
                continue;
            }
            let ways = ways(&message);
            let sends = ways.iter().any(|way| SENDS.iter().any(|part| way.has(part)));
            let goes_on = ways.iter().any(|way| {
                let name = way.name.to_lowercase();
                name.contains("go on without") || name.starts_with("without")
            });
            assert!(sends && goes_on, "{code} {situations:?}: {sends} {goes_on}\n{message}");
        }
    }
}

/// A reader who searches for a code finds how its message looks.
#[test]
fn situations_show_a_message_of_every_code() {
    let silent = |code: &&Code| messages(**code).is_empty() && in_other_snapshots(**code).is_none();
    let silent: Vec<String> = Code::ALL.iter().filter(silent).map(Code::to_string).collect();
    // OBR-2011 has no message, but the report of `status`. Of the others, the first two come on Postgres 17 and later or in a race, the
    // rest after several promotions, with brokers before 4.0, in a race, and never.
    assert_eq!(
        silent,
        ["OBR-1106", "OBR-2011", "OBR-3006", "OBR-3007", "OBR-3104", "OBR-5006", "OBR-6009", "OBR-9001"]
    );
}

#[test]
fn situations_are_shown_without_numbers() {
    for (message, shown) in [
        ("x unsent_NAME_0_1a2b\" y", "x unsent_NAME_NUMBER\" y"),
        ("age(xmin) <= age('754'::xid)", "age(xmin) <= age('XID'::xid)"),
        ("at LSN, 2.0 KiB before that. The", "at LSN, SIZE before that. The"),
        (
            "the last transaction is 827, committed 2026-01-02T03:04:05.678Z at LSN, but",
            "the last transaction is XID, committed TIME at LSN, but",
        ),
    ] {
        assert_eq!(without_numbers(message), shown);
    }
}
