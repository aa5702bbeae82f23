//! The topic of an event type, as far as it follows from the configuration.

use std::borrow::Cow;

use super::row::field;
use crate::config::template::{Name, Part, Template};
use crate::config::{Columns, filters};
use crate::contracts::{Contract, Topic};
use crate::outbox::Field;

/// The topic for events of `contract`: its `x-topic`, or the result of `template` (`[route] topic`) for its types.
pub fn contract_topic(contract: &Contract, template: &Template, columns: &Columns) -> Topic {
    match &contract.facts.topic {
        Some(topic) => Topic { address: topic.clone(), parameters: Vec::new() },
        None => rendered(template, columns, &contract.aggregate_type, &contract.event_type),
    }
}

fn rendered(template: &Template, columns: &Columns, aggregate_type: &str, event_type: &str) -> Topic {
    let mut topic = Topic { address: String::new(), parameters: Vec::new() };
    for part in template.parts() {
        let value = match part {
            Part::Text(text) => {
                topic.address.push_str(text);
                continue;
            }
            Part::Value(value) => value,
        };
        let known = match &value.name {
            Name::Column(name) => match field(name, columns) {
                Some(Field::AggregateType) => Some(aggregate_type),
                Some(Field::EventType) => Some(event_type),
                _ => None,
            },
            Name::OwnColumn(_) | Name::Header(_) | Name::Source(_) | Name::Match(_) => None,
        };
        if let Some(known) =
            filters::apply(&value.filters, known.map(Cow::Borrowed)).filter(|_| known.is_some())
        {
            topic.address.push_str(&known);
            continue;
        }
        let (name, meaning) = match &value.name {
            Name::Column(name) | Name::OwnColumn(name) => {
                (name.clone(), format!("Made of the column {name}"))
            }
            Name::Match(group) => (format!("match.{group}"), "Made by a rule's pattern".to_owned()),
            Name::Header(name) => {
                (format!("headers.{name}"), format!("Made of the member {name} of the headers column"))
            }
            Name::Source(source) => {
                (format!("source.{}", source.key()), "Made of the event's place in the log".to_owned())
            }
        };
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        topic.address.push_str(&format!("{{{name}}}"));
        if !topic.parameters.iter().any(|(known, _)| *known == name) {
            topic.parameters.push((name, meaning));
        }
    }
    topic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_a_parameter() {
        for (template, address, parameters) in [
            ("outbox.event.${aggregate_type}", "outbox.event.PurchaseOrder", vec![]),
            ("${aggregate_type | kebab}.${event_type | lower}", "purchase-order.orderplaced", vec![]),
            (
                "${headers.region | default('eu')}.${tenant}.${tenant}.${source.schema}",
                "{headers_region}.{tenant}.{tenant}.{source_schema}",
                vec!["headers_region", "tenant", "source_schema"],
            ),
        ] {
            let template = Template::parse(template).unwrap();
            let topic = rendered(&template, &Columns::default(), "PurchaseOrder", "OrderPlaced");
            assert_eq!(topic.address, address);
            let names: Vec<_> = topic.parameters.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, parameters);
        }
    }
}
