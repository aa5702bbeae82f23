//! Whether a reader's schema accepts everything that a writer's schema permits.
//!
//! A schema is treated as the list of all schemas that apply together: itself and the targets of its `$ref` and `allOf`. Only
//! the writer's list may be weakened along the way, and each keyword of the reader must follow from it, so nothing
//! incompatible is accepted. A failure after part of the writer's schema was left out is reported as undecided.

use serde_json::Value;

use super::super::documents::Node;
use super::super::facts::conjuncts;
use super::kinds::{Types, disjoint, equal, listed, types};
use super::numbers::{End, bound, count, implies, is_multiple, tightest, tightest_count};
use super::sameness::{same, same_keyword};
use super::{Change, Direction, Sides};

/// The limit on comparisons, and on the writer's alternatives at one place.
const MAX_STEPS: usize = 20_000;
const MAX_FORMS: usize = 64;

/// What prevents `reader` from accepting everything that `writer` permits.
pub(super) fn findings(writer: Node<'_>, reader: Node<'_>, direction: Direction) -> Vec<Change> {
    let mut inclusion = Inclusion {
        direction,
        sides: direction.sides(),
        at: String::new(),
        under_way: Vec::new(),
        steps: 0,
        found: Vec::new(),
    };
    inclusion.compare(&conjuncts(writer), reader);
    inclusion.found
}

pub(super) struct Inclusion {
    direction: Direction,
    pub(super) sides: Sides,
    /// The place in the payload.
    at: String,
    /// Pairs that are being compared: a recursive schema is assumed to fit until it is shown not to.
    under_way: Vec<(Vec<usize>, usize)>,
    steps: usize,
    found: Vec<Change>,
}

