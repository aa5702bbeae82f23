//! The schemas of a directory with resolved references: each `$ref` is replaced by a canonical form with the number of the
//! document, whatever `$id`, anchor or relative path it used.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value};

use super::directory::SourceFile;
use super::fault::Fault;
use super::json;
use super::keywords::{OWN_KEYS, join, known, nearest, nearest_keyword, walk, walk_mut};
use crate::uri;

/// The draft of schemas without `$schema`.
const DEFAULT_DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The supported drafts, as `$schema` names them.
const DRAFTS: &[&str] = &[
    DEFAULT_DRAFT,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
];

/// The base URI of the documents. Nothing is ever fetched from it.
const BASE: &str = "contract:///";

/// One file.
#[derive(Debug)]
pub(super) struct Document {
    /// Relative to the directory.
    pub(super) path: String,
    /// The schema, with references resolved.
    pub(super) schema: Value,
    /// Whether it is written in draft 07, which ignores the keywords beside a `$ref`.
    pub(super) is_draft_07: bool,
}

/// All files.
#[derive(Debug, Default)]
pub(super) struct Documents {
    list: Vec<Document>,
    /// The names of properties in the order of the file, by the identity of the containing object.
    order: HashMap<usize, Vec<String>>,
}

/// A schema within a document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) documents: &'a Documents,
    /// The number of its document.
    pub(super) document: usize,
    pub(super) schema: &'a Value,
}

impl<'a> Node<'a> {
    /// The value of a keyword. Draft 07 ignores the keywords beside a `$ref`.
    pub(super) fn keyword(&self, keyword: &str) -> Option<&'a Value> {
        let members = self.schema.as_object()?;
        if keyword != "$ref" && self.is_draft_07() && members.contains_key("$ref") {
            return None;
        }
        members.get(keyword)
    }

    /// A schema within this one.
    pub(super) fn child(&self, schema: &'a Value) -> Self {
        Node { schema, ..*self }
    }

    /// The schemas of a keyword with a list of schemas.
    pub(super) fn list(&self, keyword: &str) -> impl Iterator<Item = Node<'a>> {
        let node = *self;
        self.keyword(keyword)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(move |schema| node.child(schema))
    }

    /// The schemas of a keyword with named schemas.
    pub(super) fn named(&self, keyword: &str) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        let node = *self;
        let members = self.keyword(keyword).and_then(Value::as_object).into_iter().flatten();
        members.map(move |(name, schema)| (name.as_str(), node.child(schema)))
    }

    /// The target of its `$ref`.
    pub(super) fn target(&self) -> Option<Node<'a>> {
        self.documents.target(self.keyword("$ref")?.as_str()?).map(|(node, _)| node)
    }

    /// A number that differs for any two schemas.
    pub(super) fn identity(&self) -> usize {
        identity(self.schema)
    }

    /// Its properties, in the order of the file.
    pub(super) fn properties(&self) -> Vec<(&'a str, Node<'a>)> {
        let mut properties: Vec<(&'a str, Node<'a>)> = self.named("properties").collect();
        let order = self.keyword("properties").and_then(|object| self.documents.order.get(&identity(object)));
        if let Some(order) = order {
            properties.sort_by_key(|(name, _)| order.iter().position(|known| known == name));
        }
        properties
    }

    /// Whether it is written in draft 07, which ignores the keywords beside a `$ref`.
    pub(super) fn is_draft_07(&self) -> bool {
        self.documents.list.get(self.document).is_some_and(|document| document.is_draft_07)
    }
}

