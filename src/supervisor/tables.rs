//! What a start finds of the outbox tables besides the slot: columns, shards, parked events, and who reads the slot.

use pg_logical::server_error::QueryError;
use pg_logical::session::Session;

use super::session_state::SessionState;
use crate::checkpoint::SlotRecord;
use crate::config::{Config, DeliveryMode};
use crate::error::{Error, Peer};
use crate::outbox::Outbox;
use crate::postgres::catalog::{self, Catalog, Columns, Missing};
use crate::postgres::dead_letters::sql as dead_letters;
use crate::postgres::slot_record;
use crate::shards::{Ids, Shard};

/// Judges what else the catalogues say of the tables. Returns what [`shards`] does, and what the router's schema says of the slot, if
/// that matters.
pub(super) async fn look_at_tables(
    config: &Config,
    catalog: &Catalog,
    outbox: &Outbox,
    looks: &mut Session,
    memory: &SessionState,
) -> Result<(Option<(Shard, Ids)>, Vec<String>, Option<SlotRecord>), Error> {
    if !memory.was_active {
        for (name, table) in config.outbox.tables.iter().zip(&catalog.tables) {
            let Some(table) = table else { continue };
            let columns = Columns::query(looks, table.oid, &config.postgres).await?;
            columns.check(outbox, name)?;
        }
        for (what, remedy) in catalog::unwatched(config.source(), &catalog.tables) {
            tracing::warn!(remedy, "{what}");
        }
    }
    if !config.dead_letters.park() {
        none_left_parked(config, looks).await?;
    }
    let (shard, other_slots) = shards(config, catalog, looks, memory).await?;
    let record = match config.delivery.mode {
        DeliveryMode::ExactlyOnce => Some(slot_record::read(looks, &config.postgres.slot).await?),
        DeliveryMode::AtLeastOnce => None,
    };
    Ok((shard, other_slots, record))
}

/// Records in the router's schema who reads the slot, before the first event is read. At-least-once goes on without it.
pub(super) async fn claim(config: &Config, mut looks: Session) -> Result<(), Error> {
    let claimed = slot_record::claim(&mut looks, &config.postgres.slot, &config.name).await;
    looks.close().await;
    match (claimed, config.delivery.mode) {
        (Ok(()), _) => Ok(()),
        (Err(QueryError::Server { error, .. }), DeliveryMode::AtLeastOnce) => {
            tracing::warn!(peer = "postgres", %error, "{} cannot be written; events flow without it", SlotRecord::TABLE);
            Ok(())
        }
        (Err(error), _) => {
            let what = format!("{} cannot be written: {error}", SlotRecord::TABLE);
            Err(Error::transient(Peer::Postgres, what))
        }
    }
}

/// The shard that this router is of, with what its aggregates' ids are; and the slots of this router that are for another number
/// of shards.
async fn shards(
    config: &Config,
    catalog: &Catalog,
    looks: &mut Session,
    memory: &SessionState,
) -> Result<(Option<(Shard, Ids)>, Vec<String>), Error> {
    let shard = match config.shard {
        Some(shard) => {
            let missing = if memory.was_active { Missing::WhileRunning } else { Missing::AtStart };
            Some((shard, catalog::check_shards(looks, &[(config.source(), catalog)], missing).await?))
        }
        None => None,
    };
    Ok((
        shard,
        catalog::slots_of_other_shards(looks, config.slot_of_all(), &config.slots_of_all_shards()).await?,
    ))
}

/// Events that come after parked ones of their aggregate must not be sent past them.
async fn none_left_parked(config: &Config, looks: &mut Session) -> Result<(), Error> {
    match looks.query_one(dead_letters::READABLE).await?.as_deref() {
        Some("t") => {}
        // it may be there for another router
        Some(_) => {
            tracing::warn!(
                remedy = "If this router has ever parked events: GRANT USAGE ON SCHEMA outbox_router TO ROLE; GRANT SELECT ON \
                          outbox_router.dead_letters TO ROLE",
                "whether events are parked cannot be told: {} is there, and the router's role may not read it",
                dead_letters::TABLE
            );
            return Ok(());
        }
        None => return Ok(()),
    }
    let count = looks.query_one(&dead_letters::count(&config.name, "true")).await?.unwrap_or_default();
    if count == "0" {
        return Ok(());
    }
    let (what, remedy) = dead_letters::still_parked(&count);
    Err(Error::not_safe(what, remedy))
}
