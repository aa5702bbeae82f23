//! Templates bound to the table's columns, which is done once, and rendered for each event.

use super::row::{Binder, Place, Row};
use super::unroutable::{Purpose, Unroutable};
use crate::config::filters;
use crate::config::template::{Name, Part, SourceValue, Template};
use crate::uri;

/// A template whose names are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    parts: Vec<(Part, Place)>,
    /// Whether the result is a URI, for which the names of schema and table are encoded.
    is_uri: bool,
}

/// A value that a template needs is NULL, or not text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoValue {
    pub(super) name: String,
    pub(super) reason: &'static str,
}

impl NoValue {
    pub(super) fn of(self, purpose: Purpose) -> Unroutable {
        Unroutable::NoValue { purpose, name: self.name, reason: self.reason }
    }
}

pub(super) const NULL: &str = "is NULL";

/// The name of the value, if the template is a single value.
impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parts.iter().try_for_each(|(part, _)| match part {
            Part::Text(text) => f.write_str(text),
            Part::Value(value) => write!(f, "{}", value.name),
        })
    }
}

impl Bound {
    pub(super) fn new(template: &Template, binder: &mut Binder<'_>) -> Self {
        let mut place = |part: &Part| match part {
            Part::Value(value) => binder.place(&value.name),
            Part::Text(_) => Place::Elsewhere,
        };
        let parts = template.parts().iter().map(|part| (part.clone(), place(part))).collect();
        Bound { parts, is_uri: false }
    }

    /// The same template, for a URI.
    pub(super) fn of_uri(self) -> Self {
        Bound { is_uri: true, ..self }
    }

    /// Whether it names a column that is missing and may be.
    pub(super) fn lacks_column(&self, row: &Row<'_, '_>) -> bool {
        self.parts.iter().any(|(_, place)| row.lacks(*place))
    }

    /// The place of the value, if the template is a single value without filters.
    pub(super) fn single_value(&self) -> Option<Place> {
        match self.parts.as_slice() {
            [(Part::Value(value), place)] if value.filters.is_empty() => Some(*place),
            _ => None,
        }
    }

    /// Renders into `into`. False if the template is a single value that is NULL.
    pub(super) fn render_or_null(&self, row: &Row<'_, '_>, into: &mut String) -> Result<bool, NoValue> {
        match self.render(row, into) {
            Err(NoValue { reason: NULL, .. }) if self.parts.len() == 1 => Ok(false),
            rendered => rendered.map(|()| true),
        }
    }

    /// Renders into `into`.
    pub(super) fn render(&self, row: &Row<'_, '_>, into: &mut String) -> Result<(), NoValue> {
        into.clear();
        for (part, place) in &self.parts {
            match part {
                Part::Text(text) => into.push_str(text),
                Part::Value(value) => {
                    let no_value = |reason| NoValue { name: value.name.to_string(), reason };
                    let found = row.value(*place, &value.name).map_err(no_value)?;
                    let found = filters::apply(&value.filters, found).ok_or_else(|| no_value(NULL))?;
                    match value.name {
                        Name::Source(SourceValue::Schema | SourceValue::Table) if self.is_uri => {
                            into.push_str(&uri::percent_encoded(&found, ""));
                        }
                        _ => into.push_str(&found),
                    }
                }
            }
        }
        Ok(())
    }
}
