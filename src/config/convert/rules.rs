//! `[[route.rules]]`: conditions, and what happens to the events that match them.

use toml::Spanned;

use super::templates::Templates;
use crate::config::pattern::Pattern;
use crate::config::raw::{Node, Properties, RawRule, Table};
use crate::config::read::Reader;
use crate::config::template::Name;
use crate::config::{Accepted, Action, Columns, Condition, Rule, ValueForm};

pub(super) fn rules(reader: &mut Reader<'_>, raw: Vec<Table<RawRule>>, columns: &Columns) -> Vec<Rule> {
    raw.into_iter().filter_map(|Table(raw)| rule(reader, raw, columns)).collect()
}

fn rule(reader: &mut Reader<'_>, raw: RawRule, columns: &Columns) -> Option<Rule> {
    let Some(conditions) = raw.conditions else {
        let place = [&raw.topic, &raw.partition, &raw.value, &raw.drop];
        let span = place.into_iter().flatten().map(Spanned::span).next().unwrap_or(0..0);
        let remedy = "Select events: match = { event_type = \"OrderPlaced\" }";
        reader.problem(&span, "route.rules.match", "a rule without it would match every event", remedy);
        return None;
    };
    let span = conditions.span();
    let mut found = Vec::new();
    collect(reader, "", conditions.into_inner(), columns, &mut found);
    if found.is_empty() {
        let remedy = "Name a value and what it must be: { event_type = \"OrderPlaced\" }";
        reader.problem(&span, "route.rules.match", "it has no conditions", remedy);
    }
    let groups = groups(&found);
    let drop_span = raw.drop.as_ref().map(Spanned::span);
    let drops = reader.switch("route.rules.drop", raw.drop).unwrap_or(false);
    let makes_something =
        raw.topic.is_some() || raw.partition.is_some() || raw.value.is_some() || !raw.headers.0.is_empty();
    match (drops, makes_something) {
        (true, true) => {
            let span = drop_span.unwrap_or(span);
            let what = "a dropped event has no topic, partition, headers or value";
            reader.problem(&span, "route.rules.drop", what, "Remove either `drop` or the others");
        }
        (false, false) => {
            let what = "the rule changes nothing";
            let remedy = "Set its topic, partition, headers or value, or drop = true";
            reader.problem(&span, "route.rules", what, remedy);
        }
        _ => {}
    }
    let action = if drops {
        Action::Drop
    } else {
        let mut templates = Templates { reader, columns, groups: &groups };
        Action::Route {
            topic: templates.topic("route.rules.topic", raw.topic),
            partition: templates.partition("route.rules.partition", raw.partition),
            headers: templates.headers("route.rules.headers", raw.headers.0),
            value: reader.choice("route.rules.value", raw.value, &ValueForm::ALL),
        }
    };
    Some(Rule { conditions: found, action })
}

/// Collects the entries of `match`; a dotted name is a nested table.
fn collect(
    reader: &mut Reader<'_>,
    prefix: &str,
    entries: Properties,
    columns: &Columns,
    found: &mut Vec<Condition>,
) {
    for (key, value) in entries {
        let name = format!("{prefix}{}", key.get_ref());
        let full = format!("route.rules.match.{name}");
        let span = value.span();
        let items = match value.into_inner() {
            Node::Table(members) => {
                collect(reader, &format!("{name}."), members, columns, found);
                continue;
            }
            Node::Array(items) => items,
            node => vec![Spanned::new(span.clone(), node)],
        };
        if items.is_empty() {
            reader.problem(&span, &full, "an empty array matches nothing", ACCEPTED_FORM);
        }
        let any_of: Vec<Accepted> =
            items.into_iter().filter_map(|item| accepted(reader, &full, item)).collect();
        match Name::parse(&name) {
            Ok(Name::Header(_)) if columns.headers.is_none() => {
                let what = "`outbox.columns` switches the headers column off";
                reader.problem(&span, &full, what, "Name a column of the table");
            }
            Ok(name @ (Name::Column(_) | Name::OwnColumn(_) | Name::Header(_) | Name::Source(_))) => {
                found.push(Condition { name, any_of });
            }
            Ok(Name::Match(_)) => {
                reader.problem(&span, &full, "it is not a value of the event", "Name a column of the table");
            }
            Err(error) => reader.problem(&span, &full, error.to_string(), "Name a column of the table"),
        }
    }
}

const ACCEPTED_FORM: &str = "Write a text, \"/a regular expression/\", false for NULL, or an array of those";

fn accepted(reader: &mut Reader<'_>, key: &str, item: Spanned<Node>) -> Option<Accepted> {
    let span = item.span();
    let text = match item.into_inner() {
        Node::Boolean(false) => return Some(Accepted::Null),
        Node::Text(text) => text,
        Node::Integer(number) => number.to_string(),
        _ => {
            reader.problem(&span, key, "a value of this type cannot be matched", ACCEPTED_FORM);
            return None;
        }
    };
    let pattern = Pattern::parse(&text);
    let pattern = pattern.map_err(|what| reader.problem(&span, key, what, "Correct the expression"));
    pattern.ok().map(Accepted::Text)
}

/// The groups that `${match.x}` can name: named ones, and numbers if there is only one expression.
fn groups(conditions: &[Condition]) -> Vec<String> {
    let patterns = conditions.iter().flat_map(|condition| &condition.any_of);
    let expressions: Vec<_> = patterns
        .filter_map(|accepted| match accepted {
            Accepted::Text(pattern) => pattern.regex(),
            Accepted::Null => None,
        })
        .collect();
    let mut groups: Vec<String> = match expressions.as_slice() {
        [only] => (0..only.captures_len()).map(|number| number.to_string()).collect(),
        _ => Vec::new(),
    };
    for name in expressions.iter().flat_map(|expression| expression.capture_names().flatten()) {
        if !groups.iter().any(|known| known == name) {
            groups.push(name.to_owned());
        }
    }
    groups
}
