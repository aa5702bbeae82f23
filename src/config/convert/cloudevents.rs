//! `[route.cloudevents]`: the attributes of CloudEvents.

use super::templates::Templates;
use crate::cloudevents;
use crate::config::CloudEvents;
use crate::config::raw::{RawCloudEvents, Value};
use crate::config::template::Template;

/// Attributes that the specification defines, which no extension may be named after.
const DEFINED: [&str; 10] = [
    "id",
    "source",
    "specversion",
    "type",
    "datacontenttype",
    "dataschema",
    "subject",
    "time",
    "data",
    "data_base64",
];

pub(super) fn cloudevents(templates: &mut Templates<'_, '_>, raw: RawCloudEvents) -> CloudEvents {
    let defaults = CloudEvents::default();
    let mut attribute = |name: &str, value: Value| {
        templates.checked(&format!("route.cloudevents.{name}"), value, FORM, |template| check(name, template))
    };
    let source = attribute("source", raw.source);
    let event_type = attribute("type", raw.event_type);
    let subject = attribute("subject", raw.subject);
    let datacontenttype = attribute("datacontenttype", raw.datacontenttype);
    let dataschema = attribute("dataschema", raw.dataschema);
    CloudEvents {
        source: source.unwrap_or(defaults.source),
        event_type: event_type.unwrap_or(defaults.event_type),
        subject: subject.unwrap_or(defaults.subject),
        datacontenttype,
        dataschema,
        extensions: templates.named("route.cloudevents.extensions", raw.extensions.0, refused, check),
    }
}

/// Why an extension cannot have this name.
fn refused(name: &str) -> Option<&'static str> {
    if DEFINED.contains(&name) {
        return Some("the specification defines an attribute of this name");
    }
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let named = !name.is_empty() && name.bytes().all(legal);
    (!named).then_some("the name of an attribute may contain only lower-case letters and digits")
}

/// Refuses a template whose fixed texts no event can have in this attribute.
fn check(name: &str, template: &Template) -> Result<(), String> {
    let is_required = matches!(name, "source" | "type");
    let mut results = template.results().into_iter().filter(|text| is_required || !text.is_empty());
    let checked = results.try_for_each(|text| cloudevents::check(name, &text));
    let checked = checked.and_then(|()| {
        let mut texts = template.texts();
        texts.try_for_each(|text| cloudevents::check_characters(name, &text))
    });
    checked.map_err(|what| format!("the attribute {what}"))
}

const FORM: &str = "Write text, with values as in \"${aggregate_type}\"";