impl Documents {
    /// Reads the files and notes what is wrong with them; `warnings` are oddities that do no harm.
    pub(super) fn of(files: Vec<SourceFile>, faults: &mut Vec<Fault>, warnings: &mut Vec<Fault>) -> Self {
        let mut documents: Vec<Document> = Vec::new();
        let mut orders = Vec::new();
        for file in files {
            match json::parse(&file.text) {
                Ok(parsed) => {
                    for at in &parsed.twice {
                        faults.push(Fault::new(
                            &file.path,
                            at,
                            "the name appears twice in its object",
                            "Keep one of them",
                        ));
                    }
                    check_shape(&file.path, &parsed.value, faults, warnings);
                    documents.push(Document {
                        path: file.path,
                        is_draft_07: draft(&parsed.value) == "http://json-schema.org/draft-07/schema",
                        schema: parsed.value,
                    });
                    orders.push(parsed.order);
                }
                Err(error) => faults.push(Fault::new(
                    file.path,
                    "",
                    format!("it is not JSON: {error}"),
                    "Correct the syntax at this place",
                )),
            }
        }
        let index = Index::of(&documents);
        let resolved =
            (0..).zip(&documents).map(|(number, document)| index.resolved(number, document, faults));
        let resolved: Vec<Value> = resolved.collect();
        for (document, schema) in documents.iter_mut().zip(resolved) {
            document.schema = schema;
        }
        let mut order = HashMap::new();
        for (document, mut by_place) in documents.iter().zip(orders) {
            walk(&document.schema, "", &mut |at, schema| {
                let Some(properties) = schema.get("properties") else { return };
                if let Some(names) = by_place.remove(&join(at, "properties")) {
                    order.insert(identity(properties), names);
                }
            });
        }
        Documents { list: documents, order }
    }

    /// All documents with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Document)> {
        self.list.iter().enumerate()
    }

    /// The whole schema of a document.
    pub(super) fn root(&self, number: usize) -> Option<Node<'_>> {
        let document = self.list.get(number)?;
        Some(Node { documents: self, document: number, schema: &document.schema })
    }

    /// The target of a resolved `$ref`, and its place in its document.
    pub(super) fn target(&self, reference: &str) -> Option<(Node<'_>, String)> {
        let (number, place) = self.parse_reference(reference)?;
        let root = self.root(number)?;
        Some((root.child(root.schema.pointer(&place)?), place))
    }

    /// The document's number and the place in it, from a resolved `$ref`.
    pub(super) fn parse_reference(&self, reference: &str) -> Option<(usize, String)> {
        let (number, fragment) = reference.strip_prefix(BASE)?.split_once('#').unwrap_or((reference, ""));
        Some((number.parse().ok()?, percent_decoded(fragment)?))
    }
}

/// A number that differs for any two values, as long as they do not move; documents keep theirs in place.
fn identity(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// The URI of a document; with a fragment, of a place in it.
pub(super) fn address(number: usize) -> String {
    format!("{BASE}{number}")
}

fn draft(schema: &Value) -> &str {
    let written = schema.get("$schema").and_then(Value::as_str).unwrap_or(DEFAULT_DRAFT);
    written.trim_end_matches('#')
}

/// Finds what is wrong with a schema beyond the rules of its draft.
fn check_shape(path: &str, schema: &Value, faults: &mut Vec<Fault>, warnings: &mut Vec<Fault>) {
    let draft = draft(schema);
    if !DRAFTS.contains(&draft) {
        faults.push(Fault::new(
            path,
            "/$schema",
            format!("{draft:?} is not a supported draft"),
            format!("Leave it out for {DEFAULT_DRAFT}, or write one of {}", DRAFTS.join(", ")),
        ));
    }
    walk(schema, "", &mut |at, schema| {
        let Value::Object(members) = schema else { return };
        for keyword in members.keys() {
            let place = join(at, keyword);
            if matches!(
                keyword.as_str(),
                "$dynamicRef" | "$dynamicAnchor" | "$recursiveRef" | "$recursiveAnchor"
            ) {
                let what = format!("`{keyword}` is not supported");
                faults.push(Fault::new(path, place, what, "Use `$ref`, with `$anchor` if it needs a name"));
            } else if keyword == "$id" && !at.is_empty() {
                faults.push(Fault::new(
                    path,
                    place,
                    "an `$id` within a schema is not supported",
                    "Move the schema to a file of its own, or give it an `$anchor`",
                ));
            } else if keyword.starts_with("x-") {
                let near = nearest(keyword, OWN_KEYS).filter(|known| known != keyword);
                if let Some(near) = near {
                    let what = format!("`{keyword}` means nothing here");
                    warnings.push(Fault::new(path, place, what, format!("Did you mean `{near}`?")));
                }
            } else if !known(keyword) {
                let remedy = match nearest_keyword(keyword) {
                    Some(near) => format!("Did you mean `{near}`?"),
                    None => "Leave it out, or let the names of your own keys begin with `x-`".to_owned(),
                };
                let what = format!("`{keyword}` is not a keyword of JSON Schema, which ignores it");
                warnings.push(Fault::new(path, place, what, remedy));
            }
        }
    });
}

/// The possible targets of references, by the number of their document.
struct Index<'d>(Vec<Targets<'d>>);

