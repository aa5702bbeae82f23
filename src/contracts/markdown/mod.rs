//! Contracts as pages for people: what an event contains, how it may change, and what consumers can rely on.

mod table;

use std::fmt::Write;

use serde_json::Value;

use super::topic::Topic;
use super::{Contract, Contracts, Rule};
use table::{Table, code, escaped};

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Relative to the directory of the pages, with `/` between its parts.
    pub path: String,
    /// Markdown.
    pub text: String,
}

/// The beginning of every page, by which the program recognizes its own pages.
pub const MARK: &str = "<!-- Made by `outbox-router contracts docs`: change the contract, not this page. -->";

/// A page for each contract, `<aggregate>/<event>.md`, and `README.md`, which lists them.
pub fn pages(contracts: &Contracts, topic: impl Fn(&Contract) -> Topic) -> Vec<Page> {
    let mut pages = vec![Page { path: "README.md".to_owned(), text: index(contracts, &topic) }];
    pages.extend(contracts.iter().map(|contract| Page {
        path: format!("{}.md", contract.name()),
        text: page(contracts, contract, &topic(contract)),
    }));
    pages
}

fn index(contracts: &Contracts, topic: &impl Fn(&Contract) -> Topic) -> String {
    let mut text =
        format!("{MARK}\n\n# Events\n\n| event | topic | owner | what happened |\n|---|---|---|---|\n");
    for contract in contracts.iter() {
        let facts = &contract.facts;
        let link = format!("{}.md", contract.name()).replace(' ', "%20");
        let deprecated = if facts.deprecated { " (deprecated)" } else { "" };
        let what = facts.title.as_deref().or_else(|| first_sentence(facts.description.as_deref()?));
        let line = format!(
            "| [{}]({link}){deprecated} | {} | {} | {} |\n",
            escaped(&contract.name()),
            code(&topic(contract).address),
            escaped(facts.owner.as_deref().unwrap_or_default()),
            escaped(what.unwrap_or_default()),
        );
        text.push_str(&line);
    }
    text
}

fn first_sentence(text: &str) -> Option<&str> {
    text.split_inclusive(". ").next().map(|sentence| sentence.trim_end().trim_end_matches('.'))
}

fn page(contracts: &Contracts, contract: &Contract, topic: &Topic) -> String {
    let facts = &contract.facts;
    let mut text = format!("{MARK}\n\n# {}\n", escaped(&contract.event_type));
    // writing to a String cannot fail
    let mut paragraph = |line: &str| {
        let _ = write!(text, "\n{line}\n");
    };
    if facts.deprecated {
        paragraph("**Deprecated**: this event will be removed.");
    }
    if let Some(title) = &facts.title {
        paragraph(&format!("**{}**", escaped(title)));
    }
    if let Some(description) = &facts.description {
        paragraph(description.trim());
    }
    paragraph(&about(contract, topic));
    paragraph("## Payload");
    if let Some(root) = contracts.root(contract) {
        let table = Table::of(root);
        paragraph(&table.sentence);
        if !table.rows.is_empty() {
            paragraph(table.to_string().trim_end());
        }
    }
    for (number, example) in facts.examples.iter().enumerate() {
        if number == 0 {
            paragraph(if facts.examples.len() == 1 { "## Example" } else { "## Examples" });
        }
        paragraph(&format!("```json\n{}\n```", pretty(example)));
    }
    paragraph("## What consumers may expect");
    paragraph(&expectations(contracts, contract));
    paragraph("## How it may change");
    paragraph(changes(contract.rule()));
    text
}

fn about(contract: &Contract, topic: &Topic) -> String {
    let facts = &contract.facts;
    let keys: Vec<String> = facts.idempotency_key.iter().map(|pointer| property(pointer)).collect();
    let key = match &facts.ordering_key {
        Some(pointer) => format!("the aggregate's id, which is {} too", property(pointer)),
        None => "the aggregate's id".to_owned(),
    };
    let mut rows = vec![
        ("aggregate", code(&contract.aggregate_type)),
        ("topic", code(&topic.address)),
        ("header `type`", code(&contract.event_type)),
        ("key of the record", key),
    ];
    if !keys.is_empty() {
        rows.push(("idempotency key", keys.join(", ")));
    }
    rows.push(("owner", facts.owner.as_deref().map_or("not named".to_owned(), escaped)));
    rows.push(("compatibility", contract.rule().word().to_owned()));
    rows.push(("contract", code(&contract.path)));
    let lines = rows.iter().map(|(name, value)| format!("| {name} | {value} |"));
    ["| | |".to_owned(), "|---|---|".to_owned()].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

/// `/order/id` as the payload's table writes it.
fn property(pointer: &str) -> String {
    code(&super::keywords::names(pointer).collect::<Vec<_>>().join("."))
}

fn expectations(contracts: &Contracts, contract: &Contract) -> String {
    let facts = &contract.facts;
    let mut points = vec![
        "At least once: after a crash an event can arrive again. The header `id` is the same each time; a consumer \
         that must not act twice remembers it in the transaction that does its work."
            .to_owned(),
    ];
    if !facts.idempotency_key.is_empty() {
        let keys: Vec<String> = facts.idempotency_key.iter().map(|pointer| property(pointer)).collect();
        points.push(format!(
            "{} {} one occurrence: another {} with the same values is a repetition, even under another `id`.",
            keys.join(" and "),
            if keys.len() == 1 { "names" } else { "name together" },
            escaped(&contract.event_type)
        ));
    }
    let by = match &facts.ordering_key {
        Some(pointer) => format!("with the same {}", property(pointer)),
        None => "of one aggregate".to_owned(),
    };
    points.push(format!(
        "In order: events {by} have one key, so one partition, and stand there as they were committed. Between others \
         there is no order."
    ));
    if contracts.root(contract).is_some_and(table::takes_null) {
        points.push("The value may be null: in a compacted topic that removes the key.".to_owned());
    }
    points.extend(facts.guarantees.iter().map(|sentence| sentence.trim().to_owned()));
    points.iter().map(|point| format!("- {point}")).collect::<Vec<_>>().join("\n")
}

fn changes(rule: Rule) -> &'static str {
    match rule {
        Rule::Backward => {
            "Compatibility is `backward`: a consumer that was built for the present contract also reads events that were \
             written by its former version. Consumers are upgraded before the producer."
        }
        Rule::Forward => {
            "Compatibility is `forward`: a consumer that was built for the former version of the contract reads events \
             that are written by the present one. Consumers ignore properties that they do not know, and are renewed \
             after the producer."
        }
        Rule::Full => {
            "Compatibility is `full`: a consumer that was built for the former version of the contract reads events that \
             are written by the present one, and the other way round. Consumers ignore properties that they do not know; \
             producer and consumers are renewed in any order."
        }
        Rule::None => {
            "Compatibility is `none`: a new version may break its consumers. They have to be upgraded together with the \
             producer."
        }
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
