//! Server errors, checkpoints of the positions topic, timeline histories and password files are read or refused, whatever their
//! bytes.

use std::str::FromStr;

use outbox_router::checkpoint::{Checkpoint, Descent, descent};
use outbox_router::error::Error;
use pg_logical::QueryError;
use pg_logical::server_error::ServerError;
use pg_logical::{Lsn, passfile};

pub fn run(bytes: &[u8]) {
    if let Ok(error) = ServerError::parse(bytes) {
        let shown = error.to_string();
        assert!(shown.contains(error.message.trim_end_matches('.')), "{shown}");
        let _ = error.kind();
        let refused = QueryError::Server { place: "db:5432".to_owned(), error: Box::new(error) };
        assert!(Error::from(refused).to_string().contains(":5432"));
    }
    if let Ok(checkpoint) = Checkpoint::decode(bytes) {
        assert_eq!(Checkpoint::decode(&checkpoint.encode()), Ok(checkpoint));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(lsn) = Lsn::from_str(text) {
        assert_eq!(lsn.to_string().parse(), Ok(lsn));
    }
    // a position is part of a history only because of a valid line
    if let Descent::Holds = descent(text, 1, Lsn(u64::MAX)) {
        assert!(text.lines().any(|line| line.trim_start().starts_with(['1', '0', '+'])), "{text}");
    }
    let found = passfile::password(text, "db", "5432", "shop", "router");
    assert!(found.is_none_or(|password| password.len() <= text.len() && !password.contains('\n')));
}
