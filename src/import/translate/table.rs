//! Which tables are outboxes, judged by the connector's filters and the predicate of the outbox event router.

use super::transforms::{Chain, Predicate, Topic};
use super::{Translation, comment};
use crate::import::findings::Level;
use crate::import::java::Expression;
use crate::import::settings::Setting;
use crate::import::write::{Section, one_or_list};

/// Schema and name.
pub(super) type Table = (String, String);

/// The outbox tables as far as the connector's file names them.
#[derive(Default)]
pub(super) struct Outboxes {
    pub(super) named: Vec<Table>,
    /// Expressions that cannot be turned into names.
    pub(super) patterns: Vec<String>,
    /// The topics of the named ones.
    pub(super) topics: Vec<Topic>,
}

/// What to do if the connector goes on after the switch.
const KEEPS_SLOT: &str = "so the connector keeps its slot and publication. Run `outbox-router init`, which creates others, then take the \
                          outbox out of the connector, then start the router: events in between arrive twice. If nobody \
                          reads the rest, set `slot` and `publication` in [postgres] to the connector's";

/// Stands for every table.
const ANY_TABLE: &str = ".*";

/// Writes `[outbox] table`, and returns these tables.
pub(super) fn translate(translation: &mut Translation, chain: &Chain) -> Outboxes {
    let prefix = translation.take_any("topic.prefix");
    let include = translation.take_any("table.include.list");
    let delimiter = translation.take_any("topic.delimiter").map_or(".".to_owned(), |setting| setting.value);
    let prefix = format!("{}{delimiter}", prefix.map(|prefix| prefix.value).unwrap_or_default());
    let topic = |(schema, table): &Table| format!("{prefix}{schema}{delimiter}{table}");

    let included = include.as_ref().map(|include| tables(&include.value)).unwrap_or_default();
    let predicate = chain.router.predicate.as_ref();
    let (named, others): (Vec<_>, Vec<_>) = included.named.into_iter().partition(|table| match predicate {
        Some(predicate) => predicate.takes(&topic(table)).unwrap_or(true),
        None => true,
    });
    let by_predicate =
        predicate.map(|predicate| by_predicate(predicate, &prefix, &delimiter)).unwrap_or_default();
    // it alone decides which of the tables that match a pattern are outboxes
    let decided = by_predicate.patterns.is_empty() && !by_predicate.named.is_empty();
    let (mut outboxes, from) = match (predicate, include.as_ref()) {
        (Some(predicate), _) if decided && (named.is_empty() || !included.patterns.is_empty()) => {
            (by_predicate, Some(&predicate.setting))
        }
        (_, Some(include)) if !named.is_empty() || !included.patterns.is_empty() => {
            (Outboxes { named, patterns: included.patterns.clone(), ..Outboxes::default() }, Some(include))
        }
        (Some(predicate), _) if !by_predicate.named.is_empty() || !by_predicate.patterns.is_empty() => {
            (by_predicate, Some(&predicate.setting))
        }
        _ => (Outboxes { patterns: vec![ANY_TABLE.to_owned()], ..Outboxes::default() }, None),
    };
    if let Some(predicate) = predicate
        && let Err(reason) = &predicate.topics
    {
        let meaning =
            format!("It does not tell which tables are outboxes: {reason}. Correct `table` in [outbox]");
        translation.find(Level::ToDo, &predicate.setting, meaning);
    }
    if let (Some(from), false) = (from, outboxes.patterns.is_empty()) {
        translation.find(Level::ToDo, from, to_replace(&outboxes.patterns));
    }
    if let Some(include) = &include {
        let others: Vec<String> = others.iter().map(|(schema, table)| format!("{schema}.{table}")).collect();
        if !others.is_empty() {
            change_events(translation, Some(include), &others.join(", "));
        }
        if decided && !included.patterns.is_empty() {
            let others = format!("the other tables that match {}", included.patterns.join(", "));
            change_events(translation, Some(include), &others);
        }
    }
    write(translation, &outboxes, from, predicate.is_some() && include.is_none());
    filters(translation, &outboxes);
    messages(translation);
    outboxes.topics = outboxes.named.iter().map(topic).collect();
    outboxes
}

