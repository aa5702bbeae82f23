//! `[heartbeat]`: a logical message that the router writes to the log and waits for in its stream.

use std::fmt::{self, Write};
use std::time::Duration;

use super::Config;
use super::quoted::quoted;
use super::raw::RawHeartbeat;
use super::read::Reader;
use super::units::format_duration;

/// The shortest interval: a shorter one would give no more information.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// `None`: no heartbeat.
pub(super) fn heartbeat(reader: &mut Reader<'_>, raw: RawHeartbeat) -> Option<Duration> {
    reader.duration_or_off("heartbeat.interval", raw.interval, MIN_INTERVAL)
}

pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    writeln!(out, "\n[heartbeat]")?;
    match config.heartbeat {
        Some(interval) => writeln!(out, "interval = {}", quoted(&format_duration(interval))),
        None => writeln!(out, "interval = false"),
    }
}
