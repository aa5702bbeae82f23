//! The comparison of what was committed with what arrived, and which fault is to blame for what.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::allowance::First;
use crate::event::{Arrival, Event, Id};
use crate::injected::Asked;

/// How long after its arrival an event is acknowledged and remembered, at the most.
const ACKNOWLEDGED: Duration = Duration::from_millis(500);

/// What is wrong with one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fault {
    /// Committed, and in no topic.
    Lost,
    /// The first arrival comes behind that of a later event of its aggregate, or in another partition.
    OutOfOrder,
    /// Topic, key, payload or headers are not what was committed.
    Altered,
    /// In a topic, and never committed.
    Surplus,
    /// Marked as sent again on request, and it is not.
    Marked,
    /// Not sent again, though somebody asked for it.
    NotAgain,
    /// Sent while a standby lacked it that Postgres waits for.
    Early,
    /// A repetition behind which the log goes on elsewhere: consumers that keep the last value see an old one.
    Stale,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) fault: Fault,
    /// Where, in words.
    pub(crate) what: String,
    /// When: of its commit for what was lost, else of its arrival.
    pub(crate) at: Option<Instant>,
    /// Topic and partition, of what arrived.
    pub(crate) place: Option<(usize, i32)>,
}

/// All that was found.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) findings: Vec<Finding>,
    /// When each record arrived whose event had arrived before and that nobody had asked for, sorted.
    pub(crate) duplicates: Vec<Instant>,
    /// The same of those that somebody had asked for.
    pub(crate) asked: Vec<Instant>,
    /// When each event arrived first, sorted.
    pub(crate) first_arrivals: Vec<First>,
}

