//! Whether an outbox with partitions will have them when they are needed.

use pg_logical::session::Session;

use super::finding::Findings;
use crate::commands::times::now;
use crate::config::{Config, TableName};
use crate::error::{Definite, Error, Remedy, Step};
use crate::postgres::partitions::{Partitions, are_managed, count_partitions};
use crate::quantity::counted;

/// With fewer partitions ahead, nobody has created any for days.
const FEW: u64 = 2;

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(), Error> {
    for table in &config.outbox.tables {
        match of_table(session, table, findings).await {
            Ok(()) => {}
            // events are delivered nevertheless
            Err(Error::Definite(Definite { what, remedy, .. })) => {
                findings.warning("partitions", what, remedy);
            }
            Err(transient @ Error::Transient(_)) => return Err(transient),
        }
    }
    Ok(())
}

async fn of_table(session: &mut Session, table: &TableName, findings: &mut Findings) -> Result<(), Error> {
    if !are_managed(session, table).await? {
        return Ok(());
    }
    let now = now(session).await?;
    let Partitions { begins, in_default, missing, .. } =
        count_partitions(session, &table.in_sql(), now).await?;
    let ahead = begins.iter().filter(|begin| **begin > now).count() as u64;
    let partitions = counted(ahead, "partition");
    if ahead < FEW && missing {
        findings.warning(
            "partitions",
            format!("{table} has {partitions} ahead; rows without one go to the default partition"),
            Remedy::steps([Step::new(
                "A router that runs creates partitions every hour, and its log says why it does not. This creates them too",
            )
            .typing("outbox-router init")]),
        );
    } else {
        findings.ok("partitions", format!("{table} has {partitions} ahead"));
    }
    if in_default > 0 {
        findings.warning(
            "default_partition",
            format!("the default partition of {table} has {}", counted(in_default, "row")),
            "Nothing is lost: they are delivered, and deleted one by one once they are old. Look at their times: either the application sets \
             them, or partitions were missing",
        );
    }
    Ok(())
}
