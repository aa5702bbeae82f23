//! The pages of the site: each is in the table of contents, has one purpose, and is short enough for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{ROOT, links, pages, prose, read};

/// The most words of prose on a page.
const WORDS: usize = 800;

/// The pages of the site, without the table of contents, relative to `docs`.
pub(crate) fn chapters() -> Vec<PathBuf> {
    let folder = Path::new(ROOT).join("docs");
    let inside = pages().into_iter().filter_map(|page| Some(page.strip_prefix(&folder).ok()?.to_owned()));
    inside.filter(|page| page != Path::new("SUMMARY.md")).collect()
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let contents = read("docs/SUMMARY.md");
    let mut listed = BTreeSet::new();
    for link in links(&contents) {
        assert!(listed.insert(PathBuf::from(link)), "docs/SUMMARY.md has {link} twice");
    }
    let missing: Vec<_> = chapters().into_iter().filter(|page| !listed.contains(page)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
}

/// Words outside code blocks, tables and comments.
fn words(page: &str) -> usize {
    let lines = page.lines().map(str::trim_start);
    let text = lines.filter(|line| !line.starts_with('|') && !line.starts_with("<!--"));
    text.map(|line| line.split_whitespace().count()).sum()
}

#[test]
fn every_page_is_short() {
    let folder = Path::new(ROOT).join("docs");
    let counted = chapters().into_iter().map(|page| (words(&prose(&folder.join(&page))), page));
    let long: Vec<_> = counted.filter(|(words, _)| *words > WORDS).collect();
    assert!(long.is_empty(), "split these pages by purpose, they have more than {WORDS} words: {long:?}");
}

#[test]
fn every_page_begins_with_its_title() {
    for page in chapters() {
        let text = read(&format!("docs/{}", page.display()));
        let mut lines = text.lines().skip_while(|line| line.is_empty() || line.starts_with("<!--"));
        let first = lines.next().unwrap_or_default();
        assert!(first.starts_with("# "), "docs/{} begins with {first:?}", page.display());
        let titles = prose(&Path::new(ROOT).join("docs").join(&page));
        let titles = titles.lines().filter(|line| line.starts_with("# ")).count();
        assert_eq!(titles, 1, "docs/{} has {titles} titles", page.display());
    }
}
