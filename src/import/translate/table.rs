//! Which tables are outboxes, judged by the connector's filters and the predicate of the outbox event router.

use super::transforms::{Chain, Predicate, Topic};
use super::{Translation, comment};
use crate::import::findings::Level;
use crate::import::settings::Setting;
use crate::import::write::{Section, one_or_list};

/// Writes `[outbox] table`, and returns the topics of these tables.
pub(super) fn translate(translation: &mut Translation, chain: &Chain) -> Vec<Topic> {
    // Debezium 1 had other names for the first two
    let prefix =
        translation.take_any("topic.prefix").or_else(|| translation.take_any("database.server.name"));
    let include =
        translation.take_any("table.include.list").or_else(|| translation.take_any("table.whitelist"));
    let delimiter = translation.take_any("topic.delimiter").map_or(".".to_owned(), |setting| setting.value);
    let prefix = format!("{}{delimiter}", prefix.map(|prefix| prefix.value).unwrap_or_default());
    let topic = |(schema, table): &(String, String)| format!("{prefix}{schema}{delimiter}{table}");

    let (named, patterns) = include.as_ref().map(|include| tables(&include.value)).unwrap_or_default();
    let predicate = chain.router.predicate.as_ref();
    let (outboxes, others): (Vec<_>, Vec<_>) = named.into_iter().partition(|table| match predicate {
        Some(predicate) => predicate.takes(&topic(table)).unwrap_or(true),
        None => true,
    });
    let (outboxes, from) = match (outboxes.is_empty(), predicate) {
        (true, Some(predicate)) => (by_predicate(predicate, &prefix, &delimiter), Some(&predicate.setting)),
        _ => (outboxes, include.as_ref()),
    };
    if let Some(predicate) = predicate
        && let Err(reason) = &predicate.topics
    {
        let meaning =
            format!("It does not tell which tables are outboxes: {reason}. Correct `table` in [outbox]");
        translation.find(Level::ToDo, &predicate.setting, meaning);
    }
    if !patterns.is_empty() {
        let meaning = format!(
            "The router takes names, no patterns: name the tables that {} stands for in `table` in [outbox]",
            patterns.join(", ")
        );
        if let Some(include) = &include {
            translation.find(Level::ToDo, include, meaning);
        }
    }
    if let (false, Some(include)) = (others.is_empty(), &include) {
        let others: Vec<String> = others.iter().map(|(schema, table)| format!("{schema}.{table}")).collect();
        let meaning = format!(
            "The connector also sends change events of {}; the router does not. Keep a connector for them, \
             and a slot for each of the two: this slot cannot be taken over while it is needed for both",
            others.join(", ")
        );
        translation.find(Level::NoEquivalent, include, meaning);
    }
    write(translation, &outboxes, from, predicate.is_some() && include.is_none());
    filters(translation, !outboxes.is_empty());
    outboxes.iter().map(topic).collect()
}

fn write(
    translation: &mut Translation,
    outboxes: &[(String, String)],
    from: Option<&Setting>,
    captures_more: bool,
) {
    let captured = from;
    let (names, from) = match from {
        Some(from) if !outboxes.is_empty() => (outboxes.iter().map(as_sql).collect(), comment(from)),
        _ => {
            translation.find_unset(
                Level::ToDo,
                "table.include.list",
                "The file does not name the outbox table; the configuration has the default, public.outbox: \
                 correct it",
            );
            (vec!["public.outbox".to_owned()], "not named by the connector".to_owned())
        }
    };
    translation.document.set(Section::Outbox, "table", one_or_list(&names), from);
    if captures_more {
        translation.find_unset(
            Level::NoEquivalent,
            "table.include.list",
            "The connector sends change events of every other table too; the router does not. Unless nobody \
             reads them, keep a connector for them, and a slot for each of the two: this slot cannot be \
             taken over while it is needed for both",
        );
    }
    if let Some(from) = captured
        && outboxes.iter().any(|(schema, table)| format!("{schema}{table}").contains(char::is_uppercase))
    {
        translation.find(
            Level::Note,
            from,
            "Debezium ignores the case of table names, the router does not: make sure that `table` in [outbox] \
             is written as in the database",
        );
    }
}

/// Once the tables are named, the other filters no longer matter.
fn filters(translation: &mut Translation, named: bool) {
    for name in ["schema.include.list", "schema.exclude.list", "table.exclude.list", "table.ignore.builtin"] {
        let Some(setting) = translation.settings.take(name) else { continue };
        let (level, meaning) = match named {
            true => (Level::Ignored, "Only concerns other tables than those that are named"),
            false => (
                Level::ToDo,
                "The router takes names, no filters: name the outbox table as `table` in [outbox]",
            ),
        };
        translation.find(level, &setting, meaning);
    }
}

