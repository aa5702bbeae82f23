//! Findings about settings that are not translated, or differ.

use serde::Serialize;

/// The severity of a finding, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The router cannot do it.
    NoEquivalent,
    /// It behaves differently, or the file does not tell whether it does.
    Differs,
    /// It can do the same after the user has done something.
    ToDo,
    /// Worth knowing.
    Note,
    /// It concerns something the router does not have, and changes no record.
    Ignored,
}

impl Level {
    /// The text in the printed report.
    pub fn label(self) -> &'static str {
        match self {
            Level::NoEquivalent => "no equivalent",
            Level::Differs => "differs",
            Level::ToDo => "to do",
            Level::Note => "note",
            Level::Ignored => "ignored",
        }
    }

    /// Whether records would change, or something would be lost.
    pub fn matters(self) -> bool {
        self <= Level::Differs
    }
}

/// A finding about one setting. The members are the keys of `--json` and must not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its severity.
    pub level: Level,
    /// The setting's name as it is, or would be, in the file.
    pub setting: String,
    /// Its value, with secrets replaced; `None`: not set.
    pub value: Option<String>,
    /// What it means, a sentence or two without the last full stop.
    pub meaning: String,
}

/// The text in place of a secret.
const REDACTED: &str = "********";

/// Whether a setting's value must never be shown. A reference to where it is stored may be.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = [
        "password",
        "passphrase",
        "passwd",
        "secret",
        "credential",
        "token",
        "authorization",
        "jaas",
        ".salt",
        "user.info",
        // SQL may set a password
        "initial.statements",
    ];
    words.iter().any(|word| name.contains(word))
        || name.ends_with("keystore.key")
        || (name.contains("api") && name.contains("key"))
}

/// Whether a value of any setting may contain a secret: a URL with a user, a part of a connection string, a header.
fn has_secret(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    let words = [
        "password",
        "passphrase",
        "passwd",
        "secret",
        "credential",
        "token",
        "bearer ",
        "accesskey",
        "private key",
    ];
    // the user of a URL may be a token, and a password may contain any character
    let user_of_url = value.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
    user_of_url || words.iter().any(|word| value.contains(word))
}

/// The value as it may be shown. `is_reference`: it only says where the actual value is stored.
pub(super) fn shown(name: &str, value: &str, is_reference: bool) -> String {
    // the name may contain a salt: column.mask.hash.SHA-256.with.salt.XYZ
    if !is_reference && (is_secret(name) || has_secret(value)) {
        REDACTED.to_owned()
    } else {
        value.to_owned()
    }
}

/// The name as it may be shown: with Debezium's masking by hash, it contains the salt.
pub(super) fn shown_name(name: &str) -> String {
    match name.split_once(".with.salt.") {
        Some((before, _)) => format!("{before}.with.salt.{REDACTED}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        for name in [
            "database.password",
            "producer.override.sasl.jaas.config",
            "ssl.keystore.key",
            "database.sslpassword",
            "value.converter.basic.auth.user.info",
            "x.client.secret",
            "x.api.key",
            "x.headers.Authorization",
            "database.initial.statements",
        ] {
            assert_eq!(shown(name, "hunter2", false), REDACTED, "{name}");
            assert_eq!(shown(name, "${env:X}", true), "${env:X}");
        }
        assert_eq!(shown("key.converter", "x", false), "x");
        assert_eq!(shown("schema.registry.url", "http://registry:8081", false), "http://registry:8081");
        assert_eq!(
            shown_name("column.mask.hash.SHA-256.with.salt.CzQMA0cB5K"),
            "column.mask.hash.SHA-256.with.salt.********"
        );
    }

    #[test]
    fn values_that_have_a_secret_in_them_are_not_shown() {
        for value in [
            "ALTER ROLE r PassWord 'hunter2'",
            "client_SECRET=hunter2",
            "Token hunter2",
            "Bearer hunter2",
            "Endpoint=sb://x/;SharedAccessKey=hunter2",
            "-----BEGIN PRIVATE KEY-----",
            "http://user:hunter2@registry:8081",
            "http://a:1,https://hunter2@b:2/path",
            "jdbc:postgresql://user:hun/ter2@db/shop",
        ] {
            assert_eq!(shown("frobnicate", value, false), REDACTED, "{value}");
        }
    }

    #[test]
    fn the_worst_comes_first() {
        assert!(Level::NoEquivalent.matters() && Level::Differs.matters() && !Level::ToDo.matters());
        assert!(Level::ToDo < Level::Note && Level::Note < Level::Ignored);
    }
}