/// The possible targets in one document.
struct Targets<'d> {
    path: &'d str,
    id: Option<&'d str>,
    /// The place of each anchor.
    anchors: BTreeMap<&'d str, String>,
    /// The places of all schemas.
    places: BTreeSet<String>,
}

impl<'d> Index<'d> {
    fn of(documents: &'d [Document]) -> Self {
        let targets = documents.iter().map(|document| {
            let id = document.schema.get("$id").and_then(Value::as_str).map(|id| id.trim_end_matches('#'));
            let (mut anchors, mut places) = (BTreeMap::new(), BTreeSet::new());
            walk(&document.schema, "", &mut |at, schema| {
                places.insert(at.to_owned());
                if let Some(anchor) = schema.get("$anchor").and_then(Value::as_str) {
                    anchors.insert(anchor, at.to_owned());
                }
            });
            Targets { path: &document.path, id, anchors, places }
        });
        Index(targets.collect())
    }

    /// The schema of a document with its references in their canonical form, and without the keywords that they depended on.
    fn resolved(&self, number: usize, document: &Document, faults: &mut Vec<Fault>) -> Value {
        walk(&document.schema, "", &mut |at, schema| {
            let Some(Value::String(written)) = schema.get("$ref") else { return };
            if let Err((what, remedy)) = self.target(number, &document.path, written) {
                faults.push(Fault::new(&document.path, join(at, "$ref"), what, remedy));
            }
        });
        let mut schema = document.schema.clone();
        walk_mut(&mut schema, &mut |members: &mut Map<String, Value>| {
            members.remove("$id");
            members.remove("$anchor");
            if let Some(Value::String(written)) = members.get_mut("$ref")
                && let Ok((number, place)) = self.target(number, &document.path, written)
            {
                *written = format!("{}#{}", address(number), percent_encoded(&place));
            }
        });
        if let Value::Object(members) = &mut schema {
            members.entry("$schema").or_insert_with(|| DEFAULT_DRAFT.into());
        }
        schema
    }

    /// The document and the place in it that a reference points to, or else what is wrong and what to do.
    fn target(&self, from: usize, path: &str, written: &str) -> Result<(usize, String), (String, String)> {
        let (file, fragment) = written.split_once('#').unwrap_or((written, ""));
        let number = if file.is_empty() { Some(from) } else { self.document(from, path, file) };
        let Some((number, targets)) = number.and_then(|number| Some((number, self.0.get(number)?))) else {
            let what = format!("the reference leads to {file:?}, which is none of the files");
            return Err((what, REFERENCE_FORM.to_owned()));
        };
        let place = match percent_decoded(fragment) {
            Some(fragment) if fragment.is_empty() || fragment.starts_with('/') => Some(fragment),
            Some(anchor) => targets.anchors.get(anchor.as_str()).cloned(),
            None => None,
        };
        place.filter(|place| targets.places.contains(place)).map(|place| (number, place)).ok_or_else(|| {
            (
                format!("the reference leads to \"#{fragment}\", where there is no schema"),
                "Put the schema under `$defs` and refer to it as \"#/$defs/name\"".to_owned(),
            )
        })
    }

    fn document(&self, from: usize, path: &str, file: &str) -> Option<usize> {
        let by_id = |id: &str| self.0.iter().rposition(|targets| targets.id == Some(id));
        let beside_id = || {
            let (scheme, rest) = self.0.get(from)?.id?.split_once("://")?;
            by_id(&format!("{scheme}://{}", beside(rest, file)?))
        };
        let beside_file = || {
            let path = beside(path, &percent_decoded(file)?)?;
            self.0.iter().position(|targets| targets.path == path)
        };
        by_id(file).or_else(beside_id).or_else(beside_file)
    }
}

const REFERENCE_FORM: &str = "Refer to a file of the directory by its path from this one, or by its `$id`: nothing is \
                              fetched from the network";

