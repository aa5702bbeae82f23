//! What follows from an alteration of the publication or of a table: refusals and warnings.

use super::catalog::Catalog;
use crate::checkpoint::{Alteration, LeftOut, StreamDefinition};
use crate::config::OutboxSource;
use crate::error::{Error, ErrorCode, with_config_file};

/// Refuses to go on if rows are missing from the stream, or may be. `left_out` was found because the definition differs from `before`.
///
/// # Errors
/// The router has to stop.
pub fn judge(
    source: OutboxSource<'_>,
    catalog: &Catalog,
    before: &StreamDefinition,
    left_out: &LeftOut,
) -> Result<(), Error> {
    let definition = catalog.stream_definition(source.outbox);
    match (definition.alteration_since(before), left_out) {
        (Alteration::None, _) | (Alteration::Renamed | Alteration::Touched, LeftOut::None) => Ok(()),
        (Alteration::Renamed, LeftOut::Unknown(why)) => {
            warn_of_renamed(why);
            Ok(())
        }
        _ => Err(altered(source, catalog, &definition.missing_since(before, Some(left_out)))),
    }
}

/// Warns that another table may have had the name of the outbox.
pub fn warn_of_renamed(why: &str) {
    tracing::warn!(
        peer = "postgres",
        reason = why,
        remedy = "If another table had the name of the outbox for a time, insert its rows into the outbox",
        "an outbox table or its schema was renamed, or has another owner; the log cannot be compared with the stream"
    );
}

/// The error if the publication or a table is not the one that the stream was started with. `missing` is what is known of missing rows.
pub fn altered(source: OutboxSource<'_>, catalog: &Catalog, missing: &str) -> Error {
    let (publication, tables) = (&source.postgres.publication, source.outbox.table_names());
    Error::not_safe(
        ErrorCode::AlteredWhileRunning,
        format!(
            "the publication {publication}, or the table {tables}, was altered, or dropped and created again, while the \
             router ran{missing}"
        ),
        catalog.resume_after_alteration(source),
    )
}

/// Warns of tables that were rewritten while nothing prevented them from being unlogged for a time.
pub fn warn_of_rewritten(now: &StreamDefinition, before: &StreamDefinition) {
    for table in now.rewritten_since(before) {
        tracing::warn!(
            table,
            remedy = with_config_file(
                "If it was made unlogged, compare the table with the topics. `outbox-router check` says how to prevent that"
            ),
            "the outbox table was rewritten: by TRUNCATE, VACUUM FULL, CLUSTER or ALTER TABLE. If that made it unlogged for a time, rows \
             that were written then are not in the stream"
        );
    }
}

/// Logs the warnings about tables that were not logged before.
pub fn warn_of_unwatched(now: &[(String, String)], before: &[(String, String)]) {
    for (what, remedy) in now.iter().filter(|warning| !before.contains(warning)) {
        tracing::warn!(remedy = with_config_file(remedy.as_str()), "{what}");
    }
}
