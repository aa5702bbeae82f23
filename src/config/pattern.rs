//! Patterns for values: a literal text, `/regex/`, or a topic name with `*`.

use std::fmt;

use fancy_regex::Regex;

/// A pattern for texts. Patterns are equal if they were written the same way.
#[derive(Clone)]
pub struct Pattern {
    written: String,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Exact,
    Regex(Regex),
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.written)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// How often an expression may backtrack, which limits the time spent on a value.
const BACKTRACK_LIMIT: usize = 100_000;

impl Pattern {
    /// Parses `/regex/` or a literal text.
    ///
    /// # Errors
    /// The expression is invalid; the text says why.
    pub(super) fn parse(written: &str) -> Result<Self, String> {
        let inside = match written.strip_prefix('/') {
            None => None,
            Some(rest) => Some(
                rest.strip_suffix('/')
                    .ok_or("it begins with `/` like an expression, but does not end with `/`")?,
            ),
        };
        let kind = match inside {
            Some(expression) => Kind::Regex(whole(expression)?),
            None => Kind::Exact,
        };
        Ok(Pattern { written: written.to_owned(), kind })
    }

    /// The same, except that `*` stands for any characters.
    ///
    /// # Errors
    /// The expression is invalid; the text says why.
    pub(super) fn parse_topics(written: &str) -> Result<Self, String> {
        if written.starts_with('/') || !written.contains('*') {
            return Self::parse(written);
        }
        let pieces: Vec<_> = written.split('*').map(fancy_regex::escape).collect();
        Ok(Pattern { written: written.to_owned(), kind: Kind::Regex(whole(&pieces.join(".*"))?) })
    }

    /// The expression, unless it is a literal text.
    pub fn regex(&self) -> Option<&Regex> {
        match &self.kind {
            Kind::Exact => None,
            Kind::Regex(regex) => Some(regex),
        }
    }

    /// Whether the pattern matches the whole text.
    ///
    /// # Errors
    /// The expression backtracked too often.
    pub fn matches(&self, text: &str) -> Result<bool, BacktrackLimitExceeded> {
        match &self.kind {
            Kind::Exact => Ok(text == self.written),
            Kind::Regex(regex) => regex.is_match(text).map_err(|_| BacktrackLimitExceeded),
        }
    }
}

/// A regular expression was abandoned because it backtracked too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BacktrackLimitExceeded;

/// An expression that matches whole texts only.
fn whole(expression: &str) -> Result<Regex, String> {
    // checked on its own first, because an unbalanced `)` would close the group around it
    Regex::new(expression).map_err(|error| invalid(&error))?;
    let mut builder = fancy_regex::RegexBuilder::new(&format!(r"\A(?:{expression})\z"));
    builder.backtrack_limit(BACKTRACK_LIMIT).build().map_err(|error| invalid(&error))
}

/// The error on one line, as all messages are.
fn invalid(error: &fancy_regex::Error) -> String {
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
    format!("not a regular expression: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_whole_text() {
        let matches = |pattern: &str, text: &str| Pattern::parse(pattern).unwrap().matches(text).unwrap();
        assert!(matches("order", "order") && !matches("order", "orders") && !matches("order", "Order"));
        assert!(matches("/order|basket/", "basket") && !matches("/order|basket/", "baskets"));
        assert!(matches(r"/(?<a>.)x\k<a>/", "oxo") && !matches(r"/(?<a>.)x\k<a>/", "oxa"));
        assert!(matches("/(?!test).*/", "order") && !matches("/(?!test).*/", "test.order"));
        assert!(!matches("/.*/", "a\nb"), "a dot does not match a line break");
        assert!(matches("//", "") && matches("/\\/x/", "/x"));
        assert!(Pattern::parse("/").is_err() && Pattern::parse("/x").is_err());
    }

    #[test]
    fn a_star_matches_any_characters_of_a_topic() {
        let matches =
            |pattern: &str, text: &str| Pattern::parse_topics(pattern).unwrap().matches(text).unwrap();
        assert!(matches("outbox.*", "outbox.order") && !matches("outbox.*", "outbox-order"));
        assert!(matches("*.v1", "a.b.v1") && !matches("*.v1", "a.v1x"));
        assert!(matches("a.b", "a.b") && !matches("a.b", "axb") && matches("/a.b/", "axb"));
    }

    #[test]
    fn an_invalid_expression_says_why() {
        for expression in ["/(/", "/)(/", "/[/", r"/\/"] {
            let error = Pattern::parse(expression).unwrap_err();
            assert!(error.starts_with("not a regular expression: ") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn an_expression_that_backtracks_too_often_is_an_error() {
        let pattern = Pattern::parse(r"/(?:(a*)*)*\1(?=b)c/").unwrap();
        assert_eq!(pattern.matches(&"a".repeat(64)), Err(BacktrackLimitExceeded));
    }
}
