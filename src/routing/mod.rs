//! From an [`OutboxEvent`] to a [`Record`]. Pure, and without allocations for an event whose values are sent unchanged.

mod allowed;
mod bytea;
mod captures;
mod cloudevents;
mod column_json;
mod contract_check;
mod contract_topic;
mod headers;
mod origin;
mod record;
mod row;
mod rules;
mod template;
mod text;
pub mod timestamp;
mod tracing;
mod unroutable;
mod value;

use std::borrow::Cow;
use std::sync::Arc;

pub use allowed::check_topic;
pub use contract_topic::contract_topic;
pub use headers::Headers;
pub use origin::Origin;
pub use record::Record;
pub(crate) use row::field;
pub use unroutable::{Purpose, Unroutable};

use crate::config::{
    Columns, Config, NamedTemplate, RecordTimestamp, Route, TextForm, Topics, Unmatched, ValueForm,
};
use crate::contracts::Contracts;
use crate::json;
use crate::outbox::{
    ExtraColumn, Field, IN_ENVELOPE, IN_PARTITION, IN_ROUTE_HEADERS, IN_TOPIC, OutboxEvent, printable,
};
use crate::reserved::REPLAY_HEADER;
use crate::utc::Utc;
use allowed::Allowed;
use bytea::RETAINED;
use captures::Captures;
use cloudevents::Attributes;
use contract_check::ContractCheck;
use row::{Binder, Extra, Row};
use rules::BoundRule;
use template::Bound;
use text::Use;
use value::{Kind, Payload, ValueBuilder};

/// The result for one event.
#[derive(Debug, Clone, Copy)]
pub enum Routed<'a> {
    /// It is sent.
    Record(Record<'a>),
    /// A rule drops it, or no rule matches and such events are dropped.
    Dropped,
}

/// Turns events into records, which borrow from its buffers.
pub struct Router {
    plan: Plan,
    /// `None` if no value is a CloudEvent.
    attributes: Option<Attributes>,
    allowed: Allowed,
    captures: Captures,
    contract_check: ContractCheck,
    buffers: Buffers,
    /// The header value of records that are replayed.
    replay_mark: Option<Box<str>>,
}

#[derive(Default)]
struct Buffers {
    topic: String,
    /// For the result of a template.
    text: String,
    key: String,
    headers: Headers,
    /// For a payload of bytes.
    bytes: Vec<u8>,
    /// For a payload in another form than that of Postgres.
    written: String,
    /// For a value that contains the payload.
    value: String,
}

/// The configuration, which does not change from event to event.
struct Plan {
    topic: Bound,
    partition: Option<Bound>,
    headers: Vec<(String, Bound)>,
    rules: Vec<BoundRule>,
    unmatched: Unmatched,
    form: ValueForm,
    value: ValueBuilder,
    tombstone_on_empty: bool,
    key_as_json: bool,
    type_header: bool,
    timestamp: RecordTimestamp,
    text: TextForm,
    extra: Extra,
}

impl Router {
    /// Routes as configured in `config`.
    pub fn of(config: &Config) -> Self {
        let router = Self::new(&config.route, &config.outbox.columns, &config.topics);
        let positions = config.delivery.positions_topic.as_deref();
        Router { allowed: Allowed::new(&config.topics.allow, positions), ..router }
    }

    /// Routes as configured in `route`, to the topics that `topics` allows. `columns` has the column names of the fields.
    pub fn new(route: &Route, columns: &Columns, topics: &Topics) -> Self {
        let mut binder = Binder { columns, extra: Extra::default(), key: IN_TOPIC, optional: false };
        let topic = Bound::new(&route.topic, &mut binder);
        (binder.key, binder.optional) = (IN_PARTITION, route.ignore_missing_columns);
        let partition = route.partition.as_ref().map(|template| Bound::new(template, &mut binder));
        let mut named = |key, templates: &[NamedTemplate]| -> Vec<(String, Bound)> {
            (binder.key, binder.optional) = (key, route.ignore_missing_columns);
            let bound = |one: &NamedTemplate| (one.name.clone(), Bound::new(&one.value, &mut binder));
            templates.iter().map(bound).collect()
        };
        let headers = named(IN_ROUTE_HEADERS, &route.headers);
        let envelope = named(IN_ENVELOPE, &route.envelope);
        let rules = route.rules.iter().map(|rule| BoundRule::new(rule, &mut binder)).collect();
        let attributes =
            route.produces_cloudevents().then(|| Attributes::new(&route.cloudevents, &mut binder));
        let value =
            ValueBuilder { payload_json: route.payload_json, envelope, column: columns.payload.clone() };
        let plan = Plan {
            topic,
            partition,
            headers,
            rules,
            unmatched: route.unmatched,
            form: route.value,
            value,
            tombstone_on_empty: route.tombstone_on_empty,
            key_as_json: route.key_as_json,
            type_header: columns.event_type.is_some(),
            timestamp: route.timestamp,
            text: route.text,
            extra: binder.extra,
        };
        Router {
            plan,
            attributes,
            allowed: Allowed::new(&topics.allow, None),
            captures: Captures::default(),
            contract_check: ContractCheck::default(),
            buffers: Buffers::default(),
            replay_mark: None,
        }
    }

