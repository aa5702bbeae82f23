//! The environment of the process: variables, user, home directory, and which files exist.
//!
//! It is passed to the parsers as a value, so that they do no I/O and tests can simulate any machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The environment of a process. [`Environment::process`] returns the real one.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    home: Option<PathBuf>,
    user: Option<String>,
    files: Files,
}

/// The value of a variable is not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value of the variable {variable} is not UTF-8")]
pub struct NotUtf8 {
    /// The variable's name.
    pub variable: String,
}

/// How to find out whether a file exists.
#[derive(Clone)]
enum Files {
    Real,
    Simulated(BTreeSet<PathBuf>),
}

impl Default for Files {
    fn default() -> Self {
        Files::Simulated(BTreeSet::new())
    }
}

impl Environment {
    /// The environment of this process. The program's own variables begin with `prefix`.
    ///
    /// # Errors
    /// One of the program's own variables or one of libpq's (`PG*`) is not UTF-8.
    pub fn process(prefix: &str) -> Result<Self, NotUtf8> {
        let mut variables = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            match value.into_string() {
                Ok(value) => {
                    variables.insert(name, value);
                }
                Err(_) if name.starts_with(prefix) || name.starts_with("PG") => {
                    return Err(NotUtf8 { variable: name });
                }
                Err(_) => {}
            }
        }
        Ok(Self {
            variables,
            home: std::env::home_dir().filter(|home| !home.as_os_str().is_empty()),
            user: whoami::username().ok(),
            files: Files::Real,
        })
    }

    /// An environment without variables, user, home directory or files, which tests can add to.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Adds a variable.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets the home directory.
    #[must_use]
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = Some(home.into());
        self
    }

    /// Sets the user's name in the operating system.
    #[must_use]
    pub fn with_user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// Adds a file or directory. From then on only added ones exist.
    #[must_use]
    pub fn with_file(mut self, path: impl Into<PathBuf>) -> Self {
        let mut files = match self.files {
            Files::Real => BTreeSet::new(),
            Files::Simulated(files) => files,
        };
        files.insert(path.into());
        self.files = Files::Simulated(files);
        self
    }

    /// The value of a variable, even if empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The variables whose names begin with `prefix`, sorted by name.
    pub fn variables_with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.variables
            .iter()
            .filter(move |(name, _)| name.starts_with(prefix))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The user's home directory.
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// The user's name in the operating system.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Whether this file or directory exists.
    pub fn has_file(&self, path: &Path) -> bool {
        match &self.files {
            Files::Real => path.exists(),
            Files::Simulated(files) => files.contains(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_environment_has_only_what_was_added() {
        let env = Environment::empty()
            .with_variable("PGHOST", "db")
            .with_home("/home/me")
            .with_user("me")
            .with_file("/tmp/x");
        assert_eq!(env.variable("PGHOST"), Some("db"));
        assert_eq!(env.variable("PATH"), None);
        assert_eq!(env.variables_with_prefix("PG").collect::<Vec<_>>(), [("PGHOST", "db")]);
        assert!(env.has_file(Path::new("/tmp/x")));
        assert!(!env.has_file(Path::new("/")));
    }

    #[test]
    fn the_real_environment_sees_the_file_system() {
        let env = Environment::process("PG").unwrap();
        assert!(env.has_file(Path::new("/")));
    }
}
