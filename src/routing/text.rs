//! How a column's value is written as text.

use std::borrow::Cow;

use connect_values::Unwritable;

use crate::config::TextForm;
use crate::outbox::ColumnType;

/// Where a text is used: Connect's converters for keys and headers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Key,
    Other,
}

/// The value in this form; `None` if Debezium delivers it as NULL.
pub(super) fn written<'t>(
    form: TextForm,
    of: ColumnType,
    text: &'t str,
    used: Use,
) -> Result<Option<Cow<'t, str>>, &'static str> {
    if form == TextForm::Postgres {
        return Ok(Some(Cow::Borrowed(text)));
    }
    if of.connect.is_string() {
        return Ok(Some(Cow::Borrowed(text)));
    }
    let mut written = String::new();
    let result = match used {
        Use::Key => connect_values::write_key(of.connect, text, &mut written),
        Use::Other => connect_values::write_header(of.connect, text, &mut written),
    };
    match result {
        Ok(()) => Ok(Some(Cow::Owned(written))),
        Err(error) => null_or(error).map(|()| None),
    }
}

/// Debezium logs a `numeric` without a finite value, and delivers NULL.
pub(super) fn null_or(error: Unwritable) -> Result<(), &'static str> {
    match error {
        Unwritable::NotFinite => Ok(()),
        Unwritable::Malformed => Err("has a value that is not valid for its type"),
        Unwritable::NoKeyText => {
            Err("has a type whose text as a key differs each time in Kafka Connect (text = \"connect\")")
        }
        Unwritable::Dimensions => {
            Err("is an array of arrays, which Kafka Connect cannot write (text = \"connect\")")
        }
    }
}
