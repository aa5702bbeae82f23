//! Bookmarks: whether the router can go back to them, and whether something drops them.

use pg_logical::session::Session;

use super::finding::Findings;
use crate::config::Config;
use crate::error::{Error, Remedy, Step};
use crate::postgres::{bookmarks, cluster_manager};
use crate::shards;

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(), Error> {
    let known = bookmarks::list(session, &config.postgres.slot).await?;
    for bookmark in known.iter().filter(|bookmark| bookmark.is_lost()) {
        let (cause, prevention) = bookmark.cause();
        let title = bookmark.title();
        findings.warning(
            "bookmarks",
            format!(
                "the bookmark {title} is lost, and the router cannot go back to it: Postgres has invalidated it ({cause})"
            ),
            Remedy::steps([
                Step::new(prevention),
                Step::new("Drop it").typing(format!("outbox-router slot drop {title}{}", shards::argument(config.shard))),
            ]),
        );
    }
    Ok(())
}

pub(super) async fn check_cluster_manager(
    session: &mut Session,
    findings: &mut Findings,
) -> Result<(), Error> {
    if let Some((what, remedy)) = cluster_manager::that_drops_slots(session).await? {
        findings.warning("cluster_manager", what, remedy);
    }
    Ok(())
}
