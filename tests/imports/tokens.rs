//! Splits Rust source into words and symbols, without comments and literals.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// An identifier, a keyword or a number.
    Word(String),
    /// `::`
    PathSeparator,
    Symbol(char),
}

/// Whether the tokens begin with these words and symbols.
pub(crate) fn is(tokens: &[Token], expected: &[&str]) -> bool {
    tokens.len() >= expected.len()
        && tokens.iter().zip(expected).all(|(token, expected)| match token {
            Token::Word(word) => word == expected,
            Token::PathSeparator => *expected == "::",
            Token::Symbol(symbol) => expected.strip_prefix(*symbol) == Some(""),
        })
}

pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        rest = if rest.starts_with("//") {
            after(rest, "\n")
        } else if rest.starts_with("/*") {
            after_block_comment(rest)
        } else if first == '"' {
            after_text(rest)
        } else if first == '\'' {
            after_quote(rest)
        } else if word > 0 {
            let (word, rest) = rest.split_at(word);
            match raw_text_ends_with(word, rest) {
                Some(end) => after(after(rest, "\""), &end),
                None => {
                    tokens.push(Token::Word(word.to_owned()));
                    rest
                }
            }
        } else if let Some(rest) = rest.strip_prefix("::") {
            tokens.push(Token::PathSeparator);
            rest
        } else {
            if !first.is_whitespace() {
                tokens.push(Token::Symbol(first));
            }
            &rest[first.len_utf8()..]
        };
    }
    tokens
}

fn after<'a>(text: &'a str, end: &str) -> &'a str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

/// Block comments nest.
fn after_block_comment(text: &str) -> &str {
    let (mut rest, mut open) = (&text[2..], 1);
    while open > 0 {
        let Some(at) = rest.find("/*").into_iter().chain(rest.find("*/")).min() else { return "" };
        open += if rest[at..].starts_with("/*") { 1 } else { -1 };
        rest = &rest[at + 2..];
    }
    rest
}

fn after_text(text: &str) -> &str {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            // the opening quotation mark
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

/// Returns the text after a character literal, or after the quote of a lifetime.
fn after_quote(text: &str) -> &str {
    let mut inside = text[1..].chars();
    match (inside.next(), inside.next()) {
        (Some('\\'), Some(_)) => after(inside.as_str(), "'"),
        (Some(_), Some('\'')) => inside.as_str(),
        _ => &text[1..],
    }
}

/// Returns the end of a raw string, `r#"…"#`, if this word begins one.
fn raw_text_ends_with(word: &str, rest: &str) -> Option<String> {
    let hashes = rest.chars().take_while(|c| *c == '#').count();
    let raw = matches!(word, "r" | "br" | "cr") && rest[hashes..].starts_with('"');
    raw.then(|| format!("\"{}", "#".repeat(hashes)))
}
