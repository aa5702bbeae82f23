//! Translates Java's regular expressions and replacements (`java.util.regex.Pattern`, `Matcher`) into the router's syntax.

use fancy_regex::Regex;

/// A Java expression in the router's syntax.
#[derive(Debug)]
pub(super) struct Expression {
    /// For `[[route.rules]]`, without the slashes.
    pub(super) text: String,
    regex: Regex,
}

impl Expression {
    /// Translates the constructs that differ.
    ///
    /// # Errors
    /// The expression is invalid or uses something that the router's syntax lacks. The text says what, without a full stop.
    pub(super) fn translate(java: &str) -> Result<Self, String> {
        let text = Translator { rest: java, text: String::new(), depth: 0 }.run()?;
        let regex = Regex::new(&format!(r"\A(?:{text})\z")).map_err(|error| {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
            format!("the router cannot compile it: {reason}")
        })?;
        Ok(Expression { text, regex })
    }

    /// Whether it matches the whole text, as `Matcher.matches` does. False if matching takes too long.
    pub(super) fn matches(&self, text: &str) -> bool {
        self.regex.is_match(text).unwrap_or(false)
    }

    /// The number of its groups, without the whole match.
    fn groups(&self) -> usize {
        self.regex.captures_len().saturating_sub(1)
    }

    fn has_group(&self, name: &str) -> bool {
        self.regex.capture_names().flatten().any(|known| known == name)
    }

    /// Whether one group matches any text, as in the default expression of the outbox event router.
    pub(super) fn matches_any_text(&self) -> bool {
        let inside = self.text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        let inside =
            inside.map(|inside| match inside.strip_prefix("?<").and_then(|rest| rest.split_once('>')) {
                Some((_, rest)) => rest,
                None => inside,
            });
        matches!(inside, Some(".*" | ".+"))
    }
}

struct Translator<'a> {
    rest: &'a str,
    text: String,
    /// The depth of brackets: within a class, most characters are literal.
    depth: usize,
}

