//! The replication slot. It is created last, because Postgres waits for all open transactions before it creates one.

use std::pin::pin;
use std::time::Duration;

use pg_logical::QueryError;
use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, Host};
use pg_logical::lock_wait::LockWait;
use pg_logical::quoting;
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::maker::APPLICATION_NAME;
use crate::advice::LOCK_REMEDY;
use crate::commands::server::{FAILOVER_SLOTS, STANDBY_REMEDY, Server, Usage};
use crate::config::Config;
use crate::error::{Definite, Effect, Error, ErrorCode, Exit, Remedy, Step};
use crate::postgres::catalog::{Catalog, ROW_FILTERS, Slot, no_row_filters};
use crate::postgres::{administrator, cluster_manager};

/// How long cancelling the creation of the slot may take.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks what every slot needs, before anything is created; without shards, none is. Returns the server's version and settings, and whether a
/// slot is missing. `router`: how the router will connect.
pub(super) async fn preconditions(
    session: &mut Session,
    shards: &[Config],
    router: &ConnInfo,
) -> Result<(Server, bool), Error> {
    let server = Server::query(session).await?;
    if let Some(what) = server.too_old() {
        return Err(Error::refused(ErrorCode::ServerUnsuitable, what, "Upgrade the server"));
    }
    if server.standby {
        return Err(Error::refused(
            ErrorCode::ServerUnsuitable,
            "the server is a standby, and a standby is read-only",
            STANDBY_REMEDY,
        ));
    }
    if !shards.is_empty() {
        administrator::check_wal_level(&server.wal_level, std::slice::from_ref(&session.info().host))?;
    }
    if shards.len() > 1 && server.number < ROW_FILTERS {
        return Err(no_row_filters(&server.version, "; nothing was changed"));
    }
    let mut missing = 0;
    for shard in shards {
        let catalog = Catalog::query(session, &shard.postgres, &shard.outbox).await?;
        match &catalog.slot {
            Some(_) => usable(&catalog, shard)?,
            None => missing += 1,
        }
    }
    if missing > server.slots.left() {
        let Usage { used, max } = server.slots;
        return Err(no_free_slot(&used.to_string(), &max.to_string(), missing));
    }
    if missing > 0 {
        check_may_create(session, router).await.map_err(Error::without_slot)?;
        if let Some((what, remedy)) = cluster_manager::that_drops_slots(session).await? {
            tracing::warn!(remedy, "{what}");
        }
    }
    Ok((server, missing > 0))
}

/// Whether the role may create a slot. Managed services have roles of their own for this, so with one of those only the attempt
/// tells.
async fn check_may_create(session: &mut Session, router: &ConnInfo) -> Result<(), Error> {
    let may = "SELECT current_user, r.rolsuper OR r.rolreplication OR EXISTS (SELECT FROM pg_catalog.pg_roles g \
               WHERE g.rolname ~ 'replication|superuser' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')) \
               FROM pg_catalog.pg_roles r WHERE r.rolname = current_user";
    let rows = session.query(may).await?;
    match rows.first() {
        Some(row) if row.get(1) == Some("f") => {
            let role = quoting::identifier(row.get(0).unwrap_or_default());
            let remedy = administrator::init_remedy("Run init again", router).or(
                "To create the slot as this role",
                [Step::new("As a superuser allow it, and run init again")
                    .sql(format!("ALTER ROLE {role} REPLICATION"))],
            );
            Err(Error::refused(
                ErrorCode::PostgresAccess,
                format!("the role {role} may not create a replication slot; nothing was changed"),
                remedy,
            ))
        }
        _ => Ok(()),
    }
}

fn no_free_slot(used: &str, max: &str, missing: u32) -> Error {
    let what = match missing {
        1 => format!("all replication slots are in use ({used} of max_replication_slots = {max})"),
        _ => format!(
            "{missing} replication slots are missing, and {used} of max_replication_slots = {max} are in use"
        ),
    };
    Error::refused(ErrorCode::NoFreeSlot, format!("{what}; nothing was changed"), administrator::free_slot())
}

/// Whether an existing slot can be used.
pub(super) fn usable(catalog: &Catalog, config: &Config) -> Result<(), Error> {
    match catalog.check_slot(config.source()) {
        Err(Error::Definite(definite)) if definite.code == ErrorCode::SlotOfAnotherDatabase => {
            Err(Error::refused(
                definite.code,
                definite.what,
                "Set another name as `[postgres] slot`, because slot names are unique in the whole cluster, and run init again; or correct the \
                 database, if it is wrong",
            )
            .meaning(Effect::None, ""))
        }
        // `run` exits with 3 here; `init` has sent nothing, so it exits with 1
        Err(Error::Definite(definite)) => Err(Definite { exit: Exit::Refused, ..definite }.into()),
        other => other,
    }
}

