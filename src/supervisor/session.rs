//! The start of one session, in the order that keeps two routers apart: Postgres first, then the producer, then the
//! position, then the stream.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::memory::Memory;
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::monitor::{Monitor, State};
use crate::outbox::Outbox;
use crate::postgres::catalog::{self, Catalog, Columns, Missing, Slot};
use crate::postgres::connect::{Startup, VALUE_TEXT};
use crate::postgres::pgoutput::Oid;
use crate::postgres::replication::{NotStarted, ReplicationStream, StreamOf};
use crate::postgres::session::Session;
use crate::postgres::timeline::System;
use crate::postgres::watch::{self, Watch};
use crate::relay::{Ended, Parts, Relay};
use crate::routing::Router;
use crate::sink::Outcomes;
use crate::sink::kafka::KafkaSink;

/// How often a slot that another holds is looked at, at first and at most.
const SLOT_WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Why a session did not come to run.
pub(super) enum NoSession {
    /// Asked to stop before it did.
    Stopped,
    /// It could not be started.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for NoSession {
    fn from(error: E) -> Self {
        NoSession::Failed(error.into())
    }
}

/// Starts a session and runs it to its end.
pub(super) async fn run(
    config: &Arc<Config>,
    monitor: &Monitor,
    stop: &CancellationToken,
    memory: &mut Memory,
) -> Result<Ended, NoSession> {
    let parts = tokio::select! {
        biased;
        () = stop.cancelled() => return Err(NoSession::Stopped),
        parts = start(config, monitor, stop, memory) => parts?,
    };
    memory.was_active = true;
    Ok(Relay::new(parts).run().await)
}

async fn start(
    config: &Arc<Config>,
    monitor: &Monitor,
    stop: &CancellationToken,
    memory: &mut Memory,
) -> Result<Parts<crate::postgres::stream::Stream>, Error> {
    if !memory.was_active {
        monitor.state(State::Connecting { peer: Peer::Postgres });
    }
    let mut session = connect(config).await?;
    let (catalog, slot) = free_slot(&mut session, config, monitor, memory).await?;
    // after the wait for the slot, for the end of the log must not be older than the slot's position
    let system = answered(config, System::identify(&mut session)).await?;
    let start = memory.start(&config.postgres.slot, &slot)?;
    let router = Router::of(config).judging_by(config, memory.contracts.clone());
    let oids = catalog.tables.iter().map(|table| table.as_ref().map(|table| Oid(table.oid)));
    let outbox = Outbox::of(config, router.extra_columns()).known_as(oids);
    if !memory.was_active {
        for (name, table) in config.outbox.tables.iter().zip(&catalog.tables) {
            let Some(table) = table else { continue };
            let columns = Columns::look(&mut session, table.oid, &config.postgres);
            answered(config, columns).await?.verdict(&outbox, name)?;
        }
    }
    if let Some(before) = &memory.system {
        answered(config, system.check(before, start.flush, &mut session)).await?;
    }
    let fingerprint = catalog.fingerprint();
    if memory.fingerprint.as_ref().is_some_and(|before| *before != fingerprint) {
        return Err(watch::altered(config));
    }

    if !memory.was_active {
        monitor.state(State::Connecting { peer: Peer::Kafka });
    }
    let outcomes = Arc::new(Outcomes::default());
    let known = Arc::clone(&memory.topics);
    let sink = KafkaSink::open(Arc::clone(config), Arc::clone(&outcomes), memory.batch_bytes, known).await;
    let sink = sink.map_err(|error| match error {
        // credentials are changed under running routers
        Error::Definite(refused) if memory.was_active => Error::transient(Peer::Kafka, refused.to_string()),
        error => error,
    })?;

    let version = session.parameters().get("server_version").cloned().unwrap_or_default();
    let (place, host) = (session.info().place.clone(), session.info().host.clone());
    memory.walsender = Some(session.backend_pid());
    // From here on wal_sender_timeout finds out that the router is gone. TCP's own timeout would also end the connection
    // of one that lives and reads nothing for a while, because the broker takes nothing.
    session.query("SET tcp_user_timeout = 0").await?;
    let (stream, unread, _) = session.into_parts();
    let slot_name = &config.postgres.slot;
    let what = StreamOf {
        slot: slot_name,
        publication: &config.postgres.publication,
        start: start.flush,
        messages: config.outbox.message_prefix.is_some(),
    };
    let started = ReplicationStream::start(stream, unread, what).await;
    let stream = match started {
        Ok(stream) => stream,
        Err(error) => {
            sink.close().await;
            return Err(not_started(error, config));
        }
    };
    if memory.fruitless {
        tracing::debug!("connected again");
    } else {
        tracing::info!(
            postgres = place, version, slot = slot_name, position = %start.flush,
            again = memory.was_active, "connected; events flow"
        );
    }
    monitor.state(State::Active);
    let head = system.flush;
    memory.system = Some(system);
    memory.fingerprint = Some(fingerprint.clone());

    Ok(Parts {
        config: Arc::clone(config),
        stream,
        outbox,
        router,
        sink,
        outcomes,
        watch: Watch::start(Arc::clone(config), host, fingerprint),
        start,
        head,
        alone_up_to: memory.alone_up_to,
        monitor: monitor.clone(),
        stop: stop.clone(),
    })
}

