//! The primary is lost and a standby takes its place. These tests use Postgres 17 or later, whatever version the suite runs on.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::{Instant, timeout};

use crate::invariants::recovery_sql::typed;
use crate::situations::page::keep;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE, connect};
use crate::support::place::succeeded;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::{Ended, Router};
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

/// The standby may connect too.
pub(crate) const PG_HBA: &str = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n";

/// A primary, its standby, and an outbox that `init` has set up, with a slot that the standby synchronizes.
pub(crate) struct Pair {
    pub(crate) outbox: Outbox,
    pub(crate) kafka: Kafka,
    pub(crate) settings: Settings,
    pub(crate) primary: PrivatePostgres,
    pub(crate) standby: PrivatePostgres,
}

impl Pair {
    pub(crate) async fn new() -> Self {
        Self::with_standby_settings(&["sync_replication_slots=on"]).await
    }

    /// The same with other settings of the standby.
    pub(crate) async fn with_standby_settings(settings: &[&str]) -> Self {
        let (primary, standby) = PrivatePostgres::pair(PG_HBA, &[], settings).await;
        // the standby comes first, so that the router has to skip it
        let hosts = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}", standby.port(), primary.port());
        let (outbox, kafka) = (Outbox::bare(&hosts).await, Kafka::shared());
        let settings = Settings::new(&outbox, &kafka).set("postgres.url", format!("{hosts}/{}", outbox.name));
        outbox.execute(TABLE).await;
        // if the database were missing on a host, the router would stop
        let database = format!("SELECT 1 FROM pg_database WHERE datname = '{}'", outbox.name);
        let mut session = standby.superuser().await;
        eventually("the standby has the database", async || session.query_one(&database).await.unwrap())
            .await;
        succeeded(settings.run(&["init"]), &[]);
        Pair { outbox, kafka, settings, primary, standby }
    }

    /// From now on Postgres sends a change to the router only once the standby has confirmed it.
    pub(crate) async fn router_waits_for_the_standby(&self) {
        self.primary.configure(&[("synchronized_standby_slots", "standby")]).await;
    }

    /// Ends replication to the standby.
    pub(crate) async fn cut_off(&self) {
        self.standby.configure(&[("primary_conninfo", "")]).await;
        let gone = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'standby' AND NOT active";
        eventually("the standby is disconnected", async || self.outbox.query(gone).await.pop()).await;
    }

    pub(crate) async fn rows(&self) -> i64 {
        self.outbox.query("SELECT count(*) FROM outbox").await[0].get(0)
    }

    /// Waits until the standby has a copy of the slot that survives promotion.
    pub(crate) async fn slot_synced(&self) {
        let copy = format!(
            "SELECT 1 FROM pg_replication_slots WHERE slot_name = '{}' AND synced AND NOT temporary",
            self.outbox.name
        );
        let mut standby = self.standby.superuser().await;
        eventually("the standby has a copy of the slot", async || {
            self.outbox.execute("CHECKPOINT").await;
            standby.query_one(&copy).await.unwrap()
        })
        .await;
    }

    pub(crate) async fn promote(&self) {
        self.standby.execute(&["SELECT pg_promote()"]).await;
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn failover_under_load_loses_nothing_and_keeps_order_per_aggregate() {
    let mut random: StdRng = seed::random();
    let pair = Pair::new().await;
    pair.router_waits_for_the_standby().await;
    let (outbox, kafka) = (&pair.outbox, &pair.kafka);
    let mut router = Router::active(&pair.settings).await;
    let writers = Writers::start(outbox, 4, &mut random).await;
    pair.slot_synced().await;
    let seen = kafka.count(&outbox.name).await.unwrap();
    kafka.holds(&outbox.name, seen + random.random_range(100..1000)).await;

    // the primary gets ahead of the standby, but the router must not
    pair.cut_off().await;
    let ahead = pair.rows().await + 300;
    eventually("the primary is ahead", async || (pair.rows().await >= ahead).then_some(())).await;
    pair.primary.kill();
    router.logs("the server is a standby").await;
    assert_eq!(router.get_now("/readyz").await.0, 503);
    let seen = kafka.count(&outbox.name).await.unwrap();
    pair.promote().await;
    let promoted = Instant::now();
    kafka.holds(&outbox.name, seen + 1).await;
    // a figure for the documentation, not a limit
    println!("the next record came {:?} after the promotion", promoted.elapsed());
    kafka.holds(&outbox.name, seen + 200).await;
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    // this also shows that nothing was sent that the new primary does not have
    same(outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}

/// The router's position in a message about another timeline.
fn position_in(ended: &Ended) -> pg_logical::Lsn {
    let (_, position) = ended.message().split_once("the router's position ").unwrap();
    position.split(':').next().unwrap().parse().unwrap()
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn failover_to_a_standby_that_is_behind_is_refused_with_both_positions() {
    let pair = Pair::new().await;
    let (outbox, kafka) = (&pair.outbox, &pair.kafka);
    let router = Router::active(&pair.settings).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    pair.slot_synced().await;

    // the router still gets changes
    pair.cut_off().await;
    outbox.insert_numbers("order", "a", 11..21).await;
    outbox.all_confirmed().await;
    let confirmed = outbox.confirmed().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(20));
    pair.primary.kill();
    pair.promote().await;

    let ended = router.exits(3).await;
    let history: String = outbox.query("SELECT pg_read_file('pg_wal/00000002.history')").await[0].get(0);
    let switch = history.split_whitespace().nth(1).unwrap().to_owned();
    ended.says(&[
        "from timeline 1",
        &format!("at {switch}, "),
        "before the router's position",
        "no longer exist in Postgres",
    ]);
    // after the last event, only keepalives are confirmed
    let position = position_in(&ended);
    assert!(position >= confirmed && position > switch.parse().unwrap(), "{position} {confirmed} {switch}");
    // the new primary really lacks rows
    assert!(pair.rows().await < 20);
    assert_eq!(kafka.count(&outbox.name).await, Ok(20));

    // another process finds the same, and continues only with `--accept-gap`
    outbox.released().await;
    let again = Router::start(&pair.settings).exits(3).await;
    again.says(&["from timeline 1", &switch]).shown(outbox);
    // the checkpoint may not have the last keepalives
    let stored = position_in(&again);
    assert!(stored >= confirmed && stored <= position, "{stored} {confirmed} {position}");
    let router = Router::with_arguments(&pair.settings, &["--accept-gap", again.accept_gap_position()]);
    outbox.insert("order", "b", "{\"n\": 1}").await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(21));
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn failover_is_waited_for_where_only_a_standby_can_be_reached() {
    let pair = Pair::new().await;
    pair.router_waits_for_the_standby().await;
    pair.primary.configure(&[("synchronous_standby_names", "*")]).await;
    let (outbox, kafka) = (&pair.outbox, &pair.kafka);
    let router = Router::active(&pair.settings).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    pair.slot_synced().await;
    router.stop().await;

    // the only host of this URL is still a standby
    let url = format!("{}/{}", pair.standby.url(), outbox.name);
    let mut router = Router::start(&pair.settings.clone().set("postgres.url", url));
    router.logs("its copy of the slot").await;
    router.logs("can be read only once it is promoted").await;
    assert_eq!(router.get_now("/readyz").await.0, 503);
    outbox.insert_numbers("order", "a", 11..21).await;
    // replication is synchronous, so the standby has these events
    pair.primary.kill();
    pair.promote().await;
    router.ready().await;
    outbox.insert_numbers("order", "a", 21..31).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let numbers: Vec<_> = kafka.records(&outbox.name).await.iter().map(|record| record.number()).collect();
    let repeated = numbers.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    assert!(repeated <= 1 && numbers.last() == Some(&30), "{numbers:?}");
    same(outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}

/// This is the situation on every version before 17.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn failover_to_a_standby_without_a_copy_of_the_slot_is_refused() {
    let pair = Pair::with_standby_settings(&[]).await;
    pair.router_waits_for_the_standby().await;
    let router = Router::active(&pair.settings).await;
    pair.outbox.insert_numbers("order", "a", 1..11).await;
    pair.outbox.all_confirmed().await;
    let standby = format!("{}/{}", pair.standby.url(), pair.outbox.name);
    let ran = pair.settings.clone().set("postgres.url", standby.as_str()).run_async(&["init"]).await;
    keep(&ran.err, &[(&pair.outbox.name, "NAME")]);
    pair.primary.kill();
    pair.promote().await;
    pair.outbox.insert_numbers("order", "a", 11..12).await;
    let ended = router.exits(3).await;
    ended.says(&[
        "the replication slot",
        "does not exist",
        "did not survive a failover",
        "may be missing in Kafka",
    ]);
    assert!(ended.log.contains("every event before this position is in Kafka or parked"), "{}", ended.log);
    assert_eq!(pair.kafka.count(&pair.outbox.name).await, Ok(10));
}

/// A router may read a slot that was created on a standby. The primary may remove rows that this slot needs.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn no_guessing_about_a_standbys_own_slot_that_conflicts_with_the_primary() {
    let (primary, standby) = PrivatePostgres::pair(PG_HBA, &[], &["hot_standby_feedback=off"]).await;
    let (outbox, kafka) = (Outbox::bare(&primary.url()).await, Kafka::shared());
    outbox.execute(&format!("{TABLE}; {PUBLICATION}")).await;
    let url = format!("{}/{}", standby.url(), outbox.name);
    let published = "SELECT 1 FROM pg_publication";
    let on_standby = eventually("the standby has the publication", async || {
        let client = connect(&url).await.ok()?;
        let seen = client.query(published, &[]).await.ok()?;
        (!seen.is_empty()).then_some(client)
    })
    .await;
    let create = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", outbox.name);
    let mut creation = std::pin::pin!(on_standby.batch_execute(&create));
    // the standby can create the slot only where the primary logs its running transactions
    while let Err(_still) = timeout(Duration::from_millis(50), &mut creation).await {
        outbox.execute("SELECT pg_log_standby_snapshot()").await;
    }
    let settings = Settings::new(&outbox, &kafka).set("postgres.url", url.as_str());
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    kafka.holds(&outbox.name, 3).await;

    // separate transactions, because a table that is created and dropped in the same one leaves no rows that a slot needs
    for sql in ["CREATE TABLE gone ()", "DROP TABLE gone", "VACUUM pg_catalog.pg_class"] {
        outbox.execute(sql).await;
    }
    let ended = router.exits(3).await;
    ended.says(&["invalidated the replication slot", "rows_removed", "hot_standby_feedback = on"]);
    // a standby is read-only, so only its query can be tried there
    let (_, select) = ended.save_statement().split_once(" AS ").unwrap();
    typed(&on_standby, select, "id").await;
}
