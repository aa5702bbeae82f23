//! The documentation agrees with the program and with itself. Needs no server.

// tests fail by panicking
#![allow(clippy::panic)]

mod blocks;
mod book;
mod packages;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use outbox_router::cli::Cli;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A page without its code blocks.
fn prose(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut inside = false;
    let kept = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    kept.collect::<Vec<_>>().join("\n")
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All Markdown files in these places, except what is generated or fetched.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    let mut pages: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(|name| root.join(name)).into();
    let mut folders =
        vec![root.join("docs"), root.join("examples"), root.join("crates"), root.join("packaging")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// The targets of the links of a page: what stands between `](` and `)`.
fn links(page: &str) -> Vec<&str> {
    let after = page.split("](").skip(1);
    after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(slug).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for path in pages() {
        let folder = path.parent().unwrap_or(Path::new(ROOT));
        let page = prose(&path);
        for link in links(&page) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) =
                link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { path.clone() } else { folder.join(file) };
            let is_there = target.exists();
            let has_anchor = |anchor| !is_there || anchors(&prose(&target)).contains(anchor);
            if !is_there || !anchor.is_none_or(has_anchor) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The keys of the example file, such as `delivery.window.bytes`. Its comments with two more spaces show keys without a default.
fn keys_of_the_example() -> BTreeSet<String> {
    let (mut section, mut keys) = (String::new(), BTreeSet::new());
    for line in read("outbox-router.example.toml").lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
        }
        let Some((key, _)) = line.trim_start_matches(['#', ' ']).split_once(" = ") else { continue };
        if section == "kafka"
            || key.contains(' ')
            || key.contains("headers.")
            || key.contains("extensions.")
            || key == "match"
        {
            continue;
        }
        let is_of_a_rule = section == "route" && matches!(key, "drop");
        if !is_of_a_rule {
            keys.insert(if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") });
        }
    }
    keys
}

#[test]
fn every_key_is_in_the_reference() {
    let reference = read("docs/configuration.md");
    // a row may be for several keys: `a.b`, `.c`, or `a.b.*`
    let has = |key: &str| {
        let (parent, last) = key.rsplit_once('.').unwrap_or(("", key));
        let group = parent.split('.').take(2).collect::<Vec<_>>().join(".");
        reference.contains(&format!("`{key}`"))
            || reference.contains(&format!("`{parent}.*`"))
            || reference.contains(&format!("`{group}`"))
            || reference.contains(&format!("`.{last}`")) && reference.contains(&format!("`{parent}."))
    };
    let missing: Vec<_> = keys_of_the_example().into_iter().filter(|key| !has(key)).collect();
    assert!(missing.is_empty(), "docs/configuration.md lacks {missing:?}");
}

#[test]
fn every_metric_is_in_the_reference() {
    metrics_are_in("src/metrics/mod.rs", "docs/monitoring.md", 20);
    metrics_are_in("src/metrics/consumer.rs", "docs/inbox-operations.md", 10);
}

/// Compares a file that defines at least `least` metrics with their reference.
fn metrics_are_in(source: &str, page: &str, least: usize) {
    let (source, reference) = (read(source), read(page));
    let named = source.lines().filter_map(|line| {
        let (_, rest) = line.split_once(" = ")?;
        let (kind, rest) = rest.split_once(" \"")?;
        matches!(kind, "Gauge" | "Counter" | "Histogram").then(|| rest.split('"').next())?
    });
    let named: Vec<_> = named.collect();
    assert!(named.len() > least, "{named:?}");
    let has =
        |name: &&str| reference.contains(&format!("`{name}`")) || reference.contains(&format!("`{name}{{"));
    let missing: Vec<_> = named.into_iter().filter(|name| !has(name)).collect();
    assert!(missing.is_empty(), "{page} lacks {missing:?}");
}

#[test]
fn every_command_is_in_the_reference() {
    let reference = read("docs/commands.md");
    let cli = Cli::command();
    let names = cli.get_subcommands().map(clap::Command::get_name);
    let missing: Vec<_> = names
        .filter(|name| *name != "help" && !reference.contains(&format!("`outbox-router {name}")))
        .collect();
    assert!(missing.is_empty(), "docs/commands.md lacks {missing:?}");
}

#[test]
fn readme_stays_short() {
    let readme = read("README.md");
    let (lines, words) = (readme.lines().count(), readme.split_whitespace().count());
    assert!(lines <= 160 && words <= 1_250, "{lines} lines, {words} words");
}
