//! The oldest open transaction. A slot retains the log from the start of the oldest transaction that was open at its position, in
//! whatever database, however far the slot is confirmed.
//!
//! Every role sees the process and the transaction id of other sessions; their state and the start of their transaction require
//! `pg_read_all_stats` (Postgres manual, "Viewing Statistics").

use std::fmt;
use std::time::Duration;

use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::Session;

use crate::quantity::time;

/// A transaction that has an id, or is prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTransaction {
    /// `the prepared transaction tx1 (database shop, role app)`
    pub who: String,
    /// How to end it, as a sentence without a full stop.
    pub remedy: String,
    open_for: Option<Duration>,
}

impl OpenTransaction {
    /// The oldest of those that have been open for so long. One whose start this role may not see counts as old enough.
    pub async fn oldest(session: &mut Session, open_for: Duration) -> Result<Option<Self>, QueryError> {
        let least = format!("coalesce(t.seconds >= {}, true)", open_for.as_secs_f64());
        Self::query(session, &least).await
    }

    /// The oldest, if it has been open for most of the transaction ids since the `catalog_xmin` of a slot.
    pub async fn since(session: &mut Session, xmin: u32) -> Result<Option<Self>, QueryError> {
        Self::query(session, &format!("2 * t.age >= pg_catalog.age('{xmin}'::xid)")).await
    }

    async fn query(session: &mut Session, condition: &str) -> Result<Option<Self>, QueryError> {
        let sql = format!(
            "SELECT t.pid, t.gid, t.name, t.database, t.role, t.state, t.seconds FROM (\
             SELECT NULL::int AS pid, x.gid, NULL AS name, x.database, x.owner AS role, NULL AS state, \
             pg_catalog.age(x.transaction) AS age, extract(epoch FROM now() - x.prepared) AS seconds \
             FROM pg_catalog.pg_prepared_xacts x UNION ALL \
             SELECT a.pid, NULL, a.application_name, a.datname, a.usename, a.state, \
             pg_catalog.age(a.backend_xid), extract(epoch FROM now() - a.xact_start) \
             FROM pg_catalog.pg_stat_activity a WHERE a.backend_xid IS NOT NULL) t \
             WHERE {condition} ORDER BY t.age DESC LIMIT 1"
        );
        let rows = session.query(&sql).await?;
        Ok(rows.first().map(|row| Self::read(std::array::from_fn(|index| row.get(index)))))
    }

    fn read([pid, gid, name, database, role, state, seconds]: [Option<&str>; 7]) -> Self {
        let name = name.filter(|name| !name.is_empty());
        let parts = [("application_name ", name), ("database ", database), ("role ", role), ("", state)];
        let known: Vec<String> =
            parts.iter().filter_map(|(name, value)| Some(format!("{name}{}", (*value)?))).collect();
        let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
        let (who, remedy) = match (pid, gid.unwrap_or_default()) {
            (Some(pid), _) => (
                format!("the transaction of server process {pid}{known}"),
                format!("End it, or the session, which rolls it back: SELECT pg_terminate_backend({pid})"),
            ),
            (None, gid) => (
                format!("the prepared transaction {gid}{known}"),
                format!(
                    "Connected to the database {}, decide it: COMMIT PREPARED {gid}, or ROLLBACK PREPARED {gid}",
                    database.unwrap_or_default(),
                    gid = literal(gid)
                ),
            ),
        };
        let seconds = seconds.and_then(|text| text.parse().ok());
        let open_for = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        OpenTransaction { who, remedy, open_for }
    }
}

/// Who, and for how long, if that is known.
impl fmt::Display for OpenTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.who)?;
        match self.open_for {
            Some(open_for) => write!(f, ", open for {}", time(open_for)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row of the query.
    pub(crate) fn transaction(values: [&'static str; 7]) -> OpenTransaction {
        OpenTransaction::read(values.map(|value| (!value.is_empty()).then_some(value)))
    }

    #[test]
    fn a_transaction_is_named_with_the_statement_that_ends_it() {
        for (values, who, remedy) in [
            (
                ["", "o'x", "", "billing", "app", "", "10800.5"],
                "the prepared transaction o'x (database billing, role app), open for 3 hours",
                "Connected to the database billing, decide it: COMMIT PREPARED 'o''x', or ROLLBACK PREPARED 'o''x'",
            ),
            (
                ["7", "", "psql", "shop", "app", "idle in transaction", "180.2"],
                "the transaction of server process 7 (application_name psql, database shop, role app, idle in transaction), open for 3 minutes",
                "End it, or the session, which rolls it back: SELECT pg_terminate_backend(7)",
            ),
            (
                ["7", "", "", "shop", "app", "", ""],
                "the transaction of server process 7 (database shop, role app)",
                "End it, or the session, which rolls it back: SELECT pg_terminate_backend(7)",
            ),
        ] {
            let open = transaction(values);
            assert_eq!((open.to_string().as_str(), open.remedy.as_str()), (who, remedy));
        }
    }
}