async fn connect(config: &Config) -> Result<Session, Error> {
    let timeout = config.postgres.wal_sender_timeout;
    let millis = timeout.as_millis().to_string();
    // A router that is cut off must not keep the slot for the two hours that TCP would wait.
    let mut settings = vec![
        ("wal_sender_timeout", millis.as_str()),
        ("tcp_user_timeout", millis.as_str()),
        ("tcp_keepalives_idle", "5"),
        ("tcp_keepalives_interval", "2"),
        ("tcp_keepalives_count", "3"),
    ];
    settings.extend(VALUE_TEXT);
    // the same in the other direction, unless the user has chosen
    let mut conninfo = config.postgres.conninfo.clone();
    conninfo.connect_timeout.get_or_insert(timeout);
    conninfo.tcp.tcp_user_timeout.get_or_insert(timeout);
    let startup = Startup { replication: true, application_name: &config.name, settings: &settings };
    Session::connect(&conninfo, &startup).await
}

/// A server that takes a connection and then says nothing is lost too.
async fn answered<T, E: Into<Error>>(
    config: &Config,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    let timeout = config.postgres.wal_sender_timeout;
    match tokio::time::timeout(timeout, answer).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => {
            Err(Error::transient(Peer::Postgres, format!("a query was not answered within {timeout:?}")))
        }
    }
}

/// Looks at the catalogues until nobody else reads the slot.
async fn free_slot(
    session: &mut Session,
    config: &Config,
    monitor: &Monitor,
    memory: &mut Memory,
) -> Result<(Catalog, Slot), Error> {
    let missing = if memory.was_active { Missing::WhileRunning } else { Missing::AtStart };
    let wal_level = session.query_one("SHOW wal_level").await?.unwrap_or_default();
    if wal_level != "logical" {
        return Err(Error::refused(
            format!("wal_level is {wal_level}, and logical replication needs logical"),
            "Set wal_level = logical in postgresql.conf (on Amazon RDS the parameter rds.logical_replication = 1) and \
             restart Postgres",
        ));
    }
    let (mut wait, mut told) = (SLOT_WAIT.0, None);
    loop {
        let catalog = answered(config, Catalog::look(session, &config.postgres, &config.outbox)).await?;
        catalog.verdict(&config.postgres, &config.outbox, missing)?;
        let Some(slot) = catalog.slot.clone() else {
            return Err(Error::transient(Peer::Postgres, "the slot's row is gone"));
        };
        let Some(pid) = slot.active_pid else { return Ok((catalog, slot)) };
        if told != Some(pid) {
            let reason = format!(
                "the slot {} is read by {}",
                config.postgres.slot,
                catalog::holder(session, pid).await?
            );
            tracing::info!(peer = "postgres", reason, "waiting for the slot");
            monitor.state(State::Waiting { reason });
            told = Some(pid);
            // Unless it is what is left of our own last session, somebody else reads the slot, and may move it by what
            // it delivers: our own position is history then.
            if memory.walsender != Some(pid) {
                memory.position = None;
            }
        }
        monitor.turned();
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(SLOT_WAIT.1);
    }
}

fn not_started(error: NotStarted, config: &Config) -> Error {
    let slot = &config.postgres.slot;
    match error {
        NotStarted::Failed(error) => error,
        // somebody was faster between the look and the start
        NotStarted::Server(error) if error.code.code() == "55006" => {
            Error::transient(Peer::Postgres, format!("the slot {slot} was taken by another: {error}"))
        }
        // what concerns the slot itself: invalidated, not a logical one
        NotStarted::Server(error) if matches!(error.code.code(), "55000" | "42704") => Error::not_safe(
            format!("Postgres does not start the slot {slot}: {error}"),
            "Run `outbox-router check`, which says what state it is in",
        ),
        NotStarted::Server(error) => error.into_error("START_REPLICATION", |_| {
            "Run `outbox-router check`, which looks at privileges, slot and publication".to_owned()
        }),
    }
}
