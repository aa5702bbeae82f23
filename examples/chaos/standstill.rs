//! Whether the router said why, whenever something stood still: the count in Kafka while committed rows waited, or the
//! position while events beyond it had arrived.
//!
//! A reason has to be seen within [`WITHIN`] of the last progress, and again within that time until there is progress: in
//! `/readyz` and `/status`, and in a line of the log. A router that was killed, stopped or frozen need not say anything.
//! While nobody reads its log no reason will do: that is none to stand still.

use std::time::{Duration, Instant};

use crate::accounts::{Account, Said};
use crate::allowance::First;
use crate::injected::Injected;
use crate::judgement::{Fault, Judgement};
use crate::stage::log_reader;
use crate::watch::Seen;

/// Within 10 s the router has to say why; a second more for those who look every half second on a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_secs(11);
/// How long the admin endpoint may leave a question without an answer, and the main loop may take for a turn.
const SILENT: Duration = Duration::from_secs(6);
/// How long after its commit a writer may hear of it.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// A line may say beforehand what makes things stand still.
const SAID_BEFORE: Duration = Duration::from_secs(10);

/// What was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum What {
    /// No event arrived, without a reason in `/readyz` and `/status`.
    Events,
    /// The position stayed, without a reason in `/status`.
    Position,
    /// There was a reason, but no line in the log.
    Log,
    /// The admin endpoint did not answer, or said that the main loop did not turn.
    Silent,
}

/// One time that nobody explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unexplained {
    pub(crate) what: What,
    pub(crate) from: Instant,
    pub(crate) until: Instant,
    /// What the router said instead, if it said anything.
    pub(crate) said: Option<String>,
}

/// What has to be known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) seen: &'a Seen,
    pub(crate) log: &'a log_reader::Said,
    pub(crate) judgement: &'a Judgement,
    /// In order.
    pub(crate) faults: &'a [&'a Injected],
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// A time in which something stood still.
struct Still {
    what: What,
    from: Instant,
    until: Instant,
}

/// All that nobody explained, in the order of its beginnings.
pub(crate) fn unexplained(known: Known<'_>) -> Vec<Unexplained> {
    let mut found = known.silences();
    for still in known.events().into_iter().chain(known.positions()) {
        let explains: fn(&Said) -> bool = match still.what {
            What::Events => Said::explains_events,
            _ => Said::explains_position,
        };
        let told = known.gap(&still, explains).or_else(|| known.missing_line(&still));
        let overlaps = |other: &Unexplained| other.from < still.until && still.from < other.until;
        // an account of the events that stands still is one of the position too
        found.extend(told.filter(|_| still.what == What::Events || !found.iter().any(overlaps)));
    }
    found.sort_by_key(|found| found.from);
    found
}

