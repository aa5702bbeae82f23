//! The result of a campaign: figures for each fault, broken guarantees, and JSON.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::allowance::{self, Allowed};
use crate::campaign::Happened;
use crate::event::{Arrival, Event, Id};
use crate::faults::Kind;
use crate::injected::Left;
use crate::intake::first_after;
use crate::judgement::{Fault, Judgement};
use crate::positions::Written;
use crate::source::Source;
use crate::stage::log_reader;
use crate::standstill::{self, Unexplained, What, unexplained};
use crate::watch::Seen;
use crate::writers;

/// How many findings are listed.
const LISTED: usize = 20;

/// Figures that do not exist without a slot.
const OF_A_SLOT: [&str; 2] = ["position_age_ms", "retained_wal_bytes"];

/// Everything that a campaign recorded.
pub(crate) struct Evidence {
    pub(crate) seed: u64,
    pub(crate) source: Source,
    pub(crate) exactly_once: bool,
    /// Whether there were further routers.
    pub(crate) standbys: bool,
    pub(crate) kinds: Vec<&'static Kind>,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    pub(crate) happened: Vec<Happened>,
    /// Why the campaign ended early.
    pub(crate) stopped: Option<String>,
    pub(crate) written: writers::Written,
    /// Warnings in the router's log, and when it was not read.
    pub(crate) log: log_reader::LogSummary,
    /// In commit order, from the independent reader.
    pub(crate) committed: Vec<Event>,
    /// How many of them have to arrive.
    pub(crate) expected: usize,
    /// The rows in the table at the end.
    pub(crate) table: Vec<Event>,
    /// What the table says to have been left undone.
    pub(crate) left_undone: Vec<String>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) seen: Seen,
    pub(crate) positions: Vec<Written>,
    pub(crate) judgement: Judgement,
}

/// One fault and its effects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Case {
    pub(crate) kind: usize,
    pub(crate) what: String,
    /// Since the start of the campaign.
    pub(crate) began: Duration,
    pub(crate) back: Duration,
    pub(crate) recovery: Option<Duration>,
    /// The time until the router reported that it was not ready.
    pub(crate) noticed: Option<Duration>,
    pub(crate) lost: usize,
    pub(crate) out_of_order: usize,
    pub(crate) wrong: usize,
    /// Late repetitions, and their partitions.
    pub(crate) stale: usize,
    pub(crate) stale_in: HashSet<(usize, i32)>,
    /// In how many partitions late repetitions are allowed.
    pub(crate) stale_allowed: u64,
    pub(crate) duplicates: u64,
    pub(crate) allowed: u64,
    /// Repetitions requested by `slot reset`.
    pub(crate) asked: u64,
    /// The age of the newest checkpoint in Kafka when the router ended, if the broker had answered normally.
    pub(crate) position_age: Option<Duration>,
    pub(crate) retained: u64,
    pub(crate) memory: u64,
}

impl Case {
    fn has_too_many_stale(&self) -> bool {
        self.stale_in.len() as u64 > self.stale_allowed
    }
}

/// The result of a campaign.
pub(crate) struct Report {
    pub(crate) evidence: Evidence,
    /// What happened before the first fault.
    pub(crate) before: Case,
    pub(crate) cases: Vec<Case>,
    /// The standstills for which the router gave no reason.
    pub(crate) unexplained: Vec<Unexplained>,
    /// Everything that is wrong.
    pub(crate) faults: Vec<String>,
    /// Whether a guarantee was broken, and not only the campaign failed.
    pub(crate) guarantee_broken: bool,
}

