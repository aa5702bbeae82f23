//! Any text is a connection string or an error. A connection string can be printed and read back unchanged except for the
//! password.

use pg_logical::conninfo::{ConnInfo, Password};
use pg_logical::{Environment, Secret};

pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let env = Environment::empty().with_user("me").with_home("/home/me");
    let mut conninfo = match ConnInfo::parse(text, &env) {
        Ok(conninfo) => conninfo,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(!conninfo.hosts.is_empty() && !conninfo.user.is_empty() && !conninfo.dbname.is_empty());
    let printed = conninfo.to_redacted_uri();
    let again = ConnInfo::parse(&printed, &env).unwrap_or_else(|error| panic!("{printed}: {error}"));
    conninfo.password = match conninfo.password {
        Some(Password::Given(_)) => Some(Password::Given(Secret::new("****"))),
        Some(Password::File(_) | Password::Command(_)) | None => None,
    };
    assert_eq!(again, conninfo, "{printed}");
}
