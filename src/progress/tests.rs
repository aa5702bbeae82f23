use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The contents of the stream in order: transactions with their number of changes.
#[derive(Debug, Clone)]
struct Sent {
    final_lsn: Lsn,
    end_lsn: Lsn,
    changes: u64,
}

fn transaction(final_lsn: u64) -> Landmark {
    Landmark { final_lsn: Lsn(final_lsn), xid: 700, commit_time: PgTimestamp(final_lsn as i64) }
}

fn stream() -> impl Strategy<Value = Vec<Sent>> {
    let changes = prop_oneof![3 => 0u64..4, 1 => 60u64..200];
    prop::collection::vec(changes, 1..30).prop_map(|sizes| {
        let lsn = |n: usize| Lsn(n as u64 * 100);
        let sent = |(n, changes)| Sent { final_lsn: lsn(n + 1), end_lsn: Lsn(lsn(n + 1).0 + 50), changes };
        sizes.into_iter().enumerate().map(sent).collect()
    })
}

/// The definition of the position, computed from the start each time.
fn naive(start: Lsn, sent: &[Sent], read: u64, committed: usize, acknowledged: &BTreeSet<u64>) -> Position {
    let mut position = Position { flush: start, partial: None };
    let mut first = 0;
    for (n, transaction) in sent.iter().enumerate() {
        let done = (first..first + transaction.changes)
            .take_while(|number| *number < read && acknowledged.contains(number))
            .count() as u64;
        if done == transaction.changes && n < committed {
            position.flush = transaction.end_lsn;
            first += transaction.changes;
            continue;
        }
        if done > 0 {
            position.partial = Some(Partial { final_lsn: transaction.final_lsn, changes: done });
        }
        break;
    }
    position
}

/// Interleaves stream and reports: each step reads the next message or acknowledges an open change.
fn run(sent: &[Sent], choices: &[prop::sample::Index]) -> Result<(), TestCaseError> {
    let start = Lsn(10);
    let mut progress = Progress::new(Position { flush: start, partial: None });
    let (mut open, mut acknowledged) = (Vec::new(), BTreeSet::new());
    let (mut read, mut committed) = (0, 0);
    let mut messages = sent.iter().flat_map(|t| {
        let changes = (0..t.changes).map(|_| Step::Change);
        [Step::Begin(t.final_lsn)].into_iter().chain(changes).chain([Step::Commit(t.end_lsn)])
    });
    let mut last_flush = start;
    for choice in choices {
        let pick = choice.index(open.len() + 3);
        if pick < open.len() {
            let sequence: Sequence = open.swap_remove(pick);
            progress.acknowledge(sequence);
            acknowledged.insert(sequence.0);
        } else {
            match messages.next() {
                Some(Step::Begin(lsn)) => progress.begin(transaction(lsn.0)).unwrap(),
                Some(Step::Change) => {
                    let Change::New(sequence) = progress.change().unwrap() else { panic!("nothing to skip") };
                    open.push(sequence);
                    read += 1;
                }
                Some(Step::Commit(lsn)) => {
                    progress.commit(lsn).unwrap();
                    committed += 1;
                }
                None => {}
            }
        }
        let position = progress.position();
        prop_assert_eq!(position, naive(start, sent, read, committed, &acknowledged));
        prop_assert!(position.flush >= last_flush, "the flush LSN went back");
        last_flush = position.flush;
        prop_assert_eq!(progress.is_idle(), open.is_empty() && !progress.inside_transaction());
        let done = (0..read).take_while(|number| acknowledged.contains(number)).count() as u64;
        let mut first = 0;
        let last = sent.iter().find(|sent| {
            first += sent.changes;
            first >= done
        });
        let landmark = last.filter(|_| done > 0).map(|last| transaction(last.final_lsn.0));
        prop_assert_eq!(progress.landmark(), landmark);
        let span = (0..read).skip_while(|number| acknowledged.contains(number)).count();
        prop_assert!(progress.transactions.len() <= span + 1, "empty transactions piled up");
    }
    Ok(())
}

enum Step {
    Begin(Lsn),
    Change,
    Commit(Lsn),
}

