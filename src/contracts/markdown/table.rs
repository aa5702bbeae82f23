//! A schema as a table of properties.

use std::fmt;

use serde_json::Value;

use super::super::compatibility::kinds::{listed_by, required, types};
use super::super::documents::Node;
use super::super::facts::conjuncts;

/// The schema of a payload.
pub(super) struct Table {
    /// A sentence about the payload as a whole.
    pub(super) sentence: String,
    pub(super) rows: Vec<Row>,
    /// The enclosing schemas, with their places.
    around: Vec<(usize, String)>,
}

pub(super) struct Row {
    place: String,
    kind: String,
    required: bool,
    rules: String,
    description: String,
}

/// Whether null is permitted.
pub(super) fn takes_null(node: Node<'_>) -> bool {
    types(&conjuncts(node)).has_null()
}

impl Table {
    pub(super) fn of(root: Node<'_>) -> Self {
        let mut table = Table { sentence: String::new(), rows: Vec::new(), around: Vec::new() };
        let nodes = conjuncts(root);
        let (kind, rules) = (kind(&nodes), rules(&nodes).join("; "));
        let article = if kind.starts_with(['a', 'o', 'i']) { "an" } else { "a" };
        let rules = if rules.is_empty() { rules } else { format!(": {rules}") };
        table.sentence = format!("The payload is {article} {kind}{rules}.");
        table.inside("", root);
        table
    }

    /// Adds the rows for everything within the schema at `place`.
    fn inside(&mut self, place: &str, schema: Node<'_>) {
        let nodes = conjuncts(schema);
        let demanded: Vec<&str> = required(&nodes).collect();
        self.around.push((target(schema).identity(), place.to_owned()));
        for node in &nodes {
            for (name, property) in node.properties() {
                let required = demanded.contains(&name);
                self.row(&joined(place, name), property, required);
            }
            for (pattern, property) in node.named("patternProperties") {
                self.row(&joined(place, &format!("/{pattern}/")), property, false);
            }
            if let Some(schema) = node.keyword("additionalProperties").filter(|schema| schema.is_object()) {
                self.row(&joined(place, "*"), node.child(schema), false);
            }
            for (index, item) in node.list("prefixItems").chain(node.list("items")).enumerate() {
                self.row(&format!("{place}[{index}]"), item, false);
            }
            if let Some(items) = node.keyword("items").filter(|items| items.is_object()) {
                self.row(&format!("{place}[]"), node.child(items), false);
            }
            for keyword in ["oneOf", "anyOf"] {
                for (index, form) in node.list(keyword).enumerate() {
                    let title = conjuncts(form).iter().find_map(|node| node.keyword("title")?.as_str());
                    let label = title.map_or_else(|| format!("form {}", index + 1), str::to_owned);
                    self.row(&format!("{place}({label})"), form, false);
                }
            }
        }
        self.around.pop();
    }

    fn row(&mut self, place: &str, schema: Node<'_>, required: bool) {
        let nodes = conjuncts(schema);
        let around = self.around.iter().find(|(identity, _)| *identity == target(schema).identity());
        let again =
            around.map(|(_, place)| if place.is_empty() { "the payload itself" } else { place }.to_owned());
        let text = |keyword: &str| nodes.iter().find_map(|node| node.keyword(keyword)?.as_str());
        let description = text("description").or_else(|| text("title")).unwrap_or_default();
        self.rows.push(Row {
            place: place.to_owned(),
            kind: match &again {
                Some(around) => format!("as {around}"),
                None => kind(&nodes),
            },
            required,
            rules: if again.is_some() { String::new() } else { rules(&nodes).join("; ") },
            description: escaped(description.trim()),
        });
        if again.is_none() {
            self.inside(place, schema);
        }
    }
}

/// The target of a `$ref` without other keywords, else the schema itself.
fn target(schema: Node<'_>) -> Node<'_> {
    schema.target().unwrap_or(schema)
}

fn joined(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("| property | type | required | rules | description |\n|---|---|---|---|---|\n")?;
        for Row { place, kind, required, rules, description } in &self.rows {
            let required = if *required { "yes" } else { "" };
            writeln!(f, "| {} | {kind} | {required} | {rules} | {description} |", code(place))?;
        }
        Ok(())
    }
}