/// Compares. `committed` is what has to arrive, in commit order; `committed_at` knows when a writer heard of a commit, for most. `replays`
/// are the headers of replays of rows, which come behind later events.
pub(crate) fn judge(
    committed: &[Event],
    committed_at: &HashMap<Id, Instant>,
    arrivals: &[Arrival],
    asked: &[Asked],
    replays: &HashSet<String>,
    withheld: &[(Instant, Instant)],
) -> Judgement {
    let mut judgement = Judgement::default();
    let mut newest: HashMap<&str, i64> = HashMap::new();
    let expected = committed.iter().enumerate().map(|(place, event)| {
        let before = newest.insert(&event.aggregate, event.sequence).unwrap_or_default();
        (event.id, Expected { place, before, event })
    });
    let events: HashMap<Id, Expected<'_>> = expected.collect();
    let mut again: HashMap<&str, HashSet<Id>> =
        asked.iter().map(|asked| (asked.mark.as_str(), HashSet::new())).collect();
    let mut arrivals: Vec<&Arrival> = arrivals.iter().collect();
    arrivals.sort_by_key(|arrival| (arrival.topic, arrival.partition, arrival.offset));
    let mut seen = HashSet::new();
    let mut replayed: HashMap<(&str, &str), Replayed> = HashMap::new();
    let mut logs: BTreeMap<&str, Log<'_>> = BTreeMap::new();
    for arrival in arrivals {
        let Some(expected) = arrival.id.and_then(|id| events.get(&id).copied()) else {
            let id =
                arrival.id.map_or_else(|| "a record without an id".to_owned(), |id| format!("id {id:032x}"));
            judgement.found(Fault::Surplus, format!("{id} {}", place(arrival)), arrival);
            continue;
        };
        let event = expected.event;
        if let Some(part) = event.content.difference(&arrival.content) {
            let what = format!("{part} of {} {}", name(event), place(arrival));
            judgement.found(Fault::Altered, what, arrival);
        }
        if let Some(mark) = arrival.mark.as_deref().filter(|mark| replays.contains(*mark)) {
            // a replay sends only rows that were delivered
            if !seen.contains(&event.id) {
                judgement.found(Fault::Marked, format!("{} {}", name(event), place(arrival)), arrival);
            }
            let replay = replayed.entry((mark, &event.aggregate)).or_default();
            if !replay.append(event) {
                let what = format!("{} {}, sent again behind later ones", name(event), place(arrival));
                judgement.found(Fault::OutOfOrder, what, arrival);
            }
            judgement.asked.push(arrival.at);
            continue;
        }
        let first = seen.insert(event.id);
        if let Some(mark) = arrival.mark.as_deref() {
            match again.get_mut(mark).filter(|_| !first) {
                Some(again) => drop(again.insert(event.id)),
                None => {
                    judgement.found(Fault::Marked, format!("{} {}", name(event), place(arrival)), arrival)
                }
            }
        }
        if first {
            let known = committed_at.get(&event.id).copied();
            let committed = known.unwrap_or(arrival.at);
            let early = |(from, until): &(Instant, Instant)| {
                known.is_some_and(|known| known >= *from) && arrival.at < *until
            };
            if withheld.iter().any(early) {
                judgement.found(Fault::Early, format!("{} {}", name(event), place(arrival)), arrival);
            }
            judgement.first_arrivals.push(First { at: arrival.at, committed, place: expected.place });
        } else if arrival.mark.is_some() {
            judgement.asked.push(arrival.at);
        } else {
            judgement.duplicates.push(arrival.at);
        }
        logs.entry(&event.aggregate).or_default().append(expected, arrival, first, &mut judgement);
    }
    for (aggregate, log) in logs {
        log.end(aggregate, &mut judgement);
    }
    // who was not told of his commit takes the time of the next one who was
    let mut at = None;
    for event in committed.iter().rev() {
        at = committed_at.get(&event.id).copied().or(at);
        if !seen.contains(&event.id) {
            judgement.findings.push(Finding { fault: Fault::Lost, what: name(event), at, place: None });
        }
    }
    for first in &judgement.first_arrivals {
        let Some(event) = committed.get(first.place) else { continue };
        // what came just before was perhaps not acknowledged yet
        let due = |asked: &&Asked| first.committed >= asked.from && first.at + ACKNOWLEDGED < asked.to;
        for asked in asked.iter().filter(due) {
            if !again.get(asked.mark.as_str()).is_some_and(|again| again.contains(&event.id)) {
                let what = format!("{}, asked for by {}", name(event), asked.mark);
                let at = Some(asked.to);
                judgement.findings.push(Finding { fault: Fault::NotAgain, what, at, place: None });
            }
        }
    }
    judgement.findings.sort_by_key(|finding| finding.fault);
    judgement.duplicates.sort_unstable();
    judgement.first_arrivals.sort_unstable();
    judgement
}

impl Judgement {
    fn found(&mut self, fault: Fault, what: String, arrival: &Arrival) {
        let place = Some((arrival.topic, arrival.partition));
        self.findings.push(Finding { fault, what, at: Some(arrival.at), place });
    }
}

/// An event that has to arrive.
#[derive(Clone, Copy)]
struct Expected<'a> {
    /// Which one it is in the order of the commits.
    place: usize,
    /// The number of the event before it of its aggregate. There are gaps where events need not arrive.
    before: i64,
    event: &'a Event,
}

/// The log of one aggregate, as far as it was read.
#[derive(Default)]
struct Log<'a> {
    home: Option<(usize, i32)>,
    before: i64,
    /// Whether that one had arrived before.
    repeats: bool,
    newest: i64,
    last: Option<&'a Arrival>,
}

