//! Templates, each checked for its use: a topic, a partition number, a header.

use crate::config::raw::{Properties, Value};
use crate::config::read::{Located, Reader};
use crate::config::template::{Name, Part, Template};
use crate::config::{Columns, NamedTemplate};
use crate::reserved::REPLAY_HEADER;
use crate::topic_name;

const TOPIC_FORM: &str =
    "Write a topic name with columns in it, for instance \"outbox.event.${aggregate_type}\"";

const PARTITION_FORM: &str = "Write a number, or a column that holds one, as in \"${shard}\"";

/// A template for topics. Its fixed parts must be valid in a topic name.
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

/// A template for the partition number. One without values must itself be a number.
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

/// Refuses names that cannot stand for anything. `groups` are the groups in the patterns of the surrounding rule.
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

/// Refuses the payload in a topic template: errors about topics would show it.
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

/// Named templates, in the order of the file.
pub(super) fn named(
    reader: &mut Reader<'_>,
    section: &str,
    raw: Properties,
    columns: &Columns,
    groups: &[String],
    refused: impl Fn(&str) -> Option<&'static str>,
) -> Vec<NamedTemplate> {
    let mut entries = reader.properties(section, raw, |name| name);
    // the map has them sorted by name
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

/// Refuses a template whose fixed parts are invalid in a topic name.
fn may_be_topic(template: &Template) -> Result<(), String> {
    for part in template.parts() {
        let Part::Text(text) = part else { continue };
        if let Some(other) = text.chars().find(|c| !u8::try_from(*c).is_ok_and(topic_name::legal)) {
            return Err(format!("{other:?} cannot stand in a topic name"));
        }
    }
    // the beginning that all its topics share
    let known = template.fixed().or(Some(template.prefix()).filter(|prefix| prefix.starts_with("__")));
    known.map_or(Ok(()), topic_name::check).map_err(|error| error.to_string())
}
