//! Imports have one direction: no cycles between modules or files, and no forbidden imports. Needs no server.

// tests fail by panicking
#![allow(clippy::panic)]

mod source;
mod tokens;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use source::{Import, ItemPath, Sources};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Importing modules, modules that they must not import, and why. A path stands for everything below it.
const FORBIDDEN: &[(&[&str], &[&str], &str)] = &[
    (
        &["config"],
        &["postgres", "sink", "admin", "monitor", "commands", "supervisor", "relay", "source"],
        "the configuration depends on nothing that does I/O",
    ),
    (
        &[
            "routing",
            "outbox",
            "contracts",
            "progress",
            "checkpoint",
            "dead_letters",
            "import",
            "shards",
            "pipeline",
        ],
        &["postgres", "sink", "relay", "source", "supervisor", "commands", "admin"],
        "this module talks to no server",
    ),
    (
        &["postgres"],
        &["sink", "relay", "source", "supervisor", "commands"],
        "queries do not depend on the code that uses their results",
    ),
    (
        &["postgres"],
        &["config::Config"],
        "a query takes the settings that it needs, not the whole configuration",
    ),
    (
        &["relay"],
        &["config", "sink", "source", "postgres", "supervisor", "commands"],
        "the loop knows its source and its sink only by their ports",
    ),
    (&["sink"], &["source"], "sink and source meet only in the loop"),
    (&["source"], &["sink"], "sink and source meet only in the loop"),
];

/// Only these may import `commands` and `supervisor`, the top of the hierarchy.
const ON_TOP: &[&str] = &["cli", "commands", "supervisor"];

#[test]
fn forbidden_imports() {
    assert_none(imports().iter().filter_map(|import| Some((import, forbidden(import)?))));
}

#[test]
fn modules_have_no_cycles() {
    assert_no_cycles(&imports(), top, |_, _| true);
}

#[test]
fn files_have_no_cycles() {
    // parent and child may import each other: the parent has what its children share, and uses them
    let counts = |from: &str, to: &str| !is_parent(from, to) && !is_parent(to, from);
    for src in [
        "src",
        "crates/connect-values/src",
        "crates/outbox-consumer/src",
        "crates/pg-logical/src",
        "crates/rdkafka-topic/src",
    ] {
        assert_no_cycles(&Sources::read(Path::new(ROOT), src).imports(), |file| file, counts);
    }
}

