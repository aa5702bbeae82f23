//! The filters of templates.

use std::borrow::Cow;
use std::fmt;

/// Changes a value before it is inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// `lower`: Unicode lower case.
    Lower,
    /// `kebab`: `OrderPlaced`, `order_placed` and `order placed` become `order-placed`.
    Kebab,
    /// `default('x')`: replaces NULL and an empty text.
    Default(String),
}

impl Filter {
    /// `None`: there is no such filter.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let argument = text.strip_prefix("default").map(str::trim).and_then(|argument| {
            argument.strip_prefix('(')?.strip_suffix(')')?.trim().strip_prefix('\'')?.strip_suffix('\'')
        });
        match (text, argument) {
            ("lower", _) => Some(Filter::Lower),
            ("kebab", _) => Some(Filter::Kebab),
            (_, Some(argument)) if !argument.contains('\'') => Some(Filter::Default(argument.to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Filter::Lower => f.write_str("lower"),
            Filter::Kebab => f.write_str("kebab"),
            Filter::Default(text) => write!(f, "default('{text}')"),
        }
    }
}

/// Applies all filters. `None` stays NULL unless a default replaces it.
pub(crate) fn apply<'a>(filters: &[Filter], value: Option<Cow<'a, str>>) -> Option<Cow<'a, str>> {
    filters.iter().fold(value, |value, filter| match (filter, value) {
        (Filter::Default(text), None) => Some(text.clone().into()),
        (Filter::Default(text), Some(value)) if value.is_empty() => Some(text.clone().into()),
        (Filter::Lower, Some(value)) => Some(value.to_lowercase().into()),
        (Filter::Kebab, Some(value)) => Some(kebab(&value).into()),
        (_, value) => value,
    })
}

/// Lower-case words with `-` between them. A word ends before a capital after a small letter or digit, before the last of
/// several capitals if a small letter follows (`HTTPServer`), and at anything but letters and digits. Dots are kept.
fn kebab(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut kebab = String::with_capacity(text.len() + 4);
    for (index, character) in characters.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| characters.get(before)).copied();
        let after = characters.get(index + 1).copied();
        if !character.is_alphanumeric() && *character != '.' {
            if !kebab.is_empty() && !kebab.ends_with(['-', '.']) {
                kebab.push('-');
            }
            continue;
        }
        let begins = capital(*character)
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_numeric()
                    || capital(before) && after.is_some_and(char::is_lowercase)
            });
        if begins && !kebab.ends_with('-') {
            kebab.push('-');
        }
        if *character == '.' {
            kebab.truncate(kebab.trim_end_matches('-').len());
        }
        kebab.extend(character.to_lowercase());
    }
    kebab.truncate(kebab.trim_end_matches('-').len());
    kebab
}

/// Whether it is a capital with a small form; some mathematical capitals have none.
fn capital(character: char) -> bool {
    character.is_uppercase() && !character.to_lowercase().eq([character])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kebab_separates_words() {
        for (text, expected) in [
            ("OrderPlaced", "order-placed"),
            ("order_placed", "order-placed"),
            ("  Order  placed! ", "order-placed"),
            ("HTTPServer2Go", "http-server2-go"),
            ("com.Acme.OrderPlaced", "com.acme.order-placed"),
            ("order", "order"),
            ("ÉtéAimé", "été-aimé"),
            ("a-.b", "a.b"),
            ("", ""),
        ] {
            assert_eq!(kebab(text), expected, "{text:?}");
        }
    }

    #[test]
    fn filters_apply_from_left_to_right() {
        let default = Filter::Default("EU".to_owned());
        let apply = |filters: &[Filter], value: Option<&'static str>| {
            apply(filters, value.map(Cow::Borrowed)).map(Cow::into_owned)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(apply(&[], None), None);
        assert_eq!(apply(&[Filter::Lower], None), None);
        assert_eq!(apply(&[default.clone(), Filter::Lower], None), text("eu"));
        assert_eq!(apply(&[Filter::Lower, default.clone()], Some("")), text("EU"));
        assert_eq!(apply(&[default], Some("us")), text("us"));
    }

    proptest! {
        #[test]
        fn kebab_of_kebab_is_the_same(text in "[a-zA-Z0-9éÉßЖ_. -]{0,30}") {
            let once = kebab(&text);
            prop_assert_eq!(kebab(&once), once);
        }
    }
}