/// The tables whose topics the pattern names literally.
fn by_predicate(predicate: &Predicate, prefix: &str, delimiter: &str) -> Vec<(String, String)> {
    let Ok((pattern, _)) = &predicate.topics else { return Vec::new() };
    if predicate.negated {
        return Vec::new();
    }
    let topics = alternatives(pattern).into_iter().filter_map(|pattern| literal(&pattern));
    let table = |topic: String| {
        let (schema, table) = topic.strip_prefix(prefix)?.split_once(delimiter)?;
        (!schema.is_empty() && !table.contains(delimiter)).then(|| (schema.to_owned(), table.to_owned()))
    };
    topics.filter_map(table).collect()
}

/// Splits a list of expressions into those that name a table literally, and the others.
fn tables(list: &str) -> (Vec<(String, String)>, Vec<String>) {
    let mut named = Vec::new();
    let mut patterns = Vec::new();
    for member in split(list) {
        let spelled: Option<Vec<_>> = alternatives(&member).iter().map(|one| table(&literal(one)?)).collect();
        match spelled {
            Some(tables) => named.extend(tables),
            None => patterns.push(member),
        }
    }
    named.dedup();
    (named, patterns)
}

fn table(name: &str) -> Option<(String, String)> {
    let (schema, table) = name.split_once('.')?;
    let whole = !schema.is_empty() && !table.is_empty() && !table.contains('.');
    whole.then(|| (schema.to_owned(), table.to_owned()))
}

/// Splits at commas that are not escaped.
fn split(list: &str) -> Vec<String> {
    let mut members = vec![String::new()];
    let mut escaped = false;
    for character in list.chars() {
        match members.last_mut() {
            Some(_) if character == ',' && !escaped => members.push(String::new()),
            Some(member) => member.push(character),
            None => {}
        }
        escaped = character == '\\' && !escaped;
    }
    members.into_iter().map(|member| member.trim().to_owned()).filter(|member| !member.is_empty()).collect()
}

/// Expands `a(b|c)d` to `abd` and `acd`; anything else stays as it is.
fn alternatives(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('(') else {
        return pattern.split('|').map(str::to_owned).collect();
    };
    match rest.split_once(')') {
        Some((inside, after)) if !after.starts_with(['*', '+', '?', '{']) && !inside.contains('(') => {
            let inside = inside.strip_prefix("?:").unwrap_or(inside);
            inside.split('|').flat_map(|one| alternatives(&format!("{before}{one}{after}"))).collect()
        }
        _ => vec![pattern.to_owned()],
    }
}

/// The only text that an expression is meant to match: an unescaped dot counts as a dot.
fn literal(pattern: &str) -> Option<String> {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let pattern = pattern.strip_suffix('$').unwrap_or(pattern);
    let mut text = String::new();
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        match character {
            '\\' => text.push(rest.next().filter(|c| !c.is_alphanumeric())?),
            '[' if rest.as_str().starts_with(".]") => {
                text.push('.');
                rest = rest.as_str().get(2..).unwrap_or_default().chars();
            }
            '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => return None,
            other => text.push(other),
        }
    }
    Some(text)
}

/// The table's name for `[outbox] table`.
fn as_sql((schema, table): &(String, String)) -> String {
    let quote = |name: &String| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit()) {
            return name.clone();
        }
        format!("\"{}\"", name.replace('"', "\"\""))
    };
    format!("{}.{}", quote(schema), quote(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(schema: &str, table: &str) -> (String, String) {
        (schema.to_owned(), table.to_owned())
    }

    #[test]
    fn names_are_told_from_patterns() {
        let (named, patterns) = tables(
            r"public.outbox, shop\.outbox,^a[.]b$, c.(d|e), f\.outbox.*, .*\.outbox, g, h.i.j, k\.(l)+",
        );
        let names = [
            pair("public", "outbox"),
            pair("shop", "outbox"),
            pair("a", "b"),
            pair("c", "d"),
            pair("c", "e"),
        ];
        assert_eq!(named, names);
        assert_eq!(patterns, [r"f\.outbox.*", r".*\.outbox", "g", "h.i.j", r"k\.(l)+"]);
    }

    #[test]
    fn a_comma_may_be_escaped() {
        assert_eq!(split(r"a\,b, c"), [r"a\,b", "c"]);
    }

    #[test]
    fn names_are_quoted_as_sql_needs_it() {
        assert_eq!(as_sql(&pair("public", "outbox")), "public.outbox");
        assert_eq!(as_sql(&pair("Shop", "out-box")), r#""Shop"."out-box""#);
    }
}
