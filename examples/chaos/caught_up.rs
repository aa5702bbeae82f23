//! Waits until the router has caught up. Every repetition that earlier faults have caused has arrived then.

use std::time::{Duration, Instant};

use anyhow::bail;
use pg_logical::Lsn;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::faults::Ground;
use crate::source::Source;
use crate::writers::connect;

/// If it has not caught up within this time, the campaign ends.
const WITHIN: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Each question to the table costs Postgres more than one to the router.
const ASK_POSTGRES_EVERY: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What was committed before one moment.
enum Goal {
    /// The router's position and checkpoint have to pass this end of the log.
    Position(Option<Lsn>),
    /// Each row up to this position has to be published.
    Row(i64),
}

/// Waits until everything is delivered that was committed before the call.
pub(crate) async fn wait_until_caught_up(ground: &mut Ground) -> anyhow::Result<()> {
    let deadline = Instant::now() + WITHIN;
    let mut client = None;
    let mut goal = None;
    loop {
        goal = match goal {
            None => goal_of(ground, &mut client).await,
            known => known,
        };
        if let Some(goal) = &goal
            && is_reached(goal, ground, &mut client).await?
        {
            return Ok(());
        }
        ground.check_running()?;
        if Instant::now() > deadline {
            bail!("the router did not catch up within {} s after the fault", WITHIN.as_secs());
        }
        let pause = if client.is_some() { ASK_POSTGRES_EVERY } else { ASK_EVERY };
        sleep(pause).await;
    }
}

/// `None`: Postgres does not answer.
async fn goal_of(ground: &Ground, client: &mut Option<Client>) -> Option<Goal> {
    match ground.source {
        Source::Log => Some(Goal::Position(ground.watch.end_of_log())),
        Source::Poll => {
            // every row that is committed has at most the position that was drawn last
            let sql = "SELECT last_value FROM outbox_router.outbox_position";
            ask(ground, client, sql, &[]).await.map(Goal::Row)
        }
    }
}

async fn is_reached(goal: &Goal, ground: &mut Ground, client: &mut Option<Client>) -> anyhow::Result<bool> {
    match goal {
        Goal::Position(end) => {
            if ground.watch.checkpointed() >= *end {
                return Ok(true);
            }
            ground.find_active().await?;
            Ok(false)
        }
        Goal::Row(last) => {
            // whoever waits behind a row that has failed is new, too
            let sql = "SELECT count(*) FROM outbox WHERE status = 'NEW' AND position <= $1";
            Ok(ask(ground, client, sql, &[last]).await == Some(0))
        }
    }
}

/// The answer to a question; `None` if Postgres does not answer. Then the next question connects again.
async fn ask(
    ground: &Ground,
    client: &mut Option<Client>,
    sql: &str,
    parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Option<i64> {
    if client.is_none() {
        *client = connect(&ground.postgres).await.ok();
    }
    let asked = client.as_ref()?.query_one(sql, parameters);
    let answer = timeout(ANSWER_TIMEOUT, asked).await.ok().and_then(Result::ok);
    let number = answer.and_then(|row| row.try_get(0).ok());
    if number.is_none() {
        *client = None;
    }
    number
}
