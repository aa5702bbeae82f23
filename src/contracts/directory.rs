//! The files of a directory of contracts: `<aggregate>/<event>.json`. Files and directories that begin with an underscore
//! hold parts that contracts refer to.

use std::fs;
use std::io;
use std::path::Path;

use super::fault::Fault;

/// A file that was read.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// Relative to the directory, with `/` between its parts.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// The maximum depth of directories. Contracts are one level deep; parts may be deeper.
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
        // follows symbolic links
        let kind = fs::metadata(&below).map(|file| file.file_type());
        if kind.as_ref().is_ok_and(fs::FileType::is_dir) && depth < MAX_DEPTH {
            read_into(&below, &format!("{inside}/"), depth + 1, files, faults);
        } else if name.ends_with(".json") {
            match kind
                .and_then(|kind| if kind.is_file() { fs::read_to_string(&below).map(Some) } else { Ok(None) })
            {
                Ok(Some(text)) => files.push(SourceFile { path: inside, text }),
                // reading a FIFO would wait for a writer
                Ok(None) => faults.push(Fault::new(
                    inside,
                    "",
                    "it is not a regular file",
                    "Write the schema into a file, or give this another name than *.json",
                )),
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

    #[cfg(unix)]
    #[test]
    fn reads_regular_files_only_and_links_to_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("text"), "{}").unwrap();
        std::os::unix::fs::symlink(path("text"), path("link.json")).unwrap();
        std::os::unix::fs::symlink(path("none"), path("broken.json")).unwrap();
        let made =
            std::process::Command::new("mkfifo").args([path("pipe.json"), path("pipe")]).status().unwrap();
        assert!(made.success());
        let mut faults = Vec::new();
        // a read of the pipe would block for ever
        let (sender, receiver) = std::sync::mpsc::channel();
        let of = directory.path().to_owned();
        std::thread::spawn(move || {
            let files = read(&of, &mut faults);
            sender.send((files, faults))
        });
        let (files, mut faults) = receiver.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["link.json"]);
        faults.sort();
        let said: Vec<_> = faults.iter().map(|fault| format!("{}: {}", fault.file, fault.what)).collect();
        assert_eq!(said, ["broken.json: it does not exist", "pipe.json: it is not a regular file"]);
    }
}
