//! The statements that claim and mark rows, run by two pollers in turn.

use outbox_router::config::load::load;
use outbox_router::postgres::polling::sql::{BUSY, OwnClaim, PolledTable, RowLocks};
use pg_logical::Environment;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::polling::polled;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;

/// One poller.
struct Poller {
    client: Client,
    table: PolledTable,
    token: &'static str,
}

/// The number of a claim, and the positions of its rows.
type Claim = Option<(i64, Vec<i64>)>;

const TOKENS: [&str; 2] = ["00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"];

async fn pollers() -> (Outbox, Poller, Poller) {
    let (outbox, settings) = polled(&Kafka::shared()).await;
    let folder = tempfile::tempdir().unwrap();
    let config = load(Some(&settings.write_to(&folder)), &Environment::empty()).unwrap().config;
    let table = PolledTable::of(&config.outbox, config.polling.as_ref().unwrap()).unwrap().with(true, true);
    let [a, b] = TOKENS.map(|token| (token, table.clone()));
    let a = Poller { client: outbox.client().await, table: a.1, token: a.0 };
    let b = Poller { client: outbox.client().await, table: b.1, token: b.0 };
    (outbox, a, b)
}

impl Poller {
    /// The rows of an answer.
    async fn run(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let messages = self.client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|index| row.get(index).map(str::to_owned)).collect())
            }
            _ => None,
        };
        messages.into_iter().filter_map(row).collect()
    }

    async fn claim(&self, limit: usize) -> Claim {
        self.claim_columns(limit, &["id"]).await
    }

    /// Claims up to a megabyte of these columns.
    async fn claim_columns(&self, limit: usize, columns: &[&str]) -> Claim {
        let columns: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
        let claim = self.table.claim(self.token, limit, 1 << 20, &columns);
        let mut rows = self.run(&claim).await;
        // it has put rows behind others
        while rows[0][0].as_deref() == Some(BUSY) {
            rows = self.run(&claim).await;
        }
        let id = rows[0][0].clone().unwrap();
        let positions = rows[1..].iter().map(|row| row[0].as_ref().unwrap().parse().unwrap()).collect();
        Some((id.parse().ok()?, positions))
    }

    /// Whether the claim was still valid, and how many rows were marked.
    async fn publish(&self, claim: &Claim, ended: bool) -> (bool, usize) {
        let (id, positions) = claim.as_ref().unwrap();
        let claimed = OwnClaim { id: *id, token: self.token };
        let rows = self.run(&self.table.publish(&claimed, positions, (ended, false), RowLocks::None)).await;
        let marked = rows[0][1].as_ref().unwrap().split(',').filter(|text| *text != "{}").count();
        (rows[0][0].as_deref() == Some("1"), marked)
    }
}

async fn numbers(outbox: &Outbox, claim: &Claim) -> Vec<String> {
    let mut found = Vec::new();
    for position in &claim.as_ref().unwrap().1 {
        found.push(
            outbox
                .text(&format!(
                    "SELECT aggregate_id || (payload ->> 'n') FROM outbox WHERE position = {position}"
                ))
                .await,
        );
    }
    found
}

#[tokio::test]
async fn an_aggregate_is_claimed_by_one_poller_at_a_time() {
    let (outbox, a, b) = pollers().await;
    outbox.insert_numbers("order", "x", 1..4).await;
    outbox.insert_numbers("order", "y", 1..4).await;
    let first = a.claim(2).await;
    assert_eq!(numbers(&outbox, &first).await, ["x1", "x2"]);
    let second = b.claim(10).await;
    assert_eq!(numbers(&outbox, &second).await, ["y1", "y2", "y3"], "x3 would overtake");
    // the same poller may go on with its aggregate, because its records are in order
    let third = a.claim(10).await;
    assert_eq!(numbers(&outbox, &third).await, ["x3"]);
    assert_eq!(a.publish(&first, true).await, (true, 2));
    outbox.insert_numbers("order", "x", 4..5).await;
    assert_eq!(b.claim(10).await, None);
    assert_eq!(a.publish(&third, true).await, (true, 1));
    assert_eq!(numbers(&outbox, &b.claim(10).await).await, ["x4"]);
}

