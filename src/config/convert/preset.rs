//! `preset`: a different set of defaults.

use crate::config::raw::Value;
use crate::config::read::Reader;
use crate::config::{Columns, Route, TextForm};

/// Defaults that the other keys override.
#[derive(Default)]
pub(super) struct Defaults {
    pub(super) columns: Columns,
    pub(super) route: Route,
}

pub(super) fn defaults(reader: &mut Reader<'_>, preset: Value) -> Defaults {
    match reader.choice("preset", preset, &[("debezium", debezium as fn() -> Defaults)]) {
        Some(preset) => preset(),
        None => Defaults::default(),
    }
}

/// The table that Debezium's outbox event router expects, and its values as Connect writes them (Debezium manual, "Outbox
/// Event Router").
fn debezium() -> Defaults {
    let columns = Columns {
        aggregate_type: "aggregatetype".to_owned(),
        aggregate_id: "aggregateid".to_owned(),
        event_type: None,
        headers: None,
        created_at: None,
        idempotency_key: None,
        ..Columns::default()
    };
    Defaults { columns, route: Route { text: TextForm::Connect, ..Route::default() } }
}