#[test]
fn imports_are_found_in_every_syntax() {
    let text = r###"
        //! use crate::b::InADoc;
        use std::{fmt, io};
        use crate::b::{self, One as Uno, inner::{Two, Three}};
        mod child;
        /* use crate::b::Commented; /* nested */ */
        const TEXT: (&str, char) = ("crate::b::InAText \" crate::b::Quoted", '"');
        fn body<'a>(raw: &'a str) -> super::b::Four { b::five(r#" " crate::b::Raw "#); crate::b::six::<u8>() }
        mod inline { use super::super::b::Seven; }
        #[cfg(test)]
        #[allow(unused)]
        use crate::b::OnlyInTests;
        #[cfg(test)]
        mod tests { use crate::b::AlsoOnlyInTests; fn f() {} }
        #[cfg(test)]
        mod tests_in_a_file;
        use crate::b::Last;
    "###;
    let mut sources = Sources::default();
    sources.add(&[], "src/lib.rs", "mod a; mod b;");
    let children = sources.add(&path("a"), "src/a.rs", text);
    assert_eq!(children, [path("a::child")]);
    sources.add(&path("b"), "src/b.rs", "pub mod inner; pub use inner::Two as One; pub struct Four;");
    sources.add(&path("b::inner"), "src/b/inner.rs", "pub struct Two;");
    let found: Vec<String> = sources
        .imports()
        .iter()
        .filter(|import| import.file == "src/a.rs")
        .map(|import| format!("{} from {}", import.written.join("::"), import.target))
        .collect();
    assert_eq!(
        found,
        [
            "b from src/b.rs",
            "b::Four from src/b.rs",
            "b::Last from src/b.rs",
            "b::One from src/b/inner.rs",
            "b::Seven from src/b.rs",
            "b::five from src/b.rs",
            "b::inner::Three from src/b/inner.rs",
            "b::inner::Two from src/b/inner.rs",
            "b::six from src/b.rs",
        ]
    );
}

fn imports() -> BTreeSet<Import> {
    Sources::read(Path::new(ROOT), "src").imports()
}

/// Returns why an import is forbidden, or `None` if it is allowed.
fn forbidden(import: &Import) -> Option<String> {
    let from = top(&import.file);
    for target in ["commands", "supervisor"] {
        if import.names(&path(target)) && from != target && !ON_TOP.contains(&from) {
            return Some(format!("only {} import {target}, which is on top", ON_TOP.join(", ")));
        }
    }
    let rules = FORBIDDEN.iter().filter(|(importers, ..)| importers.contains(&from));
    let broken = rules.flat_map(|(_, targets, why)| targets.iter().map(move |target| (target, why)));
    let mut broken = broken.filter(|(target, _)| import.names(&path(target)));
    broken.next().map(|(target, why)| format!("{from} does not import {target}, because {why}"))
}

fn path(text: &str) -> ItemPath {
    text.split("::").map(str::to_owned).collect()
}

/// The module directly under `src/` that a file belongs to.
fn top(file: &str) -> &str {
    let path = file.strip_prefix("src/").unwrap_or(file);
    path.split(['/', '.']).next().unwrap_or_default()
}

fn is_parent(parent: &str, child: &str) -> bool {
    /// The folder of a module's children.
    fn folder(file: &str) -> &str {
        let named = ["/mod.rs", "/lib.rs", ".rs"].into_iter().find_map(|end| file.strip_suffix(end));
        named.unwrap_or(file)
    }
    folder(child).rsplit_once('/').is_some_and(|(above, _)| above == folder(parent))
}

/// Fails with the imports that are part of a cycle. `node` maps a file to its node in the graph, and `counts` decides whether an
/// import from one node to another is an edge.
fn assert_no_cycles<'a>(
    imports: &'a BTreeSet<Import>,
    node: impl Fn(&'a str) -> &'a str,
    counts: impl Fn(&str, &str) -> bool,
) {
    let between = |import: &'a Import| {
        let (from, to) = (node(&import.file), node(&import.target));
        (from != to && counts(from, to)).then_some((from, to))
    };
    let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in imports.iter().filter_map(between) {
        arrows.entry(from).or_default().insert(to);
    }
    let mut reported = BTreeSet::new();
    let cycle = |import: &'a Import| {
        let (from, to) = between(import)?;
        let back = shortest_path(&arrows, to, from)?;
        let why = format!("that closes a cycle, {from} -> {}", back.join(" -> "));
        // report only one of the names that a file imports from one node
        reported.insert((&import.file, to)).then_some((back.len(), import, why))
    };
    let mut found: Vec<_> = imports.iter().filter_map(cycle).collect();
    // shortest cycles first, because they usually contain the wrong import
    found.sort();
    assert_none(found.into_iter().map(|(_, import, why)| (import, why)));
}

fn shortest_path<'a>(
    arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    from: &'a str,
    to: &str,
) -> Option<Vec<&'a str>> {
    let mut seen = BTreeSet::from([from]);
    let mut open = VecDeque::from([vec![from]]);
    while let Some(path) = open.pop_front() {
        let end = *path.last()?;
        if end == to {
            return Some(path);
        }
        for next in arrows.get(end).into_iter().flatten().filter(|next| seen.insert(next)) {
            open.push_back([path.as_slice(), &[next]].concat());
        }
    }
    None
}

fn assert_none<'a>(offending: impl Iterator<Item = (&'a Import, String)>) {
    let lines: Vec<String> = offending
        .map(|(import, why)| format!("{} imports crate::{}: {why}", import.file, import.written.join("::")))
        .collect();
    assert!(lines.is_empty(), "forbidden imports:\n{}", lines.join("\n"));
}
