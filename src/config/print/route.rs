//! `[route]` and its rules.

use std::fmt::{self, Write};

use crate::config::quoted::quoted;
use crate::config::template::Template;
use crate::config::{
    Accepted, Action, CloudEvents, NamedTemplate, PayloadJson, RecordTimestamp, Route, Rule, TextForm,
    Unmatched, ValueForm,
};

pub(super) fn write(out: &mut String, route: &Route) -> fmt::Result {
    writeln!(out, "\n[route]")?;
    writeln!(out, "topic = {}", template(&route.topic))?;
    if let Some(partition) = &route.partition {
        writeln!(out, "partition = {}", template(partition))?;
    }
    writeln!(out, "key = {}", quoted(if route.key_as_json { "json" } else { "text" }))?;
    let timestamp = match route.timestamp {
        RecordTimestamp::Commit => "commit",
        RecordTimestamp::CreatedAt => "created_at",
    };
    writeln!(out, "timestamp = {}", quoted(timestamp))?;
    let text = match route.text {
        TextForm::Postgres => "postgres",
        TextForm::Connect => "connect",
    };
    writeln!(out, "text = {}", quoted(text))?;
    writeln!(out, "value = {}", value_form(route.value))?;
    let payload_json = match route.payload_json {
        PayloadJson::Raw => "raw",
        PayloadJson::String => "string",
        PayloadJson::Expand { .. } => "expand",
    };
    writeln!(out, "payload_json = {}", quoted(payload_json))?;
    if let PayloadJson::Expand { keep_nulls, keep_empty_arrays } = route.payload_json {
        let behaviour = |kept, name| quoted(if kept { name } else { "ignore" });
        writeln!(out, "expand.null = {}", behaviour(keep_nulls, "optional_bytes"))?;
        writeln!(out, "expand.empty_array = {}", behaviour(keep_empty_arrays, "optional_string"))?;
    }
    writeln!(out, "tombstone_on_empty = {}", route.tombstone_on_empty)?;
    let missing = if route.ignore_missing_columns { "ignore" } else { "error" };
    writeln!(out, "missing_columns = {}", quoted(missing))?;
    let unmatched = match route.unmatched {
        Unmatched::Route => "route",
        Unmatched::Drop => "drop",
        Unmatched::Stop => "stop",
    };
    writeln!(out, "unmatched = {}", quoted(unmatched))?;
    section(out, "route.headers", &route.headers)?;
    section(out, "route.envelope", &route.envelope)?;
    if route.makes_cloudevents() {
        cloudevents(out, &route.cloudevents)?;
    }
    route.rules.iter().try_for_each(|one| rule(out, one))
}

fn template(template: &Template) -> String {
    quoted(&template.to_string())
}

fn value_form(form: ValueForm) -> String {
    let word = ValueForm::ALL.into_iter().find(|(_, known)| *known == form).map(|(word, _)| word);
    quoted(word.unwrap_or_default())
}

fn section(out: &mut String, name: &str, entries: &[NamedTemplate]) -> fmt::Result {
    if !entries.is_empty() {
        writeln!(out, "\n[{name}]")?;
    }
    entries.iter().try_for_each(|entry| writeln!(out, "{} = {}", quoted(&entry.name), template(&entry.value)))
}

fn cloudevents(out: &mut String, attributes: &CloudEvents) -> fmt::Result {
    writeln!(out, "\n[route.cloudevents]")?;
    writeln!(out, "source = {}", template(&attributes.source))?;
    writeln!(out, "type = {}", template(&attributes.event_type))?;
    writeln!(out, "subject = {}", template(&attributes.subject))?;
    let optional = [("datacontenttype", &attributes.datacontenttype), ("dataschema", &attributes.dataschema)];
    for (key, value) in optional {
        if let Some(value) = value {
            writeln!(out, "{key} = {}", template(value))?;
        }
    }
    section(out, "route.cloudevents.extensions", &attributes.extensions)
}

fn rule(out: &mut String, rule: &Rule) -> fmt::Result {
    writeln!(out, "\n[[route.rules]]")?;
    for condition in &rule.conditions {
        let accepted: Vec<String> = condition
            .any_of
            .iter()
            .map(|accepted| match accepted {
                Accepted::Null => "false".to_owned(),
                Accepted::Text(pattern) => quoted(&pattern.to_string()),
            })
            .collect();
        writeln!(out, "match.{} = [{}]", quoted(&condition.name.to_string()), accepted.join(", "))?;
    }
    match &rule.action {
        Action::Drop => writeln!(out, "drop = true"),
        Action::Route { topic, partition, headers, value } => {
            if let Some(topic) = topic {
                writeln!(out, "topic = {}", template(topic))?;
            }
            if let Some(partition) = partition {
                writeln!(out, "partition = {}", template(partition))?;
            }
            if let Some(value) = value {
                writeln!(out, "value = {}", value_form(*value))?;
            }
            headers.iter().try_for_each(|header| {
                writeln!(out, "headers.{} = {}", quoted(&header.name), template(&header.value))
            })
        }
    }
}
