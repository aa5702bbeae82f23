//! The table of a router that polls.

use pg_logical::session::Session;

use super::finding::Findings;
use crate::commands::server::Server;
use crate::config::{Config, Polling};
use crate::error::{Error, Step};
use crate::postgres::polling::sql::PolledTable;
use crate::postgres::polling::table::{Found, wake_trigger};
use crate::quantity::counted;

/// What to do if the check of the table was interrupted.
const AGAIN: &str = "Run check again";

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    polling: &Polling,
    server: &Server,
    findings: &mut Findings,
) -> Result<(), Error> {
    if server.standby {
        findings.error(
            "outbox",
            crate::error::ErrorCode::ServerUnsuitable,
            "the server is a standby, where no row can be marked",
            "Name the primary in `[postgres] url`",
        );
        return Ok(());
    }
    let name = config.outbox.table_names();
    let found = match Found::usable(session, &config.outbox, polling, &config.postgres.conninfo).await {
        Ok(found) => found,
        Err(error) => {
            findings.failure("outbox", error, AGAIN);
            return Ok(());
        }
    };
    findings.ok("outbox", format!("{name} can be polled"));
    let Some(table) = PolledTable::of(&config.outbox, polling) else { return Ok(()) };
    let there = session.query(&table.has_indexes()).await?;
    let there = there.first();
    let missing: Vec<String> = (0..)
        .zip(table.indexes(true))
        .filter(|(index, _)| there.and_then(|row| row.get(*index)) != Some("t"))
        .map(|(_, statement)| statement)
        .collect();
    if !missing.is_empty() {
        let mut step = Step::new("As the table's owner, create them while applications go on");
        for statement in missing {
            step = step.sql(statement.trim_end_matches(';'));
        }
        let what = format!("{name} lacks indexes for polling, so each claim reads the whole table");
        findings.warning("polling_indexes", what, crate::error::Remedy::steps([step]));
    }
    if let (true, false, Some(table)) = (polling.notify, found.wakes(), config.outbox.tables.first()) {
        let wake = wake_trigger(table);
        findings.warning(
            "wake_trigger",
            format!("`[source] notify` is set, but no trigger on {name} wakes the router, which finds rows up to 200 ms later"),
            crate::error::Remedy::steps([Step::new(
                "Run outbox-router init, and then create the trigger as the table's owner; writers wait meanwhile",
            )
            .sql(wake.trim_end_matches(';'))]),
        );
    }
    let failed = session.query_one(&table.count_failed()).await?;
    let failed = failed.and_then(|count| count.parse::<u64>().ok()).unwrap_or_default();
    if failed > 0 {
        findings.warning(
            "failed_rows",
            format!("{} failed, and later ones of the same aggregate wait", counted(failed, "row")),
            "Look at them: outbox-router dead-letters list",
        );
    }
    Ok(())
}