/// The types that a schema permits, or the number of its alternatives.
fn kind(nodes: &[Node<'_>]) -> String {
    let types = types(nodes);
    let forms = |keyword: &str| nodes.iter().map(|node| node.list(keyword).count()).max().unwrap_or(0);
    let forms = match (forms("oneOf"), forms("anyOf")) {
        (0, 0) => String::new(),
        (0, some) => format!("at least one of {some} forms"),
        (one, _) => format!("one of {one} forms"),
    };
    match (types.is_all(), forms.is_empty()) {
        (true, true) => "any value".to_owned(),
        (true, false) => forms,
        (false, true) => types.to_string(),
        (false, false) => format!("{types}, {forms}"),
    }
}

/// The requirements of a schema besides its type, in a few words each.
fn rules(nodes: &[Node<'_>]) -> Vec<String> {
    let mut rules = Vec::new();
    for node in nodes {
        if let Some(values) = listed_by(node) {
            let values: Vec<String> = values.iter().map(|value| code(&value.to_string())).collect();
            rules.push(match values.as_slice() {
                [only] => format!("always {only}"),
                values => format!("one of {}", values.join(", ")),
            });
        }
        for (keyword, before, after) in [
            ("minimum", "at least ", ""),
            ("exclusiveMinimum", "more than ", ""),
            ("maximum", "at most ", ""),
            ("exclusiveMaximum", "less than ", ""),
            ("multipleOf", "a multiple of ", ""),
            ("minLength", "at least ", " characters"),
            ("maxLength", "at most ", " characters"),
            ("minItems", "at least ", " items"),
            ("maxItems", "at most ", " items"),
            ("minProperties", "at least ", " properties"),
            ("maxProperties", "at most ", " properties"),
        ] {
            if let Some(Value::Number(limit)) = node.keyword(keyword) {
                let after = if limit.as_u64() == Some(1) {
                    after.replace("characters", "character").replace("items", "item").replace("ies", "y")
                } else {
                    after.to_owned()
                };
                rules.push(format!("{before}{limit}{after}"));
            }
        }
        for (keyword, before) in [
            ("format", "format "),
            ("pattern", "matches "),
            ("contentMediaType", "holds "),
            ("contentEncoding", "in "),
        ] {
            if let Some(Value::String(text)) = node.keyword(keyword) {
                rules.push(format!("{before}{}", code(text)));
            }
        }
        for (keyword, switch, words) in [
            ("uniqueItems", true, "no item twice"),
            ("additionalProperties", false, "no other properties"),
            ("unevaluatedProperties", false, "no other properties"),
            ("deprecated", true, "deprecated"),
        ] {
            if node.keyword(keyword) == Some(&Value::Bool(switch)) {
                rules.push(words.to_owned());
            }
        }
        if let Some(default) = node.keyword("default") {
            rules.push(format!("taken for {} if missing", code(&default.to_string())));
        }
        let further = [
            "not",
            "if",
            "contains",
            "propertyNames",
            "dependentRequired",
            "dependentSchemas",
            "dependencies",
        ]
        .into_iter()
        .filter(|keyword| node.keyword(keyword).is_some());
        let further: Vec<String> = further.map(code).collect();
        if !further.is_empty() {
            rules.push(format!("see {} in the contract", further.join(", ")));
        }
    }
    rules.dedup();
    rules
}

/// Code within a table.
pub(super) fn code(text: &str) -> String {
    let text = text.replace('|', "\\|").replace(['\n', '\r'], " ");
    // a run of backticks longer than any in the text
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    if longest == 0 { format!("`{text}`") } else { format!("{fence} {text} {fence}") }
}

/// Literal text within a table or a heading, with Markdown escaped.
pub(super) fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").split_whitespace().collect::<Vec<_>>().join(" ")
}
