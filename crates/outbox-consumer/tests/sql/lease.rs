//! `inbox_start`, `inbox_extend` and `inbox_finish`.

use crate::support::{Database, Session};

async fn start(session: &Session) -> (String, String) {
    let started =
        session.ok("SELECT outcome, token FROM outbox_router.inbox_start('shipping', 'e', '1 min')").await;
    let (outcome, token) = started.split_once('|').unwrap();
    (outcome.to_owned(), token.to_owned())
}

async fn expire(session: &Session) {
    session.ok("UPDATE outbox_router.inbox SET lease_until = now() - interval '1 s' WHERE lease_until IS NOT NULL").await;
}

fn finish(token: &str) -> String {
    format!("SELECT outbox_router.inbox_finish('shipping', 'e', '{token}', '{{\"by\": \"{token}\"}}')")
}

fn extend(token: &str) -> String {
    format!(
        "SELECT outbox_router.inbox_extend('shipping', 'e', '{token}', '2 min') > now() + interval '90 s'"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_event_is_busy_until_it_is_finished() {
    let database = Database::new().await;
    let session = database.session().await;
    let (outcome, token) = start(&session).await;
    assert_eq!(outcome, "fresh");
    assert_eq!(start(&session).await.0, "busy");
    let claim = "SELECT outcome, busy_until > now() FROM outbox_router.inbox_claim('shipping', 'e')";
    assert_eq!(session.ok(claim).await, "busy|t");
    assert_eq!(session.fails("SELECT outbox_router.inbox_put('shipping', 'e', 'x')").await, "55P03");
    assert_eq!(session.ok(&extend(&token)).await, "t");
    assert_eq!(session.ok(&finish(&token)).await, "t");
    assert_eq!(session.ok(&finish(&token)).await, "t", "a repeated finish, whose answer was lost");
    assert_eq!(session.ok(&extend(&token)).await, "");
    let done = session
        .ok("SELECT outcome, result->>'by' FROM outbox_router.inbox_start('shipping', 'e', '1 min')")
        .await;
    assert_eq!(done, format!("done|{token}"));
    assert_eq!(session.ok("SELECT outbox_router.inbox_put('shipping', 'e', 'x')").await, "duplicate");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_is_taken_over_and_the_former_holder_changes_nothing() {
    let database = Database::new().await;
    let session = database.session().await;
    let (_, former) = start(&session).await;
    expire(&session).await;
    assert_eq!(session.ok(&extend(&former)).await, "", "late");
    let (outcome, present) = start(&session).await;
    assert_eq!(outcome, "fresh");
    assert_eq!(session.ok(&finish(&former)).await, "f");
    assert_eq!(session.ok(&extend(&former)).await, "");
    assert_eq!(session.ok(&finish(&present)).await, "t");
    assert_eq!(session.ok(&finish(&former)).await, "f");
    let result = session.ok("SELECT result->>'by' FROM outbox_router.inbox_claim('shipping', 'e')").await;
    assert_eq!(result, present);
}

/// The late call of the former holder is still open when another wants to take over.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_waits_for_a_late_finish() {
    let database = Database::new().await;
    let (holder, other, admin) =
        (database.session().await, database.session().await, database.session().await);
    for (end, outcome) in [("ROLLBACK", "fresh"), ("COMMIT", "done")] {
        let (_, token) = start(&holder).await;
        expire(&admin).await;
        holder.ok("BEGIN").await;
        assert_eq!(holder.ok(&finish(&token)).await, "t");
        let (taken, ()) = tokio::join!(start(&other), async {
            admin.until_blocked(other.pid).await;
            holder.ok(end).await;
        });
        assert_eq!(taken.0, outcome, "{end}");
        if outcome == "fresh" {
            assert_eq!(holder.ok(&finish(&token)).await, "f");
            admin.ok("DELETE FROM outbox_router.inbox").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_or_a_claim_takes_an_expired_lease_over() {
    let database = Database::new().await;
    let session = database.session().await;
    for (call, outcome) in [
        ("SELECT outcome FROM outbox_router.inbox_claim('shipping', 'e')", "fresh"),
        ("SELECT outbox_router.inbox_put('shipping', 'e', 'x')", "new"),
    ] {
        let (_, token) = start(&session).await;
        expire(&session).await;
        assert_eq!(session.ok(call).await, outcome);
        assert_eq!(session.ok(&finish(&token)).await, "f");
        if outcome == "new" {
            let busy = session.ok("SELECT outcome FROM outbox_router.inbox_claim('shipping', 'e')").await;
            assert_eq!(busy, "busy", "it waits in the queue");
        }
        session.ok("DELETE FROM outbox_router.inbox").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_takeovers_one_succeeds() {
    let database = Database::new().await;
    let (first, second, admin) =
        (database.session().await, database.session().await, database.session().await);
    start(&first).await;
    expire(&admin).await;
    first.ok("BEGIN").await;
    assert_eq!(start(&first).await.0, "fresh");
    let (taken, ()) = tokio::join!(start(&second), async {
        admin.until_blocked(second.pid).await;
        first.ok("COMMIT").await;
    });
    assert_eq!(taken.0, "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_tokens_are_checked() {
    let database = Database::new().await;
    let session = database.session().await;
    for lease in ["NULL", "'0'", "'-1 min'", "'1 year'", "'infinity'::text::interval"] {
        for call in ["inbox_start('c', 'e', {})", "inbox_extend('c', 'e', gen_random_uuid(), {})"] {
            let error = session
                .ask(&format!("SELECT outbox_router.{}", call.replace("{}", lease)))
                .await
                .unwrap_err();
            assert!(error == "22023" || error == "22007", "{call} {lease}: {error}");
        }
    }
    for call in ["inbox_finish('c', 'e', NULL)", "inbox_extend('c', 'e', NULL, '1 min')"] {
        assert_eq!(session.fails(&format!("SELECT outbox_router.{call}")).await, "22023", "{call}");
    }
    let nobody = "SELECT outbox_router.inbox_finish('shipping', 'e', gen_random_uuid())";
    assert_eq!(session.ok(nobody).await, "f", "without a start");
    start(&session).await;
    assert_eq!(session.ok(nobody).await, "f", "another's token");
    let large = "SELECT outbox_router.inbox_finish('shipping', 'e', gen_random_uuid(), to_jsonb(repeat('x', 20000000)))";
    assert_eq!(session.fails(large).await, "22023");
}

/// The answer to the first call was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_may_be_repeated_with_a_token_of_its_own() {
    let database = Database::new().await;
    let (session, other) = (database.session().await, database.session().await);
    let token = "00000000-0000-4000-8000-000000000001";
    let call = |token: &str| {
        format!(
            "SELECT outcome, token, busy_until > now() FROM outbox_router.inbox_start('shipping', 'e', '1 min', '{token}')"
        )
    };
    let fresh = format!("fresh|{token}|t");
    assert_eq!(session.ok(&call(token)).await, fresh);
    assert_eq!(other.ok(&call(token)).await, fresh);
    assert_eq!(session.ok(&call(&token.replace('1', "2"))).await, "busy||t");
    expire(&session).await;
    assert_eq!(session.ok(&call(token)).await, fresh);
    assert_eq!(session.ok(&finish(token)).await, "t");
    assert_eq!(session.ok(&call(token)).await, "done||");
}
