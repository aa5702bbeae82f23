//! The transaction of an attempt: whether a handler has ended it.

use tokio_postgres::types::Type;

use super::event::Event;
use super::failed::Failed;
use crate::session::Open;

/// The transaction's id.
const XID: &str = "SELECT pg_catalog.pg_current_xact_id()::text";

/// Whether this transaction is still open, and otherwise whether it was committed.
const STATE: &str = "SELECT coalesce(pg_catalog.pg_current_xact_id_if_assigned()::text = $1, false), \
                     pg_catalog.pg_xact_status($1::xid8) = 'committed'";

pub(super) async fn xid<'a>(open: &Open) -> Result<String, Failed<'a>> {
    let row = open.client().query_typed_one(XID, &[]).await;
    row.and_then(|row| row.try_get(0)).map_err(|error| Failed::of(error, None))
}

/// Whether this transaction has neither failed nor ended. The last handler was that of `handled`.
pub(super) async fn check<'a>(open: &Open, xid: &str, handled: Option<&'a Event>) -> Result<(), Failed<'a>> {
    let row = open.client().query_typed_one(STATE, &[(&xid, Type::TEXT)]).await;
    let state = row.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    match state.map_err(|error| Failed::of(error, handled))? {
        (true, _) => Ok(()),
        (false, Some(true)) => Err(Failed::Committed),
        (false, _) => Err(Failed::Ended(handled)),
    }
}
