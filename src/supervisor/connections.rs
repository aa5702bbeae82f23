//! The Postgres sessions of a router.

use pg_logical::connect::{Startup, VALUE_TEXT};
use pg_logical::conninfo::Host;
use pg_logical::lock_wait;
use pg_logical::lock_wait::LockWatcher;
use pg_logical::session::Session;

use super::session_state::SessionState;
use crate::advice;
use crate::config::Config;
use crate::error::{Error, Exit, Transient};

/// Opens the session for the stream, or, on the host of that session, the one that watches the catalogues.
pub(crate) async fn connect(config: &Config, watch_host: Option<Host>) -> Result<Session, Error> {
    let timeout = config.postgres.wal_sender_timeout;
    let millis = timeout.as_millis().to_string();
    // TCP alone would let a disconnected router keep the slot for two hours.
    let mut settings = vec![
        ("wal_sender_timeout", millis.as_str()),
        ("tcp_user_timeout", millis.as_str()),
        ("tcp_keepalives_idle", "5"),
        ("tcp_keepalives_interval", "2"),
        ("tcp_keepalives_count", "3"),
    ];
    settings.extend(VALUE_TEXT);
    // The same towards the server, unless the user has chosen. This side times out first, while the server still keeps the slot.
    let mut conninfo = config.postgres.conninfo.clone();
    conninfo.connect_timeout.get_or_insert(timeout);
    conninfo.tcp.tcp_user_timeout.get_or_insert(timeout / 2);
    let replication = watch_host.is_none();
    let lock_timeout = lock_wait::lock_timeout(timeout);
    let lock_timeout_ms = lock_timeout.as_millis().to_string();
    if replication {
        // A stuck router must not keep the slot's lock. A streaming session is never idle, and bulk reads send a query from time
        // to time.
        settings.push(("idle_session_timeout", millis.as_str()));
    } else {
        settings.push(("lock_timeout", &lock_timeout_ms));
    }
    if let Some(host) = watch_host {
        // another host may have a different slot and log
        conninfo.hosts = vec![host];
    }
    let name = if replication { config.name.clone() } else { format!("{} watch", config.name) };
    let startup = Startup { replication, application_name: &name, settings: &settings, pooled: false };
    let mut session = Session::connect(&conninfo, &startup).await?;
    // a server that accepts a connection but never answers counts as lost
    session.set_answer_timeout(Some(timeout));
    if !replication {
        session.set_watcher(
            LockWatcher::new(&conninfo, session.info(), &name)
                .describing_errors_with(advice::in_words)
                .with_lock_timeout(lock_timeout),
        );
    }
    Ok(session)
}

/// Runs a long operation, and sends the server a query from time to time because it ends idle sessions.
pub(super) async fn keep_alive<T>(
    config: &Config,
    session: &mut Session,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let every = config.postgres.wal_sender_timeout / 4;
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(every, &mut work).await {
            return done;
        }
        // an abandoned answer would be taken for that of the next query
        let mut asked = std::pin::pin!(session.query("SELECT 1"));
        let mut done = None;
        loop {
            tokio::select! {
                answer = &mut asked => break drop(answer?),
                result = &mut work, if done.is_none() => done = Some(result),
            }
        }
        if let Some(done) = done {
            return done;
        }
    }
}

/// Makes refusals transient once the router was active: credentials and privileges may change while it runs.
pub(super) fn transient_if_active<T>(result: Result<T, Error>, state: &SessionState) -> Result<T, Error> {
    result.map_err(|error| match error {
        Error::Definite(refused) if state.was_active && refused.exit != Exit::Unsafe => {
            Transient::from_refusal(refused).into()
        }
        error => error,
    })
}
