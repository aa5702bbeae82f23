//! Any values of any types through every form that a record can take: a record that Kafka takes, or an error.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use outbox_router::config::Config;
use outbox_router::config::environment::Environment;
use outbox_router::config::load::load;
use outbox_router::lsn::Lsn;
use outbox_router::outbox::{ColumnType, Outbox};
use outbox_router::postgres::pgoutput::{Oid, PgTimestamp};
use outbox_router::routing::{Origin, Routed, Router};
use outbox_router::topic_name;

const CONFIGURATIONS: [&str; 6] = [
    "",
    "route.text = \"connect\"\nroute.headers.x = \"${x}\"\nroute.key = \"json\"\noutbox.columns.tracing_span_context = \"trace\"",
    "route.text = \"connect\"\nroute.value = \"envelope\"\nroute.envelope.x = \"${x}\"\nroute.payload_json = \"expand\"\nroute.tombstone_on_empty = true",
    "route.value = \"envelope\"\nroute.envelope.x = \"${x | kebab}\"\nroute.expand.null = \"optional_bytes\"\nroute.payload_json = \"expand\"\nroute.expand.empty_array = \"optional_string\"",
    "route.value = \"cloudevents-structured\"\nroute.cloudevents.extensions.x = \"${x}\"\nroute.partition = \"${headers.n}\"",
    "[[route.rules]]\nmatch = { event_type = \"/(?<a>[a-z]+)(?=x)(.)/\", x = [\"1\", false] }\ntopic = \"t.${match.a}.${match.2 | default('y')}\"\nvalue = \"cloudevents-binary\"",
];

/// Of each kind that Kafka Connect writes in its own way, and some that it does not.
const TYPES: [u32; 24] = [
    16, 17, 20, 23, 25, 114, 142, 600, 700, 701, 790, 1082, 1083, 1114, 1184, 1186, 1266, 1560, 1700, 2950, 3802, 1009, 1231,
    70_000,
];

fn configurations() -> &'static [Config] {
    static LOADED: OnceLock<Vec<Config>> = OnceLock::new();
    LOADED.get_or_init(|| CONFIGURATIONS.into_iter().filter_map(configuration).collect())
}

fn configuration(text: &str) -> Option<Config> {
    let path = std::env::temp_dir().join(format!("fuzz-routing-{}.toml", std::process::id()));
    let required = "postgres.url = \"postgres://r@h/d\"\nkafka.\"bootstrap.servers\" = \"h:1\"\n";
    std::fs::write(&path, format!("{required}{text}")).ok()?;
    let loaded = load(Some(&path), &Environment::empty());
    let _ = std::fs::remove_file(&path);
    loaded.ok().map(|loaded| loaded.config)
}

fuzz_target!(|bytes: &[u8]| {
    assert_eq!(configurations().len(), CONFIGURATIONS.len());
    let [which, key, payload, x, rest @ ..] = bytes else { return };
    let Some(config) = configurations().get(usize::from(*which) % CONFIGURATIONS.len()) else { return };
    let of = |n: &u8| {
        let id = TYPES.get(usize::from(*n) % TYPES.len()).copied().unwrap_or(25);
        ColumnType::built_in(Oid(id), i32::from(*n) - 1)
    };
    let text = ColumnType::built_in(Oid(25), -1);
    let columns = [
        ("id", text),
        ("aggregate_type", text),
        ("aggregate_id", of(key)),
        ("event_type", text),
        ("payload", of(payload)),
        ("headers", text),
        ("x", of(x)),
        ("trace", text),
    ];
    let Ok(values) = std::str::from_utf8(rest) else { return };
    let mut router = Router::of(config);
    let outbox = Outbox::of(config, router.extra_columns());
    let Some(table) = config.outbox.tables.first() else { return };
    let mut row = outbox.owned_row(table);
    // one of no length stands for NULL
    let values = values.split('\u{1e}').map(|value| Some(value).filter(|value| !value.is_empty()));
    let values: Vec<_> = columns
        .into_iter()
        .zip(values.chain(std::iter::repeat(None)))
        .map(|((name, of), value)| (name, of, value))
        .collect();
    let Ok(event) = outbox.read_row(&mut row, values.iter().copied()) else { return };
    let origin = Origin { final_lsn: Lsn(1), xid: 2, commit_time: PgTimestamp(0), ordinal: 1 };
    if let Ok(Routed::Record(record)) = router.route(&event, &origin) {
        assert_eq!(topic_name::check(record.topic), Ok(()));
        assert!(record.partition.is_none_or(|number| number >= 0));
        let json = match config.route.value {
            outbox_router::config::ValueForm::Envelope
            | outbox_router::config::ValueForm::CloudEventsStructured => record.value,
            _ => None,
        };
        if let Some(json) = json {
            let text = std::str::from_utf8(json).unwrap();
            assert!(text.starts_with('{') && text.ends_with('}'));
        }
    }
});
