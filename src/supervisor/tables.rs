//! Checks the outbox tables at a start: columns, shards, parked events, and the claim of the slot.

use pg_logical::QueryError;
use pg_logical::quoting;
use pg_logical::session::Session;

use super::resume_facts::read_slot_record;
use super::session_state::SessionState;
use crate::checkpoint::SlotRecord;
use crate::config::{Config, DeliveryMode};
use crate::error::{Error, ErrorCode, Peer, with_config_file};
use crate::outbox::Outbox;
use crate::pipeline::PresentColumns;
use crate::postgres::alteration::warn_of_unwatched;
use crate::postgres::catalog::{self, Catalog, Columns, Missing};
use crate::postgres::dead_letters::sql as dead_letters;
use crate::postgres::slot_record;
use crate::shards::{Ids, Shard};

/// What the checks have found.
pub(super) struct CheckedTables {
    pub(super) shard: Option<(Shard, Ids)>,
    /// This router's slots for another number of shards.
    pub(super) other_slots: Vec<String>,
    /// The slot's row in the router's schema; `None` if there are no checkpoints that could be lost.
    pub(super) record: Option<SlotRecord>,
    pub(super) present: PresentColumns,
}

/// Checks the tables.
pub(super) async fn check_tables(
    config: &Config,
    catalog: &Catalog,
    outbox: &Outbox,
    session: &mut Session,
    state: &SessionState,
) -> Result<CheckedTables, Error> {
    let columns = Columns::query(session, config.source(), &catalog.tables).await?;
    if !state.was_active {
        catalog::check_column_lists(outbox, config.source(), &columns, catalog)?;
        columns.iter().try_for_each(|columns| columns.check(outbox))?;
        if let Some((what, remedy)) = catalog::unnamed_outboxes(session, config.source()).await? {
            tracing::warn!(remedy = with_config_file(remedy), "{what}");
        }
    }
    warn_of_unwatched(&catalog::unwatched(config.source(), &catalog.tables), &state.unwatched);
    if !config.dead_letters.park() {
        refuse_parked_events(config, session).await?;
    }
    let (shard, other_slots) = check_shard(config, catalog, session, state).await?;
    let record = read_slot_record(config, session).await?;
    let written = |columns: &Columns| {
        let table = columns.table.to_string();
        columns.written.iter().map(|name| (table.clone(), name.clone())).collect::<Vec<_>>()
    };
    let present = PresentColumns {
        columns: columns.iter().flat_map(written).collect(),
        remedy: catalog.own_publication_with_rows(config.source()),
    };
    Ok(CheckedTables { shard, other_slots, record, present })
}

/// Claims the slot in the router's schema before the first event. At-least-once mode goes on if the server refuses it.
pub(super) async fn claim(config: &Config, mut session: Session) -> Result<(), Error> {
    let claimed = slot_record::claim(&mut session, &config.postgres.slot, &config.name).await;
    session.close().await;
    match (claimed, config.delivery.mode) {
        (Ok(()), _) => Ok(()),
        (Err(QueryError::Server { error, .. }), DeliveryMode::AtLeastOnce) => {
            tracing::warn!(peer = "postgres", %error, "{} cannot be written; the router goes on without it", SlotRecord::TABLE);
            Ok(())
        }
        (Err(error), _) => {
            let what = format!("{} cannot be written: {error}", SlotRecord::TABLE);
            Err(Error::transient(Peer::Postgres, what))
        }
    }
}

/// The shard of this router with the type of its aggregate ids, and the router's slots for another number of shards.
async fn check_shard(
    config: &Config,
    catalog: &Catalog,
    session: &mut Session,
    state: &SessionState,
) -> Result<(Option<(Shard, Ids)>, Vec<String>), Error> {
    let shard = match config.shard {
        Some(shard) => {
            let missing = if state.was_active { Missing::WhileRunning } else { Missing::AtStart };
            Some((shard, catalog::check_shards(session, &[(config.source(), catalog)], missing).await?))
        }
        None => None,
    };
    Ok((
        shard,
        catalog::slots_of_other_shards(session, config.base_slot(), &config.slots_of_all_shards()).await?,
    ))
}

/// Refuses to start if events are parked, since later events of their aggregates must not overtake them.
async fn refuse_parked_events(config: &Config, session: &mut Session) -> Result<(), Error> {
    match session.query_one(dead_letters::READABLE).await?.as_deref() {
        Some("t") => {}
        // the table may belong to another router
        Some(_) => {
            let role = quoting::identifier(&config.postgres.conninfo.user);
            tracing::warn!(
                remedy = format!(
                    "If this router has ever parked events: GRANT USAGE ON SCHEMA outbox_router TO {role}; GRANT SELECT ON {} TO {role}",
                    dead_letters::TABLE
                ),
                "the router cannot tell whether events are parked: its role may not read {}",
                dead_letters::TABLE
            );
            return Ok(());
        }
        None => return Ok(()),
    }
    let count = session.query_one(&dead_letters::count(&config.name, "true")).await?.unwrap_or_default();
    if count == "0" {
        return Ok(());
    }
    let (what, remedy) = dead_letters::still_parked(&count);
    Err(Error::not_safe(ErrorCode::EventsParked, what, remedy))
}
