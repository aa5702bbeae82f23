//! Prints `[route]` and its rules.

use std::fmt::{self, Write};

use crate::config::quoted::{quoted, quoted_as_is};
use crate::config::template::Template;
use crate::config::words::word;
use crate::config::{
    Accepted, Action, CloudEvents, NamedTemplate, PayloadJson, Route, Rule, ValueForm, words,
};

pub(super) fn write(out: &mut String, route: &Route) -> fmt::Result {
    writeln!(out, "\n[route]")?;
    writeln!(out, "topic = {}", template(&route.topic))?;
    if let Some(partition) = &route.partition {
        writeln!(out, "partition = {}", template(partition))?;
    }
    writeln!(out, "key = {}", word(&words::KEY_AS_JSON, route.key_as_json))?;
    writeln!(out, "timestamp = {}", word(&words::TIMESTAMP, route.timestamp))?;
    writeln!(out, "text = {}", word(&words::TEXT, route.text))?;
    writeln!(out, "value = {}", word(&ValueForm::ALL, route.value))?;
    let payload_json = match route.payload_json {
        PayloadJson::Raw => "raw",
        PayloadJson::String => "string",
        PayloadJson::Expand { .. } => "expand",
    };
    writeln!(out, "payload_json = {}", quoted(payload_json))?;
    if let PayloadJson::Expand { keep_nulls, keep_empty_arrays } = route.payload_json {
        writeln!(out, "expand.null = {}", word(&words::KEEP_NULLS, keep_nulls))?;
        writeln!(out, "expand.empty_array = {}", word(&words::KEEP_EMPTY_ARRAYS, keep_empty_arrays))?;
    }
    writeln!(out, "tombstone_on_empty = {}", route.tombstone_on_empty)?;
    writeln!(
        out,
        "missing_columns = {}",
        word(&words::IGNORE_MISSING_COLUMNS, route.ignore_missing_columns)
    )?;
    writeln!(out, "unmatched = {}", word(&words::UNMATCHED, route.unmatched))?;
    section(out, "route.headers", &route.headers)?;
    section(out, "route.envelope", &route.envelope)?;
    if route.produces_cloudevents() {
        cloudevents(out, &route.cloudevents)?;
    }
    route.rules.iter().try_for_each(|one| rule(out, one))
}

fn template(template: &Template) -> String {
    quoted_as_is(&template.to_string())
}

fn section(out: &mut String, name: &str, entries: &[NamedTemplate]) -> fmt::Result {
    if !entries.is_empty() {
        writeln!(out, "\n[{name}]")?;
    }
    entries
        .iter()
        .try_for_each(|entry| writeln!(out, "{} = {}", quoted_as_is(&entry.name), template(&entry.value)))
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
        writeln!(out, "match.{} = [{}]", quoted_as_is(&condition.name.to_string()), accepted.join(", "))?;
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
                writeln!(out, "value = {}", word(&ValueForm::ALL, *value))?;
            }
            headers.iter().try_for_each(|header| {
                writeln!(out, "headers.{} = {}", quoted_as_is(&header.name), template(&header.value))
            })
        }
    }
}
