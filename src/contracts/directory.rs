//! The files of a directory of contracts: `<aggregate>/<event>.json`. What begins with an underscore, a file or a
//! directory, holds parts that contracts refer to.

use std::fs;
use std::io;
use std::path::Path;

use super::fault::Fault;

/// A file that was read.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// Relative to the directory, with `/` between its parts.
    pub path: String,
    /// What is in it.
    pub text: String,
}

/// How deep directories are looked into: no contract is deeper than one, parts may be.
const MAX_DEPTH: usize = 8;

/// Whether the file holds parts rather than a contract.
pub(super) fn is_part(path: &str) -> bool {
    path.split('/').any(|name| name.starts_with('_'))
}

/// Reads every `.json` file below `directory`, in the order of their names.
pub(super) fn read(directory: &Path, faults: &mut Vec<Fault>) -> Vec<SourceFile> {
    let mut files = Vec::new();
    read_into(directory, "", 0, &mut files, faults);
    files.sort_by(|a: &SourceFile, b| a.path.cmp(&b.path));
    files
}

fn read_into(
    directory: &Path,
    path: &str,
    depth: usize,
    files: &mut Vec<SourceFile>,
    faults: &mut Vec<Fault>,
) {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            faults.push(unreadable(path, directory, &error));
            return;
        }
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                faults.push(unreadable(path, directory, &error));
                continue;
            }
        };
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            let shown = name.to_string_lossy();
            faults.push(Fault::new(
                format!("{path}{shown}"),
                "",
                "the name is not UTF-8",
                "Rename it: event types are text",
            ));
            continue;
        };
        if name.starts_with('.') {
            continue;
        }
        let (below, inside) = (entry.path(), format!("{path}{name}"));
        // a link counts as what it leads to
        let is_directory = fs::metadata(&below).is_ok_and(|file| file.is_dir());
        if is_directory && depth < MAX_DEPTH {
            read_into(&below, &format!("{inside}/"), depth + 1, files, faults);
        } else if name.ends_with(".json") {
            match fs::read_to_string(&below) {
                Ok(text) => files.push(SourceFile { path: inside, text }),
                Err(error) => faults.push(unreadable(&inside, &below, &error)),
            }
        }
    }
}

fn unreadable(inside: &str, path: &Path, error: &io::Error) -> Fault {
    let what = match error.kind() {
        io::ErrorKind::NotFound => "it does not exist".to_owned(),
        io::ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
        io::ErrorKind::NotADirectory => "it is not a directory".to_owned(),
        _ => format!("it cannot be read: {error}"),
    };
    let (file, what) = match inside {
        "" => (String::new(), format!("{}: {what}", path.display())),
        inside => (inside.trim_end_matches('/').to_owned(), what),
    };
    Fault::new(file, "", what, "Name a directory that holds <aggregate>/<event>.json and can be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_json_files_in_the_order_of_their_names() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["b/y.json", "b/x.json", "a/z.json", "_parts/deep/p.json", "README.md", ".git/c.json"] {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{}").unwrap();
        }
        let mut faults = Vec::new();
        let files = read(directory.path(), &mut faults);
        let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["_parts/deep/p.json", "a/z.json", "b/x.json", "b/y.json"]);
        assert_eq!(faults, []);
        let parts: Vec<_> = paths.iter().map(|path| is_part(path)).collect();
        assert_eq!(parts, [true, false, false, false]);
    }

    #[test]
    fn says_what_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut faults = Vec::new();
        read(&directory.path().join("none"), &mut faults);
        fs::create_dir(directory.path().join("a")).unwrap();
        fs::write(directory.path().join("a/b.json"), [0xff]).unwrap();
        read(directory.path(), &mut faults);
        let said: Vec<_> = faults.iter().map(Fault::to_string).collect();
        assert!(said[0].contains("none: it does not exist"), "{}", said[0]);
        assert!(said[1].starts_with("a/b.json: it is not UTF-8 text"), "{}", said[1]);
        assert_eq!(said.len(), 2);
    }
}
