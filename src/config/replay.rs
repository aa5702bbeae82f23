//! `[replay]`: how much an operator may send again.

use std::fmt::{self, Write};

use super::Config;
use super::raw::RawReplay;
use super::read::Reader;

/// `[replay]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplayLimits {
    /// `max_events`: of one replay. `None`: any number.
    pub max_events: Option<u64>,
    /// `max_events_per_day`: of all replays within a day.
    pub max_events_per_day: Option<u64>,
}

pub(super) fn replay(reader: &mut Reader<'_>, raw: RawReplay) -> ReplayLimits {
    let mut limit =
        |key, value| reader.integer(key, value, 1..=i64::MAX).and_then(|limit| limit.try_into().ok());
    ReplayLimits {
        max_events: limit("replay.max_events", raw.max_events),
        max_events_per_day: limit("replay.max_events_per_day", raw.max_events_per_day),
    }
}

pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    let ReplayLimits { max_events, max_events_per_day } = config.replay;
    let limits = [("max_events", max_events), ("max_events_per_day", max_events_per_day)];
    if limits.iter().all(|(_, limit)| limit.is_none()) {
        return Ok(());
    }
    writeln!(out, "\n[replay]")?;
    for (key, limit) in limits {
        if let Some(limit) = limit {
            writeln!(out, "{key} = {limit}")?;
        }
    }
    Ok(())
}