/// They are stored compressed, and the router holds them as text.
#[tokio::test]
async fn a_claim_has_no_more_text_than_it_may() {
    let (outbox, a, b) = pollers().await;
    let insert = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
                  SELECT 'order', n, jsonb_build_object('n', repeat('x', 200000)) FROM generate_series(1, 20) n";
    outbox.execute(insert).await;
    assert_eq!(a.claim_columns(20, &["id", "payload"]).await.unwrap().1.len(), 6);
    outbox.execute("UPDATE outbox SET refusals = 1, next_attempt_at = now() WHERE position > 6").await;
    assert_eq!(
        b.claim_columns(20, &["payload", "aggregate_id"]).await.unwrap().1.len(),
        6,
        "rows that are tried again"
    );
}

#[tokio::test]
async fn a_stale_claim_changes_nothing() {
    let (outbox, a, b) = pollers().await;
    outbox.insert_numbers("order", "x", 1..4).await;
    let stale = a.claim(10).await;
    assert_eq!(b.claim(10).await, None);
    outbox.execute("UPDATE outbox_router.poll_claims SET lease_until = now()").await;
    let taken = b.claim(2).await;
    assert_eq!(numbers(&outbox, &taken).await, ["x1", "x2"]);
    assert_eq!(a.publish(&stale, true).await, (false, 0));
    let status = "SELECT string_agg(concat_ws(' ', status, attempts), ', ' ORDER BY position) FROM outbox";
    assert_eq!(outbox.text(status).await, "NEW 1, NEW 1, NEW 1");
    assert_eq!(b.publish(&taken, true).await, (true, 2));
    assert_eq!(outbox.text(status).await, "PUBLISHED 2, PUBLISHED 2, NEW 1");
    assert_eq!(b.publish(&taken, true).await, (false, 0), "it has ended");
}

/// A poller that skips locked rows would send the next row of the aggregate.
#[tokio::test]
async fn a_row_that_an_application_has_locked_is_not_overtaken() {
    let (outbox, a, _) = pollers().await;
    outbox.insert_numbers("order", "x", 1..3).await;
    let mut client = outbox.client().await;
    let locks = client.transaction().await.unwrap();
    locks.batch_execute("SELECT FROM outbox ORDER BY position LIMIT 1 FOR UPDATE").await.unwrap();
    let claim = a.claim(10).await;
    assert_eq!(numbers(&outbox, &claim).await, ["x1", "x2"]);
    let (id, positions) = claim.clone().unwrap();
    let claimed = OwnClaim { id, token: a.token };
    let rows = a.run(&a.table.publish(&claimed, &positions, (true, false), RowLocks::Skip)).await;
    assert_eq!(
        rows[0][1].as_deref(),
        Some(format!("{{{}}}", positions[1]).as_str()),
        "the other row is marked"
    );
    locks.commit().await.unwrap();
    assert_eq!(a.publish(&claim, true).await, (true, 1));
}

#[tokio::test]
async fn rows_that_were_deleted_or_changed_while_claimed_are_left_alone() {
    let (outbox, a, _) = pollers().await;
    outbox.insert_numbers("order", "x", 1..5).await;
    let claim = a.claim(10).await;
    outbox.execute("DELETE FROM outbox WHERE payload ->> 'n' = '1'").await;
    outbox
        .execute(
            "UPDATE outbox SET status = 'FAILED', next_attempt_at = 'infinity' WHERE payload ->> 'n' = '2'",
        )
        .await;
    outbox.execute("UPDATE outbox SET payload = '{\"n\": 30}' WHERE payload ->> 'n' = '3'").await;
    assert_eq!(a.publish(&claim, true).await, (true, 2));
    let status =
        "SELECT string_agg(concat_ws(' ', payload ->> 'n', status), ', ' ORDER BY position) FROM outbox";
    assert_eq!(outbox.text(status).await, "2 FAILED, 30 PUBLISHED, 4 PUBLISHED");
}

