//! What a session is for, and the startup message that says so.

use std::io;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use crate::conninfo::{ConnInfo, TargetSessionAttrs};

/// Settings that fix the text form of values, which would otherwise depend on settings of the role or database.
pub const VALUE_TEXT: [(&str, &str); 6] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("TimeZone", "UTC"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "1"),
    ("bytea_output", "hex"),
];

/// Limits and defaults that an administrator may have set for applications, on the server, the database or the role. Every session
/// begins with these values instead, which all versions since 14 know. Rows that a policy hides lead to an error, because a query
/// that returns some of the rows would be taken for one that returns all.
const SESSION_DEFAULTS: [(&str, &str); 8] = [
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    ("row_security", "off"),
    READ_WRITE,
];

/// Not for a session whose server is chosen by this setting.
const READ_WRITE: (&str, &str) = ("default_transaction_read_only", "off");

/// The limit on transactions, which version 17 introduced. A server that does not know a setting refuses the whole session if the
/// startup message has it, so this is a statement.
pub(super) const NO_TRANSACTION_TIMEOUT: &str = "SET transaction_timeout = 0";

/// The first major version with `transaction_timeout`.
pub(super) const WITH_TRANSACTION_TIMEOUT: u32 = 17;

/// What a session is for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Startup<'a> {
    /// `replication=database`: a walsender session, which accepts replication commands and SQL.
    pub replication: bool,
    /// `application_name`, unless the connection string has one.
    pub application_name: &'a str,
    /// Settings of the session, name and value. They override those in the connection string's `options`.
    pub settings: &'a [(&'a str, &'a str)],
    /// Whether the session may go through a pooler, which refuses settings, and gives those made later to other clients. Then it
    /// has none, and the limits of applications apply to it: its transactions have to begin with settings of their own.
    pub pooled: bool,
}

impl Startup<'_> {
    /// The settings of the session in the order in which they are made, so that the last one of a name applies.
    fn all_settings(&self, wanted: TargetSessionAttrs) -> Vec<(&str, &str)> {
        if self.pooled {
            return Vec::new();
        }
        let by_read_only = matches!(wanted, TargetSessionAttrs::ReadWrite | TargetSessionAttrs::ReadOnly);
        let defaults = SESSION_DEFAULTS.iter().filter(|setting| !(by_read_only && **setting == READ_WRITE));
        defaults.chain(self.settings).copied().collect()
    }
}

pub(super) fn startup_message(conninfo: &ConnInfo, startup: &Startup<'_>) -> io::Result<BytesMut> {
    let options =
        startup_options(conninfo.options.as_deref(), &startup.all_settings(conninfo.target_session_attrs));
    let application_name = conninfo.application_name.as_deref().unwrap_or(startup.application_name);
    let mut parameters =
        vec![("user", conninfo.user.as_str()), ("database", &conninfo.dbname), ("client_encoding", "UTF8")];
    if !application_name.is_empty() {
        parameters.push(("application_name", application_name));
    }
    if startup.replication {
        parameters.push(("replication", "database"));
    }
    if let Some(options) = &options {
        parameters.push(("options", options));
    }
    let mut message = BytesMut::new();
    frontend::startup_message(parameters, &mut message)?;
    Ok(message)
}

/// The startup parameter `options`: first the user's own, then `settings` as `-c name=value`, because the last value takes
/// effect. Whitespace and backslashes in a value are escaped with a backslash (Postgres manual, "Database Connection Control
/// Functions").
fn startup_options(given: Option<&str>, settings: &[(&str, &str)]) -> Option<String> {
    let mut options = given.unwrap_or_default().trim().to_owned();
    // a trailing backslash would escape the space after it
    let trailing = options.bytes().rev().take_while(|&byte| byte == b'\\').count();
    if trailing % 2 == 1 {
        options.push('\\');
    }
    for (name, value) in settings {
        if !options.is_empty() {
            options.push(' ');
        }
        options.push_str("-c ");
        for c in name.chars().chain(['=']).chain(value.chars()) {
            if c == '\\' || c.is_ascii_whitespace() || c == '\u{b}' {
                options.push('\\');
            }
            options.push(c);
        }
    }
    (!options.is_empty()).then_some(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_override_the_users_options() {
        let options = startup_options(Some(" -c geqo=off "), &[("wal_sender_timeout", "10s")]);
        assert_eq!(options.as_deref(), Some("-c geqo=off -c wal_sender_timeout=10s"));
    }

    #[test]
    fn spaces_and_backslashes_in_a_value_are_escaped() {
        let options = startup_options(None, &[("search_path", r#""a b",c\d"#), ("x", "1\t2\n3\u{b}4")]);
        assert_eq!(options.as_deref(), Some("-c search_path=\"a\\ b\",c\\\\d -c x=1\\\t2\\\n3\\\u{b}4"));
    }

    #[test]
    fn a_session_begins_without_the_limits_of_applications() {
        let own = Startup { settings: &[("lock_timeout", "3000")], ..Startup::default() };
        let settings = own.all_settings(TargetSessionAttrs::Primary);
        assert!(settings.contains(&("default_transaction_read_only", "off")), "{settings:?}");
        assert_eq!(settings.last(), Some(&("lock_timeout", "3000")));
        assert!(!own.all_settings(TargetSessionAttrs::ReadWrite).contains(&READ_WRITE));
        assert!(Startup { pooled: true, ..own }.all_settings(TargetSessionAttrs::Any).is_empty());
    }

    #[test]
    fn without_options_and_settings_there_is_no_parameter() {
        assert_eq!(startup_options(None, &[]), None);
        assert_eq!(startup_options(Some("  "), &[]), None);
    }

    #[test]
    fn a_trailing_backslash_in_the_users_options_does_not_escape_ours() {
        let options = startup_options(Some("-c a=b\\"), &[("x", "1")]);
        assert_eq!(options.as_deref(), Some("-c a=b\\\\ -c x=1"));
    }
}
