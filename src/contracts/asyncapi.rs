//! Contracts as an AsyncAPI 3.0.0 document (<https://www.asyncapi.com/docs/reference/specification/v3.0.0>).
//!
//! It has a channel for each topic, a message for each contract, and the schemas of all files under `components`. AsyncAPI's
//! Schema Object extends draft 07. Keywords of later drafts are kept; tools that do not know them ignore them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::documents::Documents;
use super::keywords::walk_mut;
use super::topic::Topic;
use super::{Contract, Contracts};

/// `info` of the document.
#[derive(Debug, Clone, Serialize)]
pub struct Info {
    /// `info.title`
    pub title: String,
    /// `info.version`: the version of the contracts, not of the program.
    pub version: String,
}

/// The members in a readable order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    asyncapi: &'static str,
    info: &'a Info,
    default_content_type: &'static str,
    channels: BTreeMap<String, Channel>,
    operations: BTreeMap<String, Value>,
    components: Components,
}

#[derive(Serialize)]
struct Channel {
    address: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    parameters: Map<String, Value>,
    messages: Map<String, Value>,
}

#[derive(Serialize)]
struct Components {
    messages: BTreeMap<String, Value>,
    schemas: BTreeMap<String, Value>,
}

/// The document as JSON, which is also YAML.
///
/// # Errors
/// Those of the JSON writer; none is known.
pub fn document(
    contracts: &Contracts,
    info: &Info,
    topic: impl Fn(&Contract) -> Topic,
) -> Result<String, serde_json::Error> {
    let names = names(&contracts.documents);
    let mut channels: BTreeMap<String, Channel> = BTreeMap::new();
    let mut messages = BTreeMap::new();
    for contract in contracts.iter() {
        let Topic { address, parameters } = topic(contract);
        let message = names.get(contract.document).cloned().unwrap_or_default();
        let channel = channels.entry(identifier(&address)).or_insert_with(|| Channel {
            address,
            parameters: parameters
                .into_iter()
                .map(|(name, meaning)| (name, json!({ "description": meaning })))
                .collect(),
            messages: Map::new(),
        });
        channel.messages.insert(message.clone(), reference(&["components", "messages", &message]));
        messages.insert(message.clone(), self::message(contract, &message));
    }
    let operations = channels.iter().map(|(name, channel)| {
        let messages: Vec<Value> = channel
            .messages
            .keys()
            .map(|message| reference(&["channels", name, "messages", message]))
            .collect();
        let operation = json!({
            "action": "send",
            "channel": reference(&["channels", name]),
            "summary": "Events of the outbox, at least once, in commit order for each key",
            "messages": messages,
        });
        (format!("send.{name}"), operation)
    });
    let document = Document {
        asyncapi: "3.0.0",
        info,
        default_content_type: "application/json",
        operations: operations.collect(),
        channels,
        components: Components { messages, schemas: schemas(&contracts.documents, &names) },
    };
    serde_json::to_string_pretty(&document).map(|text| text + "\n")
}

fn message(contract: &Contract, name: &str) -> Value {
    let facts = &contract.facts;
    let key = json!({"type": "string", "description": "The aggregate's id; records of one key are in commit order"});
    let mut message = json!({
        "name": contract.event_type,
        "contentType": "application/json",
        "headers": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "The event's id, the same for every delivery"},
                "type": {"type": "string", "const": contract.event_type},
            },
            "required": ["id", "type"],
        },
        "payload": reference(&["components", "schemas", name]),
        "correlationId": {"location": "$message.header#/id", "description": "Identifies a repeated delivery"},
        "bindings": {"kafka": {"key": key, "bindingVersion": "0.5.0"}},
        "x-compatibility": contract.rule().word(),
    });
    let Value::Object(members) = &mut message else { return message };
    for (name, text) in [
        ("title", &facts.title),
        ("description", &facts.description),
        ("x-owner", &facts.owner),
        ("x-ordering-key", &facts.ordering_key),
    ] {
        members.extend(text.as_ref().map(|text| (name.to_owned(), json!(text))));
    }
    if facts.deprecated {
        members.insert("x-deprecated".to_owned(), json!(true));
    }
    for (name, texts) in [("x-idempotency-key", &facts.idempotency_key), ("x-guarantees", &facts.guarantees)]
    {
        if !texts.is_empty() {
            members.insert(name.to_owned(), json!(texts));
        }
    }
    // examples in AsyncAPI are objects; others are still among the schema's own examples
    let examples: Vec<Value> = facts
        .examples
        .iter()
        .filter(|example| example.is_object())
        .map(|example| json!({ "payload": example }))
        .collect();
    if !examples.is_empty() {
        members.insert("examples".to_owned(), json!(examples));
    }
    message
}

/// The names of the files under `components`, by the number of their document.
fn names(documents: &Documents) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (_, document) in documents.iter() {
        let wanted = identifier(&document.path.trim_end_matches(".json").replace('/', "."));
        let numbered = (2..).map(|number| format!("{wanted}_{number}"));
        let free = std::iter::once(wanted.clone()).chain(numbered).find(|name| !names.contains(name));
        names.extend(free);
    }
    names
}

/// Replaces characters that a key of `components` must not contain.
fn identifier(text: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    text.chars().map(|c| if legal(c) { c } else { '_' }).collect()
}

fn reference(path: &[&str]) -> Value {
    json!({ "$ref": format!("#/{}", path.join("/")) })
}

/// The schemas of all files, with references within the document.
fn schemas(documents: &Documents, names: &[String]) -> BTreeMap<String, Value> {
    let schema = |((_, document), name): ((usize, &super::documents::Document), &String)| {
        let mut schema = document.schema.clone();
        walk_mut(&mut schema, &mut |members| {
            members.remove("$schema");
            if !document.is_draft_07 {
                apart_from_reference(members);
            }
            if let Some(Value::String(written)) = members.get_mut("$ref")
                && let Some((number, place)) = documents.parse_reference(written)
            {
                // a path may contain anything, so it is encoded as a fragment
                let fragment = super::documents::percent_encoded(&place);
                let name = names.get(number).map_or("", String::as_str);
                *written = format!("#/components/schemas/{name}{fragment}");
            }
        });
        (name.clone(), schema)
    };
    documents.iter().zip(names).map(schema).collect()
}

/// Draft 07 ignores the keywords beside a `$ref`, so the reference is moved into an `allOf`.
fn apart_from_reference(members: &mut Map<String, Value>) {
    let beside = members.keys().any(|keyword| !matches!(keyword.as_str(), "$ref" | "$defs" | "$comment"));
    if let (true, Some(target)) = (beside, members.get("$ref").cloned()) {
        members.remove("$ref");
        let all = members.entry("allOf").or_insert_with(|| json!([]));
        if let Value::Array(all) = all {
            all.push(json!({ "$ref": target }));
        }
    }
}
