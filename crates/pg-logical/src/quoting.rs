//! Quoted names and literals for SQL.

/// A string literal. One with a backslash uses the escape form, so that `standard_conforming_strings` does not matter.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

/// A quoted identifier.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
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

/// The name of an object that belongs to the one with this name. Names have at most 63 bytes, so its beginning is cut where needed.
pub fn with_suffix(name: &str, suffix: &str) -> String {
    let mut name = name.to_owned();
    while name.len() + suffix.len() > 63 {
        name.pop();
    }
    name + suffix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_suffix_has_at_most_63_bytes() {
        assert_eq!(with_suffix("shop", "_own"), "shop_own");
        assert_eq!(with_suffix(&"ü".repeat(31), "_own"), "ü".repeat(29) + "_own");
    }

    #[test]
    fn quotes_in_literals_and_identifiers_are_escaped() {
        assert_eq!(literal("a'b"), "'a''b'");
        assert_eq!(literal("a\\'b"), "E'a\\\\''b'");
        assert_eq!(replication_literal("a\\'b"), "'a\\''b'");
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn the_dollar_quote_tag_does_not_occur_in_the_text() {
        assert_eq!(dollar_quoted("a"), "$$a$$");
        assert_eq!(dollar_quoted("a$$b"), "$q1$a$$b$q1$");
        assert_eq!(dollar_quoted("a$"), "$q1$a$$q1$");
        assert_eq!(dollar_quoted("$$ $q1$"), "$q2$$$ $q1$$q2$");
    }
}
