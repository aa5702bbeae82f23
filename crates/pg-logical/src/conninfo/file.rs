//! A connection string in a file of its own, where user and password are replaced while the program runs.

use std::borrow::Cow;
use std::fs;
use std::path::PathBuf;

use tracing::warn;

use super::{ConnInfo, Password, parameters};
use crate::secret::Secret;

impl ConnInfo {
    /// For each connection, reads the user and the password again from `file`, which this connection string is from. Everything
    /// else stays: other hosts or another database would be something else than the program has begun with.
    pub fn of_file(self, file: PathBuf) -> Self {
        ConnInfo { file: Some(file), ..self }
    }

    /// With the user and the password that the file has now.
    pub(crate) fn read_again(&self) -> Cow<'_, Self> {
        let Some(file) = &self.file else { return Cow::Borrowed(self) };
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) => {
                warn!("the connection string in {} cannot be read again: {error}", file.display());
                return Cow::Borrowed(self);
            }
        };
        let now = match parameters(text.trim_end_matches(['\n', '\r'])) {
            Ok(now) => now,
            Err(error) => {
                warn!("{} has no connection string any more: {}", file.display(), error.what);
                return Cow::Borrowed(self);
            }
        };
        let user = now.get("user").unwrap_or(&self.user).to_owned();
        let password = match (&self.password, now.get("password")) {
            // a password that is configured outside of the string takes precedence
            (None | Some(Password::Given(_)), Some(password)) => Some(Password::Given(Secret::new(password))),
            (configured, _) => configured.clone(),
        };
        Cow::Owned(ConnInfo { user, password, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    fn given(password: &str) -> Option<Password> {
        Some(Password::Given(Secret::new(password)))
    }

    #[test]
    fn user_and_password_are_those_of_the_file_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        let conninfo = ConnInfo::parse("postgres://u:old@h/d", &Environment::empty()).unwrap();
        assert_eq!(*conninfo.read_again(), conninfo, "not from a file");
        let conninfo = conninfo.of_file(file.clone());
        assert_eq!(*conninfo.read_again(), conninfo, "there is no file");
        for (text, user, password) in [
            ("postgres://u:new@h/d\n", "u", "new"),
            ("postgres://v:new@other/e", "v", "new"),
            ("host=h user=w password='n w'\r\n", "w", "n w"),
            ("postgres://h/d", "u", "old"),
            ("nothing of the kind", "u", "old"),
            ("", "u", "old"),
        ] {
            fs::write(&file, text).unwrap();
            let expected = ConnInfo { user: user.into(), password: given(password), ..conninfo.clone() };
            assert_eq!(*conninfo.read_again(), expected, "{text}");
        }
        let elsewhere = ConnInfo { password: Some(Password::File("p".into())), ..conninfo };
        fs::write(&file, "postgres://v:new@h/d").unwrap();
        assert_eq!(elsewhere.read_again().password, elsewhere.password);
    }
}
