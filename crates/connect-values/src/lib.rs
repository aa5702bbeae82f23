//! Values of Postgres as Kafka Connect writes them when Debezium reads them with its default settings.
//!
//! Consumers of Debezium's records expect its formats: `true` for `t`, days since 1970 for a date, `1.0E10` for a float.
//! [`ConnectType`] is Debezium's representation of a column's type. [`write_key`] writes a value as `StringConverter`
//! does, [`write_header`] as `SimpleHeaderConverter` does, and [`write_json`] as `JsonConverter` does (with
//! `schemas.enable=false`). [`expand`] is the option `table.expand.json.payload` of Debezium's outbox event router, and
//! [`span_context`] reads its tracing column.
//!
//! The reference is Debezium 3.4.0.Final and Kafka Connect 4.1.1, whose output is in the tables of `golden/`. The crate does
//! no I/O: it reads text and appends text to the caller's buffer. After an error the buffer is unchanged.
//!
//! Values must have the text form of a Postgres session with `DateStyle` ISO, `IntervalStyle` postgres, `TimeZone` UTC,
//! `bytea_output` hex and `extra_float_digits` 1.
//!
//! # Known differences
//!
//! - Floats have the fewest digits that read back as the same number, as in Java since version 19. Earlier versions sometimes
//!   write one digit more: 9.8704973E8 for the `float4` 9.870497E8.
//! - Columns that Debezium leaves out (`pg_lsn`, `box`, composite types, arrays of `money`) or always delivers as NULL
//!   (`name`) have the text of Postgres, and arrays of such user-defined types are arrays of those texts.
//! - Text that depends on memory addresses of a Java process (the key text of a `numeric` without scale, of `bit(8)` and of a
//!   `point`; arrays of arrays) is refused, and so is the key text of `bytea`, which shows only its length:
//!   [`Unwritable::NoKeyText`], [`Unwritable::Dimensions`].
//! - Dates and timestamps before 1582 in arrays are those of Postgres, while Debezium mixes calendars.
//! - An array of an enum keeps its NULLs, while Debezium logs an error and delivers NULL instead of the array.
//! - The pairs of an `hstore` are in the order of Java's `HashMap`, unless nine or more keys share one of its buckets.

mod array;
mod binary;
mod decimal;
mod expand;
mod float;
mod hstore;
pub mod java_properties;
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

pub use expand::{Behaviour, Unexpandable, expand};
pub use json::{write_json_bytes, write_json_string};
pub use text::{write_header, write_json, write_key};
pub use tracing::{SpanContext, span_context};
pub use types::{ConnectType, needs_modifier, oid_of};

/// Why a value cannot be written. Messages are clauses that follow the column's name, and never show the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// The text is not what Postgres prints for the type with the session's settings, or exceeds Java's range.
    #[error("contains a value that is not valid for its type")]
    Malformed,
    /// A `numeric` that is `NaN` or infinite. With `decimal.handling.mode=precise` Debezium logs it and delivers NULL.
    #[error("contains NaN or an infinity, which Kafka Connect's decimals cannot represent")]
    NotFinite,
    /// A key of a type whose text in Kafka Connect contains a memory address.
    #[error("has a type whose key text differs each time in Kafka Connect; cast it to text in the table")]
    NoKeyText,
    /// An array within an array.
    #[error("contains an array of more than one dimension, which Kafka Connect does not write")]
    Dimensions,
}
