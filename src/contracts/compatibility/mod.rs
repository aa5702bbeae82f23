//! Whether a contract may change as it did: compares the former schema with the new one, by the rule that the contract
//! declares.
//!
//! The words are those of Confluent's schema registry ("Schema Evolution and Compatibility"): *backward*, consumers with the
//! new schema read former events; *forward*, consumers with the former schema read new events; *full*, both; *none*. Each
//! direction has a writer and a reader, and the reader's schema must accept everything that the writer's permits. Writers are
//! assumed to write only the properties that their schema lists, unless it permits others with `additionalProperties`,
//! `patternProperties` or `unevaluatedProperties`. Readers' schemas are taken literally.
//!
//! What cannot be decided is reported as such ([`Change::judged`]).

mod arrays;
mod inclusion;
pub(super) mod kinds;
mod numbers;
mod objects;
mod sameness;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::documents::Node;
use super::{Contract, Contracts, Rule};

/// Which contract cannot read events of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The new contract reads former events.
    Backward,
    /// The former contract reads new events.
    Forward,
}

impl Direction {
    fn sides(self) -> Sides {
        match self {
            Direction::Backward => Sides { writer: "the former", reader: "the new" },
            Direction::Forward => Sides { writer: "the new", reader: "the former" },
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Sides {
    writer: &'static str,
    reader: &'static str,
}

/// One change that the rule forbids or that cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Change {
    /// The direction that it breaks; `None`: it does not depend on the direction.
    pub direction: Option<Direction>,
    /// The place in the payload, a JSON pointer with `*` for any item or further property.
    pub at: String,
    /// What changed, a sentence without a full stop.
    pub what: String,
    /// False if it is unknown whether the change breaks anything.
    pub judged: bool,
}

/// The changes from `old` to `new` that the rule of `new` forbids.
pub fn compare(
    (old_contracts, old): (&Contracts, &Contract),
    (new_contracts, new): (&Contracts, &Contract),
) -> Vec<Change> {
    let mut changes = Vec::new();
    let rule = new.rule();
    if rule == Rule::None {
        return changes;
    }
    let mut key = |name: &str, old: &dyn std::fmt::Debug, new: &dyn std::fmt::Debug| {
        let (old, new) = (format!("{old:?}"), format!("{new:?}"));
        if old != new {
            let what = format!(
                "{name} is not what it was: consumers that go by it would tell events apart otherwise"
            );
            changes.push(Change { direction: None, at: String::new(), what, judged: true });
        }
    };
    // nobody can have relied on a key that was not declared
    if !old.facts.idempotency_key.is_empty() {
        key("`x-idempotency-key`", &old.facts.idempotency_key, &new.facts.idempotency_key);
    }
    if old.facts.ordering_key.is_some() {
        key("`x-ordering-key`", &old.facts.ordering_key, &new.facts.ordering_key);
    }
    if let (Some(old), Some(new)) = (old_contracts.root(old), new_contracts.root(new)) {
        changes.extend(compare_schemas(old, new, rule));
    }
    changes
}

/// The directions that a rule compares.
fn directions(rule: Rule) -> &'static [Direction] {
    match rule {
        Rule::Backward => &[Direction::Backward],
        Rule::Forward => &[Direction::Forward],
        Rule::Full => &[Direction::Backward, Direction::Forward],
        Rule::None => &[],
    }
}

fn compare_schemas(old: Node<'_>, new: Node<'_>, rule: Rule) -> Vec<Change> {
    let mut changes = Vec::new();
    for direction in directions(rule) {
        let (writer, reader) = match direction {
            Direction::Backward => (old, new),
            Direction::Forward => (new, old),
        };
        changes.extend(inclusion::findings(writer, reader, *direction));
    }
    changes.sort();
    changes.dedup();
    changes
}
