//! The words for choices in the configuration file, for reading and printing.

use super::quoted::quoted;
use super::{CatchUp, OnUpdate, RecordTimestamp, TextForm, Unmatched};

pub(super) const CATCH_UP: [(&str, CatchUp); 2] = [("auto", CatchUp::Auto), ("stream", CatchUp::Stream)];

pub(super) const ON_UPDATE: [(&str, OnUpdate); 3] =
    [("warn", OnUpdate::Warn), ("error", OnUpdate::Error), ("stop", OnUpdate::Stop)];

pub(super) const TIMESTAMP: [(&str, RecordTimestamp); 2] =
    [("commit", RecordTimestamp::Commit), ("created_at", RecordTimestamp::CreatedAt)];

pub(super) const TEXT: [(&str, TextForm); 2] =
    [("postgres", TextForm::Postgres), ("connect", TextForm::Connect)];

pub(super) const UNMATCHED: [(&str, Unmatched); 3] =
    [("route", Unmatched::Route), ("drop", Unmatched::Drop), ("stop", Unmatched::Stop)];

pub(super) const KEY_AS_JSON: [(&str, bool); 2] = [("text", false), ("json", true)];
pub(super) const IGNORE_MISSING_COLUMNS: [(&str, bool); 2] = [("error", false), ("ignore", true)];
pub(super) const KEEP_NULLS: [(&str, bool); 2] = [("ignore", false), ("optional_bytes", true)];
pub(super) const KEEP_EMPTY_ARRAYS: [(&str, bool); 2] = [("ignore", false), ("optional_string", true)];

/// The word for a choice, in quotes.
pub(super) fn word<T: PartialEq>(words: &[(&str, T)], choice: T) -> String {
    let found = words.iter().find(|(_, known)| *known == choice);
    quoted(found.map_or("", |(word, _)| word))
}
