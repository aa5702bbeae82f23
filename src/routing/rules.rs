//! Applies `[[route.rules]]`: the first rule whose conditions all hold decides.

use std::borrow::Cow;

use super::captures::Captures;
use super::row::{Binder, Place, Row};
use super::template::Bound;
use super::unroutable::{Purpose, Unroutable};
use crate::config::pattern::BacktrackLimitExceeded;
use crate::config::template::{Name, Template};
use crate::config::{Accepted, Action, NamedTemplate, Rule, ValueForm};
use crate::outbox::IN_ROUTE_RULES;

/// A rule whose names are resolved.
#[derive(Debug)]
pub(super) struct BoundRule {
    conditions: Vec<(Name, Place, Vec<Accepted>)>,
    /// Whether its templates refer to groups, so that these have to be captured.
    wants_captures: bool,
    /// `None`: the event is dropped.
    pub(super) parts: Option<Parts>,
}

/// The parts that override those of `[route]`.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) topic: Option<Bound>,
    pub(super) partition: Option<Bound>,
    pub(super) headers: Vec<(String, Bound)>,
    pub(super) value: Option<ValueForm>,
}

impl BoundRule {
    pub(super) fn new(rule: &Rule, binder: &mut Binder<'_>) -> Self {
        (binder.key, binder.optional) = (IN_ROUTE_RULES, false);
        let conditions = rule.conditions.iter();
        let conditions = conditions
            .map(|condition| {
                (condition.name.clone(), binder.place(&condition.name), condition.any_of.clone())
            })
            .collect();
        let (parts, wants_captures) = match &rule.action {
            Action::Drop => (None, false),
            Action::Route { topic, partition, headers, value } => {
                let templates = topic.iter().chain(partition);
                let mut templates = templates.chain(headers.iter().map(|header| &header.value));
                let wants_captures = templates.any(uses_groups);
                let mut bind = |template: &Template| Bound::new(template, binder);
                let parts = Parts {
                    topic: topic.as_ref().map(&mut bind),
                    partition: partition.as_ref().map(&mut bind),
                    headers: headers
                        .iter()
                        .map(|NamedTemplate { name, value }| (name.clone(), bind(value)))
                        .collect(),
                    value: *value,
                };
                (Some(parts), wants_captures)
            }
        };
        BoundRule { conditions, wants_captures, parts }
    }

    /// Whether all conditions hold. If so, and if the rule needs them, `captures` holds what the groups matched.
    pub(super) fn matches(&self, row: &Row<'_, '_>, captures: &mut Captures) -> Result<bool, Unroutable> {
        captures.clear();
        for (name, place, any_of) in &self.conditions {
            let value = row.value(*place, name).map_err(|reason| Unroutable::NoValue {
                purpose: Purpose::Condition,
                name: name.to_string(),
                reason,
            })?;
            let mut holds = false;
            for accepted in any_of {
                if self.accepts(accepted, value.as_ref(), name, captures)? {
                    holds = true;
                    break;
                }
            }
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn accepts(
        &self,
        accepted: &Accepted,
        value: Option<&Cow<'_, str>>,
        name: &Name,
        captures: &mut Captures,
    ) -> Result<bool, Unroutable> {
        let (pattern, text) = match (accepted, value) {
            (Accepted::Null, value) => return Ok(value.is_none()),
            (Accepted::Text(_), None) => return Ok(false),
            (Accepted::Text(pattern), Some(text)) => (pattern, text.as_ref()),
        };
        let too_hard =
            || Unroutable::BacktrackLimitExceeded { pattern: pattern.to_string(), name: name.to_string() };
        let Some(regex) = pattern.regex().filter(|_| self.wants_captures) else {
            return pattern.matches(text).map_err(|BacktrackLimitExceeded| too_hard());
        };
        let Some(found) = regex.captures(text).map_err(|_| too_hard())? else { return Ok(false) };
        for (number, group) in regex.capture_names().enumerate() {
            let matched = || found.get(number).map(|matched| matched.as_str().to_owned());
            captures.add(number.to_string(), matched());
            if let Some(group) = group {
                captures.add(group.to_owned(), matched());
            }
        }
        Ok(true)
    }
}

fn uses_groups(template: &Template) -> bool {
    template.values().any(|value| matches!(value.name, Name::Match(_)))
}
