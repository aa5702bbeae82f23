//! Templates: text with values of the event in it, `outbox.event.${aggregate_type | lower}`. This is only the syntax;
//! `routing` looks up the names.

use std::borrow::Cow;
use std::fmt;

use super::filters;
pub use super::filters::Filter;

/// Why a text is not a template. Positions are characters, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A `${` without its `}`.
    #[error("`${{` at character {0} is not closed by `}}`")]
    Unclosed(usize),
    /// A `${}`.
    #[error("`${{}}` at character {0} names nothing")]
    Empty(usize),
    /// A `$` that starts no value.
    #[error("`$` at character {0} is not followed by `{{name}}` (`$$` stands for the character itself)")]
    LoneDollar(usize),
    /// A filter that does not exist.
    #[error("there is no filter {0:?}: there are `lower`, `kebab` and `default('text')`")]
    Filter(String),
    /// An unknown name after `source.`.
    #[error("there is no {0:?}: `source.` has {names}", names = SourceValue::names())]
    Source(String),
    /// No text at all.
    #[error("it is empty")]
    Nothing,
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

/// One part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Literal text.
    Text(String),
    /// A value to insert.
    Value(Value),
}

/// A value of the event, and the filters applied to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The value's name.
    pub name: Name,
    /// The filters, in the order in which they apply.
    pub filters: Vec<Filter>,
}

/// Names a value of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// A key of `[outbox] columns`, or any other column of the table.
    Column(String),
    /// `column.x`: the table's column of that name, even if a key has the same name.
    OwnColumn(String),
    /// `headers.x`: a member of the `headers` column.
    Header(String),
    /// `source.x`: where the event comes from.
    Source(SourceValue),
    /// `match.x`: the text that a group of the rule's pattern matched, by name or number.
    Match(String),
}

/// Values of every event that are not in its row. The names are from Debezium's `source` block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceValue {
    /// `source.schema`
    Schema,
    /// `source.table`
    Table,
    /// `source.lsn`: the LSN of the transaction's commit record, as `0/16B3748`.
    Lsn,
    /// `source.xid`: the transaction id.
    Xid,
    /// `source.commit_time`: RFC 3339 in UTC, with milliseconds.
    CommitTime,
    /// `source.sequence`: LSN and ordinal as one sortable text, strictly increasing in delivery order.
    Sequence,
}

impl SourceValue {
    const ALL: [SourceValue; 6] = [
        SourceValue::Schema,
        SourceValue::Table,
        SourceValue::Lsn,
        SourceValue::Xid,
        SourceValue::CommitTime,
        SourceValue::Sequence,
    ];

    /// The name after `source.`.
    pub fn key(self) -> &'static str {
        match self {
            SourceValue::Schema => "schema",
            SourceValue::Table => "table",
            SourceValue::Lsn => "lsn",
            SourceValue::Xid => "xid",
            SourceValue::CommitTime => "commit_time",
            SourceValue::Sequence => "sequence",
        }
    }

    fn names() -> String {
        Self::ALL.map(Self::key).join(", ")
    }
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// The text is not a template.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut template = Template { parts: Vec::new() };
        let mut rest = text;
        let place = |rest: &str| text.chars().count() - rest.chars().count();
        while let Some((before, after)) = rest.split_once('$') {
            template.push_text(before);
            let at = place(after);
            if let Some(after) = after.strip_prefix('$') {
                template.push_text("$");
                rest = after;
                continue;
            }
            let inside = after.strip_prefix('{').ok_or(TemplateError::LoneDollar(at))?;
            let end = closing(inside).ok_or(TemplateError::Unclosed(at))?;
            let (expression, after) =
                (inside.get(..end).unwrap_or_default(), inside.get(end + 1..).unwrap_or_default());
            template.parts.push(Part::Value(Value::parse(expression, at)?));
            rest = after;
        }
        template.push_text(rest);
        if template.parts.is_empty() {
            return Err(TemplateError::Nothing);
        }
        Ok(template)
    }

    /// A fixed text followed by the value of a column.
    pub(super) fn of(text: &str, column: &str) -> Self {
        let mut template = Template { parts: Vec::new() };
        template.push_text(text);
        template.push_value(Name::Column(column.to_owned()));
        template
    }

    /// `/${source.schema}/${source.table}`
    pub(super) fn source_path() -> Self {
        let mut template = Template { parts: Vec::new() };
        for value in [SourceValue::Schema, SourceValue::Table] {
            template.push_text("/");
            template.push_value(Name::Source(value));
        }
        template
    }

    /// Whether it needs a value that only the log has.
    pub(super) fn needs_log(&self) -> bool {
        self.values().any(|value| value.name.of_log().is_some())
    }

    fn push_value(&mut self, name: Name) {
        self.parts.push(Part::Value(Value { name, filters: Vec::new() }));
    }

    fn push_text(&mut self, more: &str) {
        match self.parts.last_mut() {
            _ if more.is_empty() => {}
            Some(Part::Text(text)) => text.push_str(more),
            _ => self.parts.push(Part::Text(more.to_owned())),
        }
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The values that it inserts.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value(value) => Some(value),
        })
    }

    /// The text before the first value, with which every result begins.
    pub fn prefix(&self) -> &str {
        match self.parts.first() {
            Some(Part::Text(text)) => text,
            _ => "",
        }
    }

    /// Whether the result may be this text. Only the prefix is compared.
    pub fn may_produce(&self, text: &str) -> bool {
        match self.fixed() {
            Some(fixed) => text == fixed,
            None => text.starts_with(self.prefix()),
        }
    }

    /// The texts that appear in results as they are written: those between values, and the defaults of values.
    pub(super) fn texts(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.parts.iter().flat_map(|part| match part {
            Part::Text(text) => vec![Cow::Borrowed(text.as_str())],
            Part::Value(value) => value.defaults(),
        })
    }

    /// The whole results that are known without an event: the text itself, or the defaults of a single value.
    pub(super) fn results(&self) -> Vec<Cow<'_, str>> {
        match self.parts.as_slice() {
            [_] => self.texts().collect(),
            _ => Vec::new(),
        }
    }

    /// The text itself, if it inserts no values.
    pub fn fixed(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }
}

