//! `contracts docs`: writes the pages, or compares them with those on disk.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::unwritable;
use crate::cli::contracts::ContractsDocsArgs;
use crate::commands::Completion;
use crate::contracts::markdown::{MARK, Page, pages};
use crate::contracts::{Contract, Contracts, Topic};
use crate::error::{Error, ErrorCode};
use crate::terminal;

/// A page that was not up to date, for `--json`.
#[derive(Serialize)]
struct PageReport {
    path: PathBuf,
    result: &'static str,
}

/// Writes the pages that changed, or lists them. The exit code is 1 if pages are out of date and may not be written.
pub(super) fn docs(
    contracts: &Contracts,
    args: &ContractsDocsArgs,
    topic: impl Fn(&Contract) -> Topic,
) -> Result<Completion, Error> {
    let pages = pages(contracts, topic);
    let mut there = BTreeMap::new();
    own_pages(&args.output, "", &mut there).map_err(|error| {
        Error::usage(
            ErrorCode::InputOutput,
            format!("{} cannot be read: {error}", args.output.display()),
            "Name another directory",
        )
    })?;
    let changed: Vec<&Page> = pages.iter().filter(|page| there.get(&page.path) != Some(&page.text)).collect();
    let gone: Vec<&String> =
        there.keys().filter(|path| !pages.iter().any(|page| page.path == **path)).collect();
    let mut report = Vec::new();
    for page in &changed {
        let path = args.output.join(&page.path);
        let done = if args.check { "is not up to date" } else { "written" };
        if !args.check {
            fs::create_dir_all(path.parent().unwrap_or(&args.output))
                .and_then(|()| fs::write(&path, &page.text))
                .map_err(|error| unwritable(&path, &error))?;
        }
        report.push(PageReport { path, result: done });
    }
    for path in &gone {
        let path = args.output.join(path);
        let done = if args.check {
            "belongs to no contract"
        } else {
            "removed, because its contract no longer exists"
        };
        if !args.check {
            fs::remove_file(&path).map_err(|error| unwritable(&path, &error))?;
        }
        report.push(PageReport { path, result: done });
    }
    let fine = changed.is_empty() && gone.is_empty();
    if args.json {
        terminal::print_json(&report)?;
    } else if fine {
        terminal::print(&format!("{} pages in {} are up to date\n", pages.len(), args.output.display()))?;
    } else {
        let line = |PageReport { path, result }: &PageReport| format!("{} {result}\n", path.display());
        terminal::print(&report.iter().map(line).collect::<String>())?;
    }
    Ok(if args.check && !fine { Completion::ProblemsFound } else { Completion::Success })
}

/// The pages that an earlier run wrote, recognised by their first line.
fn own_pages(directory: &Path, path: &str, found: &mut BTreeMap<String, String>) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let inside = format!("{path}{name}");
        if entry.file_type()?.is_dir() {
            own_pages(&entry.path(), &format!("{inside}/"), found)?;
        } else if name.ends_with(".md")
            && let Ok(text) = fs::read_to_string(entry.path())
            && text.starts_with(MARK)
        {
            found.insert(inside, text);
        }
    }
    Ok(())
}
