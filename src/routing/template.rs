//! Templates at work: bound to the table's columns once, filled in for each event.

use std::borrow::Cow;
use std::fmt::Write;

use super::Origin;
use super::filters;
use super::headers::member;
use crate::config::Columns;
use crate::config::template::{Name, Part, SourceValue, Template, Value};
use crate::outbox::{ExtraColumn, FIELDS, Field, OutboxEvent};
use crate::utc::Utc;

/// The columns that are wanted besides the [`Field`]s, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Extra(Vec<ExtraColumn>);

impl Extra {
    pub(super) fn columns(&self) -> &[ExtraColumn] {
        &self.0
    }

    fn index(&mut self, name: &str, key: &'static str) -> usize {
        self.0.iter().position(|known| known.name == name).unwrap_or_else(|| {
            self.0.push(ExtraColumn { name: name.to_owned(), key });
            self.0.len() - 1
        })
    }
}

/// The field that a template means by a column's name: a key of `[outbox] columns` first, a column that serves as one
/// second.
pub fn field(name: &str, columns: &Columns) -> Option<Field> {
    let by_key = FIELDS.into_iter().find(|field| field.key() == name);
    by_key.or_else(|| FIELDS.into_iter().find(|field| field.column(columns) == Some(name)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Field(Field),
    /// The n-th of [`Extra`].
    Extra(usize),
    /// Not in a column of its own: the name itself says.
    Elsewhere,
}

/// A template whose names are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    parts: Vec<(Part, Place)>,
}

/// A value that a template needs is NULL, or not text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoValue {
    pub(super) name: String,
    pub(super) reason: &'static str,
}

const NULL: &str = "is NULL";

impl Bound {
    /// `key` says where the template stands, for a message about a column that it names.
    pub(super) fn new(template: &Template, columns: &Columns, key: &'static str, extra: &mut Extra) -> Self {
        let mut place = |part: &Part| match part {
            Part::Value(Value { name: Name::Column(name), .. }) => match field(name, columns) {
                Some(field) => Place::Field(field),
                None => Place::Extra(extra.index(name, key)),
            },
            _ => Place::Elsewhere,
        };
        Bound { parts: template.parts().iter().map(|part| (part.clone(), place(part))).collect() }
    }

    /// Fills `into`. False if the template is one value alone, and that is NULL.
    pub(super) fn render_or_null(
        &self,
        event: &OutboxEvent<'_>,
        origin: &Origin,
        into: &mut String,
    ) -> Result<bool, NoValue> {
        match self.render(event, origin, into) {
            Err(NoValue { reason: NULL, .. }) if self.parts.len() == 1 => Ok(false),
            rendered => rendered.map(|()| true),
        }
    }

    /// Fills `into`.
    pub(super) fn render(
        &self,
        event: &OutboxEvent<'_>,
        origin: &Origin,
        into: &mut String,
    ) -> Result<(), NoValue> {
        into.clear();
        for (part, place) in &self.parts {
            match part {
                Part::Text(text) => into.push_str(text),
                Part::Value(value) => {
                    let no_value = |reason| NoValue { name: value.name.to_string(), reason };
                    if let Name::Source(source) = value.name {
                        write_source(source, event, origin, into);
                        continue;
                    }
                    let found = match place {
                        Place::Field(field) => text(event.field(*field)),
                        Place::Extra(n) => text(event.extra(*n)),
                        Place::Elsewhere => header(event, &value.name),
                    };
                    let found = filters::apply(&value.filters, found.map_err(no_value)?);
                    into.push_str(&found.ok_or_else(|| no_value(NULL))?);
                }
            }
        }
        Ok(())
    }
}

fn text(value: Option<&[u8]>) -> Result<Option<Cow<'_, str>>, &'static str> {
    let text = value.map(std::str::from_utf8).transpose().map_err(|_| "is not UTF-8")?;
    Ok(text.map(Cow::Borrowed))
}

fn header<'a>(event: &OutboxEvent<'a>, name: &Name) -> Result<Option<Cow<'a, str>>, &'static str> {
    match (name, event.field(Field::Headers)) {
        (Name::Header(name), Some(json)) => {
            member(json, name).map_err(|_| "is in a headers column that is not a JSON object")
        }
        _ => Ok(None),
    }
}

fn write_source(source: SourceValue, event: &OutboxEvent<'_>, origin: &Origin, into: &mut String) {
    // writing to a String does not fail
    let _ = match source {
        SourceValue::Schema => into.write_str(&event.table().schema),
        SourceValue::Table => into.write_str(&event.table().name),
        SourceValue::Lsn => write!(into, "{}", origin.final_lsn),
        SourceValue::Xid => write!(into, "{}", origin.xid),
        SourceValue::CommitTime => write!(into, "{}", Utc(origin.commit_time.unix_micros())),
        SourceValue::Sequence => write!(into, "{}", origin.sequence()),
    };
}