proptest! {
    #[test]
    fn contiguous_ack_agrees_with_counting_from_the_start(
        sent in stream(),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 1..800),
    ) {
        run(&sent, &choices)?;
    }

    #[test]
    fn a_restart_anywhere_handles_each_change_once(
        sent in stream(),
        acknowledged_before in any::<prop::sample::Index>(),
        from in any::<prop::sample::Index>(),
    ) {
        let total: u64 = sent.iter().map(|t| t.changes).sum();
        let acknowledged_before = acknowledged_before.index(total as usize + 1) as u64;
        let mut first = Progress::new(Position::default());
        let handled_first = feed(&mut first, &sent, |number| number < acknowledged_before);

        let mut second = Progress::new(first.position());
        // the stream may start at the position, or anywhere before
        let whole = sent.iter().filter(|t| t.end_lsn <= first.position().flush).count();
        let rest = &sent[from.index(whole + 1)..];
        prop_assert!(!second.has_advanced());
        let handled_second = feed(&mut second, rest, |_| true);
        prop_assert_eq!(second.has_advanced(), handled_second > 0);
        prop_assert_eq!(handled_first, total);
        prop_assert_eq!(acknowledged_before + handled_second, total);
        prop_assert_eq!(second.position().flush, sent.last().unwrap().end_lsn);
        prop_assert!(second.is_idle());
    }
}

/// Reads all of `sent` and acknowledges what `acknowledge` selects; returns how many changes had to be handled.
fn feed(progress: &mut Progress, sent: &[Sent], acknowledge: impl Fn(u64) -> bool) -> u64 {
    let mut handled = 0;
    let mut before = progress.position();
    let mut forward = |progress: &Progress| {
        let now = progress.position();
        assert!((now.flush, now.partial) >= (before.flush, before.partial), "{now:?} after {before:?}");
        before = now;
    };
    for sent in sent {
        progress.begin(transaction(sent.final_lsn.0)).unwrap();
        for _ in 0..sent.changes {
            if let Change::New(sequence) = progress.change().unwrap() {
                if acknowledge(handled) {
                    progress.acknowledge(sequence);
                }
                handled += 1;
            }
            forward(progress);
        }
        progress.commit(sent.end_lsn).unwrap();
        forward(progress);
    }
    handled
}

#[test]
fn contiguous_ack_a_later_report_never_vouches_for_an_earlier_one() {
    let mut progress = Progress::new(Position::default());
    for (final_lsn, end_lsn) in [(10, 15), (20, 25)] {
        progress.begin(transaction(final_lsn)).unwrap();
        progress.change().unwrap();
        progress.commit(Lsn(end_lsn)).unwrap();
    }
    progress.acknowledge(Sequence(1));
    assert_eq!(progress.position(), Position::default());
    progress.acknowledge(Sequence(0));
    assert_eq!(progress.position().flush, Lsn(25));
}

#[test]
fn idle_ack_counts_only_when_nothing_is_open() {
    let mut progress = Progress::new(Position::default());
    progress.reached(Lsn(5));
    assert_eq!(progress.position().flush, Lsn(5));
    progress.begin(transaction(10)).unwrap();
    progress.reached(Lsn(6));
    progress.change().unwrap();
    progress.acknowledge(Sequence(0));
    assert_eq!(progress.position().flush, Lsn(5), "the transaction is not complete");
    progress.change().unwrap();
    progress.commit(Lsn(15)).unwrap();
    progress.reached(Lsn(30));
    assert_eq!(progress.position().flush, Lsn(5), "a change is still open");
    progress.acknowledge(Sequence(1));
    assert_eq!(
        progress.position().flush,
        Lsn(30),
        "the keepalive came when all was sent, and now all is acknowledged"
    );
}

#[test]
fn idle_ack_of_a_keepalive_that_something_followed_is_left_to_the_commit() {
    let mut progress = Progress::new(Position::default());
    progress.begin(transaction(10)).unwrap();
    progress.change().unwrap();
    progress.commit(Lsn(15)).unwrap();
    progress.reached(Lsn(30));
    progress.begin(transaction(40)).unwrap();
    progress.acknowledge(Sequence(0));
    assert_eq!(progress.position().flush, Lsn(15));
    progress.commit(Lsn(45)).unwrap();
    assert_eq!(progress.position().flush, Lsn(45));
}

#[test]
fn a_partial_position_stays_until_its_transaction_arrives_again() {
    let partial = Partial { final_lsn: Lsn(20), changes: 3 };
    let mut progress = Progress::new(Position { flush: Lsn(5), partial: Some(partial) });
    progress.reached(Lsn(18));
    assert_eq!(progress.position(), Position { flush: Lsn(5), partial: Some(partial) });
    progress.begin(transaction(20)).unwrap();
    assert_eq!(progress.change(), Ok(Change::Delivered));
}

