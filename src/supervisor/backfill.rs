//! The start of a session that sends the rows from before the slot, as `init --backfill` has stored it.

use pg_logical::connect::Startup;
use pg_logical::conninfo::Host;
use pg_logical::quoting;
use pg_logical::session::Session;
use pg_logical::{Lsn, Oid, QueryError, bulk_read};

use super::session_state::SessionState;
use crate::advice::OrRemedy;
use crate::checkpoint::{Checkpoint, StreamDefinition};
use crate::config::{Config, TableName};
use crate::error::{Effect, Error, ErrorCode, Peer, Remedy, Step, with_config_file};
use crate::monitor::Monitor;
use crate::outbox::Outbox;
use crate::pipeline::Pipeline;
use crate::postgres::administrator::{init_command, init_remedy};
use crate::postgres::backfills::access::{self, table};
use crate::postgres::backfills::worker::Worker;
use crate::postgres::backfills::{self, Backfill, Stored};
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::page::RowQuery;
use crate::postgres::rows::pages::{AtEnd, Pages};
use crate::postgres::rows::reader::Extent;
use crate::postgres::slot_functions;
use crate::postgres::watch::Watch;
use crate::routing::Router;
use crate::source::SessionLease;
use crate::source::table::backfilled::BackfillParts;

/// So many changed rows are not counted exactly.
const MANY: u64 = 1_000_000;

/// The rows from before this slot, unless all are sent.
pub(super) async fn unfinished(
    config: &Config,
    session: &mut Session,
    state: &SessionState,
) -> Result<Option<Box<Backfill>>, Error> {
    let slot = &config.postgres.slot;
    match backfills::is_readable(session).await? {
        None => return Ok(None),
        // it has streamed the slot
        Some(false) if state.streamed => return Ok(None),
        Some(false) => {
            return Err(Error::refused(
                ErrorCode::BackfillImpossible,
                format!(
                    "the role {} may not read {}, which says whether rows from before the slot are to be sent",
                    quoting::identifier(&config.postgres.conninfo.user),
                    backfills::TABLE
                ),
                init_remedy("Grant it", &config.postgres.conninfo),
            ));
        }
        Some(true) => {}
    }
    match backfills::find(session, slot).await? {
        Some(Stored::Begun(backfill)) if !backfill.finished => Ok(Some(backfill)),
        Some(Stored::Begun(_)) | None => Ok(None),
        Some(Stored::Incomplete) => Err(Error::refused(
            ErrorCode::BackfillImpossible,
            format!("`outbox-router init --backfill` is creating the slot {slot}, or was interrupted"),
            Remedy::steps([Step::new("Wait for it, or run it again: it then creates the slot anew")
                .typing(format!("{} --backfill", init_command(&config.postgres.conninfo)))]),
        )),
    }
}

/// Whether rows from before the slot are still to be sent if the session resumes at `position`.
///
/// # Errors
/// The slot or the router is elsewhere, so that events between may be missing.
pub(super) fn is_due(
    config: &Config,
    backfill: &Backfill,
    confirmed: Lsn,
    before: Option<&Checkpoint>,
    position: Lsn,
) -> Result<bool, Error> {
    let (slot, start) = (&config.postgres.slot, backfill.selection.slot_start);
    // a router streams only after the last of these rows; a standby that was promoted may not know that they were sent
    if before.is_some_and(|before| {
        before.slot == *slot && before.backfill.is_none() && before.position.flush >= start
    }) {
        return Ok(false);
    }
    if confirmed == start && position == start {
        return Ok(true);
    }
    let to = if confirmed == start { position } else { confirmed };
    Err(must_begin_again(
        config,
        format!(
            "the rows from before the slot {slot} are not all sent, and they end at its first position {start}, but the position is {to} \
             now: somebody has moved it or has created the slot again"
        ),
    ))
}

/// Rows may be missing unless the backfill begins again.
fn must_begin_again(config: &Config, what: String) -> Error {
    let slot = &config.postgres.slot;
    let steps = [
        Step::new("Drop the slot: what was committed since it was created is then read from the table too")
            .sql(slot_functions::drop(slot)),
        Step::new(
            "Begin again, with the same --since and --only. Rows that were sent already are sent twice",
        )
        .typing(format!("{} --backfill", init_command(&config.postgres.conninfo))),
        Step::new("Start the router").typing("outbox-router run"),
    ];
    let forget = [Step::new("Delete what is stored about them").sql(backfills::forget(slot))];
    let remedy = Remedy::steps(steps).or("If their rest must not be sent", forget);
    Error::not_safe(ErrorCode::BackfillImpossible, what, remedy).meaning(
        Effect::Doubled,
        "and rows that were deleted since the slot was created are only in the slot",
    )
}

/// The session that reads rows, and what it reads.
pub(super) struct Reading {
    session: Session,
    backfill: Box<Backfill>,
    rows: (RowQuery, Extent),
    at_end: AtEnd,
    table: Oid,
    definitions: Vec<Vec<u8>>,
    outbox: Outbox,
    router: Router,
}

