//! `init --backfill`: creates the slot together with a snapshot of the rows that are there before it, and stores which they are. `run`
//! sends them first.

mod refusals;

use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::connect::Startup;
use pg_logical::lock_wait::{LockWait, LockWatcher};
use pg_logical::quoting::{identifier, literal};
use pg_logical::session::Session;
use tokio_util::sync::CancellationToken;

use super::maker::{self, APPLICATION_NAME, Maker};
use super::object::{Object, privilege, table_privilege};
use super::slot::{interrupted, say_wait, unless_interrupted};
use crate::advice;
use crate::cli::init::InitArgs;
use crate::commands::server::{FAILOVER_SLOTS, Server};
use crate::commands::{say_wait as say_lock_wait, times};
use crate::config::{Config, TableName};
use crate::error::{Error, ErrorCode, Remedy};
use crate::postgres::backfills::{self, Selection};
use crate::postgres::row_filter::row_filter;
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::order::{Ties, order, warn_without_index};
use crate::postgres::rows::page::{EARLIEST, LATEST};
use crate::postgres::rows::snapshot::{OldRows, Snapshot};
use crate::postgres::rows::{micros_of, moment};
use crate::quantity::{self, counted};
use crate::shards::Ids;
pub(super) use refusals::{begins_anew, check, no_other_shards, refuse_to_forget};
use refusals::{impossible, not_filtered, nothing_parked, table, verified};

/// Kafka's default of `retention.ms`, in microseconds.
const DEFAULT_RETENTION: u64 = 7 * 86_400_000_000;

/// The first version with options in parentheses.
const OPTIONS: u32 = 150_000;

/// Which rows from before the slot are sent.
pub(super) struct Backfill {
    table: TableName,
    layout: TableLayout,
    time_column: String,
    ties: Ties,
    /// The earliest time of an insert, as a condition.
    since: Option<String>,
    /// Any other condition.
    only: Option<String>,
    /// What the operator should know about the order and the records.
    notes: String,
}

impl Backfill {
    /// Checks whether rows can be sent, before anything is created for them. The table exists.
    pub(super) async fn prepare(
        session: &mut Session,
        config: &Config,
        args: &InitArgs,
    ) -> Result<Self, Error> {
        let table = table(config)?;
        let layout = TableLayout::existing(session, table).await?;
        let time_column = layout.time_column(&config.outbox).map_err(|why| impossible(why, "Name one"))?;
        let order = order(session, &config.outbox, None, &layout, table, time_column).await?;
        warn_without_index(session, table, time_column).await?;
        if config.shard.is_none() && config.shards.count == 1 {
            not_filtered(session, config, &layout, args.only.is_some()).await?;
        }
        let mut since = None;
        if let Some(text) = &args.since {
            let now = times::now(session).await?;
            let first = times::moment(session, "--since", text, now).await?;
            if first > now {
                return Err(Error::usage(
                    ErrorCode::CommandLine,
                    format!("--since {text} is in the future, and no row would be sent"),
                    "Give an earlier time, or leave out --backfill",
                ));
            }
            since = Some(format!("q.{} >= {}", identifier(time_column), moment(first)));
        }
        let only = match &args.only {
            Some(condition) => Some(verified(session, table, condition).await?),
            None => None,
        };
        let left_out = config.for_rows(None).map(|(_, left_out)| left_out).unwrap_or_default();
        let mut notes = String::new();
        if !order.of_insert {
            notes += &format!(
                ". {time_column} is not the exact time of the insert: transactions of an aggregate that overlapped may be out of order"
            );
        }
        if args.since.is_some() && layout.has_local_timestamp(time_column) {
            notes += &format!(". {time_column} has no time zone, and --since takes it for UTC");
        }
        if !left_out.is_empty() {
            notes += &format!(
                ". Left out of their records, because only the log has the values: {}",
                left_out.join(", ")
            );
        }
        let (table, time_column) = (table.clone(), time_column.to_owned());
        Ok(Backfill { table, layout, time_column, ties: order.ties, since, only, notes })
    }