/// Creates the slot and returns the position that it starts at.
pub(super) async fn create(
    session: &mut Session,
    conninfo: &ConnInfo,
    server: &Server,
    name: &str,
    stop: &CancellationToken,
) -> Result<String, Error> {
    let (pid, host) = (session.backend_pid(), session.info().host.clone());
    let failover = if server.number >= FAILOVER_SLOTS { ", failover => true" } else { "" };
    let sql = format!(
        "SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput'{failover})",
        literal(name)
    );
    let created = unless_interrupted(session.query_one(&sql), conninfo, (host, pid), name, stop);
    created.await.map(Option::unwrap_or_default)
}

/// Waits for a slot to be created by this server process, unless somebody stops it.
pub(super) async fn unless_interrupted<T>(
    creation: impl Future<Output = Result<T, QueryError>>,
    conninfo: &ConnInfo,
    (host, pid): (Host, i32),
    name: &str,
    stop: &CancellationToken,
) -> Result<T, Error> {
    let mut creation = pin!(creation);
    tokio::select! {
        biased;
        created = &mut creation => return created.map_err(|error| refused(error, name, conninfo)),
        () = stop.cancelled() => {}
    }
    // if this fails, the server ends the statement once it notices that this process has ended
    let _ = timeout(CANCEL_TIMEOUT, cancel(conninfo, host, pid)).await;
    match timeout(CANCEL_TIMEOUT, creation).await {
        Ok(Ok(created)) => Ok(created),
        _ => Err(interrupted(name)),
    }
}

pub(super) fn interrupted(name: &str) -> Error {
    Error::refused(
        ErrorCode::InitIncomplete,
        format!("interrupted before the slot {name} was created; everything else exists"),
        "Run init again to create the slot",
    )
}

/// Logs what the creation of a slot waits for.
pub(in crate::commands) fn say_wait(wait: &LockWait) {
    tracing::warn!(
        remedy = LOCK_REMEDY,
        "Postgres creates the slot once all transactions that are open on the server have ended; {wait}"
    );
}

/// Cancels the creation with a second session, because the first one is busy.
async fn cancel(conninfo: &ConnInfo, host: Host, pid: i32) -> Result<(), Error> {
    let conninfo = ConnInfo { hosts: vec![host], ..conninfo.clone() };
    let startup = Startup { application_name: APPLICATION_NAME, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await?;
    session.query(&format!("SELECT pg_catalog.pg_cancel_backend({pid})")).await?;
    Ok(())
}

/// Sets `failover` on a slot that was created without it, with a command of the replication protocol. A failure is returned as
/// a clause, because the slot can be used without it.
pub(super) async fn allow_failover(conninfo: &ConnInfo, slot: &Slot, name: &str) -> Result<(), String> {
    if slot.active_pid.is_some() {
        return Err(
            "and that cannot be changed while a router reads it: stop the router, and run init again"
                .to_owned(),
        );
    }
    let startup = Startup { replication: true, application_name: APPLICATION_NAME, ..Startup::default() };
    let not_altered = |reason: &dyn std::fmt::Display| format!("and that cannot be changed: {reason}");
    let mut session = Session::connect(conninfo, &startup).await.map_err(|error| not_altered(&error))?;
    let altered = session.query(&alter_failover(name)).await;
    session.close().await;
    altered.map(drop).map_err(|error| not_altered(&error))
}

/// The command, for a session with `replication=database`.
pub(in crate::commands) fn alter_failover(name: &str) -> String {
    format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", quoting::identifier(name))
}

fn refused(error: QueryError, name: &str, conninfo: &ConnInfo) -> Error {
    let remedy = match error.code().map(|code| code.code()) {
        Some("42501") => Remedy::from(format!(
            "Connect with --url as an administrator, or as a superuser: ALTER ROLE {} REPLICATION (managed services: \
             GRANT rds_replication and the like)",
            quoting::identifier(&conninfo.user)
        )),
        // another session took the last one after the check
        Some("53400") => return no_free_slot("all", "as it is", 1),
        Some("55000") => administrator::set_wal_level(&conninfo.hosts),
        _ => "Run `outbox-router check`, which checks slots and settings".into(),
    };
    super::cannot("create", &format!("slot {name}"), error, remedy)
}