impl Translator<'_> {
    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }

    fn run(mut self) -> Result<String, String> {
        while let Some(character) = self.next() {
            match character {
                '\\' => self.escape()?,
                '[' => {
                    self.depth += 1;
                    self.text.push('[');
                }
                ']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.text.push(']');
                }
                '(' if self.depth == 0 && self.rest.starts_with('?') => self.group()?,
                '-' | '~' if self.depth > 0 && self.rest.starts_with(character) => {
                    return Err(format!(
                        "`{character}{character}` in brackets has another meaning in the router"
                    ));
                }
                other => self.text.push(other),
            }
        }
        Ok(self.text)
    }

    /// The start of a group. Only flags that exist in both syntaxes are accepted.
    fn group(&mut self) -> Result<(), String> {
        self.text.push('(');
        let flags: String =
            self.rest.chars().skip(1).take_while(|c| c.is_ascii_alphabetic() || *c == '-').collect();
        match flags.chars().find(|flag| !matches!(flag, 'i' | 'm' | 's' | 'x' | '-')) {
            Some(flag) => Err(format!("it sets the flag `{flag}`, which the router does not support")),
            None => Ok(()),
        }
    }

    fn escape(&mut self) -> Result<(), String> {
        let in_class = self.depth > 0;
        let Some(escaped) = self.next() else { return Err("it ends in a backslash".to_owned()) };
        match escaped {
            // Java's are ASCII only
            'd' => self.class("0-9", false),
            'D' => self.class("0-9", true),
            'w' => self.class("A-Za-z0-9_", false),
            'W' => self.class("A-Za-z0-9_", true),
            's' => self.class(r" \t\n\x0B\f\r", false),
            'S' => self.class(r" \t\n\x0B\f\r", true),
            'p' | 'P' => self.property(escaped == 'P')?,
            'Q' => {
                let (literal, rest) = self.rest.split_once(r"\E").unwrap_or((self.rest, ""));
                literal.chars().for_each(|c| push_literal(&mut self.text, c));
                self.rest = rest;
            }
            't' | 'n' | 'r' | 'f' | 'a' | 'x' | 'u' => self.text.extend(['\\', escaped]),
            'b' | 'B' | 'A' | 'z' | 'k' | '1'..='9' if !in_class => self.text.extend(['\\', escaped]),
            other if other.is_ascii_alphanumeric() => {
                return Err(format!("`\\{other}` is not supported by the router"));
            }
            other => push_literal(&mut self.text, other),
        }
        Ok(())
    }

    fn class(&mut self, members: &str, negated: bool) {
        match (self.depth > 0, negated) {
            (true, false) => self.text.push_str(members),
            (_, true) => self.text.push_str(&format!("[^{members}]")),
            (false, false) => self.text.push_str(&format!("[{members}]")),
        }
    }

    /// `\p{Alpha}` and the like are ASCII only in Java; categories and scripts are Unicode in both.
    fn property(&mut self, negated: bool) -> Result<(), String> {
        let name = match self.rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((name, rest)) => {
                self.rest = rest;
                name.to_owned()
            }
            None => self.next().map(String::from).unwrap_or_default(),
        };
        let posix = match name.as_str() {
            "Lower" => "a-z",
            "Upper" => "A-Z",
            "ASCII" => r"\x00-\x7F",
            "Alpha" => "A-Za-z",
            "Digit" => "0-9",
            "Alnum" => "A-Za-z0-9",
            "Punct" => r"!-/:-@\[-`{-~",
            "Graph" => "!-~",
            "Print" => " -~",
            "Blank" => r" \t",
            "Cntrl" => r"\x00-\x1F\x7F",
            "XDigit" => "0-9A-Fa-f",
            "Space" => r" \t\n\x0B\f\r",
            other if other.starts_with("java") => {
                return Err(format!("`\\p{{{other}}}` is not supported by the router"));
            }
            other => {
                let letter = if negated { 'P' } else { 'p' };
                let name = other.strip_prefix("Is").unwrap_or(other);
                self.text.push_str(&format!("\\{letter}{{{name}}}"));
                return Ok(());
            }
        };
        self.class(posix, negated);
        Ok(())
    }
}

fn push_literal(text: &mut String, character: char) {
    if r"\.+*?()|[]{}^$#&-~ /".contains(character) && !matches!(character, ' ' | '/') {
        text.push('\\');
    }
    text.push(character);
}

/// One part of a replacement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    /// A group, by name or number.
    Group(String),
}

