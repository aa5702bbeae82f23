//! What a session is for, and the startup message that says so.

use std::io;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use crate::conninfo::ConnInfo;

/// Settings that fix the text form of values, which would otherwise depend on settings of the role or database.
pub const VALUE_TEXT: [(&str, &str); 6] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("TimeZone", "UTC"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "1"),
    ("bytea_output", "hex"),
];

/// For a session that may be idle for long: exempts it from the server's limit on idle sessions.
pub const NO_IDLE_TIMEOUT: (&str, &str) = ("idle_session_timeout", "0");

/// A setting for sessions whose statements take as long as they need: a limit for the statements of applications, set for the role or
/// the database, must not apply to them.
pub const NO_STATEMENT_TIMEOUT: (&str, &str) = ("statement_timeout", "0");

/// What a session is for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Startup<'a> {
    /// `replication=database`: a walsender session, which accepts replication commands and SQL.
    pub replication: bool,
    /// `application_name`, unless the connection string has one.
    pub application_name: &'a str,
    /// Settings of the session, name and value. They override those in the connection string's `options`.
    pub settings: &'a [(&'a str, &'a str)],
}

pub(super) fn startup_message(conninfo: &ConnInfo, startup: &Startup<'_>) -> io::Result<BytesMut> {
    let options = startup_options(conninfo.options.as_deref(), startup.settings);
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
