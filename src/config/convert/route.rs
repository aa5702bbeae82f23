//! `[route]`: templates, headers, the form of values and where the timestamp comes from.

use super::cloudevents::cloudevents;
use super::rules::rules;
use crate::config::raw::{Properties, RawExpand, RawRoute, Value};
use crate::config::read::{Located, Reader};
use crate::config::template::{Name, Part, Template};
use crate::config::{
    Action, Columns, NamedTemplate, PayloadJson, RecordTimestamp, Route, TextForm, Unmatched, ValueForm,
};
use crate::reserved::REPLAY_HEADER;
use crate::topic_name;

pub(super) fn route(reader: &mut Reader<'_>, raw: RawRoute, columns: &Columns, defaults: Route) -> Route {
    let topic = topic(reader, "route.topic", raw.topic, columns, &[]);
    let span = raw.timestamp.as_ref().map(toml::Spanned::span);
    let choices = [("commit", RecordTimestamp::Commit), ("created_at", RecordTimestamp::CreatedAt)];
    let timestamp = reader.choice("route.timestamp", raw.timestamp, &choices).unwrap_or(defaults.timestamp);
    if let (RecordTimestamp::CreatedAt, None, Some(span)) = (timestamp, &columns.created_at, span) {
        reader.fault(
            &span,
            "route.timestamp",
            "\"created_at\" needs that column, and `outbox.columns` switches it off",
            "Name the column in `outbox.columns`, or set timestamp = \"commit\"",
        );
    }
    let texts = [("postgres", TextForm::Postgres), ("connect", TextForm::Connect)];
    let text = reader.choice("route.text", raw.text, &texts).unwrap_or(defaults.text);
    let unmatched = [("route", Unmatched::Route), ("drop", Unmatched::Drop), ("stop", Unmatched::Stop)];
    let missing = [("error", false), ("ignore", true)];
    let unmatched_span = raw.unmatched.as_ref().map(toml::Spanned::span);
    let value_span = raw.value.as_ref().map(toml::Spanned::span);
    let envelope_span = raw.envelope.values().next().map(toml::Spanned::span);
    let route = Route {
        topic: topic.unwrap_or(defaults.topic),
        partition: partition(reader, "route.partition", raw.partition, columns, &[]),
        key_as_json: reader
            .choice("route.key", raw.key, &[("text", false), ("json", true)])
            .unwrap_or(defaults.key_as_json),
        headers: headers(reader, "route.headers", raw.headers, columns, &[]),
        timestamp,
        text,
        value: reader.choice("route.value", raw.value, &ValueForm::ALL).unwrap_or(defaults.value),
        envelope: envelope(reader, raw.envelope, columns),
        cloudevents: cloudevents(reader, raw.cloudevents, columns),
        payload_json: payload_json(reader, raw.payload_json, raw.expand),
        tombstone_on_empty: reader
            .switch("route.tombstone_on_empty", raw.tombstone_on_empty)
            .unwrap_or(defaults.tombstone_on_empty),
        ignore_missing_columns: reader
            .choice("route.missing_columns", raw.missing_columns, &missing)
            .unwrap_or(defaults.ignore_missing_columns),
        unmatched: reader.choice("route.unmatched", raw.unmatched, &unmatched).unwrap_or(defaults.unmatched),
        rules: rules(reader, raw.rules, columns),
    };
    let of_rules = route.rules.iter().flat_map(|rule| match &rule.action {
        Action::Route { headers, .. } => headers.as_slice(),
        Action::Drop => &[],
    });
    let belongs = |header: &&NamedTemplate| header.name.starts_with("ce_") || header.name == "content-type";
    if let (true, Some(header)) =
        (route.makes_cloudevents(), route.headers.iter().chain(of_rules).find(belongs))
    {
        let what = format!("a CloudEvent sets the header {} itself", header.name);
        let remedy = "Set the attribute under `[route.cloudevents]`";
        reader.fault(&value_span.clone().unwrap_or(0..0), "route.headers", what, remedy);
    }
    if let (true, Unmatched::Drop | Unmatched::Stop, Some(span)) =
        (route.rules.is_empty(), route.unmatched, &unmatched_span)
    {
        let remedy = "Add a rule under `[[route.rules]]`, or leave it out";
        reader.fault(span, "route.unmatched", "there are no rules that could match", remedy);
    }
    if let (false, Some(span)) = (route.makes(ValueForm::Envelope), &envelope_span) {
        reader.fault(
            span,
            "route.envelope",
            "no record has an envelope",
            "Set `[route] value = \"envelope\"`, or leave the members out",
        );
    }
    let names_type = |template: &Template| {
        template.values().any(|value| value.name == Name::Column("event_type".to_owned()))
    };
    if columns.event_type.is_none() && route.makes_cloudevents() && names_type(&route.cloudevents.event_type)
    {
        let span = value_span.unwrap_or(0..0);
        reader.fault(
            &span,
            "route.cloudevents.type",
            "a CloudEvent needs a type, and `outbox.columns.event_type` is switched off",
            "Set it, for instance to the column that holds the type: \"${type}\"",
        );
    }
    route
}