impl Known<'_> {
    /// When no event arrived that had not before, though there were some.
    fn events(&self) -> Vec<Still> {
        let Judgement { first_arrivals, asked, findings, .. } = self.judgement;
        let mut progress: Vec<Instant> = first_arrivals.iter().map(|first| first.at).collect();
        progress.extend(asked);
        progress.retain(|at| (self.start..self.end).contains(at));
        progress.sort_unstable();
        let begins = std::iter::once(self.start).chain(progress.iter().copied());
        let ends = progress.iter().copied().chain([self.end]);
        let long = begins.zip(ends).filter(|(from, until)| *until > *from + WITHIN);
        long.filter_map(|(from, until)| {
            let late = first_arrivals.get(first_arrivals.partition_point(|first| first.at < until)..);
            let late = late.unwrap_or_default().iter().map(|first| first.committed);
            let lost = findings.iter().filter(|finding| finding.fault == Fault::Lost);
            let oldest = late.chain(lost.filter_map(|finding| finding.at)).min()?;
            Some(Still { what: What::Events, from: from.max(oldest), until })
        })
        .collect()
    }

    /// When the position stayed, though all of a transaction beyond it had been sent: one behind that had begun to arrive.
    fn positions(&self) -> Vec<Still> {
        let mut stays: Vec<Still> = Vec::new();
        let mut last = None;
        for look in self.seen.looks.iter().filter(|look| (self.start..self.end).contains(&look.at)) {
            let Some(position) = look.flushed.min(look.remembered) else { continue };
            if last != Some(position) {
                if let Some(before) = stays.last_mut() {
                    before.until = look.at;
                }
                stays.push(Still { what: What::Position, from: look.at, until: self.end });
                last = Some(position);
            }
        }
        stays.retain(|stay| stay.until > stay.from + WITHIN);
        if stays.is_empty() {
            return stays;
        }
        let mut in_order = self.judgement.first_arrivals.clone();
        in_order.sort_unstable_by_key(|first| first.place);
        stays.retain_mut(|stay| {
            let beyond = stay.from + HEARD_WITHIN;
            let Some(begin) = in_order.iter().position(|first| first.committed > beyond) else {
                return false;
            };
            let behind = in_order.get(begin..).unwrap_or_default();
            let same = |first: &&First| Some(first.committed) == behind.first().map(|first| first.committed);
            match behind.iter().skip_while(same).map(|first| first.at).min() {
                Some(at) => {
                    stay.from = stay.from.max(at);
                    true
                }
                None => false,
            }
        });
        stays
    }

    /// The first time within it that is too long and that nothing explains.
    fn gap(&self, still: &Still, explains: fn(&Said) -> bool) -> Option<Unexplained> {
        let accounts = self.accounts(still.from, still.until);
        let told = accounts.iter().filter(|account| account.said.as_ref().is_some_and(explains));
        let waits = |account: &Account| account.said.as_ref().is_some_and(Said::waits);
        let told =
            told.filter(|account| waits(account) || !self.overlaps(self.unread(), account.at, account.at));
        let told = told.filter(|account| self.names_what_is(account));
        let mut explained: Vec<(Instant, Instant)> = told.map(|account| (account.at, account.at)).collect();
        explained.extend(self.excused());
        explained.retain(|(from, until)| *from < still.until && *until > still.from);
        explained.push((still.until, still.until));
        explained.sort_unstable();
        let mut since = still.from;
        for (from, until) in explained {
            if from > since + WITHIN {
                let said = accounts.iter().rev().filter(|account| (since..from).contains(&account.at));
                let said = said.filter_map(|account| account.said.as_ref()).map(|said| {
                    let status = said.reason.as_deref().unwrap_or("nothing");
                    format!("/readyz {} {:?}, reason in /status: {status}", said.code, said.readyz)
                });
                return Some(Unexplained {
                    what: still.what,
                    from: since,
                    until: from,
                    said: said.take(1).next(),
                });
            }
            since = since.max(until);
        }
        None
    }

    /// Whether its reason is about the fault that was at work.
    fn names_what_is(&self, account: &Account) -> bool {
        let now = self.faults.iter().filter(|fault| fault.began <= account.at && account.at <= fault.back);
        let said = account.said.as_ref();
        now.into_iter().all(|fault| said.is_some_and(|said| said.names(fault.names)))
    }

    /// A standstill with a reason, and without a line that says so.
    fn missing_line(&self, still: &Still) -> Option<Unexplained> {
        let (from, until) = (still.from, still.from + WITHIN);
        let excused = self.excused().chain(self.unread());
        if still.until <= until || self.overlaps(excused, from, until) {
            return None;
        }
        let fault = self.faults.iter().rev().find(|fault| fault.began <= from);
        let before = from.checked_sub(SAID_BEFORE).unwrap_or(from);
        let since = fault.map_or(before, |fault| before.min(fault.began));
        let written = self.log.warnings.iter().any(|at| (since..=until).contains(at));
        (!written).then_some(Unexplained { what: What::Log, from, until, said: None })
    }

    /// When it left questions without an answer, or its main loop did not turn.
    fn silences(&self) -> Vec<Unexplained> {
        let mut found: Vec<Unexplained> = Vec::new();
        let mut since: Option<Instant> = None;
        for account in self.accounts(self.start, self.end) {
            let excused = self.overlaps(self.excused(), account.at, account.at);
            let answers = account.said.as_ref().is_some_and(|said| said.last_turn <= SILENT);
            let silent = account.alive && !answers && !excused;
            if let Some(since) = since.filter(|since| account.at > *since + SILENT) {
                match found.last_mut().filter(|last| last.from == since) {
                    Some(last) => last.until = account.at,
                    None => {
                        let (what, until, said) = (What::Silent, account.at, None);
                        found.push(Unexplained { what, from: since, until, said });
                    }
                }
            }
            since = if silent { since.or(Some(account.at)) } else { None };
        }
        found
    }

    fn accounts(&self, from: Instant, until: Instant) -> &[Account] {
        let accounts = &self.seen.accounts;
        let place = |at: Instant| accounts.partition_point(|account| account.at < at);
        accounts.get(place(from)..place(until)).unwrap_or_default()
    }

    fn excused(&self) -> impl Iterator<Item = (Instant, Instant)> {
        self.seen.excused.iter().map(|(from, until)| (*from, until.unwrap_or(self.end)))
    }

    fn unread(&self) -> impl Iterator<Item = (Instant, Instant)> {
        self.log.unread.iter().map(|(from, until)| (*from, until.unwrap_or(self.end)))
    }

    fn overlaps(
        &self,
        mut spans: impl Iterator<Item = (Instant, Instant)>,
        from: Instant,
        until: Instant,
    ) -> bool {
        spans.any(|(begin, end)| begin <= until && from <= end)
    }
}

#[cfg(test)]
mod tests;