/// `path` with its last part replaced by the relative path `other`.
fn beside(path: &str, other: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in other.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Encodes a JSON pointer for the fragment of a URI.
pub(super) fn percent_encoded(place: &str) -> Cow<'_, str> {
    uri::percent_encoded(place, "/")
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut decoded = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        decoded.push(digit()? << 4 | digit()?);
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> (Documents, Vec<String>, Vec<String>) {
        let files = files
            .iter()
            .map(|(path, text)| SourceFile { path: (*path).to_owned(), text: (*text).to_owned() })
            .collect();
        let (mut faults, mut warnings) = (Vec::new(), Vec::new());
        let documents = Documents::of(files, &mut faults, &mut warnings);
        let said = |faults: Vec<Fault>| faults.iter().map(Fault::to_string).collect();
        (documents, said(faults), said(warnings))
    }

    #[test]
    fn references_lead_within_a_file_and_between_files() {
        let (documents, faults, warnings) = read(&[
            ("_parts/a b.json", r#"{"$defs": {"x y": {"$anchor": "name", "type": "string"}}}"#),
            (
                "order/a.json",
                r##"{"$id": "https://shop.example/order/a.json", "properties": {
                    "a": {"$ref": "#"},
                    "b": {"$ref": "../_parts/a%20b.json#/$defs/x%20y"},
                    "c": {"$ref": "../_parts/a b.json#name"},
                    "d": {"$ref": "b.json"},
                    "e": {"$ref": "https://shop.example/order/b.json#/properties/b"}
                }}"##,
            ),
            (
                "order/b.json",
                r##"{"$id": "https://shop.example/order/b.json", "properties": {"b": {"$ref": "a.json"}}}"##,
            ),
        ]);
        assert_eq!((faults, warnings), (vec![], vec![]));
        let root = documents.root(1).unwrap();
        let targets: Vec<_> = root
            .named("properties")
            .map(|(name, node)| {
                let (target, place) =
                    documents.target(node.keyword("$ref").unwrap().as_str().unwrap()).unwrap();
                (name, target.document, place)
            })
            .collect();
        assert_eq!(
            targets,
            [
                ("a", 1, String::new()),
                ("b", 0, "/$defs/x y".to_owned()),
                ("c", 0, "/$defs/x y".to_owned()),
                ("d", 2, String::new()),
                ("e", 2, "/properties/b".to_owned()),
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let (_, faults, warnings) = read(&[
            ("a/not_json.json", "{\"type\": }"),
            (
                "a/references.json",
                r##"{"properties": {
                    "a": {"$ref": "https://json.schemastore.org/package.json"},
                    "b": {"$ref": "../../outside.json"},
                    "c": {"$ref": "#/properties"},
                    "d": {"$ref": "#nowhere"},
                    "e": {"$ref": "missing.json#/x"},
                    "f": {"$dynamicRef": "#x"},
                    "g": {"$id": "g.json"}
                }}"##,
            ),
            ("a/twice.json", r#"{"type": "object", "properties": {"a": {}, "a": {}}}"#),
            ("a/draft.json", r#"{"$schema": "http://json-schema.org/draft-04/schema#", "type": "object"}"#),
            (
                "a/odd.json",
                r#"{"requried": ["a"], "nullable": true, "x-ower": "me", "x-mine": 1, "tpye": 1}"#,
            ),
        ]);
        insta::assert_snapshot!([faults.join("\n"), warnings.join("\n")].join("\n\nwarnings:\n"));
    }

    #[test]
    fn in_draft_07_nothing_counts_beside_a_reference() {
        let schema = |draft| {
            format!(
                r##"{{"$schema": "{draft}", "definitions": {{"x": {{}}}}, "properties": {{"a": {{"$ref": "#/definitions/x", "type": "string"}}}}}}"##
            )
        };
        let (old, new) = (schema("http://json-schema.org/draft-07/schema#"), schema(DEFAULT_DRAFT));
        let (documents, faults, _) = read(&[("a/old.json", &old), ("a/new.json", &new)]);
        assert_eq!(faults, [""; 0]);
        let kind = |number| {
            let (_, node) = documents.root(number).unwrap().named("properties").next().unwrap();
            node.keyword("type").is_some()
        };
        assert_eq!((kind(0), kind(1)), (false, true));
    }

    #[test]
    fn a_fragment_may_be_anything() {
        for text in ["", "/a b/ü^/~1", "100%"] {
            assert_eq!(percent_decoded(&percent_encoded(text)).as_deref(), Some(text));
        }
        assert_eq!(percent_decoded("%zz"), None);
    }
}