const TOPIC_FORM: &str =
    "Write a topic name with columns in it, for instance \"outbox.event.${aggregate_type}\"";

const PARTITION_FORM: &str = "Write a number, or a column that holds one, as in \"${shard}\"";

/// A template for topics: its fixed parts can stand in a topic's name.
pub(super) fn topic(
    reader: &mut Reader<'_>,
    key: &str,
    value: Value,
    columns: &Columns,
    groups: &[String],
) -> Option<Template> {
    checked(reader, key, value, TOPIC_FORM, columns, groups, |template| {
        names_no_payload(template, columns)?;
        may_be_topic(template)
    })
}

/// Any template.
pub(super) fn template(
    reader: &mut Reader<'_>,
    key: &str,
    value: Value,
    form: &str,
    columns: &Columns,
    groups: &[String],
) -> Option<Template> {
    checked(reader, key, value, form, columns, groups, |_| Ok(()))
}

/// A template for the partition's number: one without values is that number.
pub(super) fn partition(
    reader: &mut Reader<'_>,
    key: &str,
    value: Value,
    columns: &Columns,
    groups: &[String],
) -> Option<Template> {
    checked(reader, key, value, PARTITION_FORM, columns, groups, |template| match template.fixed() {
        Some(number) if !number.parse::<i32>().is_ok_and(|number| number >= 0) => {
            Err(format!("{number:?} is not a number from 0 to {}", i32::MAX))
        }
        _ => Ok(()),
    })
}

fn checked(
    reader: &mut Reader<'_>,
    key: &str,
    value: Value,
    form: &str,
    columns: &Columns,
    groups: &[String],
    check: impl FnOnce(&Template) -> Result<(), String>,
) -> Option<Template> {
    let Located { text, span, .. } = reader.text(key, value)?;
    let checked = parsed(&text, columns, groups).and_then(|template| check(&template).map(|()| template));
    checked.map_err(|what| reader.fault(&span, key, what, form)).ok()
}

fn parsed(text: &str, columns: &Columns, groups: &[String]) -> Result<Template, String> {
    let template = Template::parse(text).map_err(|error| error.to_string())?;
    names_exist(&template, columns, groups)?;
    Ok(template)
}

