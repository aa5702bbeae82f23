//! `[route]`: how a row becomes a record.

use super::pattern::Pattern;
use super::template::{Name, SourceValue, Template};

/// `[route]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// `topic`: a template over the row's columns, default `outbox.event.${aggregate_type}`.
    pub topic: Template,
    /// `partition`: a template for the partition number. `None`: the key decides.
    pub partition: Option<Template>,
    /// `key = "json"`: the key is written as a JSON value, as Connect's `JsonConverter` does. Default false: as text.
    pub key_as_json: bool,
    /// `headers`: additional headers of each record, in the order of the file.
    pub headers: Vec<NamedTemplate>,
    /// `timestamp`
    pub timestamp: RecordTimestamp,
    /// `text`: how values are written in keys, headers and envelopes. Default: as Postgres prints them.
    pub text: TextForm,
    /// `value`
    pub value: ValueForm,
    /// `envelope`: the members of an envelope besides the payload, in the order of the file.
    pub envelope: Vec<NamedTemplate>,
    /// `cloudevents`: the attributes of a CloudEvent.
    pub cloudevents: CloudEvents,
    /// `payload_json`
    pub payload_json: PayloadJson,
    /// `tombstone_on_empty`: an empty payload, or one of white space only, becomes a null value. Default false.
    pub tombstone_on_empty: bool,
    /// `missing_columns = "ignore"`: headers and members from a column that the table lacks are left out. Default false.
    pub ignore_missing_columns: bool,
    /// `unmatched`
    pub unmatched: Unmatched,
    /// `rules`: the first rule that matches an event overrides parts of the above.
    pub rules: Vec<Rule>,
}

impl Default for Route {
    fn default() -> Self {
        Route {
            topic: Template::of("outbox.event.", "aggregate_type"),
            partition: None,
            key_as_json: false,
            headers: Vec::new(),
            timestamp: RecordTimestamp::Commit,
            text: TextForm::Postgres,
            value: ValueForm::Payload,
            envelope: Vec::new(),
            cloudevents: CloudEvents::default(),
            payload_json: PayloadJson::Raw,
            tombstone_on_empty: false,
            ignore_missing_columns: false,
            unmatched: Unmatched::Route,
            rules: Vec::new(),
        }
    }
}

impl Route {
    /// Whether `value` or a rule produces values of this form.
    pub fn produces(&self, form: ValueForm) -> bool {
        self.value == form
            || self
                .rules
                .iter()
                .any(|rule| matches!(rule.action, Action::Route { value: Some(value), .. } if value == form))
    }

    /// Whether some values are CloudEvents.
    pub fn produces_cloudevents(&self) -> bool {
        self.produces(ValueForm::CloudEventsBinary) || self.produces(ValueForm::CloudEventsStructured)
    }

    /// A value that it uses and that only the log has.
    pub fn value_of_the_log(&self) -> Option<SourceValue> {
        let Route { topic, partition, headers, envelope, cloudevents, rules, .. } = self;
        let CloudEvents { source, event_type, subject, datacontenttype, dataschema, extensions } =
            cloudevents;
        let mut templates = vec![topic, source, event_type, subject];
        templates.extend(partition.iter().chain(datacontenttype).chain(dataschema));
        templates.extend([headers, envelope, extensions].into_iter().flatten().map(|named| &named.value));
        for rule in rules {
            if let Action::Route { topic, partition, headers, .. } = &rule.action {
                templates.extend(topic.iter().chain(partition));
                templates.extend(headers.iter().map(|named| &named.value));
            }
        }
        let names = templates.into_iter().flat_map(Template::values).map(|value| &value.name);
        let conditions = rules.iter().flat_map(|rule| &rule.conditions).map(|condition| &condition.name);
        names.chain(conditions).find_map(Name::of_log)
    }

    /// All templates for topics without duplicates, starting with `topic`.
    pub fn topics(&self) -> Vec<&Template> {
        let mut topics = vec![&self.topic];
        for rule in &self.rules {
            if let Action::Route { topic: Some(topic), .. } = &rule.action
                && !topics.contains(&topic)
            {
                topics.push(topic);
            }
        }
        topics
    }
}

