//! What leaves the repository has all that it refers to. Some of its files are copies: a symbolic link would become a text that
//! holds a path, in checkouts and tools that know no links.

use std::fs;
use std::path::Path;

use super::{ROOT, links, read};

#[track_caller]
fn is_a_copy(copy: &str, original: &str) {
    assert!(
        fs::read(Path::new(ROOT).join(copy)).unwrap_or_default() == read(original).as_bytes(),
        "{copy} differs from {original}: cp {original} {copy}"
    );
}

/// A crate is published with the files in its own folder.
#[test]
fn every_crate_has_the_licence() {
    let crates = fs::read_dir(Path::new(ROOT).join("crates")).unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<_> = crates.flatten().map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        is_a_copy(&format!("crates/{name}/LICENSE"), "LICENSE");
    }
}

/// A chart reads files in its own folder.
#[test]
fn the_chart_has_the_manifests() {
    for name in ["deployment", "networkpolicy", "poddisruptionbudget"] {
        is_a_copy(
            &format!("packaging/helm/outbox-router/manifests/{name}.yaml"),
            &format!("packaging/kubernetes/{name}.yaml"),
        );
    }
}

/// Who reads it has unpacked an archive, not a checkout.
#[test]
fn the_readme_of_the_archives_links_to_no_file() {
    let readme = read("packaging/archive/README.md");
    let links = links(&readme);
    assert!(!links.is_empty() && links.iter().all(|link| link.starts_with("https://")), "{links:?}");
}