    /// Creates the slot of this router or shard, and stores which rows are there before it. Returns the slot's first position, and what to
    /// say about the rows.
    pub(super) async fn create_slot(
        &self,
        maker: &mut Maker,
        server: &Server,
        config: &Config,
        stop: &CancellationToken,
    ) -> Result<(String, String), Error> {
        let name = &config.postgres.slot;
        let begun_at = times::now(&mut maker.session).await?;
        nothing_parked(&mut maker.session, config).await?;
        // until the rows are stored, no router may read the slot
        let prepared = maker.session.query(&backfills::prepare(name, begun_at)).await;
        prepared.map_err(|error| maker.cannot("write", "backfill", error))?;
        let created = self.in_its_snapshot(maker, server, config, stop, begun_at).await;
        match created {
            Ok(selection) => {
                let rows = counted(selection.rows, "row");
                let mut what =
                    format!("{rows} of {} from before it will be sent first{}", self.table, self.notes);
                let age = selection.since.map_or(0, |since| begun_at.saturating_sub(since));
                if let Ok(age @ DEFAULT_RETENTION..) = u64::try_from(age) {
                    what += &format!(
                        ". The oldest is {} old, and Kafka deletes records older than `retention.ms` of their topic",
                        quantity::time(Duration::from_micros(age))
                    );
                }
                Ok((selection.slot_start.to_string(), what))
            }
            Err(error) => {
                // a slot without its rows is of no use; the next run would drop it too
                let _ = maker.session.query(&drop_inactive(name)).await;
                let _ = maker.session.query(&backfills::forget_unless_slot(name)).await;
                Err(error)
            }
        }
    }

    async fn in_its_snapshot(
        &self,
        maker: &mut Maker,
        server: &Server,
        config: &Config,
        stop: &CancellationToken,
        begun_at: i64,
    ) -> Result<Selection, Error> {
        let name = &config.postgres.slot;
        let startup = Startup { replication: true, application_name: APPLICATION_NAME, ..Startup::default() };
        let mut session = Session::connect(&maker.conninfo, &startup).await?;
        maker::end_with_this_process(&mut session).await?;
        report_waits(&mut session, maker, say_wait);
        session.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let (pid, host) = (session.backend_pid(), session.info().host.clone());
        let sql = create(name, server.number);
        let created = unless_interrupted(session.query(&sql), &maker.conninfo, (host, pid), name, stop);
        let created = created.await?;
        let start = created.first().and_then(|row| row.get(1)?.parse::<Lsn>().ok());
        let start = start.ok_or_else(|| interrupted(name))?;
        report_waits(&mut session, maker, say_lock_wait);
        let selecting = self.select(&mut session, config, start, begun_at);
        let selection = tokio::select! {
            biased;
            selection = selecting => selection?,
            () = stop.cancelled() => return Err(interrupted(name)),
        };
        session.close().await;
        let stored = backfills::begin(&mut maker.session, &selection).await;
        stored.map_err(|error| maker.cannot("write", "backfill", error))?;
        Ok(selection)
    }