impl<'a> Log<'a> {
    /// Each event follows the one before it, or is a step back: then the stretch is repeated without a gap. What is missing
    /// in a gap comes later, or is lost and told as such.
    fn append(
        &mut self,
        expected: Expected<'_>,
        arrival: &'a Arrival,
        first: bool,
        judgement: &mut Judgement,
    ) {
        let Expected { before, event, .. } = expected;
        let sequence = event.sequence;
        let here = (arrival.topic, arrival.partition);
        if *self.home.get_or_insert(here) != here {
            let what = format!("{} {}, others are elsewhere", name(event), place(arrival));
            judgement.found(Fault::OutOfOrder, what, arrival);
        } else if first && sequence < self.newest {
            let what = format!("{} {}, behind event {}", name(event), place(arrival), self.newest);
            judgement.found(Fault::OutOfOrder, what, arrival);
        } else if self.repeats && self.before < self.newest && before > self.before {
            // what is late is the repetition: the aggregate's next event may come long after it
            let late = self.last.unwrap_or(arrival);
            let what = format!("event {} of {} {}", self.before, event.aggregate, place(late));
            judgement.found(Fault::Stale, what, late);
        }
        self.before = sequence;
        self.repeats = !first;
        self.newest = self.newest.max(sequence);
        self.last = Some(arrival);
    }

    fn end(self, aggregate: &str, judgement: &mut Judgement) {
        if let Some(last) = self.last.filter(|_| self.repeats && self.before < self.newest) {
            let (before, newest) = (self.before, self.newest);
            let what = format!("event {before} is the last of {aggregate}, of {newest} {}", place(last));
            judgement.found(Fault::Stale, what, last);
        }
    }
}

/// The rows of an aggregate that a replay has sent.
#[derive(Default)]
struct Replayed {
    seen: HashSet<Id>,
    newest: i64,
}

impl Replayed {
    /// Whether it is in order. After an interruption some come twice.
    fn append(&mut self, event: &Event) -> bool {
        if !self.seen.insert(event.id) {
            return true;
        }
        let in_order = event.sequence > self.newest;
        self.newest = self.newest.max(event.sequence);
        in_order
    }
}

fn name(event: &Event) -> String {
    format!("event {} of {}, id {:032x}", event.sequence, event.aggregate, event.id)
}

