//! The example file: it can be read, shows the defaults and covers every key.

use super::*;

const EXAMPLE: &str = include_str!("../../../outbox-router.example.toml");

/// The example with all keys uncommented, except for `password_command`, which excludes `password_file`.
fn example_in_full() -> String {
    let key = |line: &str| {
        line.strip_prefix("# ")
            .filter(|rest| {
                let name = rest.split_once(" = ").map_or("", |(name, _)| name);
                !name.is_empty() && !name.contains(' ') && name != "password_command"
            })
            .map(str::to_owned)
    };
    EXAMPLE.lines().map(|line| key(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[test]
fn the_example_loads_and_changes_no_default() {
    let config = good(EXAMPLE, &env());
    let url = "postgres://outbox_router@localhost/shop";
    let bare = format!("postgres.url = \"{url}\"\nkafka.\"bootstrap.servers\" = \"localhost:9092\"");
    assert_eq!(config, good(&bare, &env()));
}

#[test]
fn the_example_uncommented_shows_the_defaults() {
    let mut config = good(&example_in_full(), &env());
    let defaults = good(EXAMPLE, &env());
    assert_eq!(property(&config, "compression.type").unwrap(), "none");
    assert_eq!(config.topics.partitions, Some(12));
    // keys without a default, or with a value that is only an example
    config.kafka = defaults.kafka.clone();
    config.topics = defaults.topics.clone();
    assert!(config.contracts.take().is_some());
    let bookmarks = config.bookmarks.take().unwrap();
    assert_eq!((bookmarks.keep, bookmarks.max_retained_wal), (24, Some(10 << 30)));
    assert!(config.replay.max_events.is_some() && config.retention.keep_archived.is_some());
    (config.replay, config.retention) = (defaults.replay, defaults.retention.clone());
    assert_eq!(config.route.headers.len(), 2);
    config.route.headers.clear();
    config.postgres.conninfo.password = None;
    assert!(config.outbox.columns.headers_required && config.outbox.columns.created_at_required);
    config.outbox.columns.headers_required = false;
    config.outbox.columns.created_at_required = false;
    config.outbox.columns.idempotency_key_required = false;
    assert_eq!(config, defaults);
}

#[test]
fn the_example_names_every_key() {
    let printed = good(&example_in_full(), &env()).to_redacted_toml();
    let full: toml::Table = example_in_full().parse().unwrap();
    let mut keys = Vec::new();
    collect_keys(&printed.parse().unwrap(), "", &mut keys);
    for key in keys {
        let found = key
            .split('\0')
            .try_fold(toml::Value::Table(full.clone()), |value, part| value.get(part).cloned());
        assert!(found.is_some(), "{key:?}");
    }
}

fn collect_keys(table: &toml::Table, prefix: &str, keys: &mut Vec<String>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) => collect_keys(inner, &format!("{prefix}{key}\0"), keys),
            _ => keys.push(format!("{prefix}{key}")),
        }
    }
}
