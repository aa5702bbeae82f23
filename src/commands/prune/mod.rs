//! `prune`: deletes old rows of the outbox tables, or archives them.

pub(super) mod hourly;

use std::time::Duration;

use pg_logical::session::Session;
use serde::Serialize;
use tokio::signal::unix::SignalKind;
use tokio_util::sync::CancellationToken;

use super::progress::CommandProgress;
use super::signals::cancelled_by;
use super::times::now;
use super::{Completion, connect_for_long};
use crate::archive::on_a_thread;
use crate::archive::writer::{Writer, verified};
use crate::cli::prune::PruneArgs;
use crate::commands::init::is_stored;
use crate::config::{Config, SHORTEST_KEEP, TableName};
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::outbox::Field;
use crate::postgres::partitions::{are_managed, count_partitions, period_begin};
use crate::postgres::prunes::{self, count_prunable};
use crate::postgres::rows::order::warn_without_index;
use crate::pruning::{self, Request, Target};
use crate::quantity::counted;
use crate::terminal;
use crate::utc::Utc;

/// What became of a table.
#[derive(Debug, Default, Serialize)]
struct Pruned {
    table: String,
    /// The table or the file that the rows go to.
    archive: Option<String>,
    /// Rows inserted before this time were asked for.
    before: String,
    /// How many rows can be deleted.
    rows: u64,
    deleted: u64,
    /// How many rows are as old and have to stay.
    others: u64,
    /// How many partitions have ended before that time, and how many of them were dropped.
    partitions: u64,
    dropped: u64,
    oldest: Option<String>,
    newest: Option<String>,
    interrupted: bool,
}

/// Runs the command.
///
/// # Errors
/// The rows are too young, it is not known which ones may be deleted, or Postgres refuses.
pub(super) async fn prune(config: &Config, args: &PruneArgs) -> Result<Completion, Error> {
    // the router goes on, or does not, whatever becomes of this
    perform(config, args).await.map_err(Error::without_router)
}

async fn perform(config: &Config, args: &PruneArgs) -> Result<Completion, Error> {
    if args.older_than < SHORTEST_KEEP && !args.force {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--older-than is less than 7 days, and a replay may need rows of that age",
            "Give 7d or more, or add --force",
        ));
    }
    let created_at = Field::CreatedAt.column(&config.outbox.columns).ok_or_else(|| {
        Error::usage(
            ErrorCode::CommandLine,
            "`[outbox.columns] created_at` is false, and without a time nobody knows which rows are old",
            "Name the column with the time of the insert, and run outbox-router init",
        )
    })?;
    let tables = tables(config, args.table.as_ref())?;
    verify_file(config, args, &tables)?;
    let mut session = connect_for_long(config, "prune").await?;
    let until = before(now(&mut session).await?, args.older_than);
    let stop = cancelled_by(&[SignalKind::interrupt(), SignalKind::terminate()])?;
    let mut all = Vec::new();
    for table in tables {
        let pruned = of_table(&mut session, config, args, (table, created_at), until, &stop).await?;
        if !args.json {
            terminal::print(&described(&pruned, args.dry_run))?;
        }
        let interrupted = pruned.interrupted;
        all.push(pruned);
        if interrupted {
            break;
        }
    }
    session.close().await;
    if args.json {
        terminal::print_json(&all)?;
    }
    let interrupted = all.iter().any(|pruned| pruned.interrupted);
    Ok(if interrupted { Completion::ProblemsFound } else { Completion::Success })
}

/// A time this long before another, in microseconds since 1970.
fn before(now: i64, age: Duration) -> i64 {
    now.saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX))
}

