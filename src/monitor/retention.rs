//! What a router has done about `[retention]`.

use pg_logical::PgTimestamp;

use super::report::Retention;

/// The state of `[retention]`.
#[derive(Debug)]
pub(super) struct RetentionState {
    since: PgTimestamp,
    done_at: Option<PgTimestamp>,
    pub(super) pruned: u64,
    pub(super) pruned_archived: u64,
    kept: u64,
    problem: Option<String>,
}

impl RetentionState {
    pub(super) fn new(now: PgTimestamp) -> Self {
        RetentionState { since: now, done_at: None, pruned: 0, pruned_archived: 0, kept: 0, problem: None }
    }

    /// A prune has ended: how many old rows have to stay, or why it failed.
    pub(super) fn ended(&mut self, now: PgTimestamp, kept: Result<u64, String>) {
        match kept {
            Ok(kept) => (self.kept, self.done_at, self.problem) = (kept, Some(now), None),
            Err(problem) => self.problem = Some(problem),
        }
    }

    pub(super) fn report(&self, now: PgTimestamp) -> Retention {
        Retention {
            complete: self.done_at.is_some(),
            // clocks may be set back
            age_seconds: now.0.saturating_sub(self.done_at.unwrap_or(self.since).0).max(0) as f64 / 1e6,
            pruned: self.pruned,
            pruned_archived: self.pruned_archived,
            kept: self.kept,
            problem: self.problem.clone(),
        }
    }
}
