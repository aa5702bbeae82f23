//! The JSON types that a schema permits, and the values that it lists.

use std::sync::LazyLock;

use serde_json::Value;

use super::super::bounds::exact;
use super::super::documents::Node;
use super::super::facts::conjuncts;

/// A set of JSON types; an integer is a number without a fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::contracts) struct Types(u8);

const NAMES: [&str; 7] = ["null", "boolean", "object", "array", "string", "number", "integer"];

impl Types {
    pub(super) const OBJECT: Types = Types(1 << 2);
    pub(super) const ARRAY: Types = Types(1 << 3);
    pub(super) const STRING: Types = Types(1 << 4);
    pub(super) const INTEGER: Types = Types(1 << 6);
    /// Numbers have two bits: with and without a fraction.
    pub(super) const NUMBER: Types = Types(1 << 5 | 1 << 6);
    const ALL: Types = Types(0x7f);
    const NONE: Types = Types(0);

    fn named(name: &str) -> Types {
        match name {
            "number" => Types::NUMBER,
            name => NAMES.iter().position(|known| *known == name).map_or(Types::NONE, |bit| Types(1 << bit)),
        }
    }

    pub(super) fn of_value(value: &Value) -> Types {
        match value {
            Value::Null => Types(1),
            Value::Bool(_) => Types(1 << 1),
            Value::Object(_) => Types::OBJECT,
            Value::Array(_) => Types::ARRAY,
            Value::String(_) => Types::STRING,
            Value::Number(number) if exact(number).is_integer() => Types::INTEGER,
            Value::Number(_) => Types(1 << 5),
        }
    }

    pub(super) fn and(self, other: Types) -> Types {
        Types(self.0 & other.0)
    }

    fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    pub(super) fn without(self, other: Types) -> Types {
        Types(self.0 & !other.0)
    }

    /// Whether it contains null.
    pub(in crate::contracts) fn has_null(self) -> bool {
        self.intersects(Types(1))
    }

    /// Whether it contains every type.
    pub(in crate::contracts) fn is_all(self) -> bool {
        self == Types::ALL
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn intersects(self, other: Types) -> bool {
        !self.and(other).is_empty()
    }

    /// A schema that permits one set of [`Types::each`].
    pub(super) fn schema(self) -> &'static Value {
        static SCHEMAS: LazyLock<[Value; 7]> =
            LazyLock::new(|| NAMES.map(|name| serde_json::json!({ "type": name })));
        let position = match self {
            Types::NUMBER => 5,
            single => usize::try_from(single.0.trailing_zeros()).unwrap_or_default(),
        };
        SCHEMAS.get(position).unwrap_or(&Value::Bool(true))
    }

    /// One set for each type in it; numbers stay together.
    pub(super) fn each(self) -> impl Iterator<Item = Types> {
        let singles = (0..5).map(|bit| Types(1 << bit)).chain([Types::NUMBER]);
        singles.map(move |single| single.and(self)).filter(|single| !single.is_empty())
    }
}

impl std::fmt::Display for Types {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = self.and(Types::NUMBER) == Types::NUMBER;
        let fraction = self.and(Types::NUMBER) == Types(1 << 5);
        let names = NAMES.iter().enumerate().filter(|(bit, name)| {
            let there = self.0 & (1 << bit) != 0;
            there && !(number && **name == "integer")
        });
        let names: Vec<&str> = names
            .map(|(_, name)| if fraction && *name == "number" { "number with a fraction" } else { *name })
            .collect();
        f.write_str(&names.join(" or "))
    }
}

/// The types that all of `nodes` permit.
pub(in crate::contracts) fn types(nodes: &[Node<'_>]) -> Types {
    nodes.iter().fold(Types::ALL, |types, node| types.and(types_of(node)))
}

fn types_of(node: &Node<'_>) -> Types {
    if node.schema == &Value::Bool(false) {
        return Types::NONE;
    }
    let declared = match node.keyword("type") {
        Some(Value::String(name)) => Types::named(name),
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str);
            names.map(Types::named).fold(Types::NONE, Types::or)
        }
        _ => Types::ALL,
    };
    let listed = listed_by(node)
        .map_or(Types::ALL, |values| values.into_iter().map(Types::of_value).fold(Types::NONE, Types::or));
    declared.and(listed)
}

/// The values of `enum` or `const`.
pub(in crate::contracts) fn listed_by<'a>(node: &Node<'a>) -> Option<Vec<&'a Value>> {
    let listed =
        node.keyword("enum").and_then(Value::as_array).map(|values| values.iter().collect::<Vec<_>>());
    match (node.keyword("const"), listed) {
        (Some(only), None) => Some(vec![only]),
        (Some(only), Some(values)) => Some(values.into_iter().filter(|value| equal(value, only)).collect()),
        (None, listed) => listed,
    }
}

/// The only values that all of `nodes` permit, if they are listed or few.
pub(super) fn listed(nodes: &[Node<'_>]) -> Option<Vec<Value>> {
    let mut values: Option<Vec<Value>> = None;
    for node in nodes {
        let Some(more) = listed_by(node) else { continue };
        values = Some(match values {
            None => more.into_iter().cloned().collect(),
            Some(values) => {
                values.into_iter().filter(|value| more.iter().any(|other| equal(value, other))).collect()
            }
        });
    }
    let types = types(nodes);
    let few = types.without(Types(0b11)).is_empty();
    let values = values.or_else(|| few.then(|| vec![Value::Null, Value::Bool(false), Value::Bool(true)]))?;
    Some(values.into_iter().filter(|value| types.intersects(Types::of_value(value))).collect())
}

/// Equality in JSON Schema: `1` and `1.0` are the same number.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => exact(x) == exact(y),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(name, x)| y.get(name).is_some_and(|y| equal(x, y)))
        }
        (a, b) => a == b,
    }
}

/// Whether types, listed values and required properties show that no value satisfies both.
pub(super) fn disjoint(a: &[Node<'_>], b: &[Node<'_>]) -> bool {
    disjoint_to(a, b, 4)
}

fn disjoint_to(a: &[Node<'_>], b: &[Node<'_>], depth: usize) -> bool {
    let common = types(a).and(types(b));
    if common.is_empty() {
        return true;
    }
    if let (Some(a), Some(b)) = (listed(a), listed(b))
        && !a.iter().any(|a| b.iter().any(|b| equal(a, b)))
    {
        return true;
    }
    if depth == 0 || !common.without(Types::OBJECT).is_empty() {
        return false;
    }
    // both permit only objects: look for a required property that cannot satisfy both
    let mut demanded = required(a).chain(required(b));
    demanded.any(|name| disjoint_to(&properties(a, name), &properties(b, name), depth - 1))
}

/// The properties that `nodes` require.
pub(in crate::contracts) fn required<'a>(nodes: &[Node<'a>]) -> impl Iterator<Item = &'a str> {
    let lists = nodes.iter().filter_map(|node| node.keyword("required")?.as_array());
    lists.flatten().filter_map(Value::as_str).collect::<Vec<_>>().into_iter()
}

/// All schemas that `properties` has for `name`.
fn properties<'a>(nodes: &[Node<'a>], name: &str) -> Vec<Node<'a>> {
    let declared = nodes.iter().filter_map(|node| Some(node.child(node.keyword("properties")?.get(name)?)));
    declared.flat_map(conjuncts).collect()
}
