//! The shards together: whether every aggregate belongs to exactly one, and what a start does beside slots for another number of shards.

use pg_logical::session::Session;

use super::finding::Findings;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::Error;
use crate::postgres::catalog::{Catalog, Missing, check_shards};
use crate::supervisor::start_position::beside_other_shards;

/// `shards` are the configurations of all shards, each with its catalogues.
pub(super) async fn check(
    session: &mut Session,
    shards: &[(&Config, &Catalog)],
    findings: &mut Findings,
) -> Result<(), Error> {
    if shards.len() > 1 {
        let found: Vec<_> = shards.iter().map(|(config, catalog)| (config.source(), *catalog)).collect();
        let result = match check_shards(session, &found, Missing::AtStart).await {
            Err(error @ Error::Transient(_)) => return Err(error),
            result => result.map(drop),
        };
        let fine = format!("each aggregate belongs to exactly one of {} publications", shards.len());
        findings.result("shards", result, fine);
    }
    Ok(())
}

/// What a start of this router does if it has `slots` for another number of shards. `checkpoint` is the one that counts.
pub(super) async fn check_other_slots(
    config: &Config,
    checkpoint: Option<&Checkpoint>,
    slots: &[String],
    findings: &mut Findings,
) {
    if slots.is_empty() {
        return;
    }
    match beside_other_shards(config, checkpoint, slots).await {
        Ok(()) => findings.warning(
            "shards",
            format!(
                "slots of this router for another number of shards exist: {}. {} goes on until they take over; until then they retain log",
                slots.join(", "),
                config.name
            ),
            "Go on with docs/shard-changes.md. If the slots belong to something else, give this router another `[postgres] slot`",
        ),
        Err(error) => findings.failure("shards", error, "Check the brokers' logs"),
    }
}