    /// From now on, records get a replay header with this mark, or none.
    pub fn set_replay_mark(&mut self, mark: Option<&str>) {
        if self.replay_mark.as_deref() != mark {
            self.replay_mark = mark.map(Into::into);
        }
    }

    /// The same, with payloads checked against `contracts` as `config` says.
    pub fn with_contracts(self, config: &Config, contracts: Option<Arc<Contracts>>) -> Self {
        Router { contract_check: ContractCheck::new(config, contracts), ..self }
    }

    /// The columns it needs in addition to those of `[outbox] columns`, for [`crate::outbox::Outbox::of`].
    pub fn extra_columns(&self) -> &[ExtraColumn] {
        self.plan.extra.columns()
    }

    /// Routes one event.
    pub fn route<'a>(
        &'a mut self,
        event: &OutboxEvent<'a>,
        origin: &Origin,
    ) -> Result<Routed<'a>, Unroutable> {
        let Router { plan, attributes, allowed, captures, contract_check, buffers, replay_mark } = self;
        let Buffers { topic, text, key, headers, bytes, written, value } = buffers;
        let parts = match plan.rule(event, origin, captures)? {
            Some(BoundRule { parts: None, .. }) => return Ok(Routed::Dropped),
            Some(BoundRule { parts, .. }) => parts.as_ref(),
            None if plan.rules.is_empty() => None,
            None => match plan.unmatched {
                Unmatched::Route => None,
                Unmatched::Drop => return Ok(Routed::Dropped),
                Unmatched::Stop => return Err(Unroutable::Unmatched),
            },
        };
        let row = Row { event, origin, captures, text: plan.text };

        let template = parts.and_then(|parts| parts.topic.as_ref()).unwrap_or(&plan.topic);
        template.render(&row, topic).map_err(|missing| missing.of(Purpose::Topic))?;
        allowed.check(topic)?;

        let partition = parts.and_then(|parts| parts.partition.as_ref()).or(plan.partition.as_ref());
        let partition = match partition {
            Some(template) => number(template, &row, text)?,
            None => None,
        };

        let commit_timestamp = origin.commit_time.unix_millis();
        let timestamp = match plan.timestamp {
            RecordTimestamp::Commit => commit_timestamp,
            // a time that the topic does not accept is replaced in the sink
            RecordTimestamp::CreatedAt => {
                event.field(Field::CreatedAt).and_then(timestamp::parse_millis).unwrap_or(i64::MIN)
            }
        };

        let form = parts.and_then(|parts| parts.value).unwrap_or(plan.form);
        let payload = payload(&row, bytes, written)?;
        let tombstone = plan.tombstone_on_empty && payload.is_blank();

        let violation = contract_check.check(event, payload.bytes)?;

        headers.clear();
        if let Some(context) = event.field(Field::TracingSpanContext) {
            tracing::push(context, headers);
        }
        let own = [(headers::ID, Field::Id, true), (headers::TYPE, Field::EventType, plan.type_header)];
        for (name, field, _) in own.into_iter().filter(|(_, _, wanted)| *wanted) {
            let purpose = || Purpose::Header(name.to_owned());
            headers.push(name, plain(&row, field, Use::Other, purpose, text)?);
        }
        let of_rule = parts.map(|parts| parts.headers.as_slice()).unwrap_or_default();
        let configured = |name: &str| plan.headers.iter().chain(of_rule).any(|(known, _)| known == name);
        if event.field(Field::IdempotencyKey).is_some() && !configured(headers::IDEMPOTENCY_KEY) {
            let purpose = || Purpose::Header(headers::IDEMPOTENCY_KEY.to_owned());
            let business_key = plain(&row, Field::IdempotencyKey, Use::Other, purpose, text)?;
            headers.push(headers::IDEMPOTENCY_KEY, business_key);
        }
        let replaced = |name: &str| of_rule.iter().any(|(by_rule, _)| by_rule == name);
        let kept = plan.headers.iter().filter(|(name, _)| !replaced(name));
        for (name, template) in kept.chain(of_rule) {
            if template.lacks_column(&row) {
                continue;
            }
            let present = template.render_or_null(&row, text);
            let present = present.map_err(|missing| missing.of(Purpose::Header(name.clone())))?;
            headers.push(name, present.then_some(text.as_bytes()));
        }

        value.clear();
        value.shrink_to(RETAINED);
        let value = match form {
            _ if tombstone => None,
            ValueForm::Envelope => {
                plan.value.write_envelope(payload, &row, text, value)?;
                Some(value.as_bytes())
            }
            ValueForm::CloudEventsStructured => {
                let micros = timestamp_micros(timestamp, origin);
                if let Some(attributes) = attributes.as_mut() {
                    attributes.write(&row, &plan.value, payload, micros, headers, value)?;
                }
                Some(value.as_bytes())
            }
            ValueForm::Payload | ValueForm::CloudEventsBinary if plan.value.passes_through() => payload.bytes,
            ValueForm::Payload | ValueForm::CloudEventsBinary => {
                plan.value.write_payload(payload, value)?;
                Some(value.as_bytes())
            }
        };
        if let (ValueForm::CloudEventsBinary, Some(attributes)) = (form, attributes.as_mut()) {
            attributes.push_headers(&row, payload.kind, timestamp_micros(timestamp, origin), headers)?;
        }
        if let Some(mark) = replay_mark {
            headers.push(REPLAY_HEADER, Some(mark.as_bytes()));
        }
        let headers_dropped = match event.field(Field::Headers) {
            Some(json) => headers
                .push_members(json)
                .map_err(|error| Unroutable::Headers { at: json::offset(json, &error) })?,
            None => 0,
        };
        Ok(Routed::Record(Record {
            topic,
            partition,
            key: if plan.key_as_json {
                Some(json_key(&row, key)?)
            } else {
                plain(&row, Field::AggregateId, Use::Key, || Purpose::Key, key)?
            },
            value,
            headers,
            timestamp,
            commit_timestamp,
            headers_dropped,
            violation,
        }))
    }
}

