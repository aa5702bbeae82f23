//! Arrays: the number of items, and their schemas.

use serde_json::Value;

use super::super::documents::Node;
use super::super::facts::conjuncts;
use super::inclusion::{Inclusion, extremes};
use super::numbers::{End, tightest_count};
use super::sameness::same;

/// The items of an array: the first ones are described by position, the others alike.
struct Items<'a> {
    first: Vec<Node<'a>>,
    /// `None`: no restriction.
    others: Option<Node<'a>>,
}

impl<'a> Items<'a> {
    /// `prefixItems` and `items`; in draft 07 a list in `items`, and `additionalItems`.
    fn of(node: &Node<'a>) -> Self {
        let single = |keyword: &str| node.keyword(keyword).map(|schema| node.child(schema));
        if node.keyword("items").is_some_and(Value::is_array) {
            Items { first: node.list("items").collect(), others: single("additionalItems") }
        } else {
            Items { first: node.list("prefixItems").collect(), others: single("items") }
        }
    }

    fn at(&self, index: usize) -> Option<Node<'a>> {
        self.first.get(index).copied().or(self.others)
    }
}

impl Inclusion {
    pub(super) fn check_arrays(&mut self, writer: &[Node<'_>], reader: Node<'_>) {
        let (by, to) = (self.sides.writer, self.sides.reader);
        let known = extremes(writer, |value| value.as_array().map(Vec::len));
        self.check_count(writer, reader, ("minItems", "maxItems"), "items", known);
        let most = tightest_count(writer, "maxItems", End::Most);
        let unique = |node: &Node<'_>| node.keyword("uniqueItems") == Some(&Value::Bool(true));
        if unique(&reader) && !writer.iter().any(unique) && most.is_none_or(|most| most > 1) {
            self.breaks(writer, format!("{to} requires unique items, {by} does not"));
        }
        self.check_items(writer, reader, most);
        self.check_same(writer, reader, &["contains", "minContains", "maxContains"]);
        // what is evaluated depends on all keywords beside it
        if reader.keyword("unevaluatedItems").is_some() && !writer.iter().any(|node| same(*node, reader)) {
            self.differs("unevaluatedItems");
        }
    }

    fn check_items(&mut self, writer: &[Node<'_>], reader: Node<'_>, most: Option<u64>) {
        let wanted = Items::of(&reader);
        let own: Vec<Items<'_>> = writer.iter().map(Items::of).collect();
        let places = own.iter().map(|items| items.first.len()).chain([wanted.first.len()]).max().unwrap_or(0);
        let all_at = |index: usize| {
            let there = own.iter().filter_map(move |items| items.at(index));
            there.flat_map(conjuncts).collect::<Vec<_>>()
        };
        let possible = |index: usize| most.is_none_or(|most| (index as u64) < most);
        for index in (0..places).filter(|index| possible(*index)) {
            if let Some(wanted) = wanted.at(index) {
                self.within(&index.to_string(), &all_at(index), wanted);
            }
        }
        if let Some(others) = wanted.others.filter(|_| possible(places)) {
            self.within("*", &all_at(places), others);
        }
    }
}
