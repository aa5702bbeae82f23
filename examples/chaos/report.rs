//! What was found, kind by kind: for the verdict, for people and for programs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::allowance::{self, Allowed, allowed};
use crate::campaign::Happened;
use crate::event::{Arrival, Event, Id};
use crate::faults::Kind;
use crate::injected::Left;
use crate::intake::first_after;
use crate::judgement::{Fault, Judgement};
use crate::positions::Written;
use crate::stage::log_reader;
use crate::standstill::{self, Unexplained, What, unexplained};
use crate::watch::Seen;
use crate::writers;

/// How many findings are told one by one.
const TOLD: usize = 20;

/// All that a campaign leaves.
pub(crate) struct Evidence {
    pub(crate) seed: u64,
    pub(crate) exactly_once: bool,
    /// Whether others waited for the slot.
    pub(crate) standbys: bool,
    pub(crate) kinds: Vec<&'static Kind>,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    pub(crate) happened: Vec<Happened>,
    /// Why it ended before its time.
    pub(crate) stopped: Option<String>,
    pub(crate) written: writers::Written,
    /// What is known of the router's log.
    pub(crate) log: log_reader::Said,
    /// In commit order, as the independent reader saw them.
    pub(crate) committed: Vec<Event>,
    /// What the table holds in the end.
    pub(crate) table: Vec<Event>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) seen: Seen,
    pub(crate) positions: Vec<Written>,
    pub(crate) judgement: Judgement,
}

/// One fault and what followed from it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Case {
    pub(crate) kind: usize,
    pub(crate) what: String,
    /// Since the beginning of the campaign.
    pub(crate) began: Duration,
    pub(crate) back: Duration,
    pub(crate) recovery: Option<Duration>,
    /// Until the router said by itself that it was not ready.
    pub(crate) noticed: Option<Duration>,
    pub(crate) lost: usize,
    pub(crate) out_of_order: usize,
    pub(crate) wrong: usize,
    /// Late repetitions, and the partitions that they are in.
    pub(crate) stale: usize,
    pub(crate) stale_in: HashSet<(usize, i32)>,
    /// In how many partitions there may be such.
    pub(crate) stale_allowed: u64,
    pub(crate) duplicates: u64,
    pub(crate) allowed: u64,
    /// Repetitions that somebody asked for.
    pub(crate) asked: u64,
    /// How old the position was that the router left behind in Kafka, if the broker had answered as ever.
    pub(crate) position_age: Option<Duration>,
    pub(crate) retained: u64,
    pub(crate) memory: u64,
}

impl Case {
    fn is_too_late(&self) -> bool {
        self.stale_in.len() as u64 > self.stale_allowed
    }
}

/// The campaign's outcome.
pub(crate) struct Report {
    pub(crate) evidence: Evidence,
    /// What came before the first fault, then one for each fault.
    pub(crate) calm: Case,
    pub(crate) cases: Vec<Case>,
    /// When the router did not say why something stood still.
    pub(crate) unexplained: Vec<Unexplained>,
    /// What must not be.
    pub(crate) faults: Vec<String>,
    /// Whether a guarantee is among that, and not only a campaign that went wrong.
    pub(crate) guarantee_broken: bool,
}

impl Report {
    pub(crate) fn new(evidence: Evidence) -> Self {
        let mut calm = Case::default();
        let mut cases: Vec<Case> =
            (0..evidence.happened.len()).filter_map(|number| case(&evidence, number)).collect();
        let (mut left_over, mut stale_before) = (0, 0);
        for (case, (_, injected)) in cases.iter_mut().zip(&evidence.happened) {
            // what the fault before it may repeat, and has not yet
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
                // a lost event was committed before the fault was over that lost it
                (Fault::Lost, Some(at)) => evidence
                    .happened
                    .iter()
                    .position(|(_, injected)| injected.back >= at)
                    .or(begins.len().checked_sub(1)),
                (_, Some(at)) => begins.partition_point(|began| *began <= at).checked_sub(1),
                (_, None) => begins.len().checked_sub(1),
            };
            let case = blamed.and_then(|number| cases.get_mut(number)).unwrap_or(&mut calm);
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
        let before = begins.first().copied().unwrap_or(evidence.end);
        calm.duplicates = evidence.judgement.duplicates.partition_point(|at| *at < before) as u64;
        let unexplained = unexplained(standstill::Known {
            seen: &evidence.seen,
            log: &evidence.log,
            judgement: &evidence.judgement,
            faults: &evidence.happened.iter().map(|(_, injected)| injected).collect::<Vec<_>>(),
            start: evidence.start,
            end: evidence.end,
        });
        let mut report =
            Report { evidence, calm, cases, unexplained, faults: Vec::new(), guarantee_broken: false };
        let broken = report.broken_guarantees();
        report.guarantee_broken = !broken.is_empty();
        let stopped = report.evidence.stopped.iter().cloned();
        report.faults = stopped.chain(broken).chain(report.judges_agree()).collect();
        report
    }

