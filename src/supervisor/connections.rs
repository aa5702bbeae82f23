//! The sessions with Postgres that a start makes.

use pg_logical::connect::{STAYS_OPEN, Startup, VALUE_TEXT};
use pg_logical::conninfo::Host;
use pg_logical::lock_wait;
use pg_logical::lock_wait::Watcher;
use pg_logical::session::Session;

use super::session_state::SessionState;
use crate::advice;
use crate::config::Config;
use crate::error::{Error, Exit, Peer};

/// A session for the stream, or one to look at the catalogues of this server.
pub(crate) async fn connect(config: &Config, looks_at: Option<Host>) -> Result<Session, Error> {
    let timeout = config.postgres.wal_sender_timeout;
    let millis = timeout.as_millis().to_string();
    // A router that is cut off must not keep the slot for the two hours that TCP would wait.
    let mut settings = vec![
        ("wal_sender_timeout", millis.as_str()),
        ("tcp_user_timeout", millis.as_str()),
        ("tcp_keepalives_idle", "5"),
        ("tcp_keepalives_interval", "2"),
        ("tcp_keepalives_count", "3"),
        // what limits a statement of an application is not meant for these
        ("statement_timeout", "0"),
    ];
    settings.extend(VALUE_TEXT);
    // The same in the other direction, unless the user has chosen. What is sent and not answered is found out first here, as
    // long as the server still keeps the slot for this router.
    let mut conninfo = config.postgres.conninfo.clone();
    conninfo.connect_timeout.get_or_insert(timeout);
    conninfo.tcp.tcp_user_timeout.get_or_insert(timeout / 2);
    let replication = looks_at.is_none();
    let patience = lock_wait::patience(timeout);
    let lock_timeout = if replication { 0 } else { patience.as_millis() }.to_string();
    settings.push(("lock_timeout", &lock_timeout));
    if replication {
        // Nor must one that stands still keep the slot's lock. What streams is not idle, and of what bulk reads are read by something is
        // asked now and then.
        settings.push(("idle_session_timeout", millis.as_str()));
    } else {
        // that of a standby waits until the active router is gone
        settings.push(STAYS_OPEN);
    }
    if let Some(host) = looks_at {
        // another of several hosts has another idea of slot and log
        conninfo.hosts = vec![host];
    }
    let name = if replication { config.name.clone() } else { format!("{} watch", config.name) };
    let startup = Startup { replication, application_name: &name, settings: &settings };
    let mut session = Session::connect(&conninfo, &startup).await?;
    // a server that takes a connection and then says nothing is lost too
    session.answers_within(Some(timeout));
    if !replication {
        session.watched_by(
            Watcher::new(&conninfo, session.info(), &name).in_words(advice::in_words).within(patience),
        );
    }
    Ok(session)
}

/// Waits for what may take long, and asks the server for something now and then: it ends a session that asks for nothing.
pub(super) async fn awake<T>(
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
        // an answer that is not waited for would be taken for that of the next question
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

/// Credentials and privileges are changed under running routers.
pub(super) fn opened<T>(result: Result<T, Error>, memory: &SessionState) -> Result<T, Error> {
    result.map_err(|error| match error {
        Error::Definite(refused) if memory.was_active && refused.exit != Exit::Unsafe => {
            Error::transient(Peer::Kafka, refused.to_string())
        }
        error => error,
    })
}