/// The position of the `}` that ends an expression; quoted ones do not count.
pub(super) fn closing(expression: &str) -> Option<usize> {
    let mut quoted = false;
    expression.char_indices().find_map(|(index, character)| {
        quoted ^= character == '\'';
        (character == '}' && !quoted).then_some(index)
    })
}

/// Whether `${name}` in the file is a variable of the environment, and not a value of the event.
pub(super) fn is_variable_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    !name.is_empty() && name.bytes().all(legal) && !name.starts_with(|c: char| c.is_ascii_digit())
}

impl Value {
    /// Its defaults, changed by the filters that follow.
    fn defaults(&self) -> Vec<Cow<'_, str>> {
        let later = |(at, filter): (usize, &'_ Filter)| match filter {
            Filter::Default(_) => filters::apply(self.filters.get(at..)?, None),
            Filter::Lower | Filter::Kebab => None,
        };
        self.filters.iter().enumerate().filter_map(later).collect()
    }

    fn parse(expression: &str, at: usize) -> Result<Self, TemplateError> {
        let mut pieces = split_at_pipes(expression).into_iter();
        let name = pieces.next().unwrap_or_default().trim();
        if name.is_empty() {
            return Err(TemplateError::Empty(at));
        }
        let name = Name::parse(name)?;
        let filter = |text: &str| Filter::parse(text).ok_or_else(|| TemplateError::Filter(text.to_owned()));
        let filters = pieces.map(|piece| filter(piece.trim())).collect::<Result<_, _>>()?;
        Ok(Value { name, filters })
    }
}

impl Name {
    /// The value, if only the log has it.
    pub(super) fn of_log(&self) -> Option<SourceValue> {
        match self {
            Name::Source(SourceValue::Schema | SourceValue::Table) => None,
            Name::Source(value) => Some(*value),
            _ => None,
        }
    }

    /// Parses a name from between `${` and `}`.
    pub(super) fn parse(name: &str) -> Result<Self, TemplateError> {
        Ok(match name.split_once('.') {
            Some(("headers", member)) if !member.is_empty() => Name::Header(member.to_owned()),
            Some(("column", column)) if !column.is_empty() => Name::OwnColumn(column.to_owned()),
            Some(("match", group)) if !group.is_empty() => Name::Match(group.to_owned()),
            Some(("source", key)) => {
                let known = SourceValue::ALL.into_iter().find(|value| value.key() == key);
                Name::Source(known.ok_or_else(|| TemplateError::Source(name.to_owned()))?)
            }
            _ => Name::Column(name.to_owned()),
        })
    }
}

fn split_at_pipes(expression: &str) -> Vec<&str> {
    let mut quoted = false;
    let unquoted_pipe = |character: char| {
        quoted ^= character == '\'';
        character == '|' && !quoted
    };
    expression.split(unquoted_pipe).collect()
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(&text.replace('$', "$$")),
            Part::Value(value) => match value.to_string() {
                name if is_variable_name(&name) => write!(f, "${{ {name} }}"),
                value => write!(f, "${{{value}}}"),
            },
        })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        self.filters.iter().try_for_each(|filter| write!(f, " | {filter}"))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Column(name) => f.write_str(name),
            Name::OwnColumn(name) => write!(f, "column.{name}"),
            Name::Header(member) => write!(f, "headers.{member}"),
            Name::Source(value) => write!(f, "source.{}", value.key()),
            Name::Match(group) => write!(f, "match.{group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(name: Name, filters: &[Filter]) -> Part {
        Part::Value(Value { name, filters: filters.to_vec() })
    }

    #[test]
    fn text_values_and_filters() {
        let column = |name: &str| Name::Column(name.to_owned());
        let text = |text: &str| Part::Text(text.to_owned());
        let parse = |text: &str| Template::parse(text).unwrap().parts().to_vec();
        assert_eq!(parse("a.${b}$$"), [text("a."), value(column("b"), &[]), text("$")]);
        assert_eq!(
            parse("${ Region | default('}|') | kebab|lower }"),
            [value(column("Region"), &[Filter::Default("}|".into()), Filter::Kebab, Filter::Lower])]
        );
        assert_eq!(
            parse("${headers.tenant}${source.sequence}"),
            [value(Name::Header("tenant".into()), &[]), value(Name::Source(SourceValue::Sequence), &[])]
        );
        assert_eq!(parse("a$$b"), [text("a$b")]);
    }

    #[test]
    fn an_invalid_template_says_why_and_where() {
        let wrong = |text: &str| Template::parse(text).unwrap_err().to_string();
        insta::assert_snapshot!(
            [
                "",
                "é${a",
                "a${}",
                "a$b",
                "a$",
                "${a | upper}",
                "${a | default(x)}",
                "${a|}",
                "${source.offset}"
            ]
            .map(|text| format!("{text:?}: {}", wrong(text)))
            .join("\n")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_template_or_an_error(text in "[${}|'a.é ]{0,30}") {
            if let Ok(template) = Template::parse(&text) {
                prop_assert_eq!(Template::parse(&template.to_string()), Ok(template));
            }
        }
    }
}
