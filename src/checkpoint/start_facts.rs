//! What a start knows about the server, the slot and the publication.

use pg_logical::Lsn;

use super::resume_check::LogMismatch;
use super::slot_record::SlotRecord;
use super::stream_definition::{LeftOut, StreamDefinition};
use super::timeline::System;
use crate::error::{Remedy, Step};

/// What a start knows about the server.
#[derive(Debug, Clone, Copy)]
pub struct StartFacts<'a> {
    /// The name of the router.
    pub router: &'a str,
    /// The name of the slot.
    pub slot: &'a str,
    /// The slot's `confirmed_flush_lsn`.
    pub confirmed: Lsn,
    /// The server.
    pub system: &'a System,
    /// The history file of the server's timeline, if the checkpoint is on another timeline.
    pub history: Option<&'a str>,
    /// The publication and tables that the stream would have now.
    pub definition: &'a StreamDefinition,
    /// What a comparison of log and stream has found, if the definition shows that rows may be missing.
    pub left_out: Option<&'a LeftOut>,
    /// The steps that send rows which were not published.
    pub recovery: &'a Remedy,
    /// The mismatch that the last session's resume check found.
    pub log_mismatch: Option<LogMismatch>,
    /// The slot's row in the router's schema; `None` if it could not be read, or without a positions topic.
    pub record: Option<&'a SlotRecord>,
    /// Whether the delivery is exactly-once.
    pub exactly_once: bool,
    /// The command that goes back to the last bookmark before the position of the router, if there is one.
    pub bookmark: Option<&'a str>,
    /// The steps that send rows of the outbox tables again.
    pub rows: Option<&'a [Step]>,
    /// The command that starts the router.
    pub run: &'a str,
}
