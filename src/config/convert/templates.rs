//! Templates, each checked for its use: a topic, a partition number, a header.

use std::borrow::Cow;

use crate::config::raw::{Properties, Value};
use crate::config::read::{Located, Reader};
use crate::config::template::{Name, Part, Template};
use crate::config::{Columns, NamedTemplate};
use crate::reserved::REPLAY_HEADER;
use crate::topic_name::{self, TopicNameError};

const TOPIC_FORM: &str =
    "Write a topic name with columns in it, for instance \"outbox.event.${aggregate_type}\"";

const PARTITION_FORM: &str = "Write a number, or a column that contains one, as in \"${shard}\"";

/// Parses templates, and refuses names in them that do not exist.
pub(super) struct Templates<'a, 's> {
    pub(super) reader: &'a mut Reader<'s>,
    pub(super) columns: &'a Columns,
    /// The groups in the patterns of the current rule.
    pub(super) groups: &'a [String],
}

impl Templates<'_, '_> {
    /// A template for topics. Its fixed parts must be valid in a topic name.
    pub(super) fn topic(&mut self, key: &str, value: Value) -> Option<Template> {
        let columns = self.columns;
        self.checked(key, value, TOPIC_FORM, |template| {
            check_no_payload(template, columns)?;
            check_topic_text(template)
        })
    }

    /// A template for the partition number. Its fixed parts must be digits, and one without values itself a number.
    pub(super) fn partition(&mut self, key: &str, value: Value) -> Option<Template> {
        self.checked(key, value, PARTITION_FORM, |template| {
            let is_number = |text: &str| text.parse::<i32>().is_ok_and(|number| number >= 0);
            let is_part = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            let mut results = template.results().into_iter().filter(|text| !is_number(text));
            match results.next().or_else(|| template.texts().find(|text| !is_part(text) && !is_number(text)))
            {
                Some(text) => Err(format!("{text:?} is not a number from 0 to {}", i32::MAX)),
                None => Ok(()),
            }
        })
    }

    /// A template that `check` accepts.
    pub(super) fn checked(
        &mut self,
        key: &str,
        value: Value,
        form: &'static str,
        check: impl FnOnce(&Template) -> Result<(), String>,
    ) -> Option<Template> {
        let Located { text, span, .. } = self.reader.text(key, value)?;
        let checked = self.parsed(&text).and_then(|template| check(&template).map(|()| template));
        checked.map_err(|what| self.reader.problem(&span, key, what, form)).ok()
    }

    /// Named templates, in the order of the file.
    pub(super) fn named(
        &mut self,
        section: &str,
        raw: Properties,
        refused: impl Fn(&str) -> Option<&'static str>,
        check: impl Fn(&str, &Template) -> Result<(), String>,
    ) -> Vec<NamedTemplate> {
        let mut entries = self.reader.properties(section, raw, |name| name);
        // the map is sorted by name
        entries.sort_by_key(|(_, located)| located.span.start);
        let mut convert = |(name, Located { text, span, .. }): (String, Located)| {
            let key = format!("{section}.{name}");
            if let Some(what) = refused(&name) {
                self.reader.problem(&span, &key, what, "Choose another name");
            }
            let remedy = "Write text, with values as in \"${aggregate_id}\"";
            let value = self.parsed(&text).and_then(|template| check(&name, &template).map(|()| template));
            let value = value.map_err(|what| self.reader.problem(&span, &key, what, remedy));
            Some(NamedTemplate { name, value: value.ok()? })
        };
        entries.into_iter().filter_map(&mut convert).collect()
    }

    /// Headers in addition to the router's own.
    pub(super) fn headers(&mut self, section: &str, raw: Properties) -> Vec<NamedTemplate> {
        let has_type = self.columns.event_type.is_some();
        let refused = |name: &str| match name {
            "id" | REPLAY_HEADER => Some("the router itself sets this header"),
            "type" if has_type => Some("the router itself sets this header"),
            name if name.is_empty() || name.contains('\0') => {
                Some("a header needs a name without zero bytes")
            }
            _ => None,
        };
        self.named(section, raw, refused, |_, _| Ok(()))
    }

    fn parsed(&self, text: &str) -> Result<Template, String> {
        let template = Template::parse(text).map_err(|error| error.to_string())?;
        check_names_exist(&template, self.columns, self.groups)?;
        Ok(template)
    }
}

fn check_names_exist(template: &Template, columns: &Columns, groups: &[String]) -> Result<(), String> {
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
                        "`match.{group}` names a group of the rule's expression, by name, or by number if the rule has only \
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

/// Refuses the payload in a topic template, because errors about topics would show it.
fn check_no_payload(template: &Template, columns: &Columns) -> Result<(), String> {
    let is_payload = |name: &Name| match name {
        Name::Column(name) => name == "payload" || *name == columns.payload,
        Name::OwnColumn(name) => *name == columns.payload,
        _ => false,
    };
    match template.values().any(|value| is_payload(&value.name)) {
        true => Err("the payload cannot be part of a topic name".to_owned()),
        false => Ok(()),
    }
}

/// Refuses a template whose fixed parts are invalid in a topic name.
fn check_topic_text(template: &Template) -> Result<(), String> {
    let mut length = 0;
    for part in template.parts() {
        length += if let Part::Text(text) = part { text.len() } else { 0 };
    }
    if length > topic_name::MAX_LENGTH {
        return Err(TopicNameError::TooLong(length).to_string());
    }
    for text in template.texts() {
        if let Some(other) = text.chars().find(|c| !u8::try_from(*c).is_ok_and(topic_name::legal)) {
            return Err(format!("{other:?} is not allowed in a topic name"));
        }
    }
    // the prefix that all its topics share
    let prefix = Some(template.prefix()).filter(|prefix| prefix.starts_with("__")).map(Cow::Borrowed);
    let mut known = template.results().into_iter().chain(prefix);
    known.try_for_each(|topic| topic_name::check(&topic)).map_err(|error| error.to_string())
}
