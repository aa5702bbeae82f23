//! The shards together: whether every aggregate belongs to exactly one, and whether slots for another number of shards exist.

use pg_logical::session::Session;

use super::finding::Findings;
use crate::config::Config;
use crate::error::{Error, ErrorCode};
use crate::postgres::catalog::{Catalog, Missing, check_shards, slots_of_other_shards};

/// `shards` are the configurations of all shards, each with its catalogues.
pub(super) async fn check(
    session: &mut Session,
    shards: &[(&Config, &Catalog)],
    findings: &mut Findings,
) -> Result<(), Error> {
    let Some((config, _)) = shards.first() else { return Ok(()) };
    if shards.len() > 1 {
        let found: Vec<_> = shards.iter().map(|(config, catalog)| (config.source(), *catalog)).collect();
        let result = match check_shards(session, &found, Missing::AtStart).await {
            Err(error @ Error::Transient(_)) => return Err(error),
            result => result.map(drop),
        };
        let fine = format!("each aggregate belongs to exactly one of {} publications", shards.len());
        findings.result("shards", result, fine);
    }
    let left = slots_of_other_shards(session, config.base_slot(), &config.slots_of_all_shards()).await?;
    if !left.is_empty() {
        findings.error(
            "shards",
ErrorCode::OtherShardSlots,
            format!(
                "slots of this router for another number of shards than {} exist: {}. They retain log, and their events may not have \
                 been sent",
                shards.len(),
                left.join(", ")
            ),
            "If the number was changed, stop the routers of the other number and run `outbox-router shards change --from NUMBER`. \
             If the slots belong to something else, give this router another `[postgres] slot`",
        );
    }
    Ok(())
}
