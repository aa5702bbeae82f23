//! The functions of the router's schema that create and drop partitions of an outbox. Only `init --partitioned` makes an outbox one of theirs.

use pg_logical::quoting::literal;
use pg_logical::session::Session;

use super::functions::{call, count, number};
use super::prunes::Lease;
use super::rows::moment;
use crate::config::TableName;
use crate::error::Error;

/// The functions that a role needs to call.
pub const FUNCTIONS: [&str; 4] = [
    "outbox_router.create_partition(text)",
    "outbox_router.count_partitions(text, timestamptz)",
    "outbox_router.period_begin(text, timestamptz)",
    "outbox_router.drop_partition(text, uuid, timestamptz, timestamptz, boolean)",
];

/// The other functions, which these call.
pub const INNER_FUNCTIONS: [&str; 5] = [
    "outbox_router.partitions_of(text)",
    "outbox_router.partition_check(text)",
    "outbox_router.next_partition(text)",
    "outbox_router.partition_name(text, text)",
    "outbox_router.partition_lock_holder(text)",
];

/// The table of the outboxes, and how long a partition of each is.
pub const TABLE: &str = "outbox_router.partitioned";

/// The partitions of an outbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Partitions {
    /// When those that are not over begin, in microseconds since 1970.
    pub begins: Vec<i64>,
    /// How many have ended before the time that was asked about.
    pub old: u64,
    /// Whether one is missing.
    pub missing: bool,
    /// How many rows the default partition has; 10,000 stands for that or more.
    pub in_default: u64,
}

/// What became of a partition.
#[derive(Debug)]
pub struct Examined {
    /// Where it ended, in microseconds since 1970.
    pub end: i64,
    /// How many rows it had. `None`: it is kept.
    pub rows: Option<u64>,
    /// Why it cannot be dropped, although nobody needs its rows.
    pub problem: Option<String>,
    /// Whether that may pass within seconds.
    pub locked: bool,
}

/// Whether `init --partitioned` was run for an outbox. A role without any privileges may ask unless the outbox is partitioned.
///
/// # Errors
/// Those of the query.
pub async fn are_managed(session: &mut Session, table: &TableName) -> Result<bool, Error> {
    let possible = format!(
        "SELECT count(*) = 2 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE (n.nspname, c.relname) = ('outbox_router', 'partitioned') OR (n.nspname, c.relname, c.relkind) = ({}, {}, 'p')",
        literal(&table.schema),
        literal(&table.name)
    );
    if call(session, &possible).await?.first().and_then(|row| row.get(0)) != Some("t") {
        return Ok(false);
    }
    let sql = format!("SELECT 1 FROM {TABLE} p WHERE p.outbox = {}", literal(&table.in_sql()));
    Ok(!call(session, &sql).await?.is_empty())
}

/// Creates the next partition that is missing, and returns its name. `None`: none is.
///
/// # Errors
/// The table is not partitioned by its time, its owner has not given the right, or somebody keeps it locked.
pub async fn create_next(session: &mut Session, outbox: &str) -> Result<Option<String>, Error> {
    let sql = format!("SELECT outbox_router.create_partition({})", literal(outbox));
    Ok(call(session, &sql).await?.first().and_then(|row| row.get(0)).map(str::to_owned))
}

/// Counts partitions; `until` is in microseconds since 1970.
///
/// # Errors
/// Those of [`create_next`].
pub async fn count_partitions(session: &mut Session, outbox: &str, until: i64) -> Result<Partitions, Error> {
    let sql = format!(
        "SELECT begins, old, missing, in_default FROM outbox_router.count_partitions({}, {})",
        literal(outbox),
        moment(until)
    );
    let found = call(session, &sql).await?;
    let first = found.first();
    let begins = first.and_then(|row| row.get(0)).unwrap_or_default();
    Ok(Partitions {
        begins: begins.split(' ').filter_map(|begin| begin.parse().ok()).collect(),
        old: count(first, 1),
        missing: first.and_then(|row| row.get(2)) == Some("t"),
        in_default: count(first, 3),
    })
}

/// The beginning of the period, a day for example, in which this time is; both in microseconds since 1970.
///
/// # Errors
/// Those of the query.
pub async fn period_begin(session: &mut Session, outbox: &str, time: i64) -> Result<Option<i64>, Error> {
    let sql = format!("SELECT outbox_router.period_begin({}, {})", literal(outbox), moment(time));
    Ok(number(call(session, &sql).await?.first(), 0))
}

impl Lease {
    /// Drops the first partition from `since` to `until`, if nobody needs its rows, or, with `only_empty`, if it has none. `None`: there is
    /// none.
    ///
    /// # Errors
    /// Those of [`create_next`] and of [`super::prunes::begin`].
    pub async fn drop_partition(
        &self,
        session: &mut Session,
        since: Option<i64>,
        until: i64,
        only_empty: bool,
    ) -> Result<Option<Examined>, Error> {
        let sql = format!(
            "SELECT ends, dropped, deleted, problem, locked FROM outbox_router.drop_partition({}, {only_empty})",
            self.arguments(since, until)
        );
        let found = call(session, &sql).await?;
        let first = found.first();
        let text = |column: usize| first.and_then(|row| row.get(column));
        Ok(number(first, 0).map(|end| Examined {
            end,
            rows: (text(1) == Some("t")).then(|| count(first, 2)),
            problem: text(3).map(str::to_owned),
            locked: text(4) == Some("t"),
        }))
    }
}
