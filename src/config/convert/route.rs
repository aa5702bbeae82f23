//! `[route]`: templates, headers, the form of values, and the source of the timestamp.

use std::ops::Range;

use super::cloudevents::cloudevents;
use super::rules::rules;
use super::templates::Templates;
use crate::config::raw::{RawExpand, RawRoute, Table, Value};
use crate::config::read::Reader;
use crate::config::template::{Name, Template};
use crate::config::{
    Action, Columns, NamedTemplate, PayloadJson, RecordTimestamp, Route, Topics, Unmatched, ValueForm, words,
};
use crate::topic_name::TopicNameError;

pub(super) fn route(reader: &mut Reader<'_>, raw: RawRoute, columns: &Columns, defaults: Route) -> Route {
    let mut templates = Templates { reader, columns, groups: &[] };
    let topic = templates.topic("route.topic", raw.topic).unwrap_or(defaults.topic);
    let partition = templates.partition("route.partition", raw.partition);
    let headers = templates.headers("route.headers", raw.headers.0);
    let envelope_span = raw.envelope.0.values().next().map(toml::Spanned::span);
    let refused = |name: &str| match name {
        "payload" => Some("this member contains the payload"),
        "" => Some("a member needs a name"),
        _ => None,
    };
    let envelope = templates.named("route.envelope", raw.envelope.0, refused, |_, _| Ok(()));
    let cloudevents = cloudevents(&mut templates, raw.cloudevents.0);
    let span = raw.timestamp.as_ref().map(toml::Spanned::span);
    let timestamp = reader.choice_or("route.timestamp", raw.timestamp, &words::TIMESTAMP, defaults.timestamp);
    if let (RecordTimestamp::CreatedAt, None, Some(span)) = (timestamp, &columns.created_at, span) {
        reader.problem(
            &span,
            "route.timestamp",
            "\"created_at\" needs that column, and `outbox.columns` switches it off",
            "Name the column in `outbox.columns`, or set timestamp = \"commit\"",
        );
    }
    let unmatched_span = raw.unmatched.as_ref().map(toml::Spanned::span);
    let value_span = raw.value.as_ref().map(toml::Spanned::span);
    let route = Route {
        topic,
        partition,
        key_as_json: reader.choice_or("route.key", raw.key, &words::KEY_AS_JSON, defaults.key_as_json),
        headers,
        timestamp,
        text: reader.choice_or("route.text", raw.text, &words::TEXT, defaults.text),
        value: reader.choice_or("route.value", raw.value, &ValueForm::ALL, defaults.value),
        envelope,
        cloudevents,
        payload_json: payload_json(reader, raw.payload_json, raw.expand.0),
        tombstone_on_empty: reader
            .switch("route.tombstone_on_empty", raw.tombstone_on_empty)
            .unwrap_or(defaults.tombstone_on_empty),
        ignore_missing_columns: reader.choice_or(
            "route.missing_columns",
            raw.missing_columns,
            &words::IGNORE_MISSING_COLUMNS,
            defaults.ignore_missing_columns,
        ),
        unmatched: reader.choice_or("route.unmatched", raw.unmatched, &words::UNMATCHED, defaults.unmatched),
        rules: rules(reader, raw.rules, columns),
    };
    let of_rules = route.rules.iter().flat_map(|rule| match &rule.action {
        Action::Route { headers, .. } => headers.as_slice(),
        Action::Drop => &[],
    });
    let is_reserved =
        |header: &&NamedTemplate| header.name.starts_with("ce_") || header.name == "content-type";
    if let (true, Some(header)) =
        (route.produces_cloudevents(), route.headers.iter().chain(of_rules).find(is_reserved))
    {
        let what = format!("a CloudEvent sets the header {} itself", header.name);
        let remedy = "Set the attribute under `[route.cloudevents]`";
        reader.problem(&value_span.clone().unwrap_or(0..0), "route.headers", what, remedy);
    }
    if let (true, Unmatched::Drop | Unmatched::Stop, Some(span)) =
        (route.rules.is_empty(), route.unmatched, &unmatched_span)
    {
        let remedy = "Add a rule under `[[route.rules]]`, or remove it";
        reader.problem(span, "route.unmatched", "it has no effect without rules", remedy);
    }
    if let (false, Some(span)) = (route.produces(ValueForm::Envelope), &envelope_span) {
        reader.problem(
            span,
            "route.envelope",
            "no record has an envelope",
            "Set `[route] value = \"envelope\"`, or remove the members",
        );
    }
    let names_type = |template: &Template| {
        template.values().any(|value| value.name == Name::Column("event_type".to_owned()))
    };
    if columns.event_type.is_none()
        && route.produces_cloudevents()
        && names_type(&route.cloudevents.event_type)
    {
        let span = value_span.unwrap_or(0..0);
        reader.problem(
            &span,
            "route.cloudevents.type",
            "a CloudEvent needs a type, and `outbox.columns.event_type` is switched off",
            "Set it, for instance to the column with the type: \"${type}\"",
        );
    }
    route
}