/// Parses a replacement (`Matcher.appendReplacement`): `$1`, `${name}`, and backslashes before literal characters.
///
/// # Errors
/// Java would refuse it at the first record. The text says why, without a full stop.
pub(super) fn replacement(java: &str, expression: &Expression) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = java.chars();
    while let Some(character) = rest.next() {
        let group = match character {
            '\\' => {
                text.push(rest.next().ok_or("it ends in a backslash")?);
                continue;
            }
            '$' => group(&mut rest, expression)?,
            other => {
                text.push(other);
                continue;
            }
        };
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(Piece::Group(group));
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

fn group(rest: &mut std::str::Chars<'_>, expression: &Expression) -> Result<String, String> {
    let after = rest.as_str();
    if let Some(inside) = after.strip_prefix('{') {
        let (name, after) = inside.split_once('}').ok_or("a `${` is not closed by `}`")?;
        *rest = after.chars();
        return match expression.has_group(name) {
            true => Ok(name.to_owned()),
            false => Err(format!("there is no group `{name}` in the expression")),
        };
    }
    let mut digits = after.chars().map_while(|c| c.to_digit(10));
    let first = digits.next().ok_or("a `$` is followed by neither a number nor a name in braces")?;
    let mut number = usize::try_from(first).unwrap_or(0);
    let mut length = 1;
    // Java takes digits as long as they form the number of a group
    for digit in digits {
        let longer = number * 10 + usize::try_from(digit).unwrap_or(0);
        if longer > expression.groups() {
            break;
        }
        number = longer;
        length += 1;
    }
    if number > expression.groups() {
        return Err(format!("there is no group {number} in the expression"));
    }
    *rest = after.get(length..).unwrap_or_default().chars();
    Ok(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn translated(java: &str) -> String {
        Expression::translate(java).unwrap().text
    }

    #[test]
    fn what_both_know_stays() {
        for java in [
            "(?<routedByValue>.*)",
            "(.*)order(.*)",
            r"a\.b",
            "[a-z&&[^b]]+",
            "(?i)order",
            r"(a)\1",
            "a++",
            "(?!x).*",
        ] {
            assert_eq!(translated(java), java);
        }
    }

    #[test]
    fn classes_are_those_of_ascii() {
        assert_eq!(translated(r"\d+[\w.]"), "[0-9]+[A-Za-z0-9_.]");
        assert_eq!(translated(r"\D[\S]"), r"[^0-9][[^ \t\n\x0B\f\r]]");
        assert_eq!(translated(r"\p{Alpha}\P{Upper}\p{L}\p{IsGreek}"), r"[A-Za-z][^A-Z]\p{L}\p{Greek}");
        let digits = Expression::translate(r"\d+").unwrap();
        assert!(digits.matches("42") && !digits.matches("٤٢"));
    }

    #[test]
    fn literals() {
        assert_eq!(translated(r"\Qa.b\E.*"), r"a\.b.*");
        assert_eq!(translated(r"a\-b\_c\/d"), r"a\-b_c/d");
        let dashes = Expression::translate(r"[a\-c]+").unwrap();
        assert!(dashes.matches("a-c") && !dashes.matches("b"));
    }

    #[test]
    fn the_whole_text_must_match() {
        let orders = Expression::translate("order|orders").unwrap();
        assert!(orders.matches("orders") && !orders.matches("my.order"));
    }

    #[test]
    fn what_cannot_be_said_here_says_why() {
        let wrong = |java: &str| Expression::translate(java).unwrap_err();
        insta::assert_snapshot!(
            [r"\p{javaLowerCase}", r"\h", "(?u)a", "[a--b]", "(", r"a\", r"\cA"]
                .map(|java| format!("{java}: {}", wrong(java)))
                .join("\n")
        );
    }

    #[test]
    fn an_expression_that_matches_any_text_is_known() {
        let takes = |java: &str| Expression::translate(java).unwrap().matches_any_text();
        assert!(takes("(?<routedByValue>.*)") && takes("(.*)") && takes("(.+)"));
        assert!(!takes(".*") && !takes("(.*)x") && !takes("(a|.*)(.*)"));
    }

    #[test]
    fn replacements_name_groups() {
        let expression = Expression::translate("(?<kind>a)(b)").unwrap();
        let text = |text: &str| Piece::Text(text.to_owned());
        let group = |name: &str| Piece::Group(name.to_owned());
        let read = |java: &str| replacement(java, &expression).unwrap();
        assert_eq!(read("x.${kind}.$2"), [text("x."), group("kind"), text("."), group("2")]);
        assert_eq!(read("$12"), [group("1"), text("2")], "there is no twelfth group");
        assert_eq!(read(r"\$1\\"), [text(r"$1\")]);
        assert_eq!(read("$0"), [group("0")]);
        assert_eq!(read(""), []);
    }

    #[test]
    fn replacements_that_java_refuses_say_why() {
        let expression = Expression::translate("(a)").unwrap();
        let wrong = |java: &str| replacement(java, &expression).unwrap_err();
        insta::assert_snapshot!(
            ["$2", "${x}", "${x", "$x", "$", r"a\"].map(|java| format!("{java}: {}", wrong(java))).join("\n")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_translated_or_refused(java in r"(\\|\[|\]|\(|\)|\?|<|>|a|\$|\{|\}|1|Q|E|p|-|\|)*") {
            if let Ok(expression) = Expression::translate(&java) {
                let _ = replacement(&java, &expression);
            }
        }
    }
}
