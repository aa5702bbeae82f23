//! Objects: required and permitted properties, and their schemas.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::documents::Node;
use super::super::facts::conjuncts;
use super::inclusion::Inclusion;
use super::kinds::{listed, required, types};
use super::sameness::same_keyword;

/// The properties that a writer may write.
struct Written<'a> {
    nodes: Vec<Node<'a>>,
    /// By name.
    names: BTreeSet<&'a str>,
    /// By pattern.
    patterns: BTreeSet<&'a str>,
    /// Any others, because some schema describes them.
    others: bool,
}

impl<'a> Written<'a> {
    fn of(nodes: &[Node<'a>]) -> Self {
        let mut names: BTreeSet<&'a str> =
            nodes.iter().flat_map(|node| node.named("properties")).map(|(name, _)| name).collect();
        // dependent schemas may permit further properties, whether or not they apply
        for node in nodes {
            for (_, dependent) in node.named("dependentSchemas").chain(node.named("dependencies")) {
                let within = conjuncts(dependent);
                names.extend(within.iter().flat_map(|node| node.named("properties")).map(|(name, _)| name));
            }
        }
        let patterns = nodes.iter().flat_map(|node| node.named("patternProperties"));
        let allowed = |keyword: &str| {
            nodes.iter().any(|node| node.keyword(keyword).is_some_and(|schema| *schema != Value::Bool(false)))
        };
        // an object without any description may have any properties
        let free = names.is_empty() && !nodes.iter().any(|node| node.keyword("properties").is_some());
        names.extend(required(nodes));
        Written {
            nodes: nodes.to_vec(),
            names,
            patterns: patterns.map(|(pattern, _)| pattern).collect(),
            others: free || allowed("additionalProperties") || allowed("unevaluatedProperties"),
        }
    }

    /// All schemas that apply to the property `name`.
    fn property(&self, name: &str) -> Vec<Node<'a>> {
        let mut all = Vec::new();
        for node in &self.nodes {
            let mut listed = false;
            if let Some(schema) = node.keyword("properties").and_then(|properties| properties.get(name)) {
                all.extend(conjuncts(node.child(schema)));
                listed = true;
            }
            for (pattern, schema) in node.named("patternProperties") {
                if matches(pattern, name) {
                    all.extend(conjuncts(schema));
                    listed = true;
                }
            }
            if !listed && let Some(schema) = node.keyword("additionalProperties") {
                all.extend(conjuncts(node.child(schema)));
            }
        }
        all
    }

    /// All schemas that certainly apply to properties that match `pattern`.
    fn pattern(&self, pattern: &str) -> Vec<Node<'a>> {
        let schemas = self.nodes.iter().flat_map(|node| node.named("patternProperties"));
        schemas.filter(|(known, _)| *known == pattern).flat_map(|(_, schema)| conjuncts(schema)).collect()
    }

    /// All schemas that apply to other properties.
    fn other(&self) -> Vec<Node<'a>> {
        let schemas = self.nodes.iter().filter_map(|node| {
            let schema = node.keyword("additionalProperties")?;
            Some(conjuncts(node.child(schema)))
        });
        schemas.flatten().collect()
    }
}

/// Whether the name matches. Loading the contracts refuses invalid patterns.
fn matches(pattern: &str, name: &str) -> bool {
    let schema = serde_json::json!({ "pattern": pattern });
    jsonschema::validator_for(&schema).is_ok_and(|validator| validator.is_valid(&Value::from(name)))
}

