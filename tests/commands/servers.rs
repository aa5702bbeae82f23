//! Commands that need a server of their own: settings, passwords, open transactions, authorization.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use super::check::Found;
use crate::support::place::{Place, Ran, refused, succeeded};
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::{AUTHORIZING, PrivateKafka, kafka_tool};
use crate::support::process;
use crate::support::signal::{Signal, send};

const TRUST: &str = "host all all 127.0.0.1/32 trust\n";

fn place(server: &PrivatePostgres) -> Place {
    Place::on(&format!("postgres://postgres@127.0.0.1:{}", server.port()))
}

#[tokio::test]
async fn without_logical_wal_nothing_is_created() {
    let server = PrivatePostgres::start(TRUST, &["wal_level=replica"]).await;
    let place = place(&server);
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    insta::assert_snapshot!(ran.err);
    assert_eq!(place.psql("SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox_router'"), "0\n");
    let found = Found::at(&place).of("wal_level");
    let sentence = "wal_level is replica, and logical replication needs logical\n";
    assert!(found.starts_with(&format!("error: {sentence}")) && ran.err.contains(sentence), "{found}");
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn without_a_free_slot_or_sender_nothing_is_created() {
    let settings = ["max_replication_slots=1", "max_slot_wal_keep_size=1GB"];
    let server = PrivatePostgres::start(TRUST, &settings).await;
    let place = place(&server);
    place.psql("SELECT pg_create_physical_replication_slot('taken')");
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    insta::assert_snapshot!(ran.err);
    let found = Found::at(&place);
    insta::assert_snapshot!("check_without_a_free_slot", found.of("max_replication_slots"));
    assert!(
        found.of("max_slot_wal_keep_size").starts_with("ok: 1.0 GiB"),
        "{}",
        found.of("max_slot_wal_keep_size")
    );
    place.psql("SELECT pg_drop_replication_slot('taken')");
    assert_eq!(place.run(&["init"]).code, 0);

    server.restart(&["max_wal_senders=0"]);
    let found = Found::at(&place);
    assert_eq!(found.code, 1);
    assert!(found.checks("error").contains("max_wal_senders"));
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn a_lost_slot_is_reported_and_not_recreated() {
    let settings = ["max_slot_wal_keep_size=1MB", "max_wal_size=32MB", "min_wal_size=32MB"];
    let server = PrivatePostgres::start(TRUST, &settings).await;
    let place = place(&server).with("ADMIN__LISTEN", "127.0.0.1:1");
    assert_eq!(place.run(&["init"]).code, 0);
    for _ in 0..4 {
        place.psql("SELECT pg_logical_emit_message(false, 'x', 'x')");
        place.psql("SELECT pg_switch_wal()");
    }
    place.psql("CHECKPOINT");
    let found = Found::at(&place);
    assert_eq!((found.code, found.checks("error")), (1, BTreeSet::from(["slot"])));
    assert!(found.of("slot").contains("has invalidated"), "{}", found.of("slot"));
    let ran = place.run(&["init"]);
    assert!(ran.code == 1 && ran.err.contains("has invalidated"), "{ran:?}");
    let status = place.run(&["status"]);
    assert!(status.out.contains("has invalidated"), "{status:?}");
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn a_cluster_manager_that_drops_slots_is_told_to_ignore_them() {
    let server = PrivatePostgres::start(TRUST, &[]).await;
    let place = place(&server).with("ADMIN__LISTEN", "127.0.0.1:1");
    let advice = format!("{{database: '{}', plugin: pgoutput, type: logical}}", place.name);
    assert_eq!(Found::at(&place).of("cluster_manager"), "");
    let mut patroni = server.superuser().await;
    patroni.query("SET application_name = 'Patroni heartbeat'").await.unwrap();
    let found = Found::at(&place).of("cluster_manager");
    assert!(found.starts_with("warning: Patroni") && found.contains(&advice), "{found}");
    let ran = place.run(&["init"]);
    assert!(ran.code == 0 && ran.err.contains("ignore_slots") && ran.err.contains(&advice), "{ran:?}");
    // only a new slot is worth a warning
    let ran = place.run(&["init"]);
    assert!(ran.code == 0 && !ran.err.contains("Patroni"), "{ran:?}");
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn a_wrong_password_is_reported_but_not_shown() {
    let server = PrivatePostgres::start("host all all 127.0.0.1/32 scram-sha-256\n", &[]).await;
    server.execute(&["CREATE ROLE router LOGIN PASSWORD 'right'"]).await;
    let url = format!("postgres://router:hunter2@127.0.0.1:{}/postgres", server.port());
    let place = Place::new().with("POSTGRES__URL", &url);
    let found = Found::at(&place);
    assert_eq!(found.code, 1);
    let text = found.of("postgres_connection").replace(&server.port().to_string(), "PORT");
    assert!(!text.contains("hunter2"));
    insta::assert_snapshot!(text);
    let ran = place.run(&["init"]);
    assert!(ran.code == 1 && !ran.err.contains("hunter2"), "{ran:?}");
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn slot_creation_names_what_it_waits_for_and_can_be_interrupted() {
    let server = PrivatePostgres::start(TRUST, &[]).await;
    let place = place(&server).with("ADMIN__LISTEN", "");
    let mut hog = server.superuser().await;
    for sql in ["SET application_name = 'hog'", "BEGIN", "SELECT pg_current_xact_id()"] {
        hog.query(sql).await.unwrap();
    }
    let mut init = process::start(&mut place.command(&["init"]));
    let mut lines = BufReader::new(init.stderr.take().unwrap()).lines();
    let word = lines.find_map(|line| line.ok().filter(|line| line.contains("waiting for"))).unwrap();
    let expected = format!(
        "Postgres creates the slot once all transactions that are open on the server have ended; waiting for the end of a transaction, \
         blocked by server process {} (application_name hog, database postgres, role postgres, idle in transaction, \
         transaction since 2",
        hog.backend_pid()
    );
    assert!(word.contains(&expected), "{word}");

    // meanwhile a router waits, and nobody takes the slot for a lost one
    let found = Found::at(&place).of("slot");
    assert!(found.starts_with("warning") && found.contains("is still creating the slot"), "{found}");
    refused(
        &place.run(&["slot", "bookmark", "one"]),
        1,
        &["OBR-1105", "is still creating the slot", "cancel it with `SELECT pg_cancel_backend("],
    );
    succeeded(place.run(&["slot", "list"]), &["is still being created"]);
    let mut router = process::start(&mut place.command(&["run"]));
    let said = BufReader::new(router.stderr.take().unwrap()).lines();
    let waits = said.map_while(Result::ok).find(|line| line.contains("is still creating the slot"));
    assert!(waits.is_some(), "the router has ended: {:?}", router.wait());
    router.kill().unwrap();
    router.wait().unwrap();

    assert!(send(Signal::Interrupt, init.id()));
    // the transaction that it waited for is still open
    let status = init.wait().unwrap();
    let err: String = lines.map(|line| line.unwrap() + "\n").collect();
    assert_eq!(status.code(), Some(1), "{err}");
    let mut out = String::new();
    init.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(!out.contains("waiting"), "{out}");
    insta::assert_snapshot!(place.masked(&err));
    assert_eq!(place.psql("SELECT count(*) FROM pg_replication_slots"), "0\n");

    // once that transaction has ended, init succeeds, and so does one that was started meanwhile
    let both =
        ["waiting for the end of a transaction", "waiting for another outbox-router init"].map(|waits| {
            let mut init = process::start(&mut place.command(&["init"]));
            let mut lines = BufReader::new(init.stderr.take().unwrap()).lines().map_while(Result::ok);
            assert!(lines.any(|line| line.contains(waits)), "{waits}: {:?}", init.wait());
            (init, lines)
        });
    hog.query("ROLLBACK").await.unwrap();
    for (init, lines) in both {
        let ran = Ran::of(init.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{}", lines.collect::<String>());
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn the_printed_acls_are_what_the_router_needs() {
    let broker = PrivateKafka::start(&AUTHORIZING).await;
    let place = Place::new()
        .with("KAFKA__BOOTSTRAP_SERVERS", broker.extra())
        .with("KAFKA__SECURITY_PROTOCOL", "sasl_plaintext")
        .with("KAFKA__SASL_MECHANISM", "PLAIN")
        .with("KAFKA__SASL_USERNAME", "outbox-router")
        .with("KAFKA__SASL_PASSWORD", "secret");
    assert_eq!(place.run(&["init"]).code, 0);
    let found = Found::at(&place);
    assert_eq!(found.code, 1);
    insta::assert_snapshot!(place.masked(&found.of("topic_creation")).replace(broker.extra(), "BROKER"));

    let printed = place.run(&["init", "--print-acls"]).out;
    let client = broker.client();
    let commands: String =
        printed.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(" ");
    for command in commands.split("kafka-acls.sh").skip(1) {
        let words: Vec<&str> = command.split_whitespace().filter(|word| *word != "\\").collect();
        let add = words.iter().position(|word| *word == "--add").unwrap();
        let arguments = [&["--bootstrap-server", client.bootstrap.as_str()], &words[add..]].concat();
        let ran = kafka_tool("org.apache.kafka.tools.AclCommand", &arguments);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let found = Found::at(&place);
    assert_eq!((found.code, found.of("topic_creation")), (0, String::new()));
    assert!(found.of("topics").starts_with("ok"));

    // the router can send a record
    let mut router = process::start(&mut place.command(&["run"]));
    place.psql("SELECT outbox_router.emit('order', '1', 'placed', '{}')");
    let topic = format!("{}.order", place.name);
    client.holds_in(&topic, 1, 1).await;
    router.kill().unwrap();
    router.wait().unwrap();

    let wrong = place.with("KAFKA__SASL_PASSWORD", "hunter2");
    let found = Found::at(&wrong);
    let text = found.of("kafka_connection");
    assert!(
        found.code == 1 && text.contains("refused the credentials") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn watched_status_is_shown_again_until_it_is_stopped() {
    let place = Place::new();
    let mut command = place.command(&["status", "--watch", "1", "--json"]);
    let mut watching = process::start(command.stdout(Stdio::piped()));
    let lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    // each report is a JSON object
    let reports = lines.map_while(Result::ok).filter(|line| line == "{").take(2).count();
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert_eq!(reports, 2);
}
