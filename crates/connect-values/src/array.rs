//! Splits an array as Postgres prints it, `{a,"b c",NULL}`, into its elements.

use crate::Unwritable;

/// Calls `each` with the text of every element, `None` for NULL.
pub(crate) fn elements(
    text: &str,
    mut each: impl FnMut(Option<&str>) -> Result<(), Unwritable>,
) -> Result<(), Unwritable> {
    // bounds that do not begin at 1 are printed in front: [2:3]={1,2}
    let braces = match text.strip_prefix('[') {
        Some(bounds) => bounds.split_once('=').map_or("", |(_, braces)| braces),
        None => text,
    };
    let inner = braces.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let mut rest = inner.ok_or(Unwritable::Malformed)?;
    if rest.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    loop {
        let after = if rest.starts_with('"') {
            let (element, after) = quoted(rest).ok_or(Unwritable::Malformed)?;
            if element.contains('\\') {
                text.clear();
                text.extend(unescaped(element));
                each(Some(&text))?;
            } else {
                each(Some(element))?;
            }
            after
        } else {
            if rest.starts_with('{') {
                return Err(Unwritable::Dimensions);
            }
            let end = rest.find(',').unwrap_or(rest.len());
            let (element, after) = rest.split_at_checked(end).ok_or(Unwritable::Malformed)?;
            match element {
                "" => return Err(Unwritable::Malformed),
                "NULL" => each(None)?,
                _ => each(Some(element))?,
            }
            after
        };
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(()),
            None => return Err(Unwritable::Malformed),
        }
    }
}

/// The content of the quoted string at the start of the text, with its backslashes, and the rest of the text.
pub(crate) fn quoted(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix('"')?;
    let mut escaped = false;
    let end = inside.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })?;
    Some((inside.get(..end)?, inside.get(end + 1..)?))
}

/// The content of a quoted string, with its escapes resolved.
pub(crate) fn unescaped(text: &str) -> impl Iterator<Item = char> + '_ {
    let mut characters = text.chars();
    std::iter::from_fn(move || match characters.next() {
        Some('\\') => characters.next(),
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Option<String>>, Unwritable> {
        let mut all = Vec::new();
        elements(text, |element| {
            all.push(element.map(str::to_owned));
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn reads_quotes_escapes_nulls_and_bounds() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read("{}"), Ok(vec![]));
        assert_eq!(read("{1,NULL,3}"), Ok(vec![some("1"), None, some("3")]));
        assert_eq!(read("[2:3]={1,2}"), Ok(vec![some("1"), some("2")]));
        assert_eq!(
            read(r#"{"a,b","NULL","q\"x\\","{}",""}"#),
            Ok(vec![some("a,b"), some("NULL"), some("q\"x\\"), some("{}"), some("")])
        );
    }

    #[test]
    fn refuses_malformed_and_nested_arrays() {
        assert_eq!(read("{{1,2},{3,4}}"), Err(Unwritable::Dimensions));
        for text in ["", "{", "1", "{1,}", "{,1}", "{\"a}", "{\"a\"b}", "[1:2]", "[1:2]{1}"] {
            assert_eq!(read(text), Err(Unwritable::Malformed), "{text}");
        }
    }
}
