//! Whether the router may write to the topics of its routes: to none that `[topics] allow` does not name, and never to the positions
//! topic. It stops at an event for any other topic.

use std::borrow::Cow;

use super::finding::Findings;
use super::outbox::OutboxFacts;
use crate::config::pattern::Pattern;
use crate::config::template::{Name, Part, Template};
use crate::config::{Config, filters};
use crate::error::ErrorCode;
use crate::outbox::Field;
use crate::routing::field;

pub(super) fn check(config: &Config, outbox: Option<&OutboxFacts>, findings: &mut Findings) {
    let mut undecided = false;
    for template in config.route.topics() {
        // one without values was compared when the configuration was loaded
        if may_be_written(config, template) {
            undecided = true;
            continue;
        }
        findings.error(
            "topics",
            ErrorCode::EventUnroutable,
            format!(
                "`[topics] allow` does not name any topic of {template}: the router stops at its first event"
            ),
            "Add it, or correct the topic in `[route]` and its rules",
        );
    }
    // a rule may send the events elsewhere, or drop them
    let Some(outbox) = outbox.filter(|_| undecided && config.route.rules.is_empty()) else { return };
    for aggregate_type in &outbox.aggregate_types {
        let Some(topic) = topic_of(config, aggregate_type) else { return };
        if config.delivery.positions_topic.as_ref() == Some(&topic) {
            findings.error(
                "positions_topic",
                ErrorCode::EventUnroutable,
                format!(
                    "{topic} is the positions topic, and would have events too: the router stops at an event of {aggregate_type:?}"
                ),
                "Correct the topic in `[route]` and its rules. Before the first start you can name another `[delivery] \
                 positions_topic` instead; later the router would not find its checkpoint",
            );
        } else if !config.topics.allows(&topic) {
            findings.error(
                "topics",
                ErrorCode::EventUnroutable,
                format!(
                    "`[topics] allow` does not name {topic}, and the table has events of {aggregate_type:?} for it: the router stops at \
                     such an event"
                ),
                "Add it, or correct `[route] topic`",
            );
        }
    }
}

/// Whether a topic of this template may be allowed. A regular expression may match anything.
pub(super) fn may_be_written(config: &Config, template: &Template) -> bool {
    let allowed = &config.topics.allow;
    let may_match = |pattern: &Pattern| match (template.fixed(), pattern.to_string()) {
        (Some(fixed), _) => pattern.matches(fixed) == Ok(true),
        (None, written) => {
            written.starts_with('/') || have_common_text(&of_template(template), &of_pattern(&written))
        }
    };
    allowed.is_empty() || allowed.iter().any(may_match)
}

/// The topic of an aggregate type, if nothing else of the event decides it.
fn topic_of(config: &Config, aggregate_type: &str) -> Option<String> {
    let mut topic = String::new();
    for part in config.route.topic.parts() {
        match part {
            Part::Text(text) => topic += text,
            Part::Value(value) => {
                let of_type = matches!(&value.name, Name::Column(name) if field(name, &config.outbox.columns) == Some(Field::AggregateType));
                topic += &filters::apply(&value.filters, Some(Cow::Borrowed(aggregate_type)))
                    .filter(|_| of_type)?;
            }
        }
    }
    Some(topic)
}

/// A character, or any text (`None`).
type Token = Option<char>;

fn of_template(template: &Template) -> Vec<Token> {
    let parts = template.parts().iter().map(|part| match part {
        Part::Text(text) => text.chars().map(Some).collect(),
        Part::Value(_) => vec![None],
    });
    parts.collect::<Vec<_>>().concat()
}

fn of_pattern(written: &str) -> Vec<Token> {
    written.chars().map(|character| Some(character).filter(|character| *character != '*')).collect()
}

/// Whether a text exists that both match.
fn have_common_text(one: &[Token], other: &[Token]) -> bool {
    // whether the rest of `one` from here has a text in common with each rest of `other`, from its end to its start
    let ends = |rest: &[Token]| rest.iter().all(Option::is_none);
    let rests = |tokens: &[Token]| {
        (0..=tokens.len())
            .rev()
            .map(|from| tokens.get(from..).unwrap_or_default().to_vec())
            .collect::<Vec<_>>()
    };
    let others = rests(other);
    let mut below: Vec<bool> = others.iter().map(|rest| ends(rest)).collect();
    for token in one.iter().rev() {
        let mut row: Vec<bool> = Vec::with_capacity(below.len());
        for (index, rest) in others.iter().enumerate() {
            let shorter = index.checked_sub(1);
            let at = |row: &[bool]| shorter.and_then(|shorter| row.get(shorter)).copied().unwrap_or(false);
            let skip_one = below.get(index).copied().unwrap_or(false);
            let common = match (token, rest.first()) {
                (None, _) => skip_one || at(&row),
                (Some(_), None) => false,
                (Some(_), Some(None)) => at(&row) || skip_one,
                (Some(one), Some(Some(other))) => one == other && at(&below),
            };
            row.push(common);
        }
        below = row;
    }
    below.last().copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_and_a_pattern_have_a_topic_in_common_or_not() {
        for (template, pattern, common) in [
            ("outbox.event.${aggregate_type}", "outbox.event.*", true),
            ("outbox.event.${aggregate_type}", "outbox.event.order", true),
            ("outbox.event.${aggregate_type}", "*", true),
            ("outbox.event.${aggregate_type}", "*.order", true),
            ("outbox.event.${aggregate_type}", "orders", false),
            ("outbox.event.${aggregate_type}", "outbox.events.*", false),
            ("${region}.${aggregate_type}.v1", "eu.*.v1", true),
            ("${region}.${aggregate_type}.v1", "*.v2", false),
            ("${aggregate_type}.v1", "*.v1.*", true),
            ("a${aggregate_type}b", "a", false),
            ("a${aggregate_type}b", "ab", true),
        ] {
            let template = Template::parse(template).unwrap();
            assert_eq!(
                have_common_text(&of_template(&template), &of_pattern(pattern)),
                common,
                "{template} {pattern}"
            );
        }
    }
}