fn to_replace(patterns: &[String]) -> String {
    format!(
        "The router takes names, not patterns. `table` in [outbox] has {} between slashes, which every command refuses: \
         replace it with the names of the outbox tables that it matches",
        patterns.join(", ")
    )
}

/// Reports that the connector sends the changes of other tables too. It still needs its slot then.
fn change_events(translation: &mut Translation, include: Option<&Setting>, tables: &str) {
    translation.keeps_slot = true;
    let meaning = format!("The router sends no change events of {tables}, {KEEPS_SLOT}");
    match include {
        Some(include) => translation.find(Level::NoEquivalent, include, meaning),
        None => translation.find_unset(Level::NoEquivalent, "table.include.list", meaning),
    }
}

/// Messages of `pg_logical_emit_message` that somebody has asked for by their prefix pass the outbox event router unchanged.
fn messages(translation: &mut Translation) {
    let Some(setting) = translation.take_any("message.prefix.include.list") else { return };
    if setting.value.is_empty() {
        return;
    }
    translation.keeps_slot = true;
    let meaning =
        format!("The router sends no messages of pg_logical_emit_message as Debezium does, {KEEPS_SLOT}");
    translation.find(Level::NoEquivalent, &setting, meaning);
}

/// A pattern is written as one, which the loader refuses: without it, events of the tables that it matches would be lost.
fn write(translation: &mut Translation, outboxes: &Outboxes, from: Option<&Setting>, captures_more: bool) {
    let names = outboxes.named.iter().map(as_sql);
    let patterns = outboxes.patterns.iter().map(|pattern| format!("/{pattern}/"));
    let names: Vec<String> = names.chain(patterns).collect();
    if from.is_none() {
        translation.find_unset(
            Level::ToDo,
            "table.include.list",
            "The file does not name the outbox table. `table` in [outbox] has a pattern, /.*/, which every command \
             refuses: replace it with the names of the outbox tables",
        );
    }
    let origin = from.map_or("not named by the connector".to_owned(), comment);
    let document = &mut translation.document;
    match outboxes.patterns.is_empty() {
        true => document.set(Section::Outbox, "table", one_or_list(&names), origin),
        false => {
            document.set_to_do(Section::Outbox, "table", one_or_list(&names), origin, "\"public.outbox\"")
        }
    }
    if captures_more {
        change_events(translation, None, "any other table");
    }
    if let Some(from) = from
        && outboxes
            .named
            .iter()
            .any(|(schema, table)| format!("{schema}{table}").contains(char::is_uppercase))
    {
        translation.find(
            Level::Note,
            from,
            "Debezium ignores the case of table names, the router does not: make sure that `table` in [outbox] \
             is written as in the database",
        );
    }
}

/// Filters that choose among the tables. Once all outboxes are named, a filter matters only if it leaves one of them out.
fn filters(translation: &mut Translation, outboxes: &Outboxes) {
    for name in ["schema.include.list", "schema.exclude.list", "table.exclude.list", "table.ignore.builtin"] {
        let Some(setting) = translation.settings.take(name) else { continue };
        let left_out: Vec<String> = outboxes
            .named
            .iter()
            .filter(|table| leaves_out(name, &setting.value, table))
            .map(as_sql)
            .collect();
        let (level, meaning) = if !outboxes.patterns.is_empty() {
            (
                Level::ToDo,
                "The router takes names, not filters: `table` in [outbox] needs the names of the tables that pass it"
                    .to_owned(),
            )
        } else if left_out.is_empty() {
            (Level::Ignored, "Only concerns tables other than those that are named".to_owned())
        } else {
            let left_out = left_out.join(", ");
            let meaning = format!(
                "The connector seems to leave out {left_out}, whose events the router would send: correct `table` in \
                 [outbox]"
            );
            (Level::Differs, meaning)
        };
        translation.find(level, &setting, meaning);
    }
}