fn payload_json(reader: &mut Reader<'_>, value: Value, expand: RawExpand) -> PayloadJson {
    let spans = [&expand.null, &expand.empty_array];
    let spans = spans.map(|value| value.as_ref().map(toml::Spanned::span));
    let keep_nulls = reader.choice("route.expand.null", expand.null, &words::KEEP_NULLS);
    let keep_empty_arrays =
        reader.choice("route.expand.empty_array", expand.empty_array, &words::KEEP_EMPTY_ARRAYS);
    let expanded = PayloadJson::Expand {
        keep_nulls: keep_nulls.unwrap_or(false),
        keep_empty_arrays: keep_empty_arrays.unwrap_or(false),
    };
    let choices = [("raw", PayloadJson::Raw), ("string", PayloadJson::String), ("expand", expanded)];
    let chosen = reader.choice_or("route.payload_json", value, &choices, PayloadJson::Raw);
    if let (PayloadJson::Raw | PayloadJson::String, Some(span)) = (chosen, spans.into_iter().flatten().next())
    {
        let what = "it has no effect, because payloads are not expanded";
        reader.problem(&span, "route.expand", what, "Set `[route] payload_json = \"expand\"`, or remove it");
    }
    chosen
}

/// Where the topics of `[route]` and of its rules are written.
pub(super) fn topic_spans(raw: &RawRoute) -> Vec<Option<Range<usize>>> {
    // a rule without conditions is refused
    let rules = raw.rules.iter().map(|Table(rule)| rule).filter(|rule| rule.conditions.is_some());
    let topics = [&raw.topic].into_iter().chain(rules.map(|rule| &rule.topic));
    topics.map(|topic| topic.as_ref().map(toml::Spanned::span)).collect()
}

/// Refuses topics without values that events cannot be sent to.
pub(super) fn check_topics(
    reader: &mut Reader<'_>,
    spans: Vec<Option<Range<usize>>>,
    route: &Route,
    allowed: &Topics,
    positions: Option<&str>,
) {
    let of_rules = route.rules.iter().map(|rule| match &rule.action {
        Action::Route { topic, .. } => topic.as_ref(),
        Action::Drop => None,
    });
    let keys = ["route.topic"].into_iter().chain(std::iter::repeat("route.rules.topic"));
    for ((span, topic), key) in
        spans.into_iter().zip([Some(&route.topic)].into_iter().chain(of_rules)).zip(keys)
    {
        let (Some(span), Some(topic)) = (span, topic.and_then(Template::fixed)) else { continue };
        if positions == Some(topic) {
            let remedy =
                "Name another topic. Before the first start you can name another positions topic instead";
            reader.problem(&span, key, TopicNameError::PositionsTopic.to_string(), remedy);
        } else if !allowed.allows(topic) {
            let remedy = "Add it there, or correct it here";
            reader.problem(&span, key, "`[topics] allow` does not name this topic", remedy);
        }
    }
}
