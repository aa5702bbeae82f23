//! The annotations of a contract: keywords that do not affect validation.

use serde_json::Value;

use super::Rule;
use super::documents::Node;
use super::fault::Fault;
use super::keywords::{COMPATIBILITY, GUARANTEES, IDEMPOTENCY_KEY, ORDERING_KEY, OWNER, TOPIC, join, names};
use crate::topic_name;

/// The values of the annotations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// `title`
    pub title: Option<String>,
    /// `description`
    pub description: Option<String>,
    /// `deprecated`: the event will be removed.
    pub deprecated: bool,
    /// `x-owner`: who is responsible for it.
    pub owner: Option<String>,
    /// `x-topic`: the topic, if it does not follow from `[route]`.
    pub topic: Option<String>,
    /// `x-idempotency-key`: JSON pointers into the payload. Together their values identify what happened, even if another
    /// event reports it again.
    pub idempotency_key: Vec<String>,
    /// `x-ordering-key`: a JSON pointer to the property with the aggregate's id.
    pub ordering_key: Option<String>,
    /// `x-compatibility`, if it is set.
    pub compatibility: Option<Rule>,
    /// `x-guarantees`: what else consumers can rely on, a sentence each.
    pub guarantees: Vec<String>,
    /// `examples`
    pub examples: Vec<Value>,
}

impl Facts {
    /// Reads the annotations from a contract's root, and adds faults for invalid values.
    pub(super) fn of(root: Node<'_>, path: &str, faults: &mut Vec<Fault>) -> Self {
        let mut reader = Reader { root, path, faults };
        let facts = Facts {
            title: reader.text("title"),
            description: reader.text("description"),
            deprecated: root.schema.get("deprecated") == Some(&Value::Bool(true)),
            owner: reader.text(OWNER),
            topic: reader.text(TOPIC),
            idempotency_key: reader.texts(IDEMPOTENCY_KEY),
            ordering_key: reader.text(ORDERING_KEY),
            compatibility: reader.rule(),
            guarantees: reader.texts(GUARANTEES),
            examples: root.schema.get("examples").and_then(Value::as_array).cloned().unwrap_or_default(),
        };
        for pointer in &facts.idempotency_key {
            reader.check_property(IDEMPOTENCY_KEY, pointer);
        }
        if let Some(pointer) = &facts.ordering_key {
            reader.check_property(ORDERING_KEY, pointer);
        }
        if let Some(topic) = &facts.topic
            && let Err(error) = topic_name::check(topic)
        {
            reader.fault(
                TOPIC,
                format!("it is no topic: {error}"),
                "Write the topic's name, without values in it",
            );
        }
        facts
    }
}

struct Reader<'a> {
    root: Node<'a>,
    path: &'a str,
    faults: &'a mut Vec<Fault>,
}

impl Reader<'_> {
    fn fault(&mut self, key: &str, what: impl Into<String>, remedy: impl Into<String>) {
        self.faults.push(Fault::new(self.path, join("", key), what, remedy));
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match self.root.schema.get(key)? {
            Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
            _ => {
                self.fault(key, "it is not a string", "Write it in quotes, or remove it");
                None
            }
        }
    }

    /// A text, or a list of them.
    fn texts(&mut self, key: &str) -> Vec<String> {
        let read = match self.root.schema.get(key) {
            None => return Vec::new(),
            Some(Value::String(text)) => Some(vec![text.clone()]),
            Some(Value::Array(list)) => list.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            Some(_) => None,
        };
        read.filter(|texts| !texts.is_empty()).unwrap_or_else(|| {
            self.fault(key, "it is neither a string nor a list of strings", "Write it as [\"...\", \"...\"]");
            Vec::new()
        })
    }

    fn rule(&mut self) -> Option<Rule> {
        let word = self.text(COMPATIBILITY)?;
        let rule = Rule::ALL.into_iter().find(|rule| rule.word() == word);
        if rule.is_none() {
            let words = Rule::ALL.map(|rule| format!("{:?}", rule.word())).join(", ");
            self.fault(COMPATIBILITY, format!("{word:?} is no rule"), format!("Write one of {words}"));
        }
        rule
    }

    /// Checks that a key is in every event.
    fn check_property(&mut self, key: &str, pointer: &str) {
        if !pointer.starts_with('/') {
            let what = format!("{pointer:?} is not a JSON pointer");
            self.fault(key, what, "Write the property's place in the payload: \"/order_id\"");
            return;
        }
        match presence(self.root, pointer) {
            Some(true) => {}
            Some(false) => {
                let what = format!("`{pointer}` is not required in every event");
                self.fault(key, what, "Add each property on its path to `required`");
            }
            None => {
                let what = format!("`{pointer}` is not a property of the schema");
                self.fault(key, what, "Declare it under `properties`, or correct the pointer");
            }
        }
    }
}

/// Whether the property at `pointer` is in every payload; `None` if the schema does not declare it.
fn presence(root: Node<'_>, pointer: &str) -> Option<bool> {
    let mut nodes = conjuncts(root);
    let mut always = true;
    for name in names(pointer) {
        let lists = nodes.iter().filter_map(|node| node.keyword("required")?.as_array());
        always &= lists.flatten().any(|required| required.as_str() == Some(name.as_str()));
        let declared =
            nodes.iter().filter_map(|node| Some(node.child(node.keyword("properties")?.get(&name)?)));
        nodes = declared.flat_map(conjuncts).collect();
        if nodes.is_empty() {
            return None;
        }
    }
    Some(always)
}

/// All schemas that apply together with this one: the targets of `$ref` and `allOf`.
pub(super) fn conjuncts(node: Node<'_>) -> Vec<Node<'_>> {
    let mut found: Vec<Node<'_>> = Vec::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        if found.iter().any(|known| known.identity() == node.identity()) {
            continue;
        }
        found.push(node);
        open.extend(node.target());
        open.extend(node.list("allOf"));
    }
    found
}
