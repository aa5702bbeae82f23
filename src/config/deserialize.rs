//! Reads the keys out of the parsed file and environment, and reports those that are unknown.

use std::ops::Range;

use pg_logical::conninfo::nearest;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, ValueDeserializer};

use super::environment::PREFIX;
use super::raw::{RawConfig, TABLE, TABLES};
use super::source::{Problems, Sources};

/// How many unknown keys are found. Each of them takes as much time as the whole file.
const UNKNOWN_KEYS: usize = 20;

/// Deserializes the tree. Each unknown key is reported and removed, and the rest is deserialized again, so that they are found at
/// once. `None`: there are too many.
pub(super) fn deserialize<'i>(
    mut root: Spanned<DeTable<'i>>,
    sources: &Sources<'i>,
    problems: &mut Problems,
) -> Option<RawConfig> {
    for found in 0.. {
        let tree = Spanned::new(root.span(), DeValue::Table(root.get_ref().clone()));
        let error = match RawConfig::deserialize(ValueDeserializer::from(tree)) {
            Ok(raw) => return Some(raw),
            Err(error) => error,
        };
        let span = error.span().unwrap_or(0..0);
        if found == UNKNOWN_KEYS {
            let what = "more keys are unknown or have a value of the wrong type";
            problems.push(
                sources.place(&span),
                what,
                "Is this the router's configuration? If so, correct the others first",
            );
            break;
        }
        let removed = remove(root.get_mut(), &span);
        let path = removed.as_deref().unwrap_or_default();
        if let Some(known) = known_keys(error.message()) {
            problems.push(sources.place(&span), unknown_key(path), suggestion(path, &known, sources, &span));
        } else {
            // serde's message would repeat the value, which may be a secret
            let what = format!("`{}` has a value of the wrong type", path.join("."));
            let remedy = match error.message() {
                message if message.ends_with(TABLE) => "Write a table of keys and values",
                message if message.ends_with(TABLES) => {
                    "Write an array of tables, each under a heading in double brackets"
                }
                _ => "Write it as a text in quotes",
            };
            problems.push(sources.place(&span), what, remedy);
        }
        if removed.is_none() {
            return Some(RawConfig::default());
        }
    }
    None
}

/// The expected keys, from serde's message "unknown field `a`, expected one of `b`, `c`".
pub(super) fn known_keys(message: &str) -> Option<Vec<&str>> {
    let known = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2).skip(1);
    Some(known.collect())
}

fn unknown_key(path: &[String]) -> String {
    match path {
        [section @ .., key] if !section.is_empty() => {
            format!("unknown key `{key}` in [{}]", section.join("."))
        }
        path => format!("unknown key `{}`", path.join(".")),
    }
}

fn suggestion(path: &[String], known: &[&str], sources: &Sources<'_>, span: &Range<usize>) -> String {
    let (key, section) = path.split_last().map_or(("", path), |(key, section)| (key.as_str(), section));
    let variable = |keys: &[&str]| format!("{PREFIX}{}", keys.join("__").to_ascii_uppercase());
    let nearest = nearest(key, known.iter().copied());
    if sources.is_variable(span) {
        let mut keys: Vec<&str> = section.iter().map(String::as_str).collect();
        // POSTGRES_URL for POSTGRES__URL
        let split = known.iter().find_map(|name| Some((*name, key.strip_prefix(name)?.strip_prefix('_')?)));
        if let Some((name, rest)) = split {
            keys.extend([name, rest]);
            return format!("Levels are separated by two underscores: did you mean {}?", variable(&keys));
        }
        if let Some(name) = nearest {
            keys.push(name);
            return format!("Did you mean {}?", variable(&keys));
        }
    }
    match nearest {
        Some(name) => format!("Did you mean `{name}`?"),
        None => format!("Known keys: {}", known.join(", ")),
    }
}

/// Removes the entry whose key or value is at `span`, and returns its path.
fn remove(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<Vec<String>> {
    let found = table.iter().find(|(key, value)| key.span() == *span || value.span() == *span);
    if let Some(key) = found.map(|(key, _)| key.get_ref().to_string()) {
        table.remove(key.as_str());
        return Some(vec![key]);
    }
    table.iter_mut().find_map(|(key, value)| {
        let mut path = match value.get_mut() {
            DeValue::Table(inner) => remove(inner, span)?,
            DeValue::Array(items) => remove_in_array(items, span)?,
            _ => return None,
        };
        path.insert(0, key.get_ref().to_string());
        Some(path)
    })
}

/// The same in an array of tables such as `[[route.rules]]`.
fn remove_in_array(items: &mut DeArray<'_>, span: &Range<usize>) -> Option<Vec<String>> {
    if items.iter().any(|item| item.span() == *span) {
        let kept = std::mem::replace(items, DeArray::new()).into_iter().filter(|item| item.span() != *span);
        *items = kept.collect();
        return Some(Vec::new());
    }
    items.iter_mut().find_map(|item| match item.get_mut() {
        DeValue::Table(inner) => remove(inner, span),
        _ => None,
    })
}