impl Plan {
    /// The first rule that matches.
    fn rule(
        &self,
        event: &OutboxEvent<'_>,
        origin: &Origin,
        captures: &mut Captures,
    ) -> Result<Option<&BoundRule>, Unroutable> {
        let row = Row { event, origin, captures: Captures::NONE, text: self.text };
        for rule in &self.rules {
            if rule.matches(&row, captures)? {
                return Ok(Some(rule));
            }
        }
        Ok(None)
    }
}

/// A field in the configured form: borrowed unchanged, or from `written`.
fn plain<'b>(
    row: &Row<'_, 'b>,
    field: Field,
    used: Use,
    purpose: impl FnOnce() -> Purpose,
    written: &'b mut String,
) -> Result<Option<&'b [u8]>, Unroutable> {
    let value = row.event.field(field);
    if row.text == TextForm::Postgres {
        return Ok(value);
    }
    let no_value = |reason| Unroutable::NoValue { purpose: purpose(), name: field.key().to_owned(), reason };
    match row.field(field, used).map_err(no_value)? {
        Some(Cow::Owned(text)) => {
            *written = text;
            Ok(Some(written.as_bytes()))
        }
        Some(Cow::Borrowed(_)) => Ok(value),
        None => Ok(None),
    }
}

/// The aggregate id as a JSON value; `null` for NULL.
fn json_key<'b>(row: &Row<'_, 'b>, written: &'b mut String) -> Result<&'b [u8], Unroutable> {
    written.clear();
    let (value, of) = (row.event.field(Field::AggregateId), row.event.field_type(Field::AggregateId));
    let no_value = |reason| Unroutable::NoValue {
        purpose: Purpose::Key,
        name: Field::AggregateId.key().to_owned(),
        reason,
    };
    column_json::write(row.text, value, of, written).map_err(no_value)?;
    Ok(written.as_bytes())
}

/// The payload: a `bytea` decoded, anything else in the configured form.
fn payload<'b>(
    row: &Row<'_, 'b>,
    decoded: &'b mut Vec<u8>,
    written: &'b mut String,
) -> Result<Payload<'b>, Unroutable> {
    let kind = value::kind(row);
    let bytes = match (kind, row.event.field(Field::Payload)) {
        (Kind::Bytes, Some(hex)) => {
            bytea::decode(hex, decoded).ok_or(Unroutable::Bytea)?;
            Some(decoded.as_slice())
        }
        (Kind::Text, Some(_)) => plain(row, Field::Payload, Use::Key, || Purpose::Value, written)?,
        (_, value) => value,
    };
    Ok(Payload { bytes, kind })
}

/// The number from a template; `None` for NULL and for a missing column.
fn number(template: &Bound, row: &Row<'_, '_>, text: &mut String) -> Result<Option<i32>, Unroutable> {
    if template.lacks_column(row) {
        return Ok(None);
    }
    let present = template.render_or_null(row, text);
    if !present.map_err(|missing| missing.of(Purpose::Partition))? {
        return Ok(None);
    }
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.map(Some).ok_or_else(|| Unroutable::Partition(printable(text.as_bytes())))
}

/// The time of a CloudEvent: that of the record, or the commit time if a CloudEvent cannot have it.
fn timestamp_micros(millis: i64, origin: &Origin) -> i64 {
    let micros = millis.checked_mul(1_000).filter(|micros| Utc(*micros).is_writable());
    micros.unwrap_or_else(|| origin.commit_time.unix_micros())
}

#[cfg(test)]
mod tests;