/// One entry of `[route.headers]`, `[route.envelope]` or `[route.cloudevents.extensions]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTemplate {
    /// Its name.
    pub name: String,
    /// Its template. If it consists of a single value that is NULL, the result is null.
    pub value: Template,
}

/// Where a record's timestamp comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordTimestamp {
    /// The commit time of the transaction (the default).
    Commit,
    /// The `created_at` column.
    CreatedAt,
}

/// How a column's value is written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// As Postgres prints it.
    Postgres,
    /// As Kafka Connect's converters write Debezium's values, depending on the column's type.
    Connect,
}

/// What a record's value contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    /// The payload alone (the default).
    Payload,
    /// A JSON object with the payload and further members.
    Envelope,
    /// A CloudEvent in the binary mode of the Kafka protocol binding: the value is the payload, and the attributes are
    /// headers.
    CloudEventsBinary,
    /// A CloudEvent in the structured mode: a JSON object with attributes and data.
    CloudEventsStructured,
}

impl ValueForm {
    /// All forms, with their words in the configuration.
    pub const ALL: [(&str, ValueForm); 4] = [
        ("payload", ValueForm::Payload),
        ("envelope", ValueForm::Envelope),
        ("cloudevents-binary", ValueForm::CloudEventsBinary),
        ("cloudevents-structured", ValueForm::CloudEventsStructured),
    ];
}

/// How a JSON payload is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadJson {
    /// It is sent unchanged (the default).
    Raw,
    /// It is sent as a JSON string that contains the text, as Connect's `JsonConverter` does.
    String,
    /// It is parsed and written again, as Debezium's `table.expand.json.payload` and `JsonConverter` do.
    Expand {
        /// `expand.null = "optional_bytes"`: members that are null are kept. Default false.
        keep_nulls: bool,
        /// `expand.empty_array = "optional_string"`: empty arrays are kept. Default false.
        keep_empty_arrays: bool,
    },
}

/// What happens to an event that no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmatched {
    /// It is routed as `[route]` says (the default).
    Route,
    /// It is dropped and counted.
    Drop,
    /// It counts as an event that cannot be sent.
    Stop,
}

/// One of `[[route.rules]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `match`: all of them must be met.
    pub conditions: Vec<Condition>,
    /// What happens to the events that match.
    pub action: Action,
}

/// A value of the event, and what it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The value's name.
    pub name: Name,
    /// At least one of them must match.
    pub any_of: Vec<Accepted>,
}

/// What a condition accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// NULL, or a missing member: `false`.
    Null,
    /// A text that the whole pattern matches.
    Text(Pattern),
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// `drop = true`: the event is counted and not sent.
    Drop,
    /// Each part that is set overrides that of `[route]`.
    Route {
        /// `topic`
        topic: Option<Template>,
        /// `partition`
        partition: Option<Template>,
        /// `headers`: added after those of `[route.headers]`.
        headers: Vec<NamedTemplate>,
        /// `value`
        value: Option<ValueForm>,
    },
}

/// `[route.cloudevents]`: attributes of a CloudEvent, each a template (CloudEvents 1.0, "Context Attributes").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvents {
    /// `source`, default `/${source.schema}/${source.table}`.
    pub source: Template,
    /// `type`, default `${event_type}`.
    pub event_type: Template,
    /// `subject`, default `${aggregate_id}`; left out if that is NULL.
    pub subject: Template,
    /// `datacontenttype`; `None`: follows from the payload column's type.
    pub datacontenttype: Option<Template>,
    /// `dataschema`
    pub dataschema: Option<Template>,
    /// `extensions`: further attributes, in the order of the file.
    pub extensions: Vec<NamedTemplate>,
}

impl Default for CloudEvents {
    fn default() -> Self {
        CloudEvents {
            source: Template::source_path(),
            event_type: Template::of("", "event_type"),
            subject: Template::of("", "aggregate_id"),
            datacontenttype: None,
            dataschema: None,
            extensions: Vec::new(),
        }
    }
}
