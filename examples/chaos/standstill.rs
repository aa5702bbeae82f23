//! Checks that the router gave a reason for every standstill: no event arrived although committed rows waited, or the position
//! did not move although later events had arrived.
//!
//! `/readyz` and `/status` must give a reason within [`WITHIN`] of the last progress, and again within that time until there is
//! progress. A line in the log must give one too. A router that was killed, stopped or frozen need not give any. While nobody
//! reads its log, no reason counts: an unread log must not stop a router.

use std::time::{Duration, Instant};

use crate::admin_probe::{Answer, Probe};
use crate::allowance::First;
use crate::injected::Injected;
use crate::judgement::{Fault, Judgement};
use crate::stage::log_reader;
use crate::watch::Seen;

/// The router has 10 s to give a reason; the extra second is for probes every half second on a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_secs(11);
/// How long the admin endpoint may not answer, and one iteration of the main loop may take.
const MAX_SILENCE: Duration = Duration::from_secs(6);
/// How long the answer to a COMMIT may take.
const COMMIT_ANSWER: Duration = Duration::from_secs(1);
/// How long before the standstill the log line may have been written.
const LOGGED_BEFORE: Duration = Duration::from_secs(10);

/// What lacked a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum What {
    /// No event arrived, without a reason in `/readyz` and `/status`.
    Events,
    /// The position did not move, without a reason in `/status`.
    Position,
    /// `/readyz` and `/status` gave a reason, but no line in the log did.
    Log,
    /// The admin endpoint did not answer, or reported that the main loop did not run.
    Silent,
}

/// A period without a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unexplained {
    pub(crate) what: What,
    pub(crate) from: Instant,
    pub(crate) until: Instant,
    /// What the router answered instead.
    pub(crate) answer: Option<String>,
}

/// What was observed during a campaign.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observations<'a> {
    pub(crate) seen: &'a Seen,
    pub(crate) log: &'a log_reader::LogSummary,
    pub(crate) judgement: &'a Judgement,
    /// In the order of time.
    pub(crate) faults: &'a [&'a Injected],
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// A period in which something stood still.
struct Standstill {
    what: What,
    from: Instant,
    until: Instant,
}

/// All periods without a reason, by their beginnings.
pub(crate) fn unexplained(observed: Observations<'_>) -> Vec<Unexplained> {
    let mut found = observed.silences();
    for still in observed.events().into_iter().chain(observed.positions()) {
        let explains: fn(&Answer) -> bool = match still.what {
            What::Events => Answer::explains_events,
            _ => Answer::explains_position,
        };
        let unexplained = observed.gap(&still, explains).or_else(|| observed.missing_line(&still));
        let overlaps = |other: &Unexplained| other.from < still.until && still.from < other.until;
        // if the events stood still at that time, the position is no second finding
        found.extend(unexplained.filter(|_| still.what == What::Events || !found.iter().any(overlaps)));
    }
    found.sort_by_key(|found| found.from);
    found
}