fn tables<'a>(config: &'a Config, named: Option<&TableName>) -> Result<Vec<&'a TableName>, Error> {
    let all = &config.outbox.tables;
    let (what, remedy) = match named {
        _ if all.is_empty() => {
            ("no outbox table is configured".to_owned(), "Name one as `[outbox] table`".to_owned())
        }
        None => return Ok(all.iter().collect()),
        Some(named) => match all.iter().find(|table| *table == named) {
            Some(table) => return Ok(vec![table]),
            None => (
                format!("--table {named}: it is not an outbox table"),
                format!("Name one of {}", config.outbox.table_names()),
            ),
        },
    };
    Err(Error::usage(ErrorCode::CommandLine, what, remedy))
}

async fn of_table(
    session: &mut Session,
    config: &Config,
    args: &PruneArgs,
    (table, created_at): (&TableName, &str),
    until: i64,
    stop: &CancellationToken,
) -> Result<Pruned, Error> {
    let outbox = table.in_sql();
    verify_stored(session, config, table, created_at).await?;
    warn_without_index(session, table, created_at).await?;
    let (until, partitions) = whole_periods(session, table, until).await?;
    let utc = |micros: i64| Utc(micros).to_string();
    let file = args.archive.as_ref().map(|file| file.display().to_string());
    let archive = file.or_else(|| config.retention.archive.as_ref().map(ToString::to_string));
    let mut pruned =
        Pruned { table: table.to_string(), archive, before: utc(until), partitions, ..Pruned::default() };
    // that may take long, and changes nothing
    let preparing =
        async { Ok::<_, Error>((open(args, table).await?, count_prunable(session, &outbox, until).await?)) };
    let Some(prepared) = stop.run_until_cancelled(preparing).await else {
        return Ok(Pruned { interrupted: true, ..pruned });
    };
    let (mut file, found) = prepared?;
    verify_archive(config, table, found.archive.as_deref())?;
    if !args.dry_run && (found.rows > 0 || partitions > 0) {
        let request = Request { outbox: &outbox, until, batch: args.batch, partitions: partitions > 0 };
        let target = file.as_mut().map_or(Target::Server, Target::File);
        let mut progress = CommandProgress::of_rows(format!("pruning {table}"), 0, args.json);
        let done = pruning::prune(session, &request, &found, target, stop, |rows, dropped| {
            (pruned.deleted, pruned.dropped) = (rows, dropped);
            progress.show(rows, found.rows);
        });
        let done = done.await;
        progress.end();
        if done.is_err() && pruned.deleted > 0 {
            tracing::info!("pruned {} of {table} before the error", counted(pruned.deleted, "row"));
        }
        // also after an error, so that the rows can be read
        let finished = file.map_or(Ok(()), Writer::finish);
        done.and(finished)?;
    } else {
        // a prune that was killed may have left none
        file.map_or(Ok(()), Writer::finish)?;
    }
    let complete = pruned.deleted >= found.rows && pruned.dropped >= partitions;
    pruned.interrupted = stop.is_cancelled() && !args.dry_run && !complete;
    pruned.rows = found.rows;
    pruned.others = found.others;
    pruned.oldest = found.times.map(|(oldest, _)| utc(oldest));
    pruned.newest = found.times.map(|(_, newest)| utc(newest));
    Ok(pruned)
}

/// Rows of a partitioned outbox wait until their whole partition is old: the time until which they are deleted, and how many partitions have
/// ended by then.
async fn whole_periods(session: &mut Session, table: &TableName, until: i64) -> Result<(i64, u64), Error> {
    if !are_managed(session, table).await? {
        return Ok((until, 0));
    }
    let outbox = table.in_sql();
    let until = period_begin(session, &outbox, until).await?.unwrap_or(until);
    Ok((until, count_partitions(session, &outbox, until).await?.old))
}

/// Opens the archive file, if one is named. What it has is verified, which may take long.
async fn open(args: &PruneArgs, table: &TableName) -> Result<Option<Writer>, Error> {
    let Some(path) = args.archive.clone() else { return Ok(None) };
    let (table, dry_run) = (table.to_string(), args.dry_run);
    on_a_thread(move || match dry_run {
        true if !path.exists() => Ok(None),
        true => verified(&path, &table).map(|_| None),
        false => Writer::open(&path, &table).map(Some),
    })
    .await
}

