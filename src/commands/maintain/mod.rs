//! `maintain`: deletes what an inbox need not keep, and serves its metrics. It needs no configuration.

mod exposition;

use std::convert::Infallible;
use std::time::{Duration, Instant};

use pg_logical::Environment;
use pg_logical::session::Session;
use tokio::signal::unix::SignalKind;
use tokio::time::sleep;

use super::inbox::connect;
use super::signals::cancelled_by;
use crate::admin::AdminServer;
use crate::cli::maintain::MaintainArgs;
use crate::error::Error;
use crate::postgres::inbox::{Deleted, Status, expire};
use crate::quantity::counted;
use crate::supervisor::backoff::Backoff;
use crate::terminal;
use exposition::Numbers;

/// The `application_name` of its session.
const NAME: &str = "outbox-router maintain";

/// How many events, and how many keys, one statement deletes at most: a fraction of a second.
const BATCH: u64 = 5_000;

/// How long a statement may take, also on a busy disk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs until a signal comes or, with `--once`, until nothing is left to delete.
///
/// # Errors
/// A definite answer of Postgres, or the address is not available. With `--once`, any failure.
pub async fn maintain(args: &MaintainArgs, env: &Environment) -> Result<(), Error> {
    let done = if args.once { once(args, env).await } else { run(args, env).await };
    done.map_err(Error::without_router)
}

async fn run(args: &MaintainArgs, env: &Environment) -> Result<(), Error> {
    let numbers = Numbers::default();
    let remedy = "Give a free address of this machine with --listen";
    let server = AdminServer::serve(&args.listen, exposition::pages(&numbers), remedy)?;
    let stop = cancelled_by(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit()])?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), metrics = %server.address(), "starting");
    // a batch that is interrupted is either committed or not
    let ended = stop.run_until_cancelled(keep_on(args, env, &numbers)).await;
    server.end();
    match ended {
        Some(Err(error)) => Err(error),
        None => {
            tracing::info!("stopped");
            Ok(())
        }
    }
}

async fn once(args: &MaintainArgs, env: &Environment) -> Result<(), Error> {
    let mut session = open(args, env).await?;
    let mut all = Deleted::default();
    loop {
        let Batch { deleted, full, time } = batch(&mut session).await?;
        all.events += deleted.events;
        all.keys += deleted.keys;
        if !full {
            break;
        }
        sleep(time).await;
    }
    session.close().await;
    if args.json {
        return terminal::print_json(&all);
    }
    let (events, keys) = (counted(all.events, "event"), counted(all.keys, "idempotency key"));
    terminal::print(&format!("{events} and {keys} deleted.\n"))
}

/// Connects again after each failure that may pass by itself.
async fn keep_on(args: &MaintainArgs, env: &Environment, numbers: &Numbers) -> Result<Infallible, Error> {
    let mut backoff = Backoff::default();
    loop {
        let Err(error) = session(args, env, numbers, &mut backoff).await;
        let Error::Transient(failure) = error else { return Err(error) };
        numbers.failed();
        backoff.log(&failure, false);
        sleep(backoff.next()).await;
    }
}

/// Deletes and counts in one session, as long as it lasts.
async fn session(
    args: &MaintainArgs,
    env: &Environment,
    numbers: &Numbers,
    backoff: &mut Backoff,
) -> Result<Infallible, Error> {
    let mut session = open(args, env).await?;
    tracing::info!(postgres = session.info().place, "connected");
    loop {
        let Batch { deleted, full, time } = batch(&mut session).await?;
        numbers.counted(deleted, Status::query(&mut session).await?);
        backoff.reset();
        if deleted != Deleted::default() {
            tracing::debug!(deleted.events, deleted.keys, "deleted");
        }
        sleep(if full { time } else { Duration::from_secs(args.interval) }).await;
    }
}

async fn open(args: &MaintainArgs, env: &Environment) -> Result<Session, Error> {
    let mut session = connect(&args.url, env, NAME).await?;
    session.set_answer_timeout(Some(ANSWER_TIMEOUT));
    Ok(session)
}

struct Batch {
    deleted: Deleted,
    /// Whether more may be left.
    full: bool,
    /// How long it took. The next one waits for as long, so that half of the server's time is left to others.
    time: Duration,
}

async fn batch(session: &mut Session) -> Result<Batch, Error> {
    let begun = Instant::now();
    let deleted = expire(session, BATCH).await?;
    let full = deleted.events >= BATCH || deleted.keys >= BATCH;
    Ok(Batch { deleted, full, time: begun.elapsed() })
}
