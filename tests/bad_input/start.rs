//! A definite error of Postgres at start: exit code 1.

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;
use crate::support::sentences::Sentences;
use crate::support::settings::Settings;
use crate::support::shared;
use crate::support::signal::Signal;

#[tokio::test]
async fn bad_input_that_postgres_reports_at_start_exits_with_1() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let url = outbox.url();
    let nobody = url.replace("postgres@", "nobody_knows@");
    let nowhere = url.replace(&outbox.name, "nowhere_known");
    let mut sentences = Sentences::default();
    for (case, key, value) in [
        ("an unknown table", "outbox.table", "public.outbax"),
        ("a table in another schema", "outbox.table", "\"Sales\".outbox"),
        ("an unknown publication", "postgres.publication", "outbax"),
        ("an unknown role", "postgres.url", nobody.as_str()),
        ("an unknown database", "postgres.url", nowhere.as_str()),
        ("a missing column", "outbox.columns.payload", "body"),
        ("a missing optional column that was named", "outbox.columns.headers", "meta"),
        ("a missing column of the topic", "route.topic", "events.${region}"),
        ("a missing column of a header", "route.headers.region", "${region}"),
    ] {
        let ended = Router::start(&settings.clone().set(key, value)).exits(1).await;
        sentences.of(case, &outbox, &ended);
    }

    for (case, sql) in [
        ("inserts are not published", "ALTER PUBLICATION outbox_router SET (publish = 'delete')"),
        ("the table is not published", "ALTER PUBLICATION outbox_router DROP TABLE outbox"),
        (
            "the table is unlogged",
            "DROP PUBLICATION outbox_router; ALTER TABLE outbox SET UNLOGGED; CREATE PUBLICATION outbox_router FOR ALL TABLES",
        ),
    ] {
        outbox.execute(sql).await;
        sentences.of(case, &outbox, &Router::start(&settings).exits(1).await);
    }

    let lower = "region text GENERATED ALWAYS AS (lower(aggregate_type)) STORED, id uuid";
    let generated = TABLE.replace("id uuid", lower);
    let generated = Outbox::with_table(shared::postgres(), &generated).await;
    let settings = Settings::new(&generated, &kafka).set("route.topic", "events.${region}");
    sentences.of("a generated column", &generated, &Router::start(&settings).exits(1).await);

    let other = TABLE.replace("headers jsonb NOT NULL DEFAULT '{}'", "headers int");
    let other = Outbox::with_table(shared::postgres(), &other).await;
    let ended = Router::start(&Settings::new(&other, &kafka)).exits(1).await;
    sentences.of("headers of a wrong type", &other, &ended);
    insta::assert_snapshot!(sentences.text());
    assert_eq!(kafka.count(&outbox.name).await, Ok(0));
}

/// Until the slot is past the DDL, the WAL may still hold rows with the old columns, so a missing column is not an error yet.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bad_input_of_a_dropped_column_is_reported_at_start_once_the_slot_is_past_the_ddl() {
    let server = PrivatePostgres::start("host all all 127.0.0.1/32 trust\n", &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    outbox.execute("ALTER TABLE outbox RENAME payload TO body").await;
    outbox.execute("INSERT INTO outbox (aggregate_type, body) VALUES ('order', '1')").await;
    let settings = Settings::new(&outbox, &kafka);
    // only the row shows that the column is missing
    let ended = Router::start(&settings).exits(3).await;
    assert!(ended.log.contains("the table was altered"), "{}", ended.log);

    let renamed = settings.clone().set("outbox.columns.payload", "body");
    let mut router = Router::active(&renamed).await;
    let past = format!(
        "SELECT bool_and(age(a.xmin) > age(s.catalog_xmin)) FROM pg_attribute a, pg_replication_slots s \
         WHERE a.attrelid = 'outbox'::regclass AND a.attnum > 0 AND s.slot_name = '{}'",
        outbox.name
    );
    eventually("the slot is past the alteration", async || {
        router.assert_running();
        // logs the running transactions, from which the slot computes its catalog_xmin
        outbox.execute("CHECKPOINT").await;
        outbox.query(&past).await[0].get::<_, bool>(0).then_some(())
    })
    .await;
    router.stop().await;
    let ended = Router::start(&settings).exits(1).await;
    ended.says(&["no column \"payload\""]);
}

/// Creates what is missing step by step, and checks the error of each step.
#[tokio::test]
async fn bad_input_of_an_empty_database_hints_at_init() {
    let outbox = Outbox::bare(shared::postgres()).await;
    let settings = Settings::new(&outbox, &Kafka::shared());
    let mut sentences = Sentences::default();
    sentences.of("an empty database", &outbox, &Router::start(&settings).exits(1).await);
    // on Postgres 15 a row that was written before the publication was created ends the stream
    outbox.create_slot_by_hand().await;
    sentences.of("with a slot", &outbox, &Router::start(&settings).exits(1).await);
    outbox.execute(TABLE).await;
    sentences.of("with a table", &outbox, &Router::start(&settings).exits(1).await);
    outbox.execute(PUBLICATION).await;
    let router = Router::active(&settings).await;
    router.stop().await;
    insta::assert_snapshot!(sentences.text());
}