impl Observations<'_> {
    /// The periods in which no new event arrived, although some were committed.
    fn events(&self) -> Vec<Standstill> {
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
            Some(Standstill { what: What::Events, from: from.max(oldest), until })
        })
        .collect()
    }

    /// The periods in which the position did not move, although a transaction beyond it had been sent completely, because an
    /// event of a later transaction had arrived.
    fn positions(&self) -> Vec<Standstill> {
        let mut stays: Vec<Standstill> = Vec::new();
        let mut last = None;
        for look in self.seen.looks.iter().filter(|look| (self.start..self.end).contains(&look.at)) {
            let Some(position) = look.flushed.min(look.remembered) else { continue };
            if last != Some(position) {
                if let Some(before) = stays.last_mut() {
                    before.until = look.at;
                }
                stays.push(Standstill { what: What::Position, from: look.at, until: self.end });
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
            let beyond = stay.from + COMMIT_ANSWER;
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

    /// The first part of the standstill that is longer than [`WITHIN`] and has no reason.
    fn gap(&self, still: &Standstill, explains: fn(&Answer) -> bool) -> Option<Unexplained> {
        let probes = self.probes(still.from, still.until);
        let reasons = probes.iter().filter(|probe| probe.answer.as_ref().is_some_and(explains));
        let standby = |probe: &Probe| probe.answer.as_ref().is_some_and(Answer::is_standby);
        let reasons =
            reasons.filter(|probe| standby(probe) || !self.overlaps(self.unread(), probe.at, probe.at));
        let reasons = reasons.filter(|probe| self.names_current_faults(probe));
        let mut explained: Vec<(Instant, Instant)> = reasons.map(|probe| (probe.at, probe.at)).collect();
        explained.extend(self.downtimes());
        explained.retain(|(from, until)| *from < still.until && *until > still.from);
        explained.push((still.until, still.until));
        explained.sort_unstable();
        let mut since = still.from;
        for (from, until) in explained {
            if from > since + WITHIN {
                let answers = probes.iter().rev().filter(|probe| (since..from).contains(&probe.at));
                let mut answers = answers.filter_map(|probe| probe.answer.as_ref()).map(|answer| {
                    let status = answer.reason.as_deref().unwrap_or("none");
                    format!("/readyz {} {:?}, reason in /status: {status}", answer.code, answer.readyz)
                });
                return Some(Unexplained {
                    what: still.what,
                    from: since,
                    until: from,
                    answer: answers.next(),
                });
            }
            since = since.max(until);
        }
        None
    }

    /// Whether its reasons fit the faults that were active.
    fn names_current_faults(&self, probe: &Probe) -> bool {
        let mut now = self.faults.iter().filter(|fault| fault.began <= probe.at && probe.at <= fault.back);
        let answer = probe.answer.as_ref();
        now.all(|fault| answer.is_some_and(|answer| answer.reasons_contain(fault.names)))
    }

    /// The beginning of the standstill, if no line in the log gave a reason.
    fn missing_line(&self, still: &Standstill) -> Option<Unexplained> {
        let (from, until) = (still.from, still.from + WITHIN);
        let excused = self.downtimes().chain(self.unread());
        if still.until <= until || self.overlaps(excused, from, until) {
            return None;
        }
        let fault = self.faults.iter().rev().find(|fault| fault.began <= from);
        let before = from.checked_sub(LOGGED_BEFORE).unwrap_or(from);
        let since = fault.map_or(before, |fault| before.min(fault.began));
        let written = self.log.warnings.iter().any(|at| (since..=until).contains(at));
        (!written).then_some(Unexplained { what: What::Log, from, until, answer: None })
    }

    /// The periods in which the endpoint did not answer, or the main loop did not run.
    fn silences(&self) -> Vec<Unexplained> {
        let mut found: Vec<Unexplained> = Vec::new();
        let mut since: Option<Instant> = None;
        for probe in self.probes(self.start, self.end) {
            let excused = self.overlaps(self.downtimes(), probe.at, probe.at);
            let answers = probe.answer.as_ref().is_some_and(|answer| answer.last_turn <= MAX_SILENCE);
            let silent = probe.alive && !answers && !excused;
            if let Some(since) = since.filter(|since| probe.at > *since + MAX_SILENCE) {
                match found.last_mut().filter(|last| last.from == since) {
                    Some(last) => last.until = probe.at,
                    None => {
                        let (what, until, answer) = (What::Silent, probe.at, None);
                        found.push(Unexplained { what, from: since, until, answer });
                    }
                }
            }
            since = if silent { since.or(Some(probe.at)) } else { None };
        }
        found
    }

    fn probes(&self, from: Instant, until: Instant) -> &[Probe] {
        let probes = &self.seen.probes;
        let index = |at: Instant| probes.partition_point(|probe| probe.at < at);
        probes.get(index(from)..index(until)).unwrap_or_default()
    }

    fn downtimes(&self) -> impl Iterator<Item = (Instant, Instant)> {
        self.seen.downtimes.iter().map(|(from, until)| (*from, until.unwrap_or(self.end)))
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