/// Connects to the server that has the slot, and checks the table.
pub(super) async fn connect(
    config: &Config,
    backfill: Box<Backfill>,
    host: Host,
    state: &SessionState,
) -> Result<Reading, Error> {
    let table = table(&config.outbox.tables, &backfill)?;
    let (rows_config, _) = config.for_rows(None).map_err(|needs| {
        Error::not_safe(
            ErrorCode::BackfillImpossible,
            format!(
                "`[route]`: `{}` uses a value that only the log has, and rows from before the slot are not sent yet",
                needs.0
            ),
            "Leave it out until they are sent",
        )
    })?;
    let timeout = config.postgres.wal_sender_timeout;
    let mut conninfo = config.postgres.conninfo.clone();
    conninfo.hosts = vec![host];
    conninfo.connect_timeout.get_or_insert(timeout);
    conninfo.tcp.tcp_user_timeout.get_or_insert(timeout / 2);
    let name = format!("{} backfill", config.name);
    let startup = Startup { application_name: &name, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await?;
    let layout = TableLayout::existing(&mut session, table).await?;
    access::verify(&mut session, &config.postgres.conninfo.user, &layout, table).await?;
    let rewritten = must_begin_again(config, rewritten(table));
    if !backfill.is_of(&layout) || session.query_one(&backfill.rewritten()).await?.as_deref() != Some("0") {
        return Err(rewritten);
    }
    if session.query_one(&backfill.is_visible()).await?.as_deref() != Some("t") {
        return Err(Error::transient(
            Peer::Postgres,
            "a transaction that committed before the slot is not visible yet: a synchronous standby has not confirmed it",
        ));
    }
    warn_of_idle_timeout(&mut session, &config.postgres.slot).await?;
    let router = Router::of(&rows_config).with_contracts(&rows_config, state.contracts.clone());
    let outbox = Outbox::of(&rows_config, router.extra_columns()).with_oids([Some(layout.oid())]);
    let columns = layout.of_events(&rows_config.outbox, router.extra_columns());
    let at_end = AtEnd {
        sql: backfill.changed(&layout, MANY),
        judge: Box::new(move |row| {
            warn_of_changed(row.get(0).and_then(|rows| rows.parse().ok()).unwrap_or_default());
            if row.get(1) == Some("0") { Ok(()) } else { Err(rewritten.clone()) }
        }),
    };
    Ok(Reading {
        definitions: layout.messages(&columns),
        rows: backfill.query(&layout, columns),
        table: layout.oid(),
        session,
        backfill,
        at_end,
        outbox,
        router,
    })
}

/// Begins to read. `holder` is the session with the slot's lock; the log ends at `head`.
pub(super) async fn start(
    config: &Config,
    reading: Reading,
    mut holder: Session,
    (checkpoint, definition, head): (Checkpoint, StreamDefinition, Lsn),
    state: &SessionState,
    monitor: &Monitor,
) -> Result<(BackfillParts, Pipeline), Error> {
    let Reading { session, backfill, rows, at_end, table, definitions, outbox, router } = reading;
    let lease = SessionLease::begin(config);
    holder.query(&bulk_read::prepare(config.postgres.wal_sender_timeout)).await?;
    let (done, all) = (backfill.done.rows, backfill.selection.rows);
    if state.no_progress {
        tracing::debug!(done, all, "rows from before the slot are read again");
    } else {
        tracing::info!(
            "{all} rows from before the slot are sent first, of which {done} are done; `status` shows progress"
        );
    }
    let (host, pid) = (holder.info().host.clone(), holder.backend_pid());
    let watch =
        Watch::start(&config.name, config.source(), None, host, pid, definition, state.unwatched.clone());
    let pipeline =
        Pipeline::new(outbox, router, None, Lsn::INVALID, config.outbox.on_update, monitor.clone());
    let parts = BackfillParts {
        worker: Worker::start(holder, backfill.done.clone()),
        pages: Pages::start(session, rows, Some(at_end), readable),
        table,
        definitions,
        watch,
        slot: config.postgres.slot.clone(),
        lease,
        checkpoint,
        head,
        monitor: monitor.clone(),
        backfill: *backfill,
    };
    Ok((parts, pipeline.of_table_rows()))
}

fn rewritten(table: &TableName) -> String {
    format!(
        "{table} was rewritten or replaced after the slot was created (VACUUM FULL, CLUSTER, TRUNCATE, ALTER TABLE), so rows from before \
         the slot may be missing"
    )
}

/// Nobody reads the slot while rows from before it are sent.
async fn warn_of_idle_timeout(session: &mut Session, slot: &str) -> Result<(), Error> {
    let timeout = "SELECT nullif(current_setting('idle_replication_slot_timeout', true), '0')";
    if let Some(timeout) = session.query_one(timeout).await?.filter(|timeout| !timeout.is_empty()) {
        tracing::warn!(
            remedy = "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
            "the slot {slot} is idle until the rows from before it are sent, and Postgres invalidates it after {timeout}"
        );
    }
    Ok(())
}

/// Rows that were updated after the slot was created are neither among those from before it nor in it.
fn warn_of_changed(rows: u64) {
    if rows > 0 {
        tracing::error!(
            rows,
            remedy = with_config_file(
                "Those that were inserted then, with an earlier time, come from the slot. Send those that were updated with \
                 outbox-router replay --id"
            ),
            "rows with a time from before the slot were updated or inserted after it was created: updated ones are not sent"
        );
    }
}

/// What to do if the table can no longer be read.
fn readable(error: QueryError) -> Error {
    error.or_remedy("Rows from before the slot are read with SELECT: the router's role needs it on the outbox table until they are sent")
}