impl Inclusion {
    pub(super) fn check_objects(&mut self, writer: &[Node<'_>], reader: Node<'_>) {
        let (by, to) = (self.sides.writer, self.sides.reader);
        let written = Written::of(writer);
        let demanded: BTreeSet<&str> = required(writer).collect();
        let listed_objects = listed(writer);
        for name in required(&[reader]) {
            let always = listed_objects.as_ref().is_some_and(|values| {
                values.iter().all(|value| value.is_object() == value.get(name).is_some())
            });
            if !demanded.contains(name) && !always {
                self.breaks(writer, format!("{to} requires `{name}`, {by} does not"));
            }
        }
        self.check_property_counts(writer, &written, reader, &demanded);
        self.check_properties(&written, reader);
        self.check_unevaluated(&written, reader);
        self.check_same(writer, reader, &["propertyNames"]);
        self.check_dependents(writer, &written, reader, &demanded);
    }

    fn check_property_counts(
        &mut self,
        writer: &[Node<'_>],
        written: &Written<'_>,
        reader: Node<'_>,
        demanded: &BTreeSet<&str>,
    ) {
        let closed = !written.others && written.patterns.is_empty();
        let most = closed.then_some(written.names.len() as u64);
        let known = [Some(demanded.len() as u64), most];
        self.check_count(writer, reader, ("minProperties", "maxProperties"), "properties", known);
    }

    /// Checks the reader's `properties`, `patternProperties` and `additionalProperties`.
    fn check_properties(&mut self, written: &Written<'_>, reader: Node<'_>) {
        let additional = reader.keyword("additionalProperties").map(|schema| reader.child(schema));
        let patterns: Vec<(&str, Node<'_>)> = reader.named("patternProperties").collect();
        let listed: Vec<(&str, Node<'_>)> = reader.named("properties").collect();
        for name in &written.names {
            let by_name = listed.iter().filter(|(known, _)| known == name);
            let by_pattern = patterns.iter().filter(|(pattern, _)| matches(pattern, name));
            let mut wanted: Vec<Node<'_>> = by_name.chain(by_pattern).map(|(_, schema)| *schema).collect();
            if wanted.is_empty() {
                wanted.extend(additional);
            }
            self.property(name, &written.property(name), &wanted);
        }
        let unlisted: Vec<(&str, Node<'_>)> =
            listed.iter().filter(|(name, _)| !written.names.contains(name)).copied().collect();
        for pattern in &written.patterns {
            let own = written.pattern(pattern);
            match patterns.iter().find(|(known, _)| known == pattern) {
                Some((_, wanted)) => self.within("*", &own, *wanted),
                None => additional.into_iter().for_each(|wanted| self.within("*", &own, wanted)),
            }
            for (name, wanted) in unlisted.iter().filter(|(name, _)| matches(pattern, name)) {
                self.within(name, &written.property(name), *wanted);
            }
        }
        for (pattern, _) in patterns.iter().filter(|(pattern, _)| !written.patterns.contains(pattern)) {
            if !written.patterns.is_empty() || written.others {
                let (by, to) = (self.sides.writer, self.sides.reader);
                self.undecided(format!("{to} says what properties like {pattern:?} are, {by} does not"));
            }
        }
        if written.others {
            let own = written.other();
            for (name, wanted) in unlisted {
                self.within(name, &own, wanted);
            }
            if let Some(wanted) = additional {
                self.within("*", &own, wanted);
            }
        }
    }

    /// Checks one property that the writer may write against the reader's schemas for it.
    fn property(&mut self, name: &str, own: &[Node<'_>], wanted: &[Node<'_>]) {
        if types(own).is_empty() {
            return;
        }
        for schema in wanted {
            self.within(name, own, *schema);
        }
    }

    /// Checks the reader's `unevaluatedProperties`, if only `$ref` and `allOf` decide what it applies to.
    fn check_unevaluated(&mut self, written: &Written<'_>, reader: Node<'_>) {
        let Some(schema) = reader.keyword("unevaluatedProperties") else { return };
        let unevaluated = reader.child(schema);
        if *schema == Value::Bool(true)
            || written.nodes.iter().any(|node| super::sameness::same(*node, reader))
        {
            return;
        }
        let together = conjuncts(reader);
        const DECIDING: &[&str] =
            &["anyOf", "oneOf", "if", "dependentSchemas", "patternProperties", "additionalProperties"];
        let decided =
            together.iter().any(|node| DECIDING.iter().any(|keyword| node.keyword(keyword).is_some()));
        if decided || !written.patterns.is_empty() {
            return self.differs("unevaluatedProperties");
        }
        let evaluated: BTreeSet<&str> =
            together.iter().flat_map(|node| node.named("properties")).map(|(name, _)| name).collect();
        for name in written.names.difference(&evaluated) {
            self.property(name, &written.property(name), &[unevaluated]);
        }
        if written.others {
            self.within("*", &written.other(), unevaluated);
        }
    }

    fn check_dependents(
        &mut self,
        writer: &[Node<'_>],
        written: &Written<'_>,
        reader: Node<'_>,
        demanded: &BTreeSet<&str>,
    ) {
        let (by, to) = (self.sides.writer, self.sides.reader);
        let can_be_there =
            |name: &str| written.others || !written.patterns.is_empty() || written.names.contains(name);
        for keyword in ["dependentRequired", "dependencies"] {
            if writer.iter().any(|node| same_keyword(node, &reader, keyword)) {
                continue;
            }
            let entries = reader.keyword(keyword).and_then(Value::as_object).into_iter().flatten();
            for (name, needed) in entries.filter(|(name, _)| can_be_there(name)) {
                let Some(needed) = needed.as_array() else { continue };
                for needed in
                    needed.iter().filter_map(Value::as_str).filter(|needed| !demanded.contains(needed))
                {
                    self.breaks(writer, format!("{to} requires `{needed}` beside `{name}`, {by} does not"));
                }
            }
        }
        for keyword in ["dependentSchemas", "dependencies"] {
            if writer.iter().any(|node| same_keyword(node, &reader, keyword)) {
                continue;
            }
            let schemas = reader.named(keyword).filter(|(_, schema)| !schema.schema.is_array());
            if schemas.into_iter().any(|(name, _)| can_be_there(name)) {
                self.differs(keyword);
            }
        }
    }
}
