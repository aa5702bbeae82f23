//! Loads the configuration from a file and the environment.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pg_logical::Environment;
use toml::de::DeTable;

use super::Config;
use super::contracts::ContractConfig;
use super::convert;
pub use super::convert::Brokers;
use super::deserialize::deserialize;
use super::log::Log;
use super::overlay;
use super::raw::RawConfig;
use super::source::{Problem, Problems, SEARCH_PATH, Sources};
use super::substitute;
use crate::error::{Error, ErrorCode};

/// The largest file that is read.
const MAX_BYTES: u64 = 10 << 20;

/// The text of a configuration file. It is read once, because it may be a pipe.
pub struct ConfigFile {
    path: PathBuf,
    text: String,
    /// The user may not search the working directory, where another file could be.
    instead_of_hidden: bool,
}

impl ConfigFile {
    /// Reads the file at `path`, else the first of `outbox-router.toml` and `/etc/outbox-router/outbox-router.toml` that exists,
    /// else none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn find(path: Option<&Path>) -> Result<Option<Self>, Error> {
        match path {
            Some(path) => match read(path) {
                Ok(text) => Ok(Some(ConfigFile { path: path.to_owned(), text, instead_of_hidden: false })),
                Err(error) => Err(unreadable(path, &error)),
            },
            None => search(SEARCH_PATH.map(Path::new), read, is_hidden),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether [`ConfigFile::find`] without a path finds this file.
pub fn is_found_without_name(path: &Path) -> bool {
    let found = SEARCH_PATH.iter().find_map(|path| fs::canonicalize(path).ok());
    found.is_some_and(|found| fs::canonicalize(path).is_ok_and(|path| path == found))
}

fn located(file: Option<&ConfigFile>) -> Option<(&Path, &str)> {
    file.map(|file| (file.path.as_path(), file.text.as_str()))
}

/// A configuration and where it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The file it was read from; `None` if only the environment was used.
    pub file: Option<PathBuf>,
    /// The variables that override the file.
    pub variables: Vec<String>,
    /// Warnings for the user, each as a sentence without a full stop.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// `, overridden by ...` with the names of the variables, for a sentence about the file; empty without variables.
    pub fn overridden(&self) -> String {
        if self.variables.is_empty() {
            return String::new();
        }
        format!(", overridden by {}", self.variables.join(", "))
    }
}

/// Reads the configuration: the file at `path`, else the first of `outbox-router.toml` and
/// `/etc/outbox-router/outbox-router.toml` that exists, else no file. The `OUTBOX_ROUTER_*` variables of `env` override the
/// file.
///
/// # Errors
/// The file cannot be read, or something in it or in the environment is wrong. The [`Error`] has exit code 2 and lists all
/// problems, each with its place and a remedy.
pub fn load(path: Option<&Path>, env: &Environment) -> Result<Loaded, Error> {
    load_file(ConfigFile::find(path)?.as_ref(), env, Brokers::Required)
}

/// The same for a file that has been read.
///
/// # Errors
/// As [`load`].
pub fn load_file(file: Option<&ConfigFile>, env: &Environment, brokers: Brokers) -> Result<Loaded, Error> {
    Ok(validate_by(file, env, brokers)?)
}

/// The same, with a list of problems.
///
/// # Errors
/// All problems, in the order of the file.
pub fn validate(file: Option<&ConfigFile>, env: &Environment) -> Result<Loaded, Vec<Problem>> {
    validate_by(file, env, Brokers::Required).map_err(Problems::into_list)
}

/// What is wrong with a text that is to become a configuration file. Reads the files that it names as secrets.
pub(crate) fn problems(text: &str, env: &Environment) -> Vec<Problem> {
    let file = ConfigFile { path: SEARCH_PATH[0].into(), text: text.to_owned(), instead_of_hidden: false };
    validate(Some(&file), env).err().unwrap_or_default()
}

fn validate_by(file: Option<&ConfigFile>, env: &Environment, brokers: Brokers) -> Result<Loaded, Problems> {
    let parsed = parse_by(located(file), env, |raw, sources, problems| {
        convert::convert(raw, sources, env, problems, brokers)
    })?;
    let hidden = file.filter(|file| file.instead_of_hidden).map(|file| {
        format!(
            "{} is used, because this user may not search the working directory for {}; name the file with -c if you mean another",
            file.path.display(),
            SEARCH_PATH[0]
        )
    });
    let file = file.map(|file| file.path.clone());
    let configuration = file.as_ref().filter(|_| parsed.secrets.inline);
    let exposed: BTreeSet<&PathBuf> = configuration
        .into_iter()
        .chain(&parsed.secrets.files)
        .filter(|path| is_world_readable(path))
        .collect();
    let warning = |path: &PathBuf| {
        let elsewhere = if configuration == Some(path) {
            ", or move the secret to a file of its own and refer to it as { file = \"...\" }"
        } else {
            ""
        };
        let path = path.display();
        format!(
            "{path} contains a secret and can be read by everybody on this machine; `chmod 600 {path}`, or 640 if the router \
             reads it by its group{elsewhere}"
        )
    };
    let warnings = hidden.into_iter().chain(exposed.into_iter().map(warning)).collect();
    let variables = overlay::variables(env).map(|(name, ..)| name.to_owned()).collect();
    Ok(Loaded { config: parsed.config, file, variables, warnings })
}

/// Reads only the keys for contracts. `outbox-router contracts` needs neither Postgres nor Kafka.
///
/// # Errors
/// As [`load`].
pub fn load_for_contracts(file: Option<&ConfigFile>, env: &Environment) -> Result<ContractConfig, Error> {
    Ok(parse_by(located(file), env, convert::for_contracts)?)
}

/// How to log, as far as that can be read: what is wrong with a configuration is found when all of it is loaded.
pub fn log(file: Option<&ConfigFile>, env: &Environment) -> Log {
    let log = parse_by(located(file), env, |raw, sources, problems| {
        Ok(convert::for_logging(raw, sources, problems))
    });
    log.unwrap_or_default()
}

/// Reads a file, unless it is far too large, as a device may be.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = fs::File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

/// As [`load`], from the text of a file.
#[cfg(test)]
pub(super) fn parse(
    file: Option<(&Path, &str)>,
    env: &Environment,
    brokers: Brokers,
) -> Result<convert::Parsed, Error> {
    Ok(parse_by(file, env, |raw, sources, problems| convert::convert(raw, sources, env, problems, brokers))?)
}

fn parse_by<T>(
    file: Option<(&Path, &str)>,
    env: &Environment,
    convert: impl FnOnce(RawConfig, &Sources<'_>, Problems) -> Result<T, Problems>,
) -> Result<T, Problems> {
    let mut sources = Sources::new(file);
    let mut problems = Problems::default();
    let mut root = match DeTable::parse(file.map_or("", |(_, text)| text)) {
        Ok(root) => root,
        Err(error) => {
            let place = sources.place(&error.span().unwrap_or(0..0));
            problems.push(
                place,
                format!("not TOML: {}", error.message()),
                "Correct the syntax at this place",
            );
            return Err(problems);
        }
    };
    overlay::apply_variables(root.get_mut(), env, &mut sources, &mut problems);
    substitute::insert_variables(root.get_mut(), env, &mut sources, &mut problems);
    match deserialize(root, &sources, &mut problems) {
        Some(raw) => convert(raw, &sources, problems),
        None => Err(problems),
    }
}

/// Nobody keeps a configuration in a directory that its user may not search: an administrator who runs a command as that user is
/// just there.
fn search<const N: usize>(
    candidates: [&Path; N],
    read: impl Fn(&Path) -> io::Result<String>,
    is_hidden: impl Fn(&Path) -> bool,
) -> Result<Option<ConfigFile>, Error> {
    let mut hidden = None;
    for path in candidates {
        match read(path) {
            Ok(text) => {
                let instead_of_hidden = hidden.is_some();
                return Ok(Some(ConfigFile { path: path.to_owned(), text, instead_of_hidden }));
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_hidden(path) => {
                hidden = Some(path);
            }
            Err(error) => return Err(unreadable(path, &error)),
        }
    }
    match hidden {
        None => Ok(None),
        Some(path) => Err(Error::usage(
            ErrorCode::Configuration,
            format!(
                "There is no configuration file that can be read: this user may not search the working directory for {}, and {} \
                 does not exist",
                path.display(),
                SEARCH_PATH[1]
            ),
            "Name the file with -c, or run the command in another directory",
        )),
    }
}

/// Whether the user may not search the working directory for this file.
fn is_hidden(path: &Path) -> bool {
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    path.is_relative() && fs::symlink_metadata(path).is_err_and(denied)
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    let (what, remedy) = match error.kind() {
        io::ErrorKind::NotFound => ("it does not exist", "Name an existing file with -c".to_owned()),
        io::ErrorKind::PermissionDenied => (
            "permission denied",
            "Let the user that runs the router read it, for example by its group and mode 0640".to_owned(),
        ),
        io::ErrorKind::InvalidData => ("it is not UTF-8 text", "Save it as UTF-8".to_owned()),
        io::ErrorKind::FileTooLarge => {
            ("it is larger than 10 MiB", "Name the configuration file with -c".to_owned())
        }
        io::ErrorKind::IsADirectory => ("it is a directory", "Name the file in it with -c".to_owned()),
        _ => ("the system refuses", format!("The system reports: {error}")),
    };
    Error::usage(
        ErrorCode::Configuration,
        format!("Cannot read the configuration file {}: {what}", path.display()),
        remedy,
    )
}

fn is_world_readable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o004 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment::PREFIX;
    use proptest::prelude::*;

    #[test]
    fn the_first_file_that_exists_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let found = || {
            let file = search([&path("a/none"), &path("b"), &path("c")], read, is_hidden).unwrap();
            file.map(|file| (file.path, file.text))
        };
        assert_eq!(found(), None);
        fs::write(path("c"), "c").unwrap();
        assert_eq!(found(), Some((path("c"), "c".to_owned())));
        fs::write(path("b"), "b").unwrap();
        assert_eq!(found(), Some((path("b"), "b".to_owned())));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let good = directory.path().join("good.toml");
        fs::write(&good, "").unwrap();
        assert!(search([directory.path(), &good], read, is_hidden).is_err());
    }

    #[test]
    fn a_working_directory_that_may_not_be_searched_is_passed_over_with_a_warning() {
        let paths = [Path::new("r.toml"), Path::new("/etc/r.toml")];
        let found = |hidden: bool, etc: io::ErrorKind| {
            let read = |path: &Path| match path == paths[0] {
                true => Err(io::ErrorKind::PermissionDenied.into()),
                false if etc == io::ErrorKind::Other => Ok(String::new()),
                false => Err(etc.into()),
            };
            search(paths, read, |path| hidden && path == paths[0])
        };
        let file = found(true, io::ErrorKind::Other).unwrap();
        assert!(file.as_ref().is_some_and(|file| file.path == paths[1]));
        let text = "postgres.url = \"postgres://router@db/shop\"\nkafka.'bootstrap.servers' = \"k:1\"\n";
        let file = ConfigFile { text: text.to_owned(), ..file.unwrap() };
        let loaded = load_file(Some(&file), &Environment::empty(), Brokers::Required).unwrap();
        assert!(loaded.warnings[0].starts_with("/etc/r.toml is used, because"), "{:?}", loaded.warnings);
        // a file that is there is not passed over
        assert!(found(false, io::ErrorKind::Other).is_err());
        for (etc, part) in [
            (io::ErrorKind::NotFound, "Name the file with -c"),
            (io::ErrorKind::PermissionDenied, "/etc/r.toml: permission"),
        ] {
            let error = found(true, etc).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    /// Texts that resemble configurations.
    fn text() -> impl Strategy<Value = String> {
        let piece = proptest::sample::select(vec![
            "[postgres]",
            "[kafka]",
            "[topics.config]",
            "[outbox.columns]",
            "url",
            "slot",
            "file",
            "name",
            "kafka",
            "postgres",
            " = ",
            ".",
            "\"",
            "\n",
            "{",
            "}",
            "[",
            "]",
            ", ",
            "5",
            "true",
            "\"x\"",
            "ü",
            "1979-05-27",
        ]);
        proptest::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_text_and_any_variable_are_parsed_or_refused(
            text in text(),
            variable in "(KAFKA|POSTGRES|URL|FILE|__|_|X|TOPICS|CONFIG|NAME){0,6}",
            value in "\\PC{0,8}",
        ) {
            let env = Environment::empty().with_variable(&format!("{PREFIX}{variable}"), &value);
            prop_assert!(parse(Some((Path::new("c.toml"), &text)), &env, Brokers::Required).is_err(), "nothing here is complete");
        }
    }
}
