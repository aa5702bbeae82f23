//! What to do while there is no slot: nothing waits in the log, but the rows of the table can still be sent.

use super::Catalog;
use crate::config::OutboxSource;
use crate::error::{Remedy, Step};

/// The way that keeps the rows.
const WITH_ROWS: &str = "To send the rows that are in the table, too";

/// How the slot is created after the commands of `fix`. `text` says what to do in one sentence.
pub(super) fn create(catalog: &Catalog, source: OutboxSource<'_>, text: &str, fix: &Remedy) -> Remedy {
    let way = |option: &str| {
        let init = Step::new(text).typing(format!("{}{option}", catalog.init(source)));
        Remedy::steps([init]).preceded_by(fix.clone())
    };
    // it sends the rows of one table
    let [Some(_)] = catalog.tables[..] else { return way("") };
    Remedy::default().and(WITH_ROWS, way(" --backfill")).and("Without these rows", way(""))
}