impl Report {
    pub(crate) fn new(evidence: Evidence) -> Self {
        let mut before = Case::default();
        let mut cases: Vec<Case> =
            (0..evidence.happened.len()).filter_map(|number| case(&evidence, number)).collect();
        let (mut left_over, mut stale_before) = (0, 0);
        for (case, (_, injected)) in cases.iter_mut().zip(&evidence.happened) {
            // repetitions of the previous fault that may still arrive
            if injected.overlaps {
                case.allowed += left_over;
                case.stale_allowed += stale_before;
            }
            left_over = case.allowed.saturating_sub(case.duplicates);
            stale_before = case.stale_allowed;
        }
        let begins: Vec<Instant> = evidence.happened.iter().map(|(_, injected)| injected.began).collect();
        for finding in &evidence.judgement.findings {
            let blamed = match (finding.fault, finding.at) {
                // blame the first fault that was over after the commit of the lost event
                (Fault::Lost, Some(at)) => evidence
                    .happened
                    .iter()
                    .position(|(_, injected)| injected.back >= at)
                    .or(begins.len().checked_sub(1)),
                (_, Some(at)) => begins.partition_point(|began| *began <= at).checked_sub(1),
                (_, None) => begins.len().checked_sub(1),
            };
            let case = blamed.and_then(|number| cases.get_mut(number)).unwrap_or(&mut before);
            match finding.fault {
                Fault::Lost => case.lost += 1,
                Fault::OutOfOrder => case.out_of_order += 1,
                Fault::Altered | Fault::Surplus | Fault::Marked | Fault::NotAgain | Fault::Early => {
                    case.wrong += 1
                }
                Fault::Stale => {
                    case.stale += 1;
                    case.stale_in.extend(finding.place);
                }
            }
        }
        let first = begins.first().copied().unwrap_or(evidence.end);
        before.duplicates = evidence.judgement.duplicates.partition_point(|at| *at < first) as u64;
        let unexplained = unexplained(standstill::Observations {
            seen: &evidence.seen,
            log: &evidence.log,
            judgement: &evidence.judgement,
            faults: &evidence.happened.iter().map(|(_, injected)| injected).collect::<Vec<_>>(),
            start: evidence.start,
            end: evidence.end,
        });
        let mut report =
            Report { evidence, before, cases, unexplained, faults: Vec::new(), guarantee_broken: false };
        let broken = report.broken_guarantees();
        report.guarantee_broken = !broken.is_empty();
        let stopped = report.evidence.stopped.iter().cloned();
        report.faults = stopped.chain(broken).chain(report.disagreements()).collect();
        report
    }

    /// Whether nothing is wrong.
    pub(crate) fn is_good(&self) -> bool {
        self.faults.is_empty()
    }

    fn broken_guarantees(&self) -> Vec<String> {
        let evidence = &self.evidence;
        let mut faults = Vec::new();
        for (fault, name) in [
            (Fault::Lost, "lost"),
            (Fault::OutOfOrder, "out of order"),
            (Fault::Altered, "altered"),
            (Fault::Surplus, "sent though never committed"),
            (Fault::Marked, "with a replay header that they must not have"),
            (Fault::NotAgain, "not sent again although a replay was requested"),
            (Fault::Early, "sent before the standby had them"),
        ] {
            let mut found = evidence.judgement.findings.iter().filter(|finding| finding.fault == fault);
            if let Some(first) = found.next() {
                faults.push(format!("{} {name}; the first: {}", found.count() + 1, first.what));
            }
        }
        faults.extend(evidence.left_undone.iter().cloned());
        let all = std::iter::once((None, &self.before));
        for (number, case) in all.chain(self.cases.iter().enumerate().map(|(n, case)| (Some(n), case))) {
            let kind = number.and_then(|_| evidence.kinds.get(case.kind));
            let name = kind.map_or("before any fault", |kind| kind.name);
            let at = case.began.as_secs_f64();
            if case.duplicates > case.allowed {
                let (found, allowed) = (case.duplicates, case.allowed);
                faults.push(format!("{found} duplicates after {name} at {at:.1} s, {allowed} allowed"));
            }
            if case.has_too_many_stale() {
                let (partitions, allowed) = (case.stale_in.len(), case.stale_allowed);
                faults.push(format!(
                    "late repetitions in {partitions} partitions after {name} at {at:.1} s, {allowed} allowed"
                ));
            }
        }
        for (case, (kind, injected)) in self.cases.iter().zip(&evidence.happened) {
            let took = case.recovery.map_or(0.0, |took| took.as_secs_f64());
            let name = evidence.kinds.get(*kind).map_or("", |kind| kind.name);
            if let Some(limit) = injected.recovers_within.filter(|limit| took > limit.as_secs_f64()) {
                let (at, limit) = (case.began.as_secs_f64(), limit.as_secs());
                faults.push(format!("no event arrived for {took:.1} s after the end of {name}, which began at {at:.1} s; {limit} s allowed"));
            }
        }
        faults.extend(self.unexplained.iter().map(|found| self.describe(found)));
        faults
    }