#[test]
fn transactions_without_events_do_not_pile_up() {
    let mut progress = Progress::new(Position::default());
    progress.begin(transaction(10)).unwrap();
    progress.change().unwrap();
    progress.commit(Lsn(15)).unwrap();
    for n in 2..1_000 {
        progress.begin(transaction(n * 10)).unwrap();
        for _ in 0..n % 3 {
            let Ok(Change::New(ignored)) = progress.change() else { panic!("nothing to skip") };
            progress.acknowledge(ignored);
        }
        progress.commit(Lsn(n * 10 + 5)).unwrap();
        assert_eq!(progress.transactions.len(), 1);
    }
    assert_eq!(progress.position(), Position::default());
    progress.acknowledge(Sequence(0));
    assert_eq!(progress.position().flush, Lsn(9_995));
}

#[test]
fn a_change_has_the_same_place_in_every_session() {
    let mut first = Progress::new(Position::default());
    for (final_lsn, end_lsn, changes) in [(10, 15, 2), (20, 25, 0), (30, 35, 3)] {
        first.begin(transaction(final_lsn)).unwrap();
        for _ in 0..changes {
            first.change().unwrap();
        }
        first.commit(Lsn(end_lsn)).unwrap();
    }
    let place = |final_lsn, changes| Some(Partial { final_lsn: Lsn(final_lsn), changes });
    assert_eq!(
        [0, 1, 2, 4].map(|n| first.partial_up_to(Sequence(n))),
        [place(10, 1), place(10, 2), place(30, 1), place(30, 3)]
    );
    (0..3).for_each(|n| first.acknowledge(Sequence(n)));
    assert_eq!(first.partial_up_to(Sequence(0)), None, "acknowledged with all of its transaction");

    let mut second = Progress::new(first.position());
    second.begin(transaction(30)).unwrap();
    assert_eq!(second.change(), Ok(Change::Delivered));
    assert_eq!(second.change(), Ok(Change::New(Sequence(1))));
    assert_eq!(second.partial_up_to(Sequence(1)), place(30, 2));
}

#[test]
fn a_protocol_violation_is_an_error() {
    let mut progress = Progress::new(Position::default());
    assert_eq!(progress.change(), Err(OutOfStep::Outside));
    assert_eq!(progress.commit(Lsn(1)), Err(OutOfStep::Outside));
    progress.begin(transaction(2)).unwrap();
    assert_eq!(progress.begin(transaction(3)), Err(OutOfStep::BeginInside));
}

#[test]
fn acknowledging_twice_or_ahead_changes_nothing() {
    let mut progress = Progress::new(Position::default());
    progress.begin(transaction(10)).unwrap();
    progress.change().unwrap();
    progress.acknowledge(Sequence(7));
    assert_eq!(progress.position(), Position::default());
    progress.acknowledge(Sequence(0));
    progress.acknowledge(Sequence(0));
    progress.commit(Lsn(15)).unwrap();
    assert_eq!(progress.position().flush, Lsn(15));
}

#[test]
fn a_restarted_stream_continues_at_the_position() {
    let mut progress = Progress::new(Position { flush: Lsn(10), partial: None });
    progress.begin(transaction(100)).unwrap();
    let Change::New(first) = progress.change().unwrap() else { panic!("delivered") };
    progress.commit(Lsn(150)).unwrap();
    progress.begin(transaction(200)).unwrap();
    let Change::New(second) = progress.change().unwrap() else { panic!("delivered") };
    progress.acknowledge(first);
    progress.acknowledge(second);
    let position = Position { flush: Lsn(150), partial: Some(Partial { final_lsn: Lsn(200), changes: 1 }) };
    assert_eq!(progress.position(), position);

    progress.restart_stream();
    assert_eq!(progress.position(), position);
    // a transaction before the position arrives again completely, and then the rest of the next
    progress.begin(transaction(100)).unwrap();
    assert_eq!(progress.change(), Ok(Change::Delivered));
    progress.commit(Lsn(150)).unwrap();
    progress.begin(transaction(200)).unwrap();
    assert_eq!(progress.change(), Ok(Change::Delivered));
    let Ok(Change::New(third)) = progress.change() else { panic!("delivered") };
    assert!(third > second, "sequence numbers continue");
    progress.commit(Lsn(250)).unwrap();
    assert_eq!(progress.position(), position);
    progress.acknowledge(third);
    assert_eq!(progress.position(), Position { flush: Lsn(250), partial: None });
}
