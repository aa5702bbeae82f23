//! Shards: a hash of the aggregate id distributes the aggregates of an outbox over several slots.
//!
//! Postgres distributes rows with the row filters of the publications. Publications do not filter messages, so each shard
//! drops those of the others, by the same hash.

mod hash;

use std::fmt;

/// One of several shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 0.
    pub number: u32,
    /// How many shards there are.
    pub of: u32,
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {} of {}", self.number, self.of)
    }
}

/// The type of aggregate ids, which decides on the hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// `text`, `varchar`
    Texts,
    /// `uuid`
    Uuids,
    /// `smallint`, `integer`, `bigint`
    Integers,
}

impl Ids {
    /// The ids in a column of this type, by its OID in Postgres; `None`: the type cannot be filtered.
    pub fn of_type(oid: u32) -> Option<Self> {
        match oid {
            25 | 1043 => Some(Ids::Texts),
            2950 => Some(Ids::Uuids),
            20 | 21 | 23 => Some(Ids::Integers),
            _ => None,
        }
    }

    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Ids::Texts => "texts",
            Ids::Uuids => "UUIDs",
            Ids::Integers => "integers",
        }
    }
}

/// The argument that restricts a command line to this shard; empty without shards.
pub fn argument(shard: Option<Shard>) -> String {
    shard.map_or_else(String::new, |shard| format!(" --shard {}", shard.number))
}

impl Shard {
    /// Whether an aggregate belongs to it, by the text of the id as Postgres prints it; `None` is NULL.
    pub fn holds(self, ids: Ids, aggregate: Option<&[u8]>) -> bool {
        let hash = match (ids, aggregate) {
            (Ids::Texts, aggregate) => hash::bytes(aggregate.unwrap_or_default()),
            (Ids::Uuids | Ids::Integers, None) => 0,
            (Ids::Uuids, Some(text)) => {
                uuid(text).map_or_else(|| hash::bytes(text), |bytes| hash::bytes(&bytes))
            }
            (Ids::Integers, Some(text)) => integer(text).map_or_else(|| hash::bytes(text), hash::integer),
        };
        (hash & 0x7fff_ffff).checked_rem(self.of) == Some(self.number)
    }
}

/// The bytes of a UUID as Postgres prints it. Any other notation is another text, and so another aggregate.
fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() == 36)?;
    let hyphens = [8, 13, 18, 23].iter().all(|place| text.as_bytes().get(*place) == Some(&b'-'));
    let digits: String = text.chars().filter(|c| matches!(c, '0'..='9' | 'a'..='f')).collect();
    if !hyphens || digits.len() != 32 {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// An integer as Postgres prints it.
fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_notation_that_postgres_does_not_print_is_another_aggregate() {
        let canonical = b"550e8400-e29b-41d4-a716-446655440000";
        assert!(uuid(canonical).is_some());
        for other in [
            "550E8400-e29b-41d4-a716-446655440000",
            "{550e8400-e29b-41d4-a716-44665544000}",
            "550e8400e29b41d4a716446655440000",
            "",
        ] {
            assert_eq!(uuid(other.as_bytes()), None, "{other}");
        }
        assert_eq!(integer(b"-42"), Some(-42));
        for other in ["+42", "042", "4 2", "9223372036854775808", ""] {
            assert_eq!(integer(other.as_bytes()), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn every_aggregate_is_in_exactly_one_shard(
            id in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            of in 1u32..=64,
            ids in prop::sample::select(vec![Ids::Texts, Ids::Uuids, Ids::Integers]),
        ) {
            let holders = (0..of).filter(|number| Shard { number: *number, of }.holds(ids, id.as_deref()));
            prop_assert_eq!(holders.count(), 1);
        }
    }
}