    /// Counts the rows in the transaction of the slot's snapshot.
    async fn select(
        &self,
        session: &mut Session,
        config: &Config,
        slot_start: Lsn,
        begun_at: i64,
    ) -> Result<Selection, Error> {
        session.query("SET LOCAL TimeZone = 'UTC'; SET LOCAL search_path = pg_catalog, pg_temp").await?;
        let sql = format!("SELECT pg_current_snapshot(), {}", micros_of("clock_timestamp()"));
        let taken = session.query(&sql).await?;
        let value = |index: usize| taken.first().and_then(|row| row.get(index));
        let text = value(0).unwrap_or_default().to_owned();
        let snapshot = Snapshot::parse(&text).zip(value(1).and_then(|at| at.parse().ok()));
        let (snapshot, taken_at) = snapshot
            .ok_or_else(|| impossible("the server gives no snapshot".to_owned(), "Run init again"))?;
        let files = session.query(&backfills::files(self.layout.oid())).await?;
        let conditions: Vec<String> = self.only.iter().cloned().chain(self.of_shard(config)?).collect();
        let all = |conditions: &[&str]| match conditions {
            [] => "true".to_owned(),
            conditions => conditions.join(" AND "),
        };
        let known: Vec<&str> = conditions.iter().map(String::as_str).collect();
        let since = self.since.as_deref().unwrap_or("true");
        let time = format!("q.{}", identifier(&self.time_column));
        let unusable =
            format!("({time} IS NULL OR {time} < {} OR {time} >= {})", moment(EARLIEST), moment(LATEST));
        // the snapshot itself decides which rows are visible here
        let sql = format!(
            "SELECT count(*) FILTER (WHERE {since}), {}, {}, count(*) FILTER (WHERE {unusable}), count(*) FILTER (WHERE {}) \
             FROM {} q WHERE {}",
            micros_of(&format!("min({time}) FILTER (WHERE {since} AND isfinite({time}))")),
            micros_of(&format!("max({time}) FILTER (WHERE {since} AND isfinite({time}))")),
            snapshot.is_old(),
            self.layout.in_from(),
            all(&known),
        );
        let found = session.query(&sql).await?;
        session.query("COMMIT").await?;
        let number = |index: usize| found.first().and_then(|row| row.get(index)?.parse::<i64>().ok());
        if let Some(unusable @ 1..) = number(3) {
            return Err(impossible(
                format!(
                    "{} of {} without a usable time in {}, by which rows are found; no slot was created",
                    counted(unusable.unsigned_abs(), "row"),
                    self.table,
                    self.time_column
                ),
                Remedy::from(format!(
                    "Set {} in the rows of {} where it is NULL or infinite, and run init again",
                    identifier(&self.time_column),
                    self.table.in_sql()
                )),
            ));
        }
        let old = match number(4) {
            Some(0) => OldRows::None,
            _ => OldRows::Before { created_at: &time, taken_at },
        };
        Ok(Selection {
            slot: config.postgres.slot.clone(),
            slot_start,
            outbox: self.table.in_sql(),
            files: files.iter().filter_map(|row| row.get(0).map(str::to_owned)).collect(),
            time_column: self.time_column.clone(),
            ties: self.ties.clone(),
            conditions,
            before_slot: snapshot.sees(old),
            snapshot: text,
            begun_at,
            since: number(1),
            until: number(2).map(|last| last.saturating_add(1)),
            rows: number(0).and_then(|rows| u64::try_from(rows).ok()).unwrap_or_default(),
        })
    }

    /// The condition for rows of this shard.
    fn of_shard(&self, config: &Config) -> Result<Option<String>, Error> {
        let Some(shard) = config.shard else { return Ok(None) };
        let column = &config.outbox.columns.aggregate_id;
        let ids = self.layout.type_of(column).and_then(Ids::of_type).ok_or_else(|| {
            let what = format!("the column {column} of {} cannot be divided into shards", self.table);
            impossible(what, "Leave out --backfill")
        })?;
        Ok(Some(format!("({})", row_filter(ids, column, shard))))
    }
}

fn report_waits(session: &mut Session, maker: &Maker, say: fn(&LockWait)) {
    let watcher = LockWatcher::new(&maker.conninfo, session.info(), APPLICATION_NAME);
    session.set_watcher(watcher.describing_errors_with(advice::in_words).reporting_to(say));
}

/// What the router's role needs until the rows are sent.
pub(super) fn privileges(config: &Config, role: &str) -> Vec<Object> {
    let purpose = "How far the rows from before the slot are sent";
    let mut objects = vec![table_privilege(role, backfills::TABLE, &backfills::REQUIRED_PRIVILEGES, purpose)];
    if let [table] = config.outbox.tables.as_slice() {
        let purpose = "Rows from before the slot are read from the table";
        let outbox = privilege(role, &identifier(&table.schema), &table.in_sql(), &["SELECT"], purpose);
        let remedy = Some("Connect with --url as the owner of the table".to_owned());
        objects.push(Object { done: "granted, for --backfill", remedy, ..outbox });
    }
    objects
}

/// The command that creates a slot within a transaction that has its snapshot.
fn create(name: &str, server: u32) -> String {
    let name = identifier(name);
    if server < OPTIONS {
        return format!("CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput USE_SNAPSHOT");
    }
    let failover = if server >= FAILOVER_SLOTS { ", FAILOVER true" } else { "" };
    format!("CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput (SNAPSHOT 'use'{failover})")
}

/// Drops a slot if it exists and nobody reads it.
fn drop_inactive(slot: &str) -> String {
    format!(
        "SELECT pg_catalog.pg_drop_replication_slot(s.slot_name) FROM pg_catalog.pg_replication_slots s \
         WHERE s.slot_name = {} AND NOT s.active",
        literal(slot)
    )
}
