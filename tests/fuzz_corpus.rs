//! Runs the fuzz targets on the stored corpus. `scripts/fuzz` searches for further inputs.

#[path = "../fuzz/src/lib.rs"]
#[allow(unreachable_pub)]
mod targets;

use std::fs;
use std::path::Path;

fn run(target: &str, on: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "{} is empty", corpus.display());
    files.sort();
    for file in files {
        // the test's output shows the file that failed
        println!("{}", file.display());
        on(&fs::read(&file).unwrap());
    }
}

macro_rules! corpus {
    ($($target:ident),*) => {
        $(#[test]
        fn $target() {
            run(stringify!($target), targets::$target::run);
        })*
    };
}

corpus!(config, conninfo, frames, import, pgoutput, row, server, stream, template);
