//! Which rows the router has delivered.

use pg_logical::quoting::{identifier, literal};
use pg_logical::session::Session;

use crate::config::Config;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::postgres::backfills::access::refuse_unfinished;
use crate::postgres::rows::{moment, read_only};

/// What tells later which rows are delivered now: the time in microseconds since 1970 if the table is polled, otherwise a transaction id.
pub(super) async fn horizon(session: &mut Session, config: &Config, now: i64) -> Result<String, Error> {
    match &config.polling {
        Some(_) => Ok(now.to_string()),
        None => oldest_transaction(session, config).await,
    }
}

/// Conditions on `q` for rows that the router had delivered at this horizon. It does not send others out of turn.
pub(super) async fn delivered(
    session: &mut Session,
    config: &Config,
    horizon: &str,
) -> Result<Vec<String>, Error> {
    if let Some(polling) = &config.polling {
        let columns = &polling.columns;
        let [status, at, error] =
            [&columns.status, &columns.published_at, &columns.last_error].map(|name| identifier(name));
        // rows that were published before polling have no time; those that somebody has discarded have an error instead
        return Ok(vec![format!(
            "q.{status} = {} AND (q.{at} <= {} OR q.{at} IS NULL AND q.{error} IS NULL)",
            literal(&polling.status.published),
            moment(horizon.parse().unwrap_or_default())
        )]);
    }
    let slots = config.slots_of_all_shards();
    refuse_unfinished(session, &slots, "a replay would send them before their turn").await?;
    // whatever has an older transaction had ended before the confirmed position of each slot
    let mut conditions = vec![format!("age(q.xmin) > age({}::xid)", literal(horizon))];
    let parked = "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                  WHERE n.nspname = 'outbox_router' AND c.relname = 'dead_letters')";
    if session.query_one(&read_only(parked)).await?.as_deref() == Some("t") {
        // they are sent in their turn once somebody retries them; a cast would trim a text of fixed length
        let id = identifier(&config.outbox.columns.id);
        conditions.push(format!(
            "NOT EXISTS (SELECT FROM outbox_router.dead_letters d WHERE d.event_id = concat(q.{id}))"
        ));
    }
    Ok(conditions)
}

/// The oldest `catalog_xmin` of the router's slots.
async fn oldest_transaction(session: &mut Session, config: &Config) -> Result<String, Error> {
    let slots = config.slots_of_all_shards();
    let names: Vec<String> = slots.iter().map(|slot| literal(slot)).collect();
    let sql = format!(
        "SELECT s.catalog_xmin FROM pg_replication_slots s WHERE s.slot_name IN ({}) AND s.database = current_database() \
         AND s.wal_status IS DISTINCT FROM 'lost' ORDER BY age(s.catalog_xmin) DESC NULLS FIRST",
        names.join(", ")
    );
    let found = session.query(&read_only(&sql)).await?;
    let oldest = found.first().and_then(|row| row.get(0)).filter(|_| found.len() == slots.len());
    oldest.map(str::to_owned).ok_or_else(|| {
        Error::refused(
            ErrorCode::ReplayImpossible,
            format!(
                "it is not known which rows were delivered, because one of these slots does not exist or is lost: {}",
                slots.join(", ")
            ),
            Remedy::steps([Step::new("See what is wrong with the slot").typing("outbox-router check")]),
        )
    })
}
