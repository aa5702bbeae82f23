//! Values of Postgres as Kafka Connect writes them, when Debezium reads them with its default settings.
//!
//! A team that comes from Debezium has consumers that know its bytes: `true` for `t`, days since 1970 for a date,
//! `1.0E10` for a float. [`ConnectType`] is the form that Debezium gives to a column's type,
//! [`write_key`] what `StringConverter` makes of a value, [`write_header`] what `SimpleHeaderConverter` and
//! [`write_json`] what `JsonConverter` (with `schemas.enable=false`) make of it. [`expand`] is the option
//! `table.expand.json.payload` of its outbox router, [`span_context`] reads its tracing column.
//!
//! Everything follows Debezium 3.4.0.Final and Kafka Connect 4.1.1; the tables in `golden/` are what those
//! programs wrote. It is pure: text in, text at the end of the caller's buffer out. After an error the buffer is as
//! it was before.
//!
//! The text of Postgres is what a session prints with `DateStyle` ISO, `IntervalStyle` postgres, `TimeZone` UTC,
//! `bytea_output` hex and `extra_float_digits` 1.
//!
//! # What differs, knowingly
//!
//! - Floats have the fewest digits that read back as the same number, as Java writes them from version 19 on. Older
//!   Javas write a digit more now and then: 9.8704973E8 for the `float4` 9.870497E8.
//! - A column of a type that Debezium leaves out (`pg_lsn`, `box`, composite types, arrays of `money`), or always gives as
//!   NULL (`name`), is the text of Postgres here, and an array of such types of the user's own an array of those texts.
//! - What depends on the memory of a Java process (the key text of a `numeric` without scale, of `bit(8)`, of a
//!   `point`; arrays of arrays), and the key text of `bytea`, which tells only its length, is refused: [`Unwritable::NoKeyText`], [`Unwritable::Dimensions`].
//! - Dates and timestamps in arrays are those of Postgres before 1582, too, where Debezium mixes calendars.
//! - An array of an enum keeps its NULLs. Debezium logs an error, and gives NULL in place of the array.
//! - The pairs of an `hstore` are in the order of Java's `HashMap`, save where nine keys or more meet in one of its buckets.

mod array;
mod binary;
mod decimal;
mod expand;
mod float;
mod hstore;
mod json;
mod scratch;
mod temporal;
mod text;
mod tracing;
mod types;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub use expand::{Behaviour, EmptyArray, Expanded, NullMember, Unexpandable, expand};
pub use json::{write_json_bytes, write_json_string};
pub use text::{write_header, write_json, write_key};
pub use tracing::{SpanContext, span_context};
pub use types::{ConnectType, oid_of};

/// Why a value has no text in Kafka Connect. Messages go on from the column's name, and never show the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// Not what Postgres prints for the type under the session's settings, or out of Java's range.
    #[error("holds a value that does not read as one of its type")]
    Malformed,
    /// A `numeric` that is `NaN` or infinite: with `decimal.handling.mode=precise` Debezium logs it and delivers NULL.
    #[error("holds NaN or an infinity, for which Kafka Connect's decimals have no form")]
    NotFinite,
    /// A key of a type whose text in Kafka Connect holds a memory address.
    #[error(
        "has a type whose text as a key differs each time in Kafka Connect; cast it to text in the table"
    )]
    NoKeyText,
    /// An array within an array.
    #[error("holds an array of more than one dimension, which Kafka Connect does not write")]
    Dimensions,
}