/// A file has the rows of one table, and nothing goes to two archives.
fn verify_file(config: &Config, args: &PruneArgs, tables: &[&TableName]) -> Result<(), Error> {
    let refused = |what: String, remedy: &str| Err(Error::usage(ErrorCode::CommandLine, what, remedy));
    match (&args.archive, &config.retention.archive) {
        (Some(_), Some(table)) => refused(
            format!("--archive names a file, and `[retention] archive` names the table {table}"),
            "Leave out --archive, or remove `archive` and run outbox-router init",
        ),
        (Some(_), None) if tables.len() > 1 => refused(
            "--archive names one file, and there are several outbox tables".to_owned(),
            "Name one with --table",
        ),
        _ => Ok(()),
    }
}

/// The functions know only what init has stored.
async fn verify_stored(
    session: &mut Session,
    config: &Config,
    table: &TableName,
    created_at: &str,
) -> Result<(), Error> {
    if prunes::is_stored(session, &is_stored(config, table, created_at)).await? {
        return Ok(());
    }
    Err(Error::refused(
        ErrorCode::PruneImpossible,
        format!("what is stored about the retention of {table} is not what this configuration says"),
        Remedy::steps([
            Step::new("Store slots, columns and archive of this configuration").typing("outbox-router init")
        ]),
    ))
}

/// Another router may have stored an archive.
fn verify_archive(config: &Config, table: &TableName, archive: Option<&str>) -> Result<(), Error> {
    match archive {
        Some(archive) if config.retention.archive.is_none() => Err(Error::refused(
            ErrorCode::PruneImpossible,
            format!("another router has stored that rows of {table} go to {archive}"),
            "Name the same archive under `[retention]`, and run outbox-router init",
        )),
        _ => Ok(()),
    }
}

fn described(pruned: &Pruned, dry_run: bool) -> String {
    let Pruned { table, archive, before, rows, deleted, others, oldest, newest, interrupted, .. } = pruned;
    let into = archive.as_ref().map_or_else(String::new, |archive| format!(" to {archive}"));
    let [delete, deletes, done] = match archive {
        Some(_) => ["move", "Moved", "moved"],
        None => ["delete", "Deleted", "deleted"],
    };
    let times = oldest.as_ref().zip(newest.as_ref());
    let times = times.map_or_else(String::new, |(first, last)| format!(", inserted from {first} to {last}"));
    let of = |rows: u64| format!("{} of {table}{into}{times}", counted(rows, "row"));
    let mut text = match (rows, dry_run, interrupted) {
        (0, _, true) => format!("Interrupted before any row of {table} was {done}.\n"),
        (0, ..) => format!("No row of {table} that was inserted before {before} can be {done}.\n"),
        (_, true, _) => format!("Would {delete} {}.\n", of(*rows)),
        (_, _, true) => {
            format!("Interrupted: {done} {deleted} of {}. Run the command again for the others.\n", of(*rows))
        }
        _ => format!("{deletes} {}.\n", of(*deleted)),
    };
    if dry_run && pruned.partitions > 0 {
        let old = counted(pruned.partitions, "partition");
        text += &format!("Of {old} from before that time, those without rows that stay would be dropped.\n");
    }
    if pruned.dropped > 0 {
        text += &format!("Dropped {}.\n", counted(pruned.dropped, "partition"));
    }
    let left = rows.saturating_sub(*deleted);
    if left > 0 && !dry_run && !interrupted {
        text += &format!("{} changed meanwhile, or locked.\n", rows_that(left, "stays:", "stay:"));
    }
    if *others > 0 {
        text += &format!(
            "{} perhaps not delivered yet, parked, failed, or part of an unfinished replay.\n",
            rows_that(*others, "is as old and stays:", "are as old and stay:")
        );
    }
    text
}

fn rows_that(rows: u64, one: &str, many: &str) -> String {
    format!("{} {}", counted(rows, "row"), if rows == 1 { one } else { many })
}
