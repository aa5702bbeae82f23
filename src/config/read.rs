//! Reads single values as text, number, boolean, duration or size, and records problems.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;

use super::raw::{Node, Properties, Value};
use super::source::{Inserted, Problems, Sources};
use super::substitute::is_only_variables;
use super::units::{self, DURATION_FORM, SIZE_FORM};

/// Reads values and records problems. An invalid value becomes `None`, like a missing one; the recorded problem prevents the
/// result from being used.
pub(super) struct Reader<'a> {
    pub(super) sources: &'a Sources<'a>,
    pub(super) problems: Problems,
}

/// A text and where it was written.
pub(super) struct Located {
    pub(super) text: String,
    pub(super) span: Range<usize>,
    /// Whether the configuration file itself contains it: it has no file of its own, and is not only a variable.
    pub(super) inline: bool,
    /// The file that contains only this value.
    pub(super) file: Option<PathBuf>,
}

impl Reader<'_> {
    /// Records a problem with the value of `key`. A text that is not constant may quote the value; it is replaced if the value
    /// has variables in it.
    pub(super) fn problem(
        &mut self,
        span: &Range<usize>,
        key: &str,
        what: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) {
        let (mut what, mut remedy) = (what.into(), remedy.into());
        if self.sources.inserted(span).is_some() {
            let hide = |text: &mut Cow<'static, str>, instead| {
                if matches!(text, Cow::Owned(_)) {
                    *text = Cow::Borrowed(instead);
                }
            };
            hide(&mut what, "it is not valid with the values of its variables");
            hide(&mut remedy, "Correct the value, or that of a variable in it");
        }
        self.record(span, key, &what, remedy);
    }

    /// The same for a problem whose text names its key.
    pub(super) fn refused(&mut self, span: &Range<usize>, key: &str, what: String, remedy: String) {
        match self.sources.inserted(span) {
            Some(_) => self.problem(span, key, what, remedy),
            None => self.problems.push(self.sources.place(span), what, remedy),
        }
    }

    /// Records a problem in a text that does not quote the value.
    fn record(&mut self, span: &Range<usize>, key: &str, what: &str, remedy: impl Into<String>) {
        // otherwise a variable is missing, and nothing else is known about the value
        if self.sources.inserted(span) != Some(Inserted::NotAll) {
            self.problems.push(self.sources.place(span), format!("`{key}`: {what}"), remedy);
        }
    }

    /// Records that a required key is missing.
    pub(super) fn missing(&mut self, key: &str, remedy: &str) {
        let what = format!("`{key}` is not set: {}", self.sources.searched());
        self.problems.push(super::source::Place::Nowhere, what, remedy);
    }

    /// Records a problem of several values, or of one whose place is not known.
    pub(super) fn unlocated(&mut self, key: &str, what: &str, remedy: &str) {
        self.problems.push(super::source::Place::Nowhere, format!("`{key}`: {what}"), remedy);
    }

    /// Any text.
    pub(super) fn text(&mut self, key: &str, value: Value) -> Option<Located> {
        self.text_expecting(key, value, "a text in quotes")
    }

    /// One text, or an array of texts. In a variable, the list is one text, which `split` separates; an item of an array is never
    /// split.
    pub(super) fn texts(
        &mut self,
        key: &str,
        list: Value,
        split: impl Fn(&str) -> Vec<&str>,
    ) -> Option<Vec<Located>> {
        const EXPECTED: &str = "a text in quotes, or an array of them";
        let list = list?;
        let span = list.span();
        let (items, one_text) = match list.into_inner() {
            Node::Array(items) => (items, false),
            node => (vec![Spanned::new(span.clone(), node)], true),
        };
        let mut texts = Vec::new();
        for item in items {
            let Located { text, span, inline, file } = self.text_expecting(key, Some(item), EXPECTED)?;
            let several = if one_text && !inline { split(&text) } else { vec![text.as_str()] };
            texts.extend(several.into_iter().map(|text| Located {
                text: text.to_owned(),
                span: span.clone(),
                inline,
                file: file.clone(),
            }));
        }
        Some(texts)
    }

    fn text_expecting(&mut self, key: &str, value: Value, expected: &str) -> Option<Located> {
        let value = value?;
        let span = value.span();
        let inline =
            !self.sources.is_variable(&span) && !self.sources.original(&span).is_some_and(is_only_variables);
        if let Some(path) = value.get_ref().as_file() {
            let text = self.read_file(key, path, &span)?;
            let file = self.resolve_path(Path::new(path), &span);
            return Some(Located { text, span, inline: false, file: Some(file) });
        }
        match value.into_inner() {
            Node::Text(text) => Some(Located { text, span, inline, file: None }),
            other => self.wrong_type(key, &span, &other, expected),
        }
    }

    /// A text that `check` accepts; its error says what is expected, without quoting the text.
    pub(super) fn checked(
        &mut self,
        key: &str,
        value: Value,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Option<String> {
        let Located { text, span, .. } = self.text(key, value)?;
        let checked = check(&text).map(|()| text);
        checked.map_err(|expected| self.record(&span, key, &expected, "Correct the name")).ok()
    }

    /// A whole number within a range.
    pub(super) fn integer(&mut self, key: &str, value: Value, range: RangeInclusive<i64>) -> Option<i64> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.scalar(key, value, &expected, |scalar| {
            let number = match scalar {
                Node::Integer(number) => Some(*number),
                Node::Text(text) => text.trim().parse().ok(),
                _ => return None,
            };
            Some(number.filter(|number| range.contains(number)))
        })
    }

    /// A value other than a text. `read` returns `None` for a value of the wrong type, and `Some(None)` for an invalid value of
    /// the right type.
    fn scalar<T>(
        &mut self,
        key: &str,
        value: Value,
        expected: &str,
        read: impl FnOnce(&Node) -> Option<Option<T>>,
    ) -> Option<T> {
        let value = value?;
        let span = value.span();
        let scalar = self.resolve_file(key, value)?;
        match read(&scalar) {
            Some(Some(read)) => Some(read),
            Some(None) => self.expected(key, &span, expected),
            None => self.wrong_type(key, &span, &scalar, expected),
        }
    }

    /// `true` or `false`.
    pub(super) fn switch(&mut self, key: &str, value: Value) -> Option<bool> {
        self.scalar(key, value, "true or false", |scalar| match scalar {
            Node::Boolean(truth) => Some(Some(*truth)),
            Node::Text(text) => Some(text.trim().parse().ok()),
            _ => None,
        })
    }

    /// A duration of at least `least` and at most 24 days, the limit of milliseconds in Postgres and Kafka.
    pub(super) fn duration(&mut self, key: &str, value: Value, least: Duration) -> Option<Duration> {
        self.duration_within(key, value, least..=Duration::from_secs(24 * 86_400))
    }

    /// A duration within these limits.
    pub(super) fn duration_within(
        &mut self,
        key: &str,
        value: Value,
        limits: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let value = value?;
        let span = value.span();
        if matches!(value.get_ref(), Node::Integer(number) if *number != 0) {
            self.problem(&span, key, "a duration needs a unit", format!("Write {DURATION_FORM}"));
            return None;
        }
        let duration = self.scalar(key, Some(value), DURATION_FORM, |scalar| match scalar {
            Node::Text(text) => Some(units::parse_duration(text)),
            Node::Integer(_) => Some(Some(Duration::ZERO)),
            _ => None,
        })?;
        if !limits.contains(&duration) {
            let (least, most) =
                (units::format_duration(*limits.start()), units::format_duration(*limits.end()));
            let remedy = format!("Set it to at least {least} and at most {most}");
            self.record(&span, key, "out of range", remedy);
            return None;
        }
        Some(duration)
    }

    /// The same for a key that can be switched off.
    pub(super) fn duration_or_off(&mut self, key: &str, value: Value, least: Duration) -> Option<Duration> {
        if is_off(value.as_ref()?.get_ref()) { None } else { self.duration(key, value, least) }
    }

    /// A size in bytes, at least 1.
    pub(super) fn size(&mut self, key: &str, value: Value) -> Option<usize> {
        let value = value?;
        let span = value.span();
        let size = match self.resolve_file(key, value)? {
            Node::Text(text) => units::parse_size(&text),
            Node::Integer(number) => u64::try_from(number).ok(),
            other => return self.wrong_type(key, &span, &other, SIZE_FORM),
        };
        let size = size.filter(|size| *size > 0).and_then(|size| usize::try_from(size).ok());
        size.or_else(|| self.expected(key, &span, &format!("{SIZE_FORM}, and more than 0")))
    }

    /// The same for a key that can be switched off.
    pub(super) fn size_or_off(&mut self, key: &str, value: Value) -> Option<usize> {
        if is_off(value.as_ref()?.get_ref()) { None } else { self.size(key, value) }
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&mut self, key: &str, value: Value, choices: &[(&str, T)]) -> Option<T> {
        let Located { text, span, .. } = self.text(key, value)?;
        let found = choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice);
        found.or_else(|| {
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            self.expected(key, &span, &words.join(" or "))
        })
    }

    /// The same with a default.
    pub(super) fn choice_or<T: Copy>(
        &mut self,
        key: &str,
        value: Value,
        choices: &[(&str, T)],
        default: T,
    ) -> T {
        self.choice(key, value, choices).unwrap_or(default)
    }

    /// A text, or `Some(None)` if it is switched off, as [`is_off`] says; in the file, `"false"` is a text like any other.
    pub(super) fn text_or_off(&mut self, key: &str, value: Value) -> Option<Option<Located>> {
        if matches!(value.as_ref().map(Spanned::get_ref), Some(Node::Boolean(false))) {
            return Some(None);
        }
        let located = self.text_expecting(key, value, "a text in quotes, or false")?;
        // in a variable, `false` is text
        let off = located.text.is_empty() || (located.text == "false" && !located.inline);
        Some((!off).then_some(located))
    }

    /// The entries of a table whose keys may be quoted or dotted, each with its full name, sorted by name. A variable overrides
    /// the file whichever alias of the name the file uses.
    pub(super) fn properties(
        &mut self,
        section: &str,
        table: Properties,
        canonical: impl Fn(&str) -> &str,
    ) -> Vec<(String, Located)> {
        let mut flat = Vec::new();
        self.flatten(section, "", table, &mut flat);
        let mut kept: BTreeMap<String, Located> = BTreeMap::new();
        for (name, located) in flat {
            let name = canonical(&name).to_owned();
            let Some(earlier) = kept.get_mut(&name) else {
                kept.insert(name, located);
                continue;
            };
            let from_variable = |span: &Range<usize>| self.sources.is_variable(span);
            match (from_variable(&earlier.span), from_variable(&located.span)) {
                (false, true) => *earlier = located,
                (true, false) => {}
                _ => {
                    let key = format!("{section}.{name}");
                    let what = "it is set twice, under two spellings of its name";
                    self.problem(&located.span, &key, what, "Keep one of them");
                }
            }
        }
        kept.into_iter().collect()
    }

    fn flatten(&mut self, section: &str, prefix: &str, table: Properties, flat: &mut Vec<(String, Located)>) {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            let full = format!("{section}.{name}");
            let span = value.span();
            let is_file = value.get_ref().as_file().is_some() && !ends_in_file(&name);
            let node = match value.into_inner() {
                Node::Table(members) if !is_file => {
                    self.flatten(section, &format!("{name}."), members, flat);
                    continue;
                }
                Node::Integer(number) => Node::Text(number.to_string()),
                Node::Boolean(truth) => Node::Text(truth.to_string()),
                other => other,
            };
            let value = Some(Spanned::new(span, node));
            let located = self.text_expecting(&full, value, "a text, a number, true or false");
            flat.extend(located.map(|located| (name, located)));
        }
    }

    /// The value itself, or for `{ file = "..." }` the content of the file.
    fn resolve_file(&mut self, key: &str, value: Spanned<Node>) -> Option<Node> {
        match value.get_ref().as_file() {
            Some(path) => self.read_file(key, path, &value.span()).map(Node::Text),
            None => Some(value.into_inner()),
        }
    }

    fn read_file(&mut self, key: &str, path: &str, span: &Range<usize>) -> Option<String> {
        let text = fs::read_to_string(self.resolve_path(Path::new(path), span));
        let read = text.map_err(|error| {
            let what = format!("cannot read the file {path}: {error}");
            self.problem(span, key, what, "Name a file that the router's user can read");
        });
        read.ok().map(|text| text.trim_end_matches(['\n', '\r']).to_owned())
    }

    /// Resolves a path. One in the file is relative to the file's directory, one in a variable to the working directory.
    pub(super) fn resolve_path(&self, path: &Path, span: &Range<usize>) -> PathBuf {
        match self.sources.directory() {
            Some(directory) if !self.sources.is_variable(span) => directory.join(path),
            _ => path.to_owned(),
        }
    }

    fn expected<T>(&mut self, key: &str, span: &Range<usize>, expected: &str) -> Option<T> {
        self.record(span, key, &format!("expected {expected}"), "Correct the value");
        None
    }

    fn wrong_type<T>(&mut self, key: &str, span: &Range<usize>, found: &Node, expected: &str) -> Option<T> {
        let found = match found {
            Node::Text(_) => "a text",
            Node::Integer(_) => "a number",
            Node::Boolean(_) => "true or false",
            Node::Table(_) => "a table",
            Node::Array(_) => "an array",
            Node::Other(kind) => kind,
        };
        self.record(span, key, &format!("expected {expected}, found {found}"), "Correct the value");
        None
    }
}

/// Whether a value switches its key off: `false`, which is text in a variable, or an empty text.
pub(super) fn is_off(node: &Node) -> bool {
    match node {
        Node::Boolean(on) => !on,
        Node::Text(text) => text.is_empty() || text == "false",
        _ => false,
    }
}

/// Whether `name.file` is a property of librdkafka; as a dotted key, it looks like `{ file = "..." }`.
fn ends_in_file(name: &str) -> bool {
    super::kafka_properties::is_known(&format!("{name}.file"))
}