#[tokio::test]
async fn a_row_without_a_payload_is_claimed_in_its_turn() {
    let (outbox, a, _) = pollers().await;
    outbox.execute("INSERT INTO outbox (aggregate_type, aggregate_id) VALUES ('order', 'x')").await;
    outbox.insert_numbers("order", "x", 2..3).await;
    let claim = a.claim(10).await.unwrap();
    let first = outbox.text("SELECT min(position)::text FROM outbox").await;
    assert_eq!((claim.1.len(), claim.1[0].to_string()), (2, first));
}

#[tokio::test]
async fn a_due_row_does_not_overtake_an_earlier_row_that_the_claim_has_no_room_for() {
    let (outbox, a, _) = pollers().await;
    outbox.insert_numbers("order", "y", 1..6).await;
    outbox.insert_numbers("order", "x", 1..4).await;
    outbox.execute("UPDATE outbox SET refusals = 1, next_attempt_at = now() WHERE aggregate_id = 'x' AND payload ->> 'n' = '2'").await;
    let first = a.claim(3).await;
    assert_eq!(numbers(&outbox, &first).await, ["y1", "y2", "y3"]);
    let second = a.claim(3).await;
    assert_eq!(numbers(&outbox, &second).await, ["y4", "y5", "x1"]);
    // x3 waits behind x2, which has its turn now
    assert_eq!(numbers(&outbox, &a.claim(3).await).await, ["x2"]);
}

#[tokio::test]
async fn rows_behind_a_refused_one_wait_and_follow_it_in_order() {
    let (outbox, a, b) = pollers().await;
    outbox.insert_numbers("order", "x", 1..6).await;
    let state = "SELECT string_agg(concat(payload ->> 'n', CASE WHEN status = 'PUBLISHED' THEN '!' WHEN next_attempt_at = 'infinity' THEN '~' \
                 WHEN next_attempt_at > now() THEN '+' WHEN next_attempt_at IS NOT NULL THEN '-' END), ' ' ORDER BY position) FROM outbox";
    let (id, positions) = a.claim(2).await.unwrap();
    let own = OwnClaim { id, token: a.token };
    let refused = a.run(&a.table.refuse(&own, positions[0], "refused: \0 too large")).await;
    assert_eq!(refused[0][1].as_deref(), Some("1"));
    assert!(a.publish(&Some((id, vec![])), true).await.0);
    assert_eq!(outbox.text(state).await, "1+ 2 3 4 5");
    // the others are put behind it, and not looked at again
    assert_eq!(b.claim(10).await, None);
    assert_eq!(outbox.text(state).await, "1+ 2~ 3~ 4~ 5~");
    outbox.execute("UPDATE outbox SET next_attempt_at = now() WHERE refusals > 0").await;
    let head = b.claim(10).await;
    assert_eq!(numbers(&outbox, &head).await, ["x1"]);
    let (id, positions) = head.clone().unwrap();
    b.run(&b.table.publish(&OwnClaim { id, token: b.token }, &positions, (true, true), RowLocks::None)).await;
    assert_eq!(outbox.text(state).await, "1! 2- 3- 4- 5-");
    let (id, positions) = b.claim(2).await.unwrap();
    assert_eq!(positions.len(), 2);
    // the first of them is refused: the rest waits again
    b.run(&b.table.refuse(&OwnClaim { id, token: b.token }, positions[0], "refused: again")).await;
    assert_eq!(outbox.text(state).await, "1! 2+ 3~ 4~ 5~");
    outbox.execute("DELETE FROM outbox WHERE refusals > 0").await;
    b.publish(&Some((id, vec![])), true).await;
    b.run(&b.table.release_orphans()).await;
    assert_eq!(outbox.text(state).await, "3- 4- 5-");
    assert_eq!(numbers(&outbox, &a.claim(10).await).await, ["x3", "x4", "x5"]);
}

