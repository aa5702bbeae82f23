//! Connecting to Postgres: sockets, passwords, TLS, several hosts.

mod attempts;
mod authentication;
mod encryption;
mod limits;
mod sessions;

use outbox_router::error::Error;
use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::session::Session;

/// The expected outcome of a connection attempt.
enum Expect {
    /// It opens, with TLS or without.
    Open { tls: bool },
    /// A definite error with all these words.
    Refused(&'static [&'static str]),
    /// A transient error with all these words.
    Transient(&'static [&'static str]),
}

const PLAIN: Expect = Expect::Open { tls: false };
const TLS: Expect = Expect::Open { tls: true };

/// One row of a table of connection attempts.
struct Case {
    name: &'static str,
    conninfo: ConnInfo,
    expect: Expect,
}

/// Tries all connections and reports those with another outcome than expected. With SHOW_MESSAGES set, prints every outcome.
async fn try_all(cases: Vec<Case>) {
    let mut wrong = Vec::new();
    for Case { name, conninfo, expect } in cases {
        let outcome = Session::connect(&conninfo, &Startup::default()).await.map_err(Error::from);
        let text = match &outcome {
            Ok(session) => format!("opened, TLS: {}", session.is_tls()),
            Err(error) => format!(
                "{}: {error}",
                if matches!(error, Error::Definite(_)) { "refused" } else { "transient" }
            ),
        };
        let has = |words: &[&str]| words.iter().all(|word| text.contains(word));
        let as_expected = match (&outcome, &expect) {
            (Ok(session), Expect::Open { tls }) => session.is_tls() == *tls,
            (Err(Error::Definite(_)), Expect::Refused(words)) => has(words),
            (Err(Error::Transient(_)), Expect::Transient(words)) => has(words),
            _ => false,
        };
        if std::env::var_os("SHOW_MESSAGES").is_some() {
            println!("{name}: {text}\n");
        }
        if !as_expected {
            wrong.push(format!("{name}: {text}"));
        }
    }
    assert!(wrong.is_empty(), "not as expected:\n{}", wrong.join("\n"));
}
