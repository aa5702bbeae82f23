//! Quoted names and literals for SQL.

/// Key words that cannot always be used as a name without quotes (Postgres manual, "SQL Key Words": all that are reserved in
/// any way in PostgreSQL 14 to 18).
const RESERVED: &[&str] = &[
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "between",
    "bigint",
    "binary",
    "bit",
    "boolean",
    "both",
    "case",
    "cast",
    "char",
    "character",
    "check",
    "coalesce",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "dec",
    "decimal",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "exists",
    "extract",
    "false",
    "fetch",
    "float",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "greatest",
    "group",
    "grouping",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "inout",
    "int",
    "integer",
    "intersect",
    "interval",
    "into",
    "is",
    "isnull",
    "join",
    "lateral",
    "leading",
    "least",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "national",
    "natural",
    "nchar",
    "none",
    "normalize",
    "not",
    "notnull",
    "null",
    "nullif",
    "numeric",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "out",
    "outer",
    "overlaps",
    "overlay",
    "placing",
    "position",
    "precision",
    "primary",
    "real",
    "references",
    "returning",
    "right",
    "row",
    "select",
    "session_user",
    "setof",
    "similar",
    "smallint",
    "some",
    "substring",
    "symmetric",
    "system_user",
    "table",
    "tablesample",
    "then",
    "time",
    "timestamp",
    "to",
    "trailing",
    "treat",
    "trim",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "values",
    "varchar",
    "variadic",
    "verbose",
    "when",
    "where",
    "window",
    "with",
];

/// A string literal. One with a backslash uses the escape form, so that `standard_conforming_strings` does not matter.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

/// A quoted identifier.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// An identifier for people to read, quoted only where SQL requires it.
pub fn name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let bare = name.chars().all(plain) && name.starts_with(|c: char| !c.is_ascii_digit());
    if bare && !RESERVED.contains(&name) { name.to_owned() } else { identifier(name) }
}

/// A dollar-quoted text, with a tag that does not occur in it (Postgres manual, "Dollar-Quoted String Constants").
pub fn dollar_quoted(text: &str) -> String {
    let mut tag = "$$".to_owned();
    let mut number = 0;
    while text.contains(&tag) || text.ends_with('$') && tag == "$$" {
        number += 1;
        tag = format!("$q{number}$");
    }
    format!("{tag}{text}{tag}")
}

/// A literal in a replication command. Its grammar has no escape form, and a backslash is an ordinary character.
pub fn replication_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_in_literals_and_identifiers_are_escaped() {
        assert_eq!(literal("a'b"), "'a''b'");
        assert_eq!(literal("a\\'b"), "E'a\\\\''b'");
        assert_eq!(replication_literal("a\\'b"), "'a\\''b'");
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn names_are_quoted_where_they_must_be() {
        for (text, expected) in [
            ("outbox_1", "outbox_1"),
            ("order", "\"order\""),
            ("1st", "\"1st\""),
            ("Outbox", "\"Outbox\""),
            ("a b\"c", "\"a b\"\"c\""),
            ("", "\"\""),
        ] {
            assert_eq!(name(text), expected);
        }
    }

    #[test]
    fn the_dollar_quote_tag_does_not_occur_in_the_text() {
        assert_eq!(dollar_quoted("a"), "$$a$$");
        assert_eq!(dollar_quoted("a$$b"), "$q1$a$$b$q1$");
        assert_eq!(dollar_quoted("a$"), "$q1$a$$q1$");
        assert_eq!(dollar_quoted("$$ $q1$"), "$q2$$$ $q1$$q2$");
    }
}