/// The times are those of the server, so the delays need no limit.
#[tokio::test]
async fn a_row_waits_longer_after_each_refusal_and_fails_after_eight() {
    let (outbox, a, _) = pollers().await;
    outbox.insert_numbers("order", "x", 1..2).await;
    let refuse = async || {
        let (id, positions) = a.claim(10).await.unwrap();
        a.run(&a.table.refuse(&OwnClaim { id, token: a.token }, positions[0], "refused")).await;
        a.publish(&Some((id, vec![])), true).await;
    };
    for (times, delay) in (1..).zip(["5 s", "30 s", "5 min", "30 min", "4 h", "4 h", "4 h"]) {
        let before = outbox.text("SELECT clock_timestamp()::text").await;
        refuse().await;
        let state = format!(
            "SELECT concat_ws(' ', status, refusals, next_attempt_at BETWEEN timestamptz '{before}' + interval '{delay}' \
             AND clock_timestamp() + interval '{delay}') FROM outbox"
        );
        assert_eq!(outbox.text(&state).await, format!("NEW {times} t"), "{delay}");
        outbox.execute("UPDATE outbox SET next_attempt_at = now()").await;
    }
    refuse().await;
    let state = "SELECT concat_ws(' ', status, refusals, next_attempt_at) FROM outbox";
    assert_eq!(outbox.text(state).await, "FAILED 8 infinity");
    assert_eq!(a.claim(10).await, None);
}

/// No claim looks below the bound.
#[tokio::test]
async fn a_row_that_somebody_sets_back_to_new_is_due() {
    let (outbox, a, _) = pollers().await;
    outbox.insert_numbers("order", "x", 1..3).await;
    let claim = a.claim(10).await;
    a.publish(&claim, true).await;
    outbox.execute("UPDATE outbox SET status = 'NEW' WHERE payload ->> 'n' = '1'; UPDATE outbox_router.poll_claims SET from_position = 1000, candidate_position = 1000, candidate_xid = NULL").await;
    assert_eq!(a.claim(10).await, None);
    a.run(&a.table.release_set_back().unwrap()).await;
    assert_eq!(numbers(&outbox, &a.claim(10).await).await, ["x1"]);
}

/// Whatever the statistics say, a claim reads about as many rows as it takes.
#[tokio::test]
async fn a_claim_reads_few_rows_behind_published_ones() {
    let (outbox, a, _) = pollers().await;
    // the snapshot keeps every published row in the indexes
    let mut client = outbox.client().await;
    let snapshot = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    snapshot.batch_execute("SELECT FROM outbox").await.unwrap();
    outbox.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)").await;
    for round in 0..10 {
        let insert = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', 'a' || n % 50, jsonb_build_object('n', n) \
             FROM generate_series(1, 1000) n WHERE {round} >= 0"
        );
        outbox.execute(&insert).await;
        let claim = a.claim(1_000).await;
        assert_eq!(a.publish(&claim, true).await, (true, 1_000));
    }
    // other tests have transactions, which the mark waits for
    for _ in 0..3 {
        let settled = "SELECT (candidate_xid <= pg_snapshot_xmin(pg_current_snapshot()))::text FROM outbox_router.poll_claims ORDER BY id DESC LIMIT 1";
        eventually("the mark moves", async || (outbox.text(settled).await == "true").then_some(())).await;
        outbox.insert("order", "y", "{}").await;
        let claim = a.claim(1).await;
        assert_eq!(a.publish(&claim, true).await, (true, 1));
    }
    outbox.insert_numbers("order", "x", 1..3).await;
    let read = "SELECT sum(idx_tup_read)::bigint::text FROM pg_stat_user_indexes WHERE relname = 'outbox'";
    let reads = async || {
        a.run("SELECT pg_stat_force_next_flush()").await;
        a.run("SELECT pg_stat_clear_snapshot()").await;
        a.run(read).await[0][0].clone().unwrap().parse::<i64>().unwrap()
    };
    let before = reads().await;
    let claim = a.claim(10).await;
    assert_eq!(claim.as_ref().unwrap().1.len(), 2);
    let read = reads().await - before;
    assert!(read < 50, "{read} entries of indexes were read for two rows");
    snapshot.commit().await.unwrap();
}
