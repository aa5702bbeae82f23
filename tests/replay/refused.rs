//! What `replay` refuses.

use super::*;
use crate::situations::page::keep;
use crate::support::place::refused;

#[tokio::test]
async fn more_events_than_allowed_are_refused_and_none_is_sent() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka).await;
    let ran = replay(&settings, &["--max", "21", "--yes"]).await;
    refused(&ran, 2, &["OBR-8203: 22 events match, and --max allows 21. Nothing was sent"]);
    keep(&ran.err, &[]);
    let limited = settings.clone().set("replay.max_events", 21);
    refused(&replay(&limited, &["--yes"]).await, 2, &["`[replay] max_events` allows 21"]);
    let limited = settings.clone().set("replay.max_events_per_day", 30);
    succeeded(replay(&limited, &["--max", "22", "--yes"]).await, &["22 rows done"]);
    refused(
        &replay(&limited, &["--yes"]).await,
        2,
        &["after 22 within a day, `[replay] max_events_per_day` allows 30"],
    );
    assert_eq!(again(&kafka.records(&outbox.name).await).len(), 22);
}

#[tokio::test]
async fn arguments_that_make_no_sense_are_refused() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let settings = settings.set("topics.allow", vec![outbox.topic("order")]);
    for (arguments, message) in [
        (&["--since", "1h", "--until", "2h"][..], "is not before --until"),
        (&["--since", "half past nine"], "--since \"half past nine\" is not a time"),
        (&["--until", "infinity"], "--until \"infinity\" is not a time"),
        (&["--rate", "0"], "expected events a second"),
        (&["--topic", "a topic"], "--topic: the topic name \"a topic\" is not valid"),
        (&["--topic", "other"], "--topic: the topic \"other\" is not in `[topics] allow`"),
        (&["--id", "7"], "--id has a value that the column \"id\" cannot have"),
        (&["--table", "nowhere"], "--table nowhere: it is not an outbox table"),
        (&["--resume", "7", "--since", "1h"], "cannot be used with"),
        (&["--json"], "--json needs --dry-run, --yes, --resume or --list"),
    ] {
        refused(&replay(&settings, arguments).await, 2, &[message]);
    }
    let unknown = replay(&settings, &["--resume", "7"]).await;
    refused(&unknown, 1, &["OBR-8201", "has no replay 7"]);
    keep(&unknown.err, &[(&outbox.name, "NAME")]);
}

/// Every event would be left out.
#[tokio::test]
async fn a_topic_that_does_not_exist_stops_the_replay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka).await;
    let settings = settings.set("topics.create", false);
    let ran = replay(&settings, &["--topic", &outbox.topic("nowhere"), "--yes"]).await;
    refused(&ran, 1, &["OBR-8204", "nowhere", "outbox-router replay --resume 1"]);
    assert_eq!(again(&kafka.records(&outbox.name).await), []);
}

#[tokio::test]
async fn a_table_that_does_not_tell_what_to_send_is_refused() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    let of_log = settings.clone().set("route.topic", format!("{}.${{source.xid}}", outbox.name));
    refused(
        &replay(&of_log, &["--yes"]).await,
        1,
        &["OBR-8204", "`topic` uses a value that only the log has"],
    );
    let without = settings.clone().set("outbox.columns.created_at", false);
    let without = replay(&without, &["--yes"]).await;
    refused(&without, 1, &["has no column of the type timestamptz or timestamp with the time of the insert"]);
    keep(&without.err, &[]);
    outbox.execute("CREATE TABLE of_days (LIKE outbox INCLUDING ALL); ALTER TABLE of_days ALTER created_at DROP DEFAULT, ALTER created_at TYPE date").await;
    let of_days = settings.clone().set("outbox.table", "public.of_days");
    refused(&replay(&of_days, &["--yes"]).await, 1, &["has no column of the type timestamptz or timestamp"]);
    let elsewhere = settings.clone().set("postgres.slot", "no_such_slot");
    refused(&replay(&elsewhere, &["--yes"]).await, 1, &["it is not known which rows were delivered"]);
    let role = format!("{}_reader", outbox.name);
    outbox.execute(&format!("CREATE ROLE {role} LOGIN")).await;
    let other = outbox.url().replace("postgres@", &format!("{role}@"));
    refused(
        &replay(&settings, &["--url", &other, "--yes"]).await,
        1,
        &["permission denied", "Give --url of a role"],
    );
    outbox.execute(&format!("DROP ROLE {role}")).await;
}