    /// Describes a standstill without a reason, with the last fault that had begun.
    fn describe(&self, found: &Unexplained) -> String {
        let evidence = &self.evidence;
        let seconds = |at: Instant| at.saturating_duration_since(evidence.start).as_secs_f64();
        let (at, long) = (seconds(found.from), seconds(found.until) - seconds(found.from));
        let what = match found.what {
            What::Events => "no event arrived, without a reason,",
            What::Position => "the position did not move, without a reason,",
            What::Log => "no event arrived or the position did not move, without a reason in the log,",
            What::Silent => "/readyz and /status did not answer, or the main loop did not run,",
        };
        let number = evidence.happened.iter().rposition(|(_, injected)| injected.began <= found.until);
        let fault = number.and_then(|number| evidence.happened.get(number));
        let name = fault.and_then(|(kind, _)| evidence.kinds.get(*kind)).map(|kind| kind.name);
        let during = match (name, fault) {
            (Some(name), Some((_, injected))) => {
                let (began, back) = (seconds(injected.began), seconds(injected.back));
                format!("the last fault was {name}, from {began:.1} s to {back:.1} s")
            }
            _ => "before any fault".to_owned(),
        };
        let answer =
            found.answer.as_ref().map(|answer| format!("; it answered {answer}")).unwrap_or_default();
        format!("{what} for {long:.1} s from {at:.1} s on; {during}{answer}")
    }

    /// The differences between the writers, the table and the independent reader, which must agree for the result to be valid.
    fn disagreements(&self) -> Vec<String> {
        let evidence = &self.evidence;
        let committed: HashMap<Id, &Event> =
            evidence.committed.iter().map(|event| (event.id, event)).collect();
        let mut faults = Vec::new();
        let mut add = |count: usize, what: &str| {
            if count > 0 {
                faults.push(format!("{count} {what}"));
            }
        };
        let reported = evidence.written.committed.keys();
        add(
            reported.filter(|id| !committed.contains_key(id)).count(),
            "committed events are missing from the independent reader",
        );
        let rolled_back = &evidence.written.rolled_back;
        add(
            rolled_back.iter().filter(|id| committed.contains_key(id)).count(),
            "rolled back events were read by the independent reader",
        );
        let differs = |event: &&Event| committed.get(&event.id).is_none_or(|seen| seen != event);
        add(
            evidence.table.iter().filter(differs).count(),
            "rows of the table differ from those of the independent reader",
        );
        faults
    }

    /// The first findings, one line each.
    pub(crate) fn findings(&self) -> Vec<String> {
        let findings = &self.evidence.judgement.findings;
        let too_many = self.before.has_too_many_stale() || self.cases.iter().any(Case::has_too_many_stale);
        let listed = findings.iter().take(LISTED).map(|finding| match finding.fault {
            Fault::Stale if !too_many => format!("Stale, within the allowance: {}", finding.what),
            fault => format!("{fault:?}: {}", finding.what),
        });
        let more = findings.len().saturating_sub(LISTED);
        listed.chain((more > 0).then(|| format!("and {more} more"))).collect()
    }

    /// The number of committed rows that are no longer in the table.
    pub(crate) fn deleted(&self) -> usize {
        let table: HashSet<Id> = self.evidence.table.iter().map(|event| event.id).collect();
        self.evidence.committed.iter().filter(|event| !table.contains(&event.id)).count()
    }