/// Whether the filter may keep the connector from reading the table: an expression that the router cannot read may.
fn leaves_out(filter: &str, list: &str, (schema, table): &Table) -> bool {
    let (name, excludes) = match filter {
        "schema.include.list" => (schema.clone(), false),
        "schema.exclude.list" => (schema.clone(), true),
        "table.exclude.list" => (format!("{schema}.{table}"), true),
        _ => return false,
    };
    !passes(&name, list, excludes)
}

/// Whether this list of expressions lets the name pass, as Debezium's filters do: in either case, and as a whole. An expression that
/// the router cannot read keeps it out.
pub(super) fn passes(name: &str, list: &str, excludes: bool) -> bool {
    let matches = |member: &String| match Expression::translate(&format!("(?i){member}")) {
        Ok(expression) => expression.matches(name),
        Err(_) => excludes,
    };
    split(list).iter().any(matches) != excludes
}

/// The tables whose topics the pattern names literally, and the patterns of other topics.
fn by_predicate(predicate: &Predicate, prefix: &str, delimiter: &str) -> Outboxes {
    let mut outboxes = Outboxes::default();
    let Ok((pattern, _)) = &predicate.topics else { return outboxes };
    if predicate.negated {
        return outboxes;
    }
    let table = |topic: &str| {
        let (schema, table) = topic.strip_prefix(prefix)?.split_once(delimiter)?;
        (!schema.is_empty() && !table.contains(delimiter)).then(|| (schema.to_owned(), table.to_owned()))
    };
    for pattern in alternatives(pattern) {
        match literal(&pattern).as_deref().and_then(table) {
            Some(table) => outboxes.name(table),
            None => outboxes.patterns.push(pattern),
        }
    }
    outboxes
}

impl Outboxes {
    fn name(&mut self, table: Table) {
        if !self.named.contains(&table) {
            self.named.push(table);
        }
    }
}

/// Separates the expressions of a list that name a table literally from the others.
fn tables(list: &str) -> Outboxes {
    let mut outboxes = Outboxes::default();
    for member in split(list) {
        let spelled: Option<Vec<_>> = alternatives(&member).iter().map(|one| table(&literal(one)?)).collect();
        match spelled {
            Some(tables) => tables.into_iter().for_each(|table| outboxes.name(table)),
            None => outboxes.patterns.push(member),
        }
    }
    outboxes
}

fn table(name: &str) -> Option<Table> {
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
pub(super) fn as_sql((schema, table): &Table) -> String {
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

    fn pair(schema: &str, table: &str) -> Table {
        (schema.to_owned(), table.to_owned())
    }

    #[test]
    fn names_are_told_from_patterns() {
        let Outboxes { named, patterns, .. } = tables(
            r"public.outbox, shop\.outbox,^a[.]b$, c.(d|e), f\.outbox.*, .*\.outbox, g, h.i.j, k\.(l)+, a.(b|b)|c.d",
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
    fn a_filter_leaves_out_what_it_does_not_let_pass() {
        let table = pair("shop", "outbox");
        for (filter, list, expected) in [
            ("schema.include.list", "public,shop", false),
            ("schema.include.list", "public,SHOP", false),
            ("schema.include.list", "public,sho", true),
            ("schema.exclude.list", "sh.*", true),
            ("schema.exclude.list", "public", false),
            ("schema.exclude.list", r"public\G", true),
            ("table.exclude.list", r"shop\.out.*", true),
            ("table.exclude.list", "outbox", false),
            ("table.ignore.builtin", "true", false),
        ] {
            assert_eq!(leaves_out(filter, list, &table), expected, "{filter} = {list}");
        }
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
