//! How long the answers of Postgres may take.

use std::pin::pin;
use std::time::Duration;

use pg_logical::QueryError;
use pg_logical::session::{Row, Session};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, timeout};

use super::super::messages::FromWorker;

/// After how long without an answer Postgres is said to be silent. Whatever stands still has a reason within ten seconds.
const SILENT_AFTER: Duration = Duration::from_secs(8);

/// How long to wait for an answer. While rows are on their way to Kafka, no longer than until the deadline of the first: a session that
/// only waited would send them when others have taken them over.
pub(super) fn answer_limit(unacknowledged_until: Option<Instant>, now: Instant, lease: Duration) -> Duration {
    unacknowledged_until.map_or(lease, |deadline| {
        // a statement that begins just before the deadline may take a moment
        deadline.saturating_duration_since(now).clamp(lease / 10, lease)
    })
}

/// Runs a message. If the answer does not come, it says so in the log and to the source.
pub(super) async fn answer(
    session: &mut Session,
    sql: &str,
    to_source: &UnboundedSender<FromWorker>,
) -> Result<Vec<Row>, QueryError> {
    let mut answer = pin!(session.query(sql));
    if let Ok(answer) = timeout(SILENT_AFTER, &mut answer).await {
        return answer;
    }
    let reason = format!(
        "Postgres has not answered for {} s: it hangs, or the network drops or delays what is sent to it",
        SILENT_AFTER.as_secs()
    );
    tracing::warn!(peer = "postgres", reason, "no events are read from Postgres");
    // a source that is closed needs no reason
    let _ = to_source.send(FromWorker::Silent(Some(reason)));
    let answer = answer.await;
    // a refusal is an answer too
    if !matches!(answer, Err(QueryError::Connection(_))) {
        tracing::info!(peer = "postgres", "Postgres answers again");
        let _ = to_source.send(FromWorker::Silent(None));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_awaited_no_longer_than_rows_may_be_sent() {
        let (now, lease) = (Instant::now(), Duration::from_secs(30));
        let seconds = Duration::from_secs;
        let cases = [
            (None, seconds(30)),
            (Some(now + seconds(20)), seconds(20)),
            (Some(now + seconds(1)), seconds(3)),
            (Some(now), seconds(3)),
            (now.checked_sub(seconds(1)), seconds(3)),
        ];
        for (until, expected) in cases {
            assert_eq!(answer_limit(until, now, lease), expected, "{until:?}");
        }
    }
}
