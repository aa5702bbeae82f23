//! `[source] mode = "poll"`.

use super::*;
use crate::config::polling::StatusColumns;

const POLL: &str = "source.mode = \"poll\"\n";

#[test]
fn a_router_that_polls_has_no_position() {
    let config = good(&minimal(POLL), &env());
    let polling = config.polling.clone().unwrap();
    assert_eq!(polling.lease, Duration::from_secs(30));
    let named: Vec<_> = polling.columns.by_key().map(|(_, name)| name.to_owned()).collect();
    assert_eq!(named, StatusColumns::KEYS);
    assert_eq!(config.delivery.positions_topic, None);
    let own = format!(
        "{POLL}source.lease = \"45s\"\nsource.notify = true\noutbox.columns.status = \"state\"\noutbox.columns.position = \"seq\"\n\
         outbox.status.new = \"pending\"\noutbox.status.failed = \"broken\""
    );
    for text in [POLL, &own] {
        let config = good(&minimal(text), &env());
        let printed = config.to_redacted_toml();
        assert_eq!(good(&printed, &env()).to_redacted_toml(), printed);
    }
}

#[test]
fn messages_for_polling() {
    let polls = |more: &str| format!("{POLL}{more}");
    let texts = [
        "source.mode = \"push\"".to_owned(),
        "source.lease = \"30s\"\nsource.notify = true\noutbox.columns.status = \"state\"\noutbox.status.new = \"pending\""
            .to_owned(),
        polls("source.lease = \"9s\""),
        polls("outbox.columns.status = \"\"\noutbox.status.new = \"\""),
        polls("outbox.status.new = \"FAILED\""),
        polls("postgres.slot = \"s\"\npostgres.publication = \"p\"\npostgres.wal_sender_timeout = \"5s\""),
        polls("postgres.catch_up = \"auto\"\npostgres.catch_up_lag = \"1MiB\""),
        polls("outbox.on_update = \"warn\"\noutbox.message_prefix = \"m\""),
        polls("delivery.positions_topic = \"t\"\ndelivery.mode = \"exactly-once\""),
        polls("bookmarks.every = \"1h\"\nbookmarks.keep = 2\nheartbeat.interval = \"5s\""),
        polls("dead_letters.policy = \"park\"\ndead_letters.max_aggregates = 5"),
        polls("shards.count = 2\nshards.only = 0"),
        polls("outbox.table = [\"a\", \"b\"]"),
        polls("route.headers.seq = \"${source.sequence}\""),
        polls("[[route.rules]]\nmatch = { \"source.lsn\" = \"0/1\" }\ndrop = true"),
    ];
    insta::assert_snapshot!(messages(&texts.each_ref().map(String::as_str)));
    // what is switched off is no contradiction
    good(
        &minimal(&polls(
            "heartbeat.interval = false\ndelivery.positions_topic = false\nroute.headers.t = \"${source.table}\"",
        )),
        &env(),
    );
}