    /// Nothing was lost, reordered, altered or outside of what is allowed.
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
            (Fault::Marked, "marked as sent again on request, and not"),
            (Fault::NotAgain, "asked for again and not sent"),
            (Fault::Early, "sent while the standby lacked them"),
        ] {
            let mut found = evidence.judgement.findings.iter().filter(|finding| finding.fault == fault);
            if let Some(first) = found.next() {
                faults.push(format!("{} {name}; the first: {}", found.count() + 1, first.what));
            }
        }
        let all = std::iter::once((None, &self.calm));
        for (number, case) in all.chain(self.cases.iter().enumerate().map(|(n, case)| (Some(n), case))) {
            let kind = number.and_then(|_| evidence.kinds.get(case.kind));
            let name = kind.map_or("before any fault", |kind| kind.name);
            let at = case.began.as_secs_f64();
            if case.duplicates > case.allowed {
                let (found, allowed) = (case.duplicates, case.allowed);
                faults.push(format!("{found} duplicates after {name} at {at:.1} s, allowed are {allowed}"));
            }
            if case.is_too_late() {
                let (partitions, allowed) = (case.stale_in.len(), case.stale_allowed);
                faults.push(format!(
                    "late repetitions in {partitions} partitions after {name} at {at:.1} s, allowed are {allowed}"
                ));
            }
        }
        for (case, (kind, injected)) in self.cases.iter().zip(&evidence.happened) {
            let took = case.recovery.map_or(0.0, |took| took.as_secs_f64());
            let name = evidence.kinds.get(*kind).map_or("", |kind| kind.name);
            if let Some(limit) = injected.recovers_within.filter(|limit| took > limit.as_secs_f64()) {
                let (at, limit) = (case.began.as_secs_f64(), limit.as_secs());
                faults.push(format!("no event arrived for {took:.1} s after {name} at {at:.1} s was over, allowed are {limit} s"));
            }
        }
        faults.extend(self.unexplained.iter().map(|found| self.told(found)));
        faults
    }

    /// What stood still without a reason, when, and which fault was the last to begin.
    fn told(&self, found: &Unexplained) -> String {
        let evidence = &self.evidence;
        let seconds = |at: Instant| at.saturating_duration_since(evidence.start).as_secs_f64();
        let (at, long) = (seconds(found.from), seconds(found.until) - seconds(found.from));
        let what = match found.what {
            What::Events => "no event arrived, and nothing explained it,",
            What::Position => "the position stood still, and nothing explained it,",
            What::Log => "no event arrived or the position stood still, and no line of the log said why,",
            What::Silent => "/readyz and /status did not answer, or the main loop did not turn,",
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
        let said = found.said.as_ref().map(|said| format!("; it said {said}")).unwrap_or_default();
        format!("{what} for {long:.1} s from {at:.1} s on; {during}{said}")
    }

    /// The writers, the table and the independent reader have to tell the same story, or none can be trusted.
    fn judges_agree(&self) -> Vec<String> {
        let evidence = &self.evidence;
        let committed: HashMap<Id, &Event> =
            evidence.committed.iter().map(|event| (event.id, event)).collect();
        let mut faults = Vec::new();
        let mut say = |count: usize, what: &str| {
            if count > 0 {
                faults.push(format!("{count} {what}"));
            }
        };
        let told = evidence.written.committed.keys();
        say(
            told.filter(|id| !committed.contains_key(id)).count(),
            "events were committed, and the independent reader did not see them",
        );
        let undone = &evidence.written.rolled_back;
        say(
            undone.iter().filter(|id| committed.contains_key(id)).count(),
            "rolled back events were committed",
        );
        let differs = |event: &&Event| committed.get(&event.id).is_none_or(|seen| seen != event);
        say(
            evidence.table.iter().filter(differs).count(),
            "rows of the table are not as the independent reader saw them",
        );
        faults
    }

    /// The findings one by one, the first of them.
    pub(crate) fn findings(&self) -> Vec<String> {
        let findings = &self.evidence.judgement.findings;
        let too_late = self.calm.is_too_late() || self.cases.iter().any(Case::is_too_late);
        let told = findings.iter().take(TOLD).map(|finding| match finding.fault {
            Fault::Stale if !too_late => format!("Stale, as many as are allowed: {}", finding.what),
            fault => format!("{fault:?}: {}", finding.what),
        });
        let more = findings.len().saturating_sub(TOLD);
        told.chain((more > 0).then(|| format!("and {more} more"))).collect()
    }

    /// Rows that were committed and are not in the table any more.
    pub(crate) fn deleted(&self) -> usize {
        let table: HashSet<Id> = self.evidence.table.iter().map(|event| event.id).collect();
        self.evidence.committed.iter().filter(|event| !table.contains(&event.id)).count()
    }

    /// For programs. The names are not stable.
    pub(crate) fn json(&self) -> Value {
        let evidence = &self.evidence;
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let case = |case: &Case| {
            json!({
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
            })
        };
        let written = &evidence.written;
        json!({
            "seed": evidence.seed,
            "seconds": evidence.end.duration_since(evidence.start).as_secs_f64(),
            "good": self.is_good(),
            "faults": self.faults,
            "without_a_reason": self.unexplained.iter().map(|found| self.told(found)).collect::<Vec<_>>(),
            "findings": self.findings(),
            "committed": evidence.committed.len(),
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

    /// Events committed and first arrived, second by second.
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

/// All of one fault that can be told without the findings.
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
    // in exactly-once nothing comes again unless somebody has asked for it
    let bound = if evidence.exactly_once {
        Allowed::default()
    } else {
        allowed(injected, known, until.unwrap_or_else(Instant::now))
    };
    let position_age = match injected.left {
        Left::Position { died, .. } if injected.broker_late.is_none() => known.position_age(died),
        _ => None,
    };
    let weights = || seen.weights.iter().filter(|weight| during(weight.at));
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
        retained: weights().filter_map(|weight| weight.retained).max().unwrap_or_default(),
        memory: weights().filter_map(|weight| weight.memory).max().unwrap_or_default(),
        ..Case::default()
    })
}

impl Evidence {
    /// From the end of the fault to the first arrival of an event that was committed after its beginning.
    fn recovery(&self, began: Instant, back: Instant, until: Option<Instant>) -> Option<Duration> {
        let first = first_after(&self.arrivals, began, back, &self.written.committed)?;
        (until.is_none_or(|until| first < until)).then(|| first.saturating_duration_since(back))
    }
}
