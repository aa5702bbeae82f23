//! The values of one event, by name.

use std::borrow::Cow;
use std::fmt::Write;

use super::Origin;
use super::captures::Captures;
use super::text::{Use, written};
use crate::config::template::{Name, SourceValue};
use crate::config::{Columns, TextForm};
use crate::json::member;
use crate::outbox::{ColumnType, ExtraColumn, FIELDS, Field, OutboxEvent};
use crate::utc::Utc;

/// The columns that are needed besides the [`Field`]s, without duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Extra(Vec<ExtraColumn>);

impl Extra {
    pub(super) fn columns(&self) -> &[ExtraColumn] {
        &self.0
    }

    fn index(&mut self, name: &str, key: &'static str, optional: bool) -> usize {
        match self.0.iter_mut().enumerate().find(|(_, known)| known.name == name) {
            Some((index, known)) => {
                if known.optional && !optional {
                    (known.key, known.optional) = (key, false);
                }
                index
            }
            None => {
                self.0.push(ExtraColumn { name: name.to_owned(), key, optional });
                self.0.len() - 1
            }
        }
    }
}

/// The field that a column name in a template refers to: first by its key in `[outbox] columns`, then by its column.
pub(crate) fn field(name: &str, columns: &Columns) -> Option<Field> {
    let by_key = FIELDS.into_iter().find(|field| field.key() == name && field.column(columns).is_some());
    by_key.or_else(|| field_of_column(name, columns))
}

/// The field that a column is used for.
fn field_of_column(column: &str, columns: &Columns) -> Option<Field> {
    FIELDS.into_iter().find(|field| field.column(columns) == Some(column))
}

/// Where a name's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Field(Field),
    /// An index into [`Extra`].
    Extra(usize),
    /// Not in a column of its own; the name says where.
    Elsewhere,
}

/// Resolves names to places.
pub(super) struct Binder<'c> {
    pub(super) columns: &'c Columns,
    pub(super) extra: Extra,
    /// The part of the configuration that is being bound, for messages about missing columns.
    pub(super) key: &'static str,
    /// Whether the columns it names may be missing.
    pub(super) optional: bool,
}

impl Binder<'_> {
    pub(super) fn place(&mut self, name: &Name) -> Place {
        let (name, field) = match name {
            Name::Column(name) => (name, field(name, self.columns)),
            Name::OwnColumn(name) => (name, field_of_column(name, self.columns)),
            Name::Header(_) | Name::Source(_) | Name::Match(_) => return Place::Elsewhere,
        };
        match field {
            Some(field) => Place::Field(field),
            None => Place::Extra(self.extra.index(name, self.key, self.optional)),
        }
    }
}

/// One event, and the other values that a template may name.
#[derive(Clone, Copy)]
pub(super) struct Row<'e, 'a> {
    pub(super) event: &'e OutboxEvent<'a>,
    pub(super) origin: &'e Origin,
    pub(super) captures: &'e Captures,
    pub(super) text: TextForm,
}

impl<'e, 'a: 'e> Row<'e, 'a> {
    /// A value as text; `None` for NULL.
    pub(super) fn value(&self, place: Place, name: &Name) -> Result<Option<Cow<'e, str>>, &'static str> {
        match (place, name) {
            (Place::Field(field), _) => self.field(field, Use::Other),
            (Place::Extra(n), _) => match self.event.extra_type(n) {
                Some(of) => self.text(self.event.extra(n), of, Use::Other),
                None => Ok(None),
            },
            (Place::Elsewhere, Name::Header(name)) => match self.event.field(Field::Headers) {
                Some(json) => {
                    member(json, name).map_err(|_| "is in a headers column that is not a JSON object")
                }
                None => Ok(None),
            },
            (Place::Elsewhere, Name::Source(source)) => Ok(Some(self.source(*source))),
            (Place::Elsewhere, Name::Match(group)) => Ok(self.captures.get(group).map(Cow::Borrowed)),
            (Place::Elsewhere, Name::Column(_) | Name::OwnColumn(_)) => Ok(None),
        }
    }

    /// A column's value and type; `None` if the place is not a column.
    pub(super) fn column(&self, place: Place) -> Option<(Option<&'a [u8]>, ColumnType)> {
        match place {
            Place::Field(field) => Some((self.event.field(field), self.event.field_type(field))),
            Place::Extra(n) => Some((self.event.extra(n), self.event.extra_type(n)?)),
            Place::Elsewhere => None,
        }
    }

    /// Whether the value is in a column that the table lacks.
    pub(super) fn lacks(&self, place: Place) -> bool {
        matches!(place, Place::Extra(n) if self.event.extra_type(n).is_none())
    }

    /// A field as text in the configured form.
    pub(super) fn field(&self, field: Field, used: Use) -> Result<Option<Cow<'e, str>>, &'static str> {
        self.text(self.event.field(field), self.event.field_type(field), used)
    }

    fn text(
        &self,
        value: Option<&'a [u8]>,
        of: ColumnType,
        used: Use,
    ) -> Result<Option<Cow<'e, str>>, &'static str> {
        let Some(bytes) = value else { return Ok(None) };
        let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8")?;
        written(self.text, of, text, used)
    }

    fn source(&self, source: SourceValue) -> Cow<'e, str> {
        let mut text = String::new();
        // writing to a String does not fail
        let _ = match source {
            SourceValue::Schema => return Cow::Borrowed(&self.event.table().schema),
            SourceValue::Table => return Cow::Borrowed(&self.event.table().name),
            SourceValue::Lsn => write!(text, "{}", self.origin.final_lsn),
            SourceValue::Xid => write!(text, "{}", self.origin.xid),
            SourceValue::CommitTime => write!(text, "{}", Utc(self.origin.commit_time.unix_micros())),
            SourceValue::Sequence => write!(text, "{}", self.origin.sequence()),
        };
        Cow::Owned(text)
    }
}
