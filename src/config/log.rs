//! `[log]`: how much is logged, and in which form. Logging starts before the other keys are checked.

use std::fmt::{self, Write};

use super::Config;
use super::raw::RawLog;
use super::read::Reader;
use super::words::word;

/// `[log]`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Log {
    /// `level`; `RUST_LOG` overrides it.
    pub level: LogLevel,
    /// `format`; `--log-format` overrides it.
    pub format: LogFormat,
}

/// Which lines of the router are logged: those of this level and the more severe ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Also what somebody should look at.
    Warn,
    /// Also what happens rarely (the default).
    #[default]
    Info,
    /// Also each step.
    Debug,
    /// Also what happens for each event or transaction.
    Trace,
}

const LEVELS: [(&str, LogLevel); 5] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

/// The form of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Time, level, message and fields, in colours on a terminal
    #[default]
    #[value(alias = "human")]
    Text,
    /// One JSON object a line
    Json,
}

const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

pub(super) fn log(reader: &mut Reader<'_>, raw: RawLog) -> Log {
    let defaults = Log::default();
    Log {
        level: reader.choice_or("log.level", raw.level, &LEVELS, defaults.level),
        format: reader.choice_or("log.format", raw.format, &FORMATS, defaults.format),
    }
}

pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    let Log { level, format } = config.log;
    writeln!(out, "\n[log]")?;
    writeln!(out, "level = {}", word(&LEVELS, level))?;
    writeln!(out, "format = {}", word(&FORMATS, format))
}