const MESSAGE_OF_15: &str = "must be superuser or replication role to start walsender";
const MESSAGE_OF_16: &str = "permission denied to start WAL sender: Only roles with the REPLICATION attribute may start a WAL sender process";

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bad_input_of_passwords_privileges_and_wal_level_exits_with_1() {
    let hba = "host all postgres 127.0.0.1/32 trust\nhost all unwanted 127.0.0.1/32 reject\n\
               host all all 127.0.0.1/32 scram-sha-256\n";
    let server = PrivatePostgres::start(hba, &[]).await;
    server
        .execute(&["CREATE ROLE weak LOGIN PASSWORD 'sesame'", "CREATE ROLE unwanted LOGIN REPLICATION"])
        .await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let with = |user: &str| {
        Settings::new(&outbox, &kafka).set("postgres.url", outbox.url().replace("postgres@", user))
    };
    let mut sentences = Sentences::default();
    for (case, user) in [
        ("a wrong password", "weak:wrong@"),
        ("no password", "weak@"),
        ("no privilege to replicate", "weak:sesame@"),
        ("not welcome by pg_hba.conf", "unwanted@"),
    ] {
        sentences.of(case, &outbox, &Router::start(&with(user)).exits(1).await);
    }
    assert_eq!(kafka.count(&outbox.name).await, Ok(0));

    // with REPLICATION, which `init` grants, it runs
    server.execute(&["ALTER ROLE weak REPLICATION"]).await;
    let router = Router::active(&with("weak:sesame@")).await;
    outbox.insert("order", "a", "{}").await;
    outbox.all_confirmed().await;
    router.stop().await;

    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    server.restart(&["wal_level=replica"]);
    let ended = Router::start(&Settings::new(&outbox, &kafka)).exits(1).await;
    sentences.of("wal_level = replica", &outbox, &ended);
    insta::assert_snapshot!(
        sentences.text().replace(MESSAGE_OF_15, "SERVER'S REASON").replace(MESSAGE_OF_16, "SERVER'S REASON")
    );
}

/// The router resumes where the other one left the slot, and does not take the other's deliveries for a gap.
#[tokio::test]
async fn a_router_that_lost_its_slot_to_another_resumes_when_the_slot_is_free() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let mut first = Router::active(&settings).await;
    outbox.insert("order", "a", "1").await;
    outbox.all_confirmed().await;
    first.signal(Signal::Stop);
    outbox.execute(&format!("SELECT pg_terminate_backend({}, 60000)", outbox.active_pid().await)).await;
    outbox.released().await;

    let second = Router::active(&settings).await;
    first.signal(Signal::Continue);
    first.shows("the router waits", |status| (status["state"] == "waiting").then_some(())).await;
    outbox.insert("order", "a", "2").await;
    outbox.all_confirmed().await;
    second.stop().await;
    first.shows("the router is active", |status| (status["state"] == "active").then_some(())).await;
    outbox.insert("order", "a", "3").await;
    outbox.all_confirmed().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(3));
    first.stop().await;
}

/// A second router waits while the first reads the slot, names it in its log, and takes over.
#[tokio::test]
async fn a_second_router_waits_for_the_slot_and_takes_over() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let first = Router::active(&settings).await;
    let walsender = outbox.active_pid().await;
    let mut second = Router::start(&settings);
    second.shows("the router waits", |status| (status["state"] == "waiting").then_some(())).await;
    second.logs(&walsender.to_string()).await;
    outbox.insert("order", "a", "1").await;
    outbox.all_confirmed().await;
    first.kill();
    outbox.insert("order", "a", "2").await;
    kafka.holds(&outbox.name, 2).await;
    second.shows("the router is active", |status| (status["state"] == "active").then_some(())).await;
    outbox.all_confirmed().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(2));
    second.stop().await;
}

/// Without this check, librdkafka would wait silently for sockets that it cannot open.
#[tokio::test]
async fn bad_input_of_a_low_limit_of_open_files_exits_with_2() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    for files in [14, 24, 36] {
        let ended = Router::with_max_files(&Settings::new(&outbox, &kafka), files).exits(2).await;
        let reason = format!(
            "error: OBR-2005: The limit of open files is {files}, and the router needs at least 64\n  Events: delayed, not lost: they wait in the log until the \
             router runs\n  Raise it (ulimit -n"
        );
        assert!(ended.log.contains(&reason), "{}", ended.log);
        if files == 14 {
            ended.shown(&outbox);
        }
    }
}
