//! The topic template: text with `${column}` in it.

use std::fmt;

use super::topic;
use crate::config::{Columns, Config};
use crate::error::Error;
use crate::outbox::{FIELDS, Field, OutboxEvent};

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A `${` without its `}`.
    #[error("`${{` at character {0} is not closed by `}}`")]
    Unclosed(usize),
    /// A `${}`.
    #[error("`${{}}` at character {0} names no column")]
    Empty(usize),
    /// A `$` that starts no column; a topic name cannot hold one.
    #[error("`$` at character {0} is not followed by `{{column}}`")]
    LoneDollar(usize),
    /// A character that no topic name can hold.
    #[error("{0:?} cannot stand in a topic name")]
    Character(char),
    /// No text at all.
    #[error("it is empty")]
    Nothing,
}

/// A value that a template puts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Field(Field),
    /// The n-th of [`Template::extra_columns`].
    Extra(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Source),
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
    extra: Vec<String>,
}

/// A column that the template names is NULL, or not text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoValue {
    pub(super) column: String,
    pub(super) reason: &'static str,
}

impl Template {
    /// The template of `[route] topic`.
    ///
    /// # Errors
    /// It cannot be used: exit code 2.
    pub fn of(config: &Config) -> Result<Self, Error> {
        let refused = |error: &dyn fmt::Display| {
            Error::usage(
                format!("`[route] topic` is {:?}: {error}", config.route.topic),
                "Write a topic name with columns in it, for instance \"outbox.event.${aggregate_type}\"",
            )
        };
        let template =
            Self::parse(&config.route.topic, &config.outbox.columns).map_err(|error| refused(&error))?;
        // what every topic of it begins with
        let known = template.fixed().or(Some(template.prefix()).filter(|prefix| prefix.starts_with("__")));
        known.map_or(Ok(()), topic::check).map_err(|error| refused(&error))?;
        Ok(template)
    }

    /// Reads `text`. A name is one of the keys of `[outbox] columns` (`aggregate_type`), or else a column of the table.
    pub fn parse(text: &str, columns: &Columns) -> Result<Self, TemplateError> {
        let mut template = Template { parts: Vec::new(), extra: Vec::new() };
        let mut rest = text;
        let place = |rest: &str| text.chars().count() - rest.chars().count() + 1;
        while let Some((before, after)) = rest.split_once('$') {
            template.text(before)?;
            let at = place(after) - 1;
            let inside = after.strip_prefix('{').ok_or(TemplateError::LoneDollar(at))?;
            let (name, after) = inside.split_once('}').ok_or(TemplateError::Unclosed(at))?;
            if name.is_empty() {
                return Err(TemplateError::Empty(at));
            }
            let source = template.source(name, columns);
            template.parts.push(Part::Value(source));
            rest = after;
        }
        template.text(rest)?;
        if template.parts.is_empty() {
            return Err(TemplateError::Nothing);
        }
        Ok(template)
    }

    fn text(&mut self, text: &str) -> Result<(), TemplateError> {
        if let Some(other) = text.chars().find(|c| !u8::try_from(*c).is_ok_and(super::topic::legal)) {
            return Err(TemplateError::Character(other));
        }
        if !text.is_empty() {
            self.parts.push(Part::Text(text.to_owned()));
        }
        Ok(())
    }

    fn source(&mut self, name: &str, columns: &Columns) -> Source {
        let by_key = FIELDS.into_iter().find(|field| field.key() == name);
        let by_column = || FIELDS.into_iter().find(|field| field.column(columns) == Some(name));
        if let Some(field) = by_key.or_else(by_column) {
            return Source::Field(field);
        }
        let known = self.extra.iter().position(|column| column == name);
        Source::Extra(known.unwrap_or_else(|| {
            self.extra.push(name.to_owned());
            self.extra.len() - 1
        }))
    }

    /// The columns that the template names besides the fields, for [`crate::outbox::Outbox::new`].
    pub fn extra_columns(&self) -> &[String] {
        &self.extra
    }

    /// Whether the template names `field`.
    pub fn names(&self, field: Field) -> bool {
        self.parts.contains(&Part::Value(Source::Field(field)))
    }

    /// The text in front of the first value: what all topics of this template begin with.
    pub fn prefix(&self) -> &str {
        match self.parts.first() {
            Some(Part::Text(text)) => text,
            _ => "",
        }
    }

    /// The topic itself, if the template names no column.
    pub fn fixed(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub(super) fn render(&self, event: &OutboxEvent<'_>, into: &mut String) -> Result<(), NoValue> {
        into.clear();
        for part in &self.parts {
            match part {
                Part::Text(text) => into.push_str(text),
                Part::Value(source) => {
                    let no_value = |reason| NoValue { column: self.name(*source), reason };
                    let value = match source {
                        Source::Field(field) => event.field(*field),
                        Source::Extra(n) => event.extra(*n),
                    };
                    let value = value.ok_or_else(|| no_value("is NULL"))?;
                    into.push_str(std::str::from_utf8(value).map_err(|_| no_value("is not UTF-8"))?);
                }
            }
        }
        Ok(())
    }

    fn name(&self, source: Source) -> String {
        match source {
            Source::Field(field) => field.key().to_owned(),
            Source::Extra(n) => self.extra.get(n).cloned().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(text),
            Part::Value(source) => write!(f, "${{{}}}", self.name(*source)),
        })
    }
}