fn place(arrival: &Arrival) -> String {
    format!("at topic {} partition {} offset {}", arrival.topic, arrival.partition, arrival.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::{record, row};

    /// Three events of `a` and two of `b`, a millisecond apart.
    fn committed() -> Vec<Event> {
        [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)]
            .map(|(aggregate, sequence)| Event::of_row(&row(aggregate, sequence)).unwrap())
            .to_vec()
    }

    /// Judges a log that holds these of the committed events in this order; `alter` may change the records.
    fn judged_as(order: &[usize], alter: impl Fn(&mut Vec<Arrival>)) -> Judgement {
        let start = Instant::now();
        let rows = [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)].map(|(a, n)| row(a, n));
        let mut arrivals = order
            .iter()
            .enumerate()
            .map(|(offset, index)| {
                let at = start + Duration::from_millis(offset as u64);
                Arrival::of_record(&record(&rows[*index], offset as i64, at), 0)
            })
            .collect();
        alter(&mut arrivals);
        judge(&committed(), &HashMap::new(), &arrivals, &[], &HashSet::new(), &[])
    }

    fn judged(order: &[usize]) -> Judgement {
        judged_as(order, |_| {})
    }

    fn faults(judgement: &Judgement) -> Vec<(Fault, &str)> {
        judgement.findings.iter().map(|finding| (finding.fault, finding.what.as_str())).collect()
    }

    #[track_caller]
    fn assert_found(judgement: &Judgement, fault: Fault, what: &str) {
        let found = faults(judgement);
        assert!(found.len() == 1 && found[0].0 == fault && found[0].1.contains(what), "{found:?}");
    }

    #[test]
    fn what_is_as_it_should_be_has_no_fault() {
        for order in [[0, 1, 2, 3, 4], [1, 3, 0, 2, 4]] {
            let judgement = judged(&order);
            assert_eq!(faults(&judgement), []);
            assert_eq!((judgement.first_arrivals.len(), judgement.duplicates.len()), (5, 0));
        }
    }

    #[test]
    fn a_stretch_that_is_repeated_is_counted_and_no_fault() {
        let judgement = judged(&[0, 1, 2, 3, 4, 2, 3, 4]);
        assert_eq!(faults(&judgement), []);
        assert_eq!((judgement.first_arrivals.len(), judgement.duplicates.len()), (5, 3));
        // the second restart comes before the first has caught up
        assert_eq!(faults(&judged(&[0, 2, 0, 0, 2, 4, 1, 3])), []);
    }

    #[test]
    fn a_stretch_that_is_repeated_may_lack_an_event_that_need_not_arrive() {
        let start = Instant::now();
        let rows = [1, 2, 4, 5].map(|number| row("a", number));
        let committed: Vec<Event> = rows.iter().map(|row| Event::of_row(row).unwrap()).collect();
        let arrivals = |order: &[usize]| {
            let record = |(offset, index): (usize, &usize)| record(&rows[*index], offset as i64, start);
            order
                .iter()
                .enumerate()
                .map(record)
                .map(|record| Arrival::of_record(&record, 0))
                .collect::<Vec<_>>()
        };
        for (order, stale) in [(&[0, 1, 2, 1, 2, 3][..], false), (&[0, 1, 2, 0, 2, 3], true)] {
            let judgement = judge(&committed, &HashMap::new(), &arrivals(order), &[], &HashSet::new(), &[]);
            let found = faults(&judgement);
            assert_eq!(found.iter().any(|(fault, _)| *fault == Fault::Stale), stale, "{found:?}");
        }
    }

    #[test]
    fn a_lost_event_is_found_wherever_it_was() {
        assert_found(&judged(&[0, 1, 2, 3]), Fault::Lost, "event 3 of a");
        assert_eq!(judged(&[]).findings.len(), 5);
        assert_found(&judged(&[0, 1, 3, 4]), Fault::Lost, "event 2 of a");
    }

    #[test]
    fn a_lost_event_has_the_time_of_the_next_commit_that_is_known() {
        let committed = committed();
        let now = Instant::now();
        let known = HashMap::from([(committed[4].id, now)]);
        let judgement = judge(&committed, &known, &[], &[], &HashSet::new(), &[]);
        assert!(judgement.findings.iter().all(|finding| finding.at == Some(now)));
    }

    #[test]
    fn reordered_events_are_found() {
        assert_found(&judged(&[0, 1, 4, 3, 2]), Fault::OutOfOrder, "event 2 of a");
    }

    #[test]
    fn an_event_in_another_partition_is_found() {
        let judgement = judged_as(&[0, 1, 2, 3, 4], |arrivals| arrivals[4].partition = 1);
        assert!(faults(&judgement).iter().any(|(fault, _)| *fault == Fault::OutOfOrder));
    }

    #[test]
    fn an_altered_record_is_found_and_so_is_an_altered_repetition() {
        let other = Arrival::of_record(&record(&row("b", 1), 0, Instant::now()), 0).content;
        for (order, index) in [(&[0, 1, 2, 3, 4][..], 4), (&[0, 1, 2, 3, 4, 4], 5)] {
            let judgement = judged_as(order, |arrivals| arrivals[index].content = other);
            assert_found(&judgement, Fault::Altered, "key of event 3 of a");
        }
    }

    #[test]
    fn a_record_that_nobody_committed_is_found() {
        for id in [None, Some(77)] {
            let judgement = judged_as(&[0, 1, 2, 3, 4, 4], |arrivals| arrivals[5].id = id);
            assert_found(&judgement, Fault::Surplus, "offset 5");
        }
    }

    /// Two events of `a` half a minute apart; the first was asked for again, the second had just arrived.
    fn replayed(alter: impl Fn(&mut Vec<Arrival>)) -> Judgement {
        let start = Instant::now();
        let asked =
            Asked { mark: "14:05".to_owned(), from: start, to: start + Duration::from_millis(30_001) };
        let committed = committed();
        let known = committed.iter().map(|event| (event.id, start)).collect();
        let mut arrivals: Vec<Arrival> = [(1, 0), (2, 30_000), (1, 31_000), (2, 31_000)]
            .iter()
            .enumerate()
            .map(|(offset, (number, ms))| {
                let at = start + Duration::from_millis(*ms);
                Arrival::of_record(&record(&row("a", *number), offset as i64, at), 0)
            })
            .collect();
        arrivals[2].mark = Some("14:05".into());
        alter(&mut arrivals);
        let mut judgement = judge(&committed, &known, &arrivals, &[asked], &HashSet::new(), &[]);
        judgement.findings.retain(|finding| finding.fault != Fault::Lost);
        judgement
    }

    /// They come behind later events, which is no fault.
    #[test]
    fn rows_that_are_sent_again_are_in_order_among_themselves() {
        let replay = |order: &'static [usize]| {
            let start = Instant::now();
            let rows = [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)].map(|(a, n)| row(a, n));
            let arrivals: Vec<Arrival> = (0..5)
                .chain(order.iter().copied())
                .enumerate()
                .map(|(offset, index)| {
                    let record = record(&rows[index], offset as i64, start);
                    let mark = (offset >= 5).then(|| "r".into());
                    Arrival { mark, ..Arrival::of_record(&record, 0) }
                })
                .collect();
            let replays = HashSet::from(["r".to_owned()]);
            judge(&committed(), &HashMap::new(), &arrivals, &[], &replays, &[])
        };
        let good = replay(&[0, 1, 2, 0, 2, 4]);
        assert_eq!((faults(&good), good.asked.len(), good.duplicates.len()), (Vec::new(), 6, 0));
        assert_found(&replay(&[2, 0]), Fault::OutOfOrder, "sent again behind later ones");
    }

    #[test]
    fn what_somebody_asked_for_is_no_duplicate() {
        let judgement = replayed(|_| {});
        assert_eq!(faults(&judgement), []);
        assert_eq!((judgement.asked.len(), judgement.duplicates.len()), (1, 1));
    }

    #[test]
    fn what_was_asked_for_and_does_not_come_is_found_and_so_is_a_wrong_mark() {
        assert_found(&replayed(|arrivals| arrivals[2].mark = None), Fault::NotAgain, "event 1 of a");
        assert_found(
            &replayed(|arrivals| arrivals[3].mark = Some("14:06".into())),
            Fault::Marked,
            "offset 3",
        );
        assert_found(
            &replayed(|arrivals| arrivals[1].mark = Some("14:05".into())),
            Fault::Marked,
            "offset 1",
        );
    }

    #[test]
    fn what_is_sent_while_a_standby_lacks_it_is_found() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let committed = committed();
        let known = committed.iter().map(|event| (event.id, at(1_000))).collect();
        let found = |arrived, withheld: &[(Instant, Instant)]| {
            let arrival = Arrival::of_record(&record(&row("a", 1), 0, at(arrived)), 0);
            let judgement = judge(&committed, &known, &[arrival], &[], &HashSet::new(), withheld);
            judgement.findings.iter().filter(|finding| finding.fault == Fault::Early).count()
        };
        assert_eq!(found(1_500, &[(at(500), at(2_000))]), 1);
        // it is back, or was there when the event was committed
        assert_eq!(found(2_500, &[(at(500), at(2_000))]), 0);
        assert_eq!(found(1_500, &[(at(1_200), at(2_000))]), 0);
    }

    #[test]
    fn a_repetition_that_comes_late_is_found_at_the_end_and_in_the_middle() {
        assert_found(&judged(&[0, 1, 2, 3, 4, 2]), Fault::Stale, "event 2 is the last of a, of 3");
        // event 1 again, and then the log goes on with event 3
        assert_found(&judged(&[0, 1, 2, 0, 3, 4]), Fault::Stale, "event 1 of a");
        // of the fault that it came after, not of one in between
        let late = judged(&[0, 1, 2, 0, 3, 4]);
        assert!(
            late.findings[0].what.ends_with("offset 3")
                && late.findings[0].at == late.duplicates.first().copied()
        );
    }
}
