//! CloudEvents 1.0, by the Kafka protocol binding: attributes as headers (binary mode) or around the data in one JSON
//! object (structured mode).

use connect_values::{write_json_bytes, write_json_string};

use super::headers::Headers;
use super::row::{Binder, Row};
use super::template::Bound;
use super::text::Use;
use super::unroutable::{Purpose, Unroutable};
use super::value::{Kind, Payload, ValueBuilder};
use crate::cloudevents::check;
use crate::config::{CloudEvents, NamedTemplate};
use crate::outbox::{Field, IN_CLOUDEVENTS};
use crate::utc::Utc;

const CONTENT_TYPE: &str = "content-type";
const STRUCTURED: &[u8] = b"application/cloudevents+json; charset=UTF-8";

/// The templates of the attributes, bound to columns.
pub(super) struct Attributes {
    source: Bound,
    event_type: Bound,
    subject: Bound,
    datacontenttype: Option<Bound>,
    dataschema: Option<Bound>,
    extensions: Vec<(String, Bound)>,
    /// The attributes of the current event: names, and where their values end in `values`.
    current: Vec<(&'static str, usize)>,
    made_extensions: Vec<(usize, usize)>,
    values: String,
    text: String,
}

impl Attributes {
    pub(super) fn new(attributes: &CloudEvents, binder: &mut Binder<'_>) -> Self {
        (binder.key, binder.optional) = (IN_CLOUDEVENTS, false);
        let mut bind = |template| Bound::new(template, binder);
        Attributes {
            source: bind(&attributes.source).of_uri(),
            event_type: bind(&attributes.event_type),
            subject: bind(&attributes.subject),
            datacontenttype: attributes.datacontenttype.as_ref().map(&mut bind),
            dataschema: attributes.dataschema.as_ref().map(|template| bind(template).of_uri()),
            extensions: attributes
                .extensions
                .iter()
                .map(|NamedTemplate { name, value }| (name.clone(), bind(value)))
                .collect(),
            current: Vec::new(),
            made_extensions: Vec::new(),
            values: String::new(),
            text: String::new(),
        }
    }

    /// Computes the attributes of one event. `micros` is its time since the Unix epoch.
    fn make(&mut self, row: &Row<'_, '_>, kind: Kind, micros: i64) -> Result<(), Unroutable> {
        let Attributes { current, made_extensions, values, text, .. } = self;
        current.clear();
        made_extensions.clear();
        values.clear();
        let id = row.field(Field::Id, Use::Other).map_err(|reason| attribute("id", reason))?;
        values.push_str(&id.ok_or_else(|| attribute("id", "is NULL, but it is required"))?);
        current.push(("id", values.len()));
        for (name, template) in [("source", &self.source), ("type", &self.event_type)] {
            let rendered = template.render(row, text);
            rendered.map_err(|missing| missing.of(Purpose::Attribute(name.to_owned())))?;
            values.push_str(text);
            current.push((name, values.len()));
        }
        values.push_str("1.0");
        current.push(("specversion", values.len()));
        let optional = [
            ("datacontenttype", self.datacontenttype.as_ref()),
            ("dataschema", self.dataschema.as_ref()),
            ("subject", Some(&self.subject)),
        ];
        for (name, template) in optional {
            let present = match template {
                Some(template) => template
                    .render_or_null(row, text)
                    .map_err(|missing| missing.of(Purpose::Attribute(name.to_owned())))?,
                None if name == "datacontenttype" => {
                    text.clear();
                    text.push_str(content_type(kind));
                    true
                }
                None => false,
            };
            // attributes must not be empty
            if present && !text.is_empty() {
                values.push_str(text);
                current.push((name, values.len()));
            }
        }
        values.push_str(&Utc(micros).to_string());
        current.push(("time", values.len()));
        for (number, (name, template)) in self.extensions.iter().enumerate() {
            let present = template.render_or_null(row, text);
            if present.map_err(|missing| missing.of(Purpose::Attribute(name.clone())))? && !text.is_empty() {
                values.push_str(text);
                made_extensions.push((number, values.len()));
            }
        }
        self.all().try_for_each(|(name, value)| check(name, value).map_err(|reason| attribute(name, reason)))
    }

    /// Names and values for the current event.
    fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let defined = self.current.iter().map(|(name, end)| (*name, *end));
        let extensions = self
            .made_extensions
            .iter()
            .filter_map(|(number, end)| self.extensions.get(*number).map(|(name, _)| (name.as_str(), *end)));
        let mut start = 0;
        defined.chain(extensions).map(move |(name, end)| {
            let value = self.values.get(start..end).unwrap_or_default();
            start = end;
            (name, value)
        })
    }

    /// Binary mode: `ce_` headers, and the content type of the data.
    pub(super) fn push_headers(
        &mut self,
        row: &Row<'_, '_>,
        kind: Kind,
        micros: i64,
        headers: &mut Headers,
    ) -> Result<(), Unroutable> {
        self.make(row, kind, micros)?;
        for (name, value) in self.all() {
            match name {
                "datacontenttype" => headers.push(CONTENT_TYPE, Some(value.as_bytes())),
                name => headers.push_prefixed("ce_", name, Some(value.as_bytes())),
            }
        }
        Ok(())
    }

    /// Structured mode: one JSON object. Data of a JSON type are included as JSON, other text as a string, and bytes in
    /// Base64 (CloudEvents 1.0, "JSON Event Format").
    pub(super) fn write(
        &mut self,
        row: &Row<'_, '_>,
        maker: &ValueBuilder,
        payload: Payload<'_>,
        micros: i64,
        headers: &mut Headers,
        into: &mut String,
    ) -> Result<(), Unroutable> {
        self.make(row, payload.kind, micros)?;
        headers.push(CONTENT_TYPE, Some(STRUCTURED));
        into.push('{');
        for (name, value) in self.all() {
            write_json_string(name, into);
            into.push(':');
            write_json_string(value, into);
            into.push(',');
        }
        let content_type = self.all().find(|(name, _)| *name == "datacontenttype");
        let is_json = content_type.is_none_or(|(_, of)| is_json(of));
        match payload.bytes {
            None => {
                // the comma after the last attribute
                into.pop();
            }
            Some(bytes) if payload.kind == Kind::Bytes => {
                into.push_str("\"data_base64\":");
                write_json_bytes(bytes, into);
            }
            Some(bytes) if !is_json => {
                into.push_str("\"data\":");
                let text = std::str::from_utf8(bytes).map_err(|_| attribute("data", "is not UTF-8"))?;
                write_json_string(text, into);
            }
            Some(_) => {
                into.push_str("\"data\":");
                maker.write_payload(payload, into)?;
            }
        }
        into.push('}');
        Ok(())
    }
}

fn content_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Json => "application/json",
        Kind::Xml => "application/xml",
        Kind::Bytes => "application/octet-stream",
        Kind::Text => "text/plain",
    }
}

/// Whether a media type is JSON (including `+json`, RFC 6839).
fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type.split_once('/').is_some_and(|(_, subtype)| subtype == "json" || subtype.ends_with("+json"))
}

fn attribute(name: &str, reason: &'static str) -> Unroutable {
    Unroutable::Attribute { name: name.to_owned(), reason }
}