impl Inclusion {
    /// Notes something that the writer permits and the reader does not accept. It is certain only if nothing of the writer's
    /// schema was left out.
    pub(super) fn breaks(&mut self, writer: &[Node<'_>], what: String) {
        const LEFT_OUT: &[&str] = &[
            "not",
            "if",
            "contains",
            "propertyNames",
            "dependentSchemas",
            "dependentRequired",
            "dependencies",
            "unevaluatedItems",
        ];
        let left_out =
            LEFT_OUT.iter().find(|keyword| writer.iter().any(|node| node.keyword(keyword).is_some()));
        match left_out {
            None => self.note(what, true),
            Some(keyword) => {
                let writer = self.sides.writer;
                self.note(format!("{what}, unless `{keyword}` of {writer} rules it out"), false);
            }
        }
    }

    /// Notes that something cannot be decided.
    pub(super) fn undecided(&mut self, what: String) {
        self.note(what, false);
    }

    fn note(&mut self, what: String, judged: bool) {
        let change = Change { direction: Some(self.direction), at: self.at.clone(), what, judged };
        if !self.found.contains(&change) {
            self.found.push(change);
        }
    }

    /// Compares one level deeper in the payload.
    pub(super) fn within(&mut self, name: &str, writer: &[Node<'_>], reader: Node<'_>) {
        let length = self.at.len();
        self.at = super::super::keywords::join(&self.at, name);
        self.compare(writer, reader);
        self.at.truncate(length);
    }

    /// Whether a comparison would find nothing.
    fn fits(&mut self, writer: &[Node<'_>], reader: Node<'_>) -> bool {
        let before = std::mem::take(&mut self.found);
        self.compare(writer, reader);
        std::mem::replace(&mut self.found, before).is_empty()
    }

    /// Compares all schemas that apply together on the writer's side with one schema of the reader.
    pub(super) fn compare(&mut self, writer: &[Node<'_>], reader: Node<'_>) {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            if self.steps == MAX_STEPS + 1 {
                self.undecided("the schemas are too entangled to be compared".to_owned());
            }
            return;
        }
        if types(writer).is_empty() || writer.iter().any(|node| same(*node, reader)) {
            return;
        }
        let mut pair = (writer.iter().map(Node::identity).collect::<Vec<_>>(), reader.identity());
        pair.0.sort_unstable();
        pair.0.dedup();
        if self.under_way.contains(&pair) {
            return;
        }
        self.under_way.push(pair);
        match forms(writer) {
            Some(forms) => {
                for form in forms {
                    for node in conjuncts(reader) {
                        self.check(&form, node);
                    }
                }
            }
            None => {
                let writer = self.sides.writer;
                self.undecided(format!("{writer} has too many forms here to be compared one by one"));
            }
        }
        self.under_way.pop();
    }

    /// Compares one alternative of the writer with the keywords of one schema of the reader, except `$ref` and `allOf`.
    fn check(&mut self, writer: &[Node<'_>], reader: Node<'_>) {
        let Sides { writer: by, reader: to } = self.sides;
        let written = types(writer);
        if written.is_empty() {
            return;
        }
        if reader.schema == &Value::Bool(false) {
            return self.breaks(writer, format!("{to} allows nothing here, {by} allows {written}"));
        }
        let refused = written.without(types(&[reader]));
        if let Some(values) = listed(writer) {
            if !self.check_listed(writer, &values, reader) {
                return;
            }
        } else if super::kinds::listed_by(&reader).is_some() {
            return self.breaks(writer, format!("{to} lists the allowed values, {by} does not"));
        } else if !refused.is_empty() {
            return self.breaks(writer, format!("{to} does not allow {refused} here, {by} does"));
        }
        self.check_numbers(writer, reader, written);
        self.check_strings(writer, reader, written);
        if written.intersects(Types::ARRAY) {
            self.check_arrays(writer, reader);
        }
        if written.intersects(Types::OBJECT) {
            self.check_objects(writer, reader);
        }
        self.check_forms(writer, reader, written);
        self.check_same(writer, reader, &["not"]);
        self.check_same(writer, reader, &["if", "then", "else"]);
    }

    /// Keywords that mean something together, and that are only compared literally.
    pub(super) fn check_same(&mut self, writer: &[Node<'_>], reader: Node<'_>, keywords: &[&str]) {
        let Some(keyword) = keywords.iter().find(|keyword| reader.keyword(keyword).is_some()) else { return };
        let kept = |node: &Node<'_>| keywords.iter().all(|keyword| same_keyword(node, &reader, keyword));
        if !writer.iter().any(kept) {
            self.differs(keyword);
        }
    }

    /// Notes that a keyword of the reader is not that of the writer, and what follows from that is not known.
    pub(super) fn differs(&mut self, keyword: &str) {
        let Sides { writer: by, reader: to } = self.sides;
        self.undecided(format!("`{keyword}` of {to} is not that of {by}"));
    }

    /// Checks the values that the writer lists one by one; false if one is refused, which says enough.
    fn check_listed(&mut self, writer: &[Node<'_>], values: &[Value], reader: Node<'_>) -> bool {
        let Sides { writer: by, reader: to } = self.sides;
        let allowed = super::kinds::listed_by(&reader);
        let taken = types(&[reader]);
        let refused = values.iter().filter(|value| {
            !taken.intersects(Types::of_value(value))
                || allowed.as_ref().is_some_and(|allowed| !allowed.iter().any(|other| equal(value, other)))
        });
        let refused: Vec<String> = refused.map(Value::to_string).collect();
        if !refused.is_empty() {
            self.breaks(writer, format!("{to} does not take {}, which {by} lists", refused.join(", ")));
        }
        refused.is_empty()
    }

    fn check_numbers(&mut self, writer: &[Node<'_>], reader: Node<'_>, written: Types) {
        if !written.intersects(Types::NUMBER) {
            return;
        }
        let Sides { writer: by, reader: to } = self.sides;
        let values = listed(writer);
        let integers = written.and(Types::NUMBER) == Types::INTEGER;
        for (end, name) in [(End::Least, "minimum"), (End::Most, "maximum")] {
            let Some(limit) = bound(&reader, end, integers) else { continue };
            let own = match &values {
                Some(values) => loosest(values, end),
                None => tightest(writer, end, integers),
            };
            if !own.as_ref().is_some_and(|own| implies(own, &limit, end)) {
                let own = own.map_or("none".to_owned(), |own| own.to_string());
                self.breaks(writer, format!("the {name} of {to} is {limit}, that of {by} is {own}"));
            }
        }
        let Some(Value::Number(step)) = reader.keyword("multipleOf") else { return };
        let mut own = writer.iter().filter_map(|node| node.keyword("multipleOf")?.as_number());
        if own.any(|own| is_multiple(own, step)) || integers && is_multiple(&1.into(), step) {
            return;
        }
        if values.is_some() {
            self.undecided(format!("{to} allows only multiples of {step}"));
        } else {
            self.breaks(writer, format!("{to} allows only multiples of {step}, {by} allows others"));
        }
    }

    fn check_strings(&mut self, writer: &[Node<'_>], reader: Node<'_>, written: Types) {
        if !written.intersects(Types::STRING) {
            return;
        }
        let Sides { writer: by, reader: to } = self.sides;
        let known = extremes(writer, |value| value.as_str().map(|text| text.chars().count()));
        self.check_count(writer, reader, ("minLength", "maxLength"), "characters", known);
        for keyword in ["pattern", "format", "contentEncoding", "contentMediaType"] {
            let Some(wanted) = reader.keyword(keyword) else { continue };
            let counts = match keyword {
                "format" => known_format(wanted),
                "pattern" => true,
                // in later drafts, readers may ignore these keywords
                _ => reader.is_draft_07(),
            };
            let own: Vec<&Value> = writer.iter().filter_map(|node| node.keyword(keyword)).collect();
            if !counts || own.contains(&wanted) {
                continue;
            }
            match (own.first(), listed(writer)) {
                (_, Some(values)) if take(keyword, wanted, &values) => {}
                (None, _) | (_, Some(_)) => {
                    self.breaks(writer, format!("{to} wants the {keyword} {wanted}, {by} allows others"));
                }
                (Some(own), None) => {
                    self.undecided(format!("{to} wants the {keyword} {wanted}, {by} has {own}"))
                }
            }
        }
    }

    /// Compares a minimum and a maximum. `known` are the least and the most by other keywords of the writer.
    pub(super) fn check_count(
        &mut self,
        writer: &[Node<'_>],
        reader: Node<'_>,
        keywords: (&str, &str),
        of: &str,
        known: [Option<u64>; 2],
    ) {
        let Sides { writer: by, reader: to } = self.sides;
        let ends = [(keywords.0, End::Least, "least"), (keywords.1, End::Most, "most")];
        for ((keyword, end, name), known) in ends.into_iter().zip(known) {
            let Some(limit) = count(&reader, keyword) else { continue };
            let own = [tightest_count(writer, keyword, end), known].into_iter().flatten();
            let (own, kept) = match end {
                End::Least => {
                    let own = own.max();
                    (own, own.unwrap_or(0) >= limit)
                }
                End::Most => {
                    let own = own.min();
                    (own, own.is_some_and(|own| own <= limit))
                }
            };
            if !kept {
                let own = own.map_or("none".to_owned(), |own| own.to_string());
                self.breaks(writer, format!("{to} allows at {name} {limit} {of}, {by} allows {own}"));
            }
        }
    }

    /// `anyOf` and `oneOf` of the reader: the writer, or each of its types, must fit one of the alternatives.
    fn check_forms(&mut self, writer: &[Node<'_>], reader: Node<'_>, written: Types) {
        for keyword in ["anyOf", "oneOf"] {
            let forms: Vec<Node<'_>> = reader.list(keyword).collect();
            if forms.is_empty() || writer.iter().any(|node| same_keyword(node, &reader, keyword)) {
                continue;
            }
            for single in written.each() {
                let narrow: Vec<Node<'_>> =
                    writer.iter().copied().chain([reader.child(single.schema())]).collect();
                self.check_form(&narrow, &forms, keyword, single);
            }
        }
    }

    fn check_form(&mut self, writer: &[Node<'_>], forms: &[Node<'_>], keyword: &str, single: Types) {
        let Sides { writer: by, reader: to } = self.sides;
        let possible: Vec<Node<'_>> =
            forms.iter().copied().filter(|form| !disjoint(writer, &conjuncts(*form))).collect();
        match possible.as_slice() {
            [] => {
                self.breaks(writer, format!("no alternative of {to} allows this {single}, which {by} allows"))
            }
            // the only candidate's own findings say more
            [only] => self.compare(writer, *only),
            // anyOf accepts a value that fits several alternatives; oneOf does not
            several if keyword == "anyOf" && several.iter().any(|form| self.fits(writer, *form)) => {}
            _ => self.undecided(format!(
                "it cannot be decided which alternative in `{keyword}` of {to} allows this {single}"
            )),
        }
    }
}

/// The least and the most length of the values that the writer lists.
pub(super) fn extremes(writer: &[Node<'_>], length: impl Fn(&Value) -> Option<usize>) -> [Option<u64>; 2] {
    let lengths = listed(writer).unwrap_or_default().iter().filter_map(length).collect::<Vec<_>>();
    [lengths.iter().min(), lengths.iter().max()].map(|length| length.map(|length| *length as u64))
}

fn known_format(format: &Value) -> bool {
    let options = jsonschema::options();
    format.as_str().is_some_and(|format| options.is_known_format(jsonschema::Draft::Draft202012, format))
}

/// The listed value furthest towards that end, as a bound.
fn loosest(values: &[Value], end: End) -> Option<super::numbers::Bound> {
    let numbers = values.iter().filter_map(Value::as_number);
    numbers.map(super::numbers::Bound::at).reduce(|a, b| if implies(&a, &b, end) { b } else { a })
}

/// The writer's alternatives: one for each way through its `anyOf`, `oneOf` and `if`, together with what always applies;
/// `None` if there are too many.
fn forms<'a>(writer: &[Node<'a>]) -> Option<Vec<Vec<Node<'a>>>> {
    let mut forms = Vec::new();
    // each with the number of nodes already expanded; a choice may add nodes with choices of their own
    let mut open = vec![(writer.to_vec(), 0)];
    while let Some((form, looked_at)) = open.pop() {
        let Some(node) = form.get(looked_at).copied() else {
            forms.push(form);
            continue;
        };
        let mut ways = vec![form];
        for choices in choices(&node) {
            let is_made = |way: &[Node<'a>], choice: &[Node<'a>]| choice.iter().all(|node| has(way, node));
            ways = ways
                .into_iter()
                .flat_map(|way| {
                    if choices.iter().any(|choice| is_made(&way, choice)) {
                        return vec![way];
                    }
                    choices.iter().map(|choice| with(&way, choice)).collect()
                })
                .collect();
        }
        open.extend(ways.into_iter().filter(|way| !types(way).is_empty()).map(|way| (way, looked_at + 1)));
        if forms.len() + open.len() > MAX_FORMS {
            return None;
        }
    }
    forms.reverse();
    Some(forms)
}

/// The choices that a schema leaves. Each is a list of alternatives, and each alternative a list of schemas that apply
/// together.
fn choices<'a>(node: &Node<'a>) -> Vec<Vec<Vec<Node<'a>>>> {
    let mut choices: Vec<Vec<Vec<Node<'a>>>> = ["anyOf", "oneOf"]
        .map(|keyword| node.list(keyword).map(conjuncts).collect::<Vec<_>>())
        .into_iter()
        .filter(|forms| !forms.is_empty())
        .collect();
    if let Some(condition) = node.keyword("if") {
        let all = |keyword: &str| {
            node.keyword(keyword).map(|schema| conjuncts(node.child(schema))).unwrap_or_default()
        };
        let mut then = conjuncts(node.child(condition));
        then.extend(all("then"));
        choices.push(vec![then, all("else")]);
    }
    choices
}

fn has(nodes: &[Node<'_>], node: &Node<'_>) -> bool {
    nodes.iter().any(|known| known.identity() == node.identity())
}

fn with<'a>(way: &[Node<'a>], choice: &[Node<'a>]) -> Vec<Node<'a>> {
    let more = choice.iter().filter(|node| !has(way, node));
    way.iter().chain(more).copied().collect()
}

/// Whether all texts satisfy one keyword.
fn take(keyword: &str, wanted: &Value, texts: &[Value]) -> bool {
    let schema = Value::Object(serde_json::Map::from_iter([(keyword.to_owned(), wanted.clone())]));
    let validator = jsonschema::options().should_validate_formats(true).offline().build(&schema);
    validator.is_ok_and(|validator| texts.iter().all(|text| validator.is_valid(text)))
}
