//! Bounds of numbers, and of the number of characters, items and properties.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::super::bounds::exact;
use super::super::documents::Node;

/// An inclusive or exclusive bound.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bound {
    value: Number,
    exclusive: bool,
}

impl Bound {
    /// The bound that this number itself satisfies.
    pub(super) fn at(value: &Number) -> Self {
        Bound { value: value.clone(), exclusive: false }
    }
}

/// The lower or the upper end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Least,
    Most,
}

impl End {
    fn keywords(self) -> (&'static str, &'static str) {
        match self {
            End::Least => ("minimum", "exclusiveMinimum"),
            End::Most => ("maximum", "exclusiveMaximum"),
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.value, if self.exclusive { " (exclusive)" } else { "" })
    }
}

/// The tighter bound of one schema; for integers, bounds are rounded to the nearest permitted integer.
pub(super) fn bound(node: &Node<'_>, end: End, integers: bool) -> Option<Bound> {
    let (inclusive, exclusive) = end.keywords();
    let of = |keyword: &str, exclusive| match node.keyword(keyword) {
        Some(Value::Number(value)) => Some(Bound { value: value.clone(), exclusive }),
        _ => None,
    };
    let both = [of(inclusive, false), of(exclusive, true)].into_iter().flatten();
    let whole = |bound: Bound| if integers { brought_to_integer(bound, end) } else { bound };
    both.map(whole).reduce(|a, b| if implies(&a, &b, end) { a } else { b })
}

/// The tightest bound of all schemas.
pub(super) fn tightest(nodes: &[Node<'_>], end: End, integers: bool) -> Option<Bound> {
    let bounds = nodes.iter().filter_map(|node| bound(node, end, integers));
    bounds.reduce(|a, b| if implies(&a, &b, end) { a } else { b })
}

fn brought_to_integer(bound: Bound, end: End) -> Bound {
    let step = if end == End::Least { 1 } else { -1 };
    let nearest = bound.value.as_i64().filter(|_| bound.exclusive).and_then(|value| value.checked_add(step));
    nearest.map_or(bound, |value| Bound { value: value.into(), exclusive: false })
}

/// Whether every number within `a` is within `b`.
pub(super) fn implies(a: &Bound, b: &Bound, end: End) -> bool {
    match (exact(&a.value).cmp(&exact(&b.value)), end) {
        (Ordering::Equal, _) => a.exclusive || !b.exclusive,
        (Ordering::Greater, End::Least) | (Ordering::Less, End::Most) => true,
        _ => false,
    }
}

/// A count in a schema, such as `minLength` or `maxItems`.
pub(super) fn count(node: &Node<'_>, keyword: &str) -> Option<u64> {
    let value = node.keyword(keyword)?;
    value.as_u64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0).map(|n| n as u64))
}

/// The tightest count of all schemas.
pub(super) fn tightest_count(nodes: &[Node<'_>], keyword: &str, end: End) -> Option<u64> {
    let counts = nodes.iter().filter_map(|node| count(node, keyword));
    match end {
        End::Least => counts.max(),
        End::Most => counts.min(),
    }
}

/// Whether every multiple of `a` is a multiple of `b`.
pub(super) fn is_multiple(a: &Number, b: &Number) -> bool {
    exact(a).is_multiple_of(&exact(b))
}
