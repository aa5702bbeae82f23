//! Whatever text a server answers with, or a password file has, is read or refused.

use std::str::FromStr;

use outbox_router::lsn::Lsn;
use outbox_router::postgres::passfile;
use outbox_router::postgres::server_error::ServerError;

pub fn run(bytes: &[u8]) {
    if let Ok(error) = ServerError::parse(bytes) {
        let shown = error.to_string();
        assert!(shown.contains(error.message.trim_end_matches('.')), "{shown}");
        let _ = error.outlook();
        assert!(error.into_error("postgres at db:5432", |_| "act".to_owned()).to_string().contains(":5432"));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(lsn) = Lsn::from_str(text) {
        assert_eq!(lsn.to_string().parse(), Ok(lsn));
    }
    let found = passfile::password(text, "db", "5432", "shop", "router");
    assert!(found.is_none_or(|password| password.len() <= text.len() && !password.contains('\n')));
}
