//! The keys of the configuration file: what each holds, its default and its meaning. The JSON Schema and the table in
//! docs/configuration.md are made from this list; tests compare it with what the parser accepts.

/// One key.
pub(in crate::config) struct Key {
    /// The full name; the last part is in quotes if it contains dots.
    pub(in crate::config) name: &'static str,
    pub(in crate::config) kind: Kind,
    /// Whether `false` switches it off.
    pub(in crate::config) can_be_off: bool,
    pub(in crate::config) default: Default,
    /// A clause in Markdown, with links relative to docs/.
    pub(in crate::config) meaning: &'static str,
}

/// What a key holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::config) enum Kind {
    Text,
    Path,
    Template,
    Switch,
    Duration,
    Size,
    /// A whole number within this range.
    Number(i64, i64),
    Words(&'static [&'static str]),
    /// A text, or an array of texts.
    Texts,
    /// A number, or an array of numbers.
    Numbers,
    /// A table of templates.
    Templates,
    /// A table whose keys the broker knows.
    Properties,
    /// A table whose keys librdkafka knows.
    Kafka,
    /// The tables of an array, whose keys follow.
    Rules,
    /// The conditions of a rule.
    Conditions,
}

/// What holds if the key is missing.
#[derive(Clone, Copy)]
pub(in crate::config) enum Default {
    /// It must be set, here or by a variable.
    Required,
    /// Nothing, or what the meaning says.
    None,
    /// It is switched off.
    Off,
    Text(&'static str),
    Number(i64),
    Switch(bool),
    /// A value that depends on others, in words.
    Described(&'static str),
}

impl Key {
    /// The parts of the name.
    pub(in crate::config) fn path(&self) -> Vec<&'static str> {
        match self.name.split_once(".\"") {
            Some((section, quoted)) => vec![section, quoted.trim_end_matches('"')],
            None => self.name.split('.').collect(),
        }
    }

    const fn or_off(self) -> Self {
        Key { can_be_off: true, ..self }
    }
}

const fn key(name: &'static str, kind: Kind, default: Default, meaning: &'static str) -> Key {
    Key { name, kind, can_be_off: matches!(default, Default::Off), default, meaning }
}

const fn text(name: &'static str, default: &'static str, meaning: &'static str) -> Key {
    key(name, Kind::Text, Default::Text(default), meaning)
}

/// The first word is the default.
const fn words(name: &'static str, words: &'static [&'static str], meaning: &'static str) -> Key {
    let default = match words.first() {
        Some(first) => Default::Text(first),
        None => Default::None,
    };
    key(name, Kind::Words(words), default, meaning)
}

const fn duration(name: &'static str, default: &'static str, meaning: &'static str) -> Key {
    key(name, Kind::Duration, Default::Text(default), meaning)
}

const fn size(name: &'static str, default: &'static str, meaning: &'static str) -> Key {
    key(name, Kind::Size, Default::Text(default), meaning)
}

const fn number(name: &'static str, range: (i64, i64), default: Default, meaning: &'static str) -> Key {
    key(name, Kind::Number(range.0, range.1), default, meaning)
}

const fn template(name: &'static str, default: Default, meaning: &'static str) -> Key {
    key(name, Kind::Template, default, meaning)
}

const fn templates(name: &'static str, meaning: &'static str) -> Key {
    key(name, Kind::Templates, Default::None, meaning)
}

const I32_MAX: i64 = i32::MAX as i64;

const VALUE_FORMS: &[&str] = &["payload", "envelope", "cloudevents-binary", "cloudevents-structured"];

/// Every key, in the order of the example file.
pub(in crate::config) const KEYS: &[Key] = &[
    key(
        "preset",
        Kind::Words(&["debezium"]),
        Default::None,
        "changes the defaults of `outbox.columns` and `route.text` to those of [Debezium's outbox event router](coming-from-debezium.md)",
    ),
    key(
        "name",
        Kind::Text,
        Default::Described("`<database>.<slot>`"),
        "the router's identity: its `client.id`, `application_name`, key in the positions topic, and the start of its transactional ids",
    ),
    key(
        "postgres.url",
        Kind::Text,
        Default::Required,
        "URI or `key=value`, as in libpq: unix sockets, several hosts (the primary is used unless `target_session_attrs` says \
         otherwise), `sslmode` up to `verify-full`, `sslrootcert`, `sslcert`, `sslkey`, `channel_binding`, `passfile`; the `PG*` \
         variables and `~/.pgpass` are honoured",
    ),
    key(
        "postgres.password_file",
        Kind::Path,
        Default::Off,
        "a file with the password, which is read again for each connection",
    ),
    key(
        "postgres.password_command",
        Kind::Texts,
        Default::None,
        "a program and its arguments, run without a shell for each connection: it prints the password and at most a line break after \
         it, 64 KiB in all, within `connect_timeout` of the URL or else ten seconds. For commands that sign tokens, as `aws rds \
         generate-db-auth-token` does. It ends with the router or command, with all processes of its process group; what has left the \
         group goes on. In a variable, the words are separated by white space. Not together with a password in the URL or with \
         `password_file`",
    ),
    text("postgres.slot", "outbox_router", "the logical replication slot"),
    text("postgres.publication", "outbox_router", "the publication"),
    duration("postgres.wal_sender_timeout", "10s", "how long each side waits for the other; at least `1s`"),
    words(
        "postgres.catch_up",
        &["auto", "stream"],
        "whether a lagging slot is read [in bulk](catching-up.md), or always streamed",
    ),
    size("postgres.catch_up_lag", "64MiB", "how far the slot must lag for bulk reads"),
    words(
        "source.mode",
        &["log", "poll"],
        "whether the router reads the write-ahead log, or [polls the table](polling.md)",
    ),
    duration(
        "source.lease",
        "30s",
        "how long a router that polls keeps others from the rows that it has claimed; at least `10s`",
    ),
    key(
        "source.notify",
        Kind::Switch,
        Default::Switch(false),
        "whether a trigger on the table wakes a router that polls, which is not for [poolers](polling.md#latency)",
    ),
    key(
        "outbox.table",
        Kind::Texts,
        Default::Text("public.outbox"),
        "schema and table as in SQL; several in an array",
    ),
    words(
        "outbox.on_update",
        &["warn", "error", "stop"],
        "what to do about an UPDATE of a row, which is not an event",
    ),
    key(
        "outbox.message_prefix",
        Kind::Text,
        Default::Off,
        "also read logical messages with this prefix: an [outbox without a table](messages.md)",
    ),
    text("outbox.columns.id", "id", "the column with the event's id, which becomes the header `id`"),
    text("outbox.columns.aggregate_type", "aggregate_type", "the column with the kind of aggregate"),
    text("outbox.columns.aggregate_id", "aggregate_id", "the column with the key"),
    text(
        "outbox.columns.event_type",
        "event_type",
        "the column with the event's type, which becomes the header `type`",
    )
    .or_off(),
    text("outbox.columns.payload", "payload", "the column with the payload"),
    text(
        "outbox.columns.headers",
        "headers",
        "the column with further headers; the table may lack it unless you name it",
    )
    .or_off(),
    text(
        "outbox.columns.created_at",
        "created_at",
        "the column with a time; the table may lack it unless you name it",
    )
    .or_off(),
    text(
        "outbox.columns.idempotency_key",
        "idempotency_key",
        "the column with a business key, which becomes the header `idempotency-key`; the table may lack it unless you name it",
    )
    .or_off(),
    key(
        "outbox.columns.tracing_span_context",
        Kind::Text,
        Default::Off,
        "the column with the context of a trace in the format of `java.util.Properties`, which becomes headers",
    ),
    text("outbox.columns.position", "position", "the column with a number that grows with each insert. Only for polling, as are the next ones"),
    text("outbox.columns.status", "status", "the column with the state of the row"),
    text("outbox.columns.attempts", "attempts", "the column that counts how often the event was tried"),
    text("outbox.columns.refusals", "refusals", "the column that counts how often it was refused"),
    text("outbox.columns.next_attempt_at", "next_attempt_at", "the column with the time before which it is not tried again"),
    text("outbox.columns.published_at", "published_at", "the column with the time when it was published"),
    text("outbox.columns.last_error", "last_error", "the column with the reason of the last refusal"),
    text("outbox.status.new", "NEW", "the status of a row that waits to be published"),
    text("outbox.status.published", "PUBLISHED", "the status of one that a broker has acknowledged"),
    text("outbox.status.failed", "FAILED", "the status of one that was refused eight times"),
    template(
        "route.topic",
        Default::Text("outbox.event.${aggregate_type}"),
        "the name of the topic, see [templates](#templates)",
    ),
    template("route.partition", Default::None, "the number of the partition; by default the key decides"),
    words("route.key", &["text", "json"], "how the key is written"),
    templates(
        "route.headers",
        "headers that every record gets, in this order, after `id` and `type`; a single value that is NULL becomes a null value",
    ),
    words("route.timestamp", &["commit", "created_at"], "the record's timestamp"),
    words(
        "route.text",
        &["postgres", "connect"],
        "how column values are written in keys, headers and envelopes",
    ),
    words("route.value", VALUE_FORMS, "the form of the value"),
    templates("route.envelope", "additional members of the envelope"),
    words("route.payload_json", &["raw", "string", "expand"], "how a JSON payload is written"),
    words(
        "route.expand.null",
        &["ignore", "optional_bytes"],
        "with `expand`: whether members that are null are left out or kept",
    ),
    words(
        "route.expand.empty_array",
        &["ignore", "optional_string"],
        "with `expand`: whether empty arrays are left out or kept",
    ),
    key(
        "route.tombstone_on_empty",
        Kind::Switch,
        Default::Switch(false),
        "a payload of only white space becomes a null value",
    ),
    words(
        "route.missing_columns",
        &["error", "ignore"],
        "what to do if headers, envelope or partition name a column that a table lacks",
    ),
    words("route.unmatched", &["route", "drop", "stop"], "what to do with an event that no rule matches"),
    template(
        "route.cloudevents.source",
        Default::Text("/${source.schema}/${source.table}"),
        "the attribute `source` of CloudEvents",
    ),
    template("route.cloudevents.type", Default::Text("${event_type}"), "the attribute `type`"),
    template("route.cloudevents.subject", Default::Text("${aggregate_id}"), "the attribute `subject`"),
    template(
        "route.cloudevents.datacontenttype",
        Default::None,
        "the attribute `datacontenttype`; by default it follows from the type of the payload column",
    ),
    template("route.cloudevents.dataschema", Default::None, "the attribute `dataschema`"),
    templates("route.cloudevents.extensions", "further attributes"),
    key(
        "route.rules",
        Kind::Rules,
        Default::None,
        "[rules](routing.md#rules): the first that matches sets topic, partition, headers and value, or drops the event",
    ),
    key(
        "route.rules.match",
        Kind::Conditions,
        Default::Required,
        "conditions, which must all hold: the name of a value, and a text, `/a regular expression/`, `false` for NULL, or an array of \
         those",
    ),
    template("route.rules.topic", Default::None, "the topic of the events that match"),
    template("route.rules.partition", Default::None, "their partition"),
    templates("route.rules.headers", "headers after those of `route.headers`"),
    key("route.rules.value", Kind::Words(VALUE_FORMS), Default::None, "the form of their values"),
    key("route.rules.drop", Kind::Switch, Default::Switch(false), "they are counted and not sent"),
    key(
        "kafka",
        Kind::Kafka,
        Default::None,
        "[librdkafka's properties](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md), passed on. Properties \
         that a promise depends on are refused with the reason: `acks`, `enable.idempotence`, `retries`, `partitioner` and others",
    ),
    key("kafka.\"bootstrap.servers\"", Kind::Text, Default::Required, "the brokers"),
    key(
        "topics.create",
        Kind::Switch,
        Default::Switch(true),
        "create missing topics before their first record",
    ),
    number(
        "topics.partitions",
        (1, I32_MAX),
        Default::Described("the broker's"),
        "the number of partitions of topics that the router creates",
    ),
    number(
        "topics.replication_factor",
        (1, i16::MAX as i64),
        Default::Described("the broker's"),
        "the same for replicas",
    ),
    key("topics.config", Kind::Properties, Default::None, "topic properties for these topics"),
    key(
        "topics.allow",
        Kind::Texts,
        Default::None,
        "the only topics that may be written to: names, with `*` for any characters, or `/regular expressions/`; by default all",
    ),
    words(
        "delivery.mode",
        &["at-least-once", "exactly-once"],
        "the guarantee to consumers, see [exactly once](exactly-once.md)",
    ),
    number(
        "delivery.window.records",
        (1, I32_MAX),
        Default::Number(20_000),
        "how many records may be in flight",
    ),
    size(
        "delivery.window.bytes",
        "16MiB",
        "the same in bytes, which include what the client keeps for each record",
    ),
    duration(
        "delivery.shutdown_timeout",
        "10s",
        "how long a stop waits for the records in flight. Closing the connections to brokers that do not answer can take about three \
         seconds more",
    ),
    text(
        "delivery.positions_topic",
        "outbox-router.positions",
        "where routers store their checkpoints, each under its `name`; `false` switches checkpoints off",
    )
    .or_off(),
    key(
        "bookmarks.every",
        Kind::Duration,
        Default::Off,
        "how often a [bookmark](replay.md#bookmarks) is made; at least `10s`",
    ),
    number(
        "bookmarks.keep",
        (1, 1_000),
        Default::Number(24),
        "how many are kept: the oldest is dropped first",
    ),
    key("bookmarks.max_retained_wal", Kind::Size, Default::Off, "how much log the oldest may retain"),
    text("admin.listen", "127.0.0.1:8084", "host and port of metrics, probes and status").or_off(),
    key(
        "heartbeat.interval",
        Kind::Duration,
        Default::Off,
        "how often the router writes a [heartbeat](idle.md#the-heartbeat) to the log and expects it in the stream; at least `1s`",
    ),
    words(
        "dead_letters.policy",
        &["stop", "park"],
        "what to do with an event that cannot be sent, see [dead letters](dead-letters.md)",
    ),
    number(
        "dead_letters.max_aggregates",
        (1, 1_000_000),
        Default::Number(1_000),
        "how many aggregates may be parked; an event without an aggregate counts as one. Exceeding this stops the router",
    ),
    number("replay.max_events", (1, i64::MAX), Default::None, "how many events one `replay` may send; default: any number"),
    number(
        "replay.max_events_per_day",
        (1, i64::MAX),
        Default::None,
        "how many events all replays within a day may send; default: any number",
    ),
    key(
        "retention.keep",
        Kind::Duration,
        Default::Off,
        "how long `run` keeps rows that are delivered; it [deletes or archives](clean-up.md) older ones. At least `7d`",
    ),
    key(
        "retention.archive",
        Kind::Text,
        Default::Off,
        "the table that old rows are moved to, see [archives](archives.md)",
    ),
    key(
        "retention.keep_archived",
        Kind::Duration,
        Default::Off,
        "how old rows of the archive become before `run` deletes them; longer than `keep`",
    ),
    key(
        "contracts.directory",
        Kind::Path,
        Default::Off,
        "a folder of JSON Schemas, `<aggregate>/<event>.json`, that payloads are checked against, see [contracts](contracts.md)",
    ),
    words(
        "contracts.on_violation",
        &["warn", "reject"],
        "whether an event whose payload violates its contract is sent and counted, or not sent",
    ),
    number(
        "shards.count",
        (1, 64),
        Default::Number(1),
        "how many slots share the outbox, each with a part of its aggregates, see [shards](shards.md)",
    ),
    key("shards.only", Kind::Numbers, Default::None, "the shards that the process runs; by default all"),
    key(
        "log.level",
        Kind::Words(&["error", "warn", "info", "debug", "trace"]),
        Default::Text("info"),
        "how much the router logs, see [logs](#logs)",
    ),
    words("log.format", &["text", "json"], "the form of the log lines"),
];
