//! Checks names by the rules of Postgres and Kafka before they are sent to a server.

use super::TableName;

/// The longest name in Postgres, in bytes (`NAMEDATALEN - 1`); it truncates longer ones.
const MAX_NAME_BYTES: usize = 63;

/// The longest name of a router, in characters. It is the prefix of longer names, which have limits too.
const MAX_ROUTER_NAME_CHARS: usize = 200;

/// Checks a slot's name: lower-case letters, digits and underscores (Postgres manual, "Replication Slots").
pub(super) fn check_slot(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(legal) {
        return Err(format!(
            "a slot name consists of 1 to {MAX_NAME_BYTES} lower-case letters, digits and underscores"
        ));
    }
    Ok(())
}

/// Checks a name that is always quoted in SQL: a publication or a column.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
        return Err(format!("a name in Postgres has 1 to {MAX_NAME_BYTES} bytes"));
    }
    Ok(())
}

/// Checks the router's name, which is part of `transactional.id`, `client.id` and record keys.
pub(super) fn check_router_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.chars().count() > MAX_ROUTER_NAME_CHARS || name.chars().any(char::is_control) {
        return Err(format!(
            "the router's name has 1 to {MAX_ROUTER_NAME_CHARS} characters, and no control characters"
        ));
    }
    Ok(())
}

/// Parses a table name as SQL does: `schema.name`, with `public` as the default schema, unquoted letters folded to lower case,
/// and anything else in double quotes.
pub(crate) fn parse_table(text: &str) -> Result<TableName, String> {
    let (first, rest) = parse_identifier(text.trim())?;
    let (schema, name) = match rest.strip_prefix('.') {
        Some(rest) => match parse_identifier(rest)? {
            (second, "") => (first, second),
            (_, rest) => return Err(trailing(rest)),
        },
        None if rest.is_empty() => ("public".to_owned(), first),
        None => return Err(trailing(rest)),
    };
    check_name(&schema)?;
    check_name(&name)?;
    Ok(TableName { schema, name })
}

/// Splits a list at its commas, except those in quoted names.
pub(super) fn split_tables(text: &str) -> Vec<&str> {
    let mut quoted = false;
    let separator = |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    if text.trim().is_empty() {
        return Vec::new();
    }
    text.split(separator).map(str::trim).collect()
}

fn trailing(rest: &str) -> String {
    if rest.starts_with('.') {
        return "it has more parts than a schema and a name".to_owned();
    }
    let character = rest.chars().next().unwrap_or_default();
    format!("{character:?} is only allowed in a quoted name, as in \"my-schema\".\"outbox\"")
}

/// Parses one identifier, and returns the rest of `text` (Postgres manual, "Identifiers and Key Words").
fn parse_identifier(text: &str) -> Result<(String, &str), String> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii();
        let end = text.find(|c: char| !legal(c)).unwrap_or(text.len());
        let (name, rest) = text.split_at_checked(end).unwrap_or((text, ""));
        if name.starts_with(|c: char| c.is_ascii_digit() || c == '$') {
            return Err("a name that begins with a digit or $ must be quoted".to_owned());
        }
        if name.is_empty() && !rest.is_empty() && !rest.starts_with('.') {
            return Err(trailing(rest));
        }
        return Ok((name.to_ascii_lowercase(), rest));
    };
    let mut name = String::new();
    loop {
        let (part, after) = rest.split_once('"').ok_or("a quoted name has no closing quote")?;
        name.push_str(part);
        // two quotes stand for one
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return Ok((name, after)),
        }
    }
}

/// Writes a table name as [`parse_table`] reads it, with quotes only where needed.
pub(super) fn format_table(table: &TableName) -> String {
    format!("{}.{}", quote_if_needed(&table.schema), quote_if_needed(&table.name))
}

fn quote_if_needed(name: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit()) {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(schema: &str, name: &str) -> TableName {
        TableName { schema: schema.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn table_names_are_parsed_as_in_sql() {
        for (text, expected) in [
            ("outbox", table("public", "outbox")),
            ("public.outbox", table("public", "outbox")),
            (" Shop.OutBox ", table("shop", "outbox")),
            (r#""My Schema"."Outbox""#, table("My Schema", "Outbox")),
            (r#"shop."a""b.c""#, table("shop", "a\"b.c")),
            ("größe.tür$1", table("größe", "tür$1")),
        ] {
            assert_eq!(parse_table(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_table_names_are_refused() {
        let long = "x".repeat(64);
        for text in
            ["", ".", "a.", ".a", "a.b.c", "my-outbox", "a b", "\"a", "\"\".a", "1a", "a.\"b\"c", &long]
        {
            assert!(parse_table(text).is_err(), "{text}");
        }
    }

    #[test]
    fn slot_names_follow_the_rules_of_postgres() {
        assert_eq!(check_slot("outbox_router_1"), Ok(()));
        for name in ["", "Outbox", "a-b", "a b", "größe", &"x".repeat(64)] {
            assert!(check_slot(name).is_err(), "{name}");
        }
    }

    #[test]
    fn router_names_are_short_and_printable() {
        assert_eq!(check_router_name("shop.outbox_router"), Ok(()));
        for name in ["", "a\nb", &"x".repeat(201)] {
            assert!(check_router_name(name).is_err(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_formatted_table_parses_to_the_same_name(schema in "[^\\x00]{1,15}", name in "[^\\x00]{1,15}") {
            let table = TableName { schema, name };
            prop_assert_eq!(parse_table(&format_table(&table)), Ok(table));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC*") {
            let _ = parse_table(&text);
        }
    }
}
