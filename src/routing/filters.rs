//! What a template may do to a value on its way.

use std::borrow::Cow;

use crate::config::template::Filter;

/// The value after all of them; `None` stays NULL unless a default takes its place.
pub(crate) fn apply<'a>(filters: &[Filter], value: Option<Cow<'a, str>>) -> Option<Cow<'a, str>> {
    filters.iter().fold(value, |value, filter| match (filter, value) {
        (Filter::Default(text), None) => Some(text.clone().into()),
        (Filter::Default(text), Some(value)) if value.is_empty() => Some(text.clone().into()),
        (Filter::Lower, Some(value)) => Some(value.to_lowercase().into()),
        (Filter::Kebab, Some(value)) => Some(kebab(&value).into()),
        (_, value) => value,
    })
}

/// Words in lower case with `-` between them. A word ends before a capital that follows a small letter or a digit, before
/// the last of several capitals that a small letter follows (`HTTPServer`), and at anything but letters and digits; dots
/// stay.
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

/// One that has a small form; some mathematical letters are capitals for ever.
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
