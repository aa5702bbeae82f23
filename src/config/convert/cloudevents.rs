//! `[route.cloudevents]`: the attributes of CloudEvents.

use super::templates::{named, template};
use crate::config::raw::{RawCloudEvents, Value};
use crate::config::read::Reader;
use crate::config::{CloudEvents, Columns};

/// Attributes that the specification defines. No extension may have these names.
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

pub(super) fn cloudevents(reader: &mut Reader<'_>, raw: RawCloudEvents, columns: &Columns) -> CloudEvents {
    let defaults = CloudEvents::default();
    let mut attribute = |key: &str, value: Value| {
        template(reader, &format!("route.cloudevents.{key}"), value, FORM, columns, &[])
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
        extensions: named(reader, "route.cloudevents.extensions", raw.extensions.0, columns, &[], |name| {
            if DEFINED.contains(&name) {
                return Some("the specification gives this attribute a meaning of its own");
            }
            let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            let named = !name.is_empty() && name.bytes().all(legal);
            (!named).then_some("the name of an attribute has lower-case letters and digits only")
        }),
    }
}

const FORM: &str = "Write text, with values as in \"${aggregate_type}\"";