    /// The report as JSON. The names are not stable.
    pub(crate) fn json(&self) -> Value {
        let evidence = &self.evidence;
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let case = |case: &Case| {
            let mut figures = json!({
                "kind": evidence.kinds.get(case.kind).map(|kind| kind.name),
                "what": case.what,
                "began_ms": ms(case.began),
                "back_ms": ms(case.back),
                "recovery_ms": case.recovery.map(ms),
                "noticed_ms": case.noticed.map(ms),
                "lost": case.lost,
                "out_of_order": case.out_of_order,
                "altered_or_surplus": case.wrong,
                "stale": case.stale,
                "stale_partitions": case.stale_in.len(),
                "stale_partitions_allowed": case.stale_allowed,
                "duplicates": case.duplicates,
                "duplicates_allowed": case.allowed,
                "asked_for": case.asked,
                "position_age_ms": case.position_age.map(ms),
                "retained_wal_bytes": case.retained,
                "memory_bytes": case.memory,
            });
            if let Some(figures) = figures.as_object_mut().filter(|_| !evidence.source.has_slot()) {
                figures.retain(|name, _| !OF_A_SLOT.contains(&name.as_str()));
            }
            figures
        };
        let written = &evidence.written;
        json!({
            "seed": evidence.seed,
            "source": evidence.source,
            "seconds": evidence.end.duration_since(evidence.start).as_secs_f64(),
            "good": self.is_good(),
            "faults": self.faults,
            "without_a_reason": self.unexplained.iter().map(|found| self.describe(found)).collect::<Vec<_>>(),
            "findings": self.findings(),
            "committed": evidence.committed.len(),
            "expected": evidence.expected,
            "in_table": evidence.table.len(),
            "records": evidence.arrivals.len(),
            "arrived": evidence.judgement.first_arrivals.len(),
            "transactions": written.transactions,
            "rollbacks": written.rollbacks,
            "savepoint_rollbacks": written.savepoint_rollbacks,
            "rolled_back": written.rolled_back.len(),
            "in_doubt": written.in_doubt,
            "large_transactions": written.large,
            "largest_transaction": written.largest,
            "cases": self.cases.iter().map(case).collect::<Vec<_>>(),
            "timeline": self.timeline(),
        })
    }

    /// The numbers of events committed and first arrived in each second.
    pub(crate) fn timeline(&self) -> Vec<(u64, [u64; 2])> {
        let start = self.evidence.start;
        let mut seconds: BTreeMap<u64, [u64; 2]> = BTreeMap::new();
        let times = self.evidence.written.committed.values().map(|at| (0, at));
        let arrivals = self.evidence.judgement.first_arrivals.iter().map(|first| (1, &first.at));
        for (which, at) in times.chain(arrivals).filter(|(_, at)| **at >= start) {
            let second = at.saturating_duration_since(start).as_secs();
            if let Some(count) = seconds.entry(second).or_default().get_mut(which) {
                *count += 1;
            }
        }
        seconds.into_iter().collect()
    }
}

/// The case of one fault, without the findings.
fn case(evidence: &Evidence, number: usize) -> Option<Case> {
    let (kind, injected) = evidence.happened.get(number)?;
    let until = evidence.happened.get(number + 1).map(|(_, next)| next.began);
    let Evidence { judgement, seen, .. } = evidence;
    let during = |at: Instant| at >= injected.began && until.is_none_or(|until| at < until);
    let known = allowance::Seen {
        looks: &seen.looks,
        marks: &seen.marks,
        sessions: &seen.sessions,
        arrivals: &judgement.first_arrivals,
        again: &judgement.duplicates,
        positions: &evidence.positions,
        standbys: evidence.standbys,
    };
    // in exactly-once only requested repetitions are allowed
    let bound = if evidence.exactly_once {
        Allowed::default()
    } else {
        evidence.source.allowed(injected, known, until.unwrap_or_else(Instant::now))
    };
    let position_age = match injected.left {
        Left::Position { died, .. } if injected.broker_late.is_none() => known.position_age(died),
        _ => None,
    };
    let usage = || seen.usage.iter().filter(|usage| during(usage.at));
    let not_ready = seen.looks.iter().find(|look| during(look.at) && !look.ready);
    let recovery = evidence.recovery(injected.began, injected.back, until);
    Some(Case {
        kind: *kind,
        what: injected.what.clone(),
        began: injected.began.saturating_duration_since(evidence.start),
        back: injected.back.saturating_duration_since(evidence.start),
        recovery,
        stale_allowed: bound.stale_partitions,
        noticed: not_ready.map(|look| look.at.saturating_duration_since(injected.began)),
        duplicates: judgement.duplicates.iter().filter(|at| during(**at)).count() as u64,
        allowed: bound.duplicates,
        asked: judgement.asked.iter().filter(|at| during(**at)).count() as u64,
        position_age,
        retained: usage().filter_map(|usage| usage.retained).max().unwrap_or_default(),
        memory: usage().filter_map(|usage| usage.memory).max().unwrap_or_default(),
        ..Case::default()
    })
}

impl Evidence {
    /// From the end of the fault to the first arrival of an event committed after the fault began.
    fn recovery(&self, began: Instant, back: Instant, until: Option<Instant>) -> Option<Duration> {
        let first = first_after(&self.arrivals, began, back, &self.written.committed)?;
        (until.is_none_or(|until| first < until)).then(|| first.saturating_duration_since(back))
    }
}