/// Names that can be known to be nothing. `groups` are those of the patterns of the rule that it stands in.
fn names_exist(template: &Template, columns: &Columns, groups: &[String]) -> Result<(), String> {
    for value in template.values() {
        match &value.name {
            Name::Header(_) if columns.headers.is_none() => {
                return Err(
                    "it names a member of the headers column, which `outbox.columns` switches off".to_owned()
                );
            }
            Name::Match(group) if !groups.contains(group) => {
                return Err(match groups {
                    [] => format!(
                        "`match.{group}` stands for a group of the rule's expression, by name, or by number if the rule has only \
                         one expression; there is no such group here"
                    ),
                    groups => format!(
                        "there is no group {group:?} in the patterns of this rule: there are {}",
                        groups.join(", ")
                    ),
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// What becomes of a payload must not show in an error about a topic.
fn names_no_payload(template: &Template, columns: &Columns) -> Result<(), String> {
    let is_payload = |name: &Name| match name {
        Name::Column(name) => name == "payload" || *name == columns.payload,
        Name::OwnColumn(name) => *name == columns.payload,
        _ => false,
    };
    match template.values().any(|value| is_payload(&value.name)) {
        true => Err("a payload cannot make a topic".to_owned()),
        false => Ok(()),
    }
}

/// Templates by name, in the order of the file.
pub(super) fn named(
    reader: &mut Reader<'_>,
    section: &str,
    raw: Properties,
    columns: &Columns,
    groups: &[String],
    refused: impl Fn(&str) -> Option<&'static str>,
) -> Vec<NamedTemplate> {
    let mut entries = reader.properties(section, raw, |name| name);
    // they come sorted by name
    entries.sort_by_key(|(_, located)| located.span.start);
    let mut convert = |(name, Located { text, span, .. }): (String, Located)| {
        let key = format!("{section}.{name}");
        if let Some(what) = refused(&name) {
            reader.fault(&span, &key, what, "Choose another name");
        }
        match parsed(&text, columns, groups) {
            Ok(value) => Some(NamedTemplate { name, value }),
            Err(what) => {
                reader.fault(&span, &key, what, "Write text, with values as in \"${aggregate_id}\"");
                None
            }
        }
    };
    entries.into_iter().filter_map(&mut convert).collect()
}

/// Further headers.
pub(super) fn headers(
    reader: &mut Reader<'_>,
    section: &str,
    raw: Properties,
    columns: &Columns,
    groups: &[String],
) -> Vec<NamedTemplate> {
    named(reader, section, raw, columns, groups, |name| match name {
        "id" | REPLAY_HEADER => Some("the router itself sets this header"),
        "type" if columns.event_type.is_some() => Some("the router itself sets this header"),
        name if name.is_empty() || name.contains('\0') => {
            Some("a header needs a name, without a zero character")
        }
        _ => None,
    })
}

fn envelope(reader: &mut Reader<'_>, raw: Properties, columns: &Columns) -> Vec<NamedTemplate> {
    named(reader, "route.envelope", raw, columns, &[], |name| match name {
        "payload" => Some("this member holds the payload"),
        "" => Some("a member needs a name"),
        _ => None,
    })
}

fn payload_json(reader: &mut Reader<'_>, value: Value, expand: RawExpand) -> PayloadJson {
    let spans = [&expand.null, &expand.empty_array];
    let spans = spans.map(|value| value.as_ref().map(toml::Spanned::span));
    let null = [("ignore", false), ("optional_bytes", true)];
    let empty = [("ignore", false), ("optional_string", true)];
    let keep_nulls = reader.choice("route.expand.null", expand.null, &null);
    let keep_empty_arrays = reader.choice("route.expand.empty_array", expand.empty_array, &empty);
    let expanded = PayloadJson::Expand {
        keep_nulls: keep_nulls.unwrap_or(false),
        keep_empty_arrays: keep_empty_arrays.unwrap_or(false),
    };
    let choices = [("raw", PayloadJson::Raw), ("string", PayloadJson::String), ("expand", expanded)];
    let chosen = reader.choice("route.payload_json", value, &choices).unwrap_or(PayloadJson::Raw);
    if let (PayloadJson::Raw | PayloadJson::String, Some(span)) = (chosen, spans.into_iter().flatten().next())
    {
        let what = "it says how payloads are expanded, and none is";
        reader.fault(&span, "route.expand", what, "Set `[route] payload_json = \"expand\"`, or leave it out");
    }
    chosen
}

/// A template whose fixed parts can stand in a topic's name.
fn may_be_topic(template: &Template) -> Result<(), String> {
    for part in template.parts() {
        let Part::Text(text) = part else { continue };
        if let Some(other) = text.chars().find(|c| !u8::try_from(*c).is_ok_and(topic_name::legal)) {
            return Err(format!("{other:?} cannot stand in a topic name"));
        }
    }
    // what every topic of it begins with
    let known = template.fixed().or(Some(template.prefix()).filter(|prefix| prefix.starts_with("__")));
    known.map_or(Ok(()), topic_name::check).map_err(|error| error.to_string())
}
