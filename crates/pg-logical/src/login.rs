//! Who logs in where, and with which password.

use std::fs;

use tracing::warn;

use super::failure::Failure;
use super::passfile::{self, Lookup};
use crate::conninfo::{ConnInfo, Host, Password};
use crate::error::Remedy;
use crate::secret::Secret;

/// The user and database, and how far to trust the server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Login<'a> {
    pub(super) conninfo: &'a ConnInfo,
    pub(super) host: &'a Host,
    /// What the program printed, if there is one.
    pub(super) printed: Option<&'a Secret>,
}

/// A password, and where it came from, for messages.
pub(super) struct FoundPassword {
    pub(super) password: Secret,
    pub(super) origin: String,
}

impl Login<'_> {
    /// Looks up the password for each connection, so that a rotated password takes effect.
    pub(super) fn password(&self) -> Result<FoundPassword, Failure> {
        let conninfo = self.conninfo;
        match &conninfo.password {
            Some(Password::Given(password)) if !password.reveal().is_empty() => {
                Ok(FoundPassword { password: password.clone(), origin: "the configured password".to_owned() })
            }
            Some(Password::File(path)) => {
                let text = fs::read_to_string(path).map_err(|error| {
                    Failure::definite(
                        format!("cannot read the password file {}: {error}", path.display()),
                        Remedy::PasswordFile,
                    )
                })?;
                let password = text.strip_suffix('\n').unwrap_or(&text);
                let password = password.strip_suffix('\r').unwrap_or(password);
                if password.is_empty() {
                    let what = format!("the password file {} is empty", path.display());
                    return Err(Failure::definite(what, Remedy::PasswordFile));
                }
                Ok(FoundPassword {
                    password: Secret::new(password),
                    origin: format!("the password from {}", path.display()),
                })
            }
            Some(Password::Command(words)) => Ok(FoundPassword {
                // the search for a server has begun with the program
                password: self.printed.cloned().unwrap_or_default(),
                origin: format!(
                    "the password that {} printed",
                    words.first().map_or("the program", String::as_str)
                ),
            }),
            Some(Password::Given(_)) | None => self.passfile_password(),
        }
    }

    fn passfile_password(&self) -> Result<FoundPassword, Failure> {
        let conninfo = self.conninfo;
        let needed = "the server asks for a password and none is configured";
        let Some(path) = &conninfo.passfile else {
            return Err(Failure::definite(needed, Remedy::SetPassword));
        };
        match passfile::look_up(path, self.host, &conninfo.dbname, &conninfo.user) {
            Lookup::Found(password) if !password.reveal().is_empty() => {
                Ok(FoundPassword { password, origin: format!("the password from {}", path.display()) })
            }
            Lookup::Found(_) | Lookup::NotFound => {
                let what = format!("{needed}: no line of the passfile {} matches", path.display());
                Err(Failure::definite(what, Remedy::SetPassword))
            }
            Lookup::NoFile => {
                let what = format!("{needed}: the passfile {} does not exist", path.display());
                Err(Failure::definite(what, Remedy::SetPassword))
            }
            Lookup::Ignored(why) => {
                warn!("passfile ignored: {why}");
                Err(Failure::definite(
                    format!("{needed}: the passfile is ignored, {why}"),
                    Remedy::SetPassword,
                ))
            }
        }
    }
}
