//! Writes the configuration: keys in the order of `outbox-router.example.toml`, each with its origin.

use crate::config::substitute;

/// A section of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    Postgres,
    Outbox,
    Route,
    Rule,
    Kafka,
    Topics,
    Delivery,
}

impl Section {
    fn heading(self) -> &'static str {
        match self {
            Section::Postgres => "[postgres]",
            Section::Outbox => "[outbox]",
            Section::Route => "[route]",
            Section::Rule => "[[route.rules]]",
            Section::Kafka => "[kafka]",
            Section::Topics => "[topics]",
            Section::Delivery => "[delivery]",
        }
    }
}

/// Keys with a fixed place within a section; those that end in a dot are tables.
const ORDER: [&str; 16] = [
    "table",
    "columns.",
    "on_update",
    "topic",
    "partition",
    "headers.",
    "timestamp",
    "value",
    "envelope.",
    "payload_json",
    "expand.",
    "tombstone_on_empty",
    "missing_columns",
    "partitions",
    "replication_factor",
    "config.",
];

/// The place of a key. Others come first, in the order in which they were added.
fn rank(section: Section, key: &str) -> Option<usize> {
    let fits = |name: &&str| if name.ends_with('.') { key.starts_with(*name) } else { key == *name };
    let ordered = matches!(section, Section::Outbox | Section::Route | Section::Topics);
    if ordered { ORDER.iter().position(fits) } else { None }
}

/// A key with its value.
pub(super) struct Entry {
    section: Section,
    key: String,
    /// TOML.
    pub(super) value: String,
    /// The settings that it comes from.
    pub(super) from: String,
    /// What stands for the value until the user has replaced it, or has made the file that it names.
    until_done: Option<&'static str>,
}

/// The configuration to write.
#[derive(Default)]
pub(super) struct Document(Vec<Entry>);

impl Document {
    /// Adds a key to a section. `value` is TOML, and `from` becomes a comment.
    pub(super) fn set(
        &mut self,
        section: Section,
        key: impl Into<String>,
        value: impl Into<String>,
        from: impl Into<String>,
    ) {
        self.add(Entry {
            section,
            key: key.into(),
            value: value.into(),
            from: from.into(),
            until_done: None,
        });
    }

    /// Adds a key that the loader refuses until the user has done something; with `until_done` in its place it is accepted.
    pub(super) fn set_to_do(
        &mut self,
        section: Section,
        key: impl Into<String>,
        value: impl Into<String>,
        from: impl Into<String>,
        until_done: &'static str,
    ) {
        let until_done = Some(until_done);
        self.add(Entry { section, key: key.into(), value: value.into(), from: from.into(), until_done });
    }

    fn add(&mut self, entry: Entry) {
        self.0.push(entry);
        self.0.sort_by_key(|entry| (entry.section, rank(entry.section, &entry.key)));
    }

    /// Whether the section has the key.
    pub(super) fn has(&self, section: Section, key: &str) -> bool {
        self.0.iter().any(|entry| entry.section == section && entry.key == key)
    }

    /// The text of the file.
    pub(super) fn text(&self) -> String {
        self.lines(|entry| &entry.value).into_iter().map(|(line, _)| line).collect()
    }

    /// The same text as if the user had done everything.
    pub(super) fn loadable(&self) -> String {
        self.lines(|entry| entry.until_done.unwrap_or(&entry.value))
            .into_iter()
            .map(|(line, _)| line)
            .collect()
    }

    /// The key on this line of the file, counted from 1.
    pub(super) fn at_line(&self, line: usize) -> Option<&Entry> {
        self.lines(|entry| &entry.value).into_iter().nth(line.checked_sub(1)?)?.1
    }

    /// Each line, with the key that is on it.
    fn lines<'a>(&'a self, value: impl Fn(&'a Entry) -> &'a str) -> Vec<(String, Option<&'a Entry>)> {
        let mut lines = vec![("preset = \"debezium\"\n".to_owned(), None)];
        let mut section = None;
        for entry in &self.0 {
            if section != Some(entry.section) {
                section = Some(entry.section);
                lines.push(("\n".to_owned(), None));
                lines.push((format!("{}\n", entry.section.heading()), None));
            }
            let from = if entry.from.is_empty() { String::new() } else { format!("  # {}", entry.from) };
            lines.push((format!("{} = {}{from}\n", entry.key, value(entry)), Some(entry)));
        }
        lines
    }
}

/// A template, or another text, as a TOML string on one line.
pub(super) fn quoted(text: &str) -> String {
    // a regular expression, for example
    let literal = text.contains(['\\', '"']) && !text.contains('\'') && !text.chars().any(char::is_control);
    if literal {
        return format!("'{text}'");
    }
    let escape = |character: char| match character {
        '"' | '\\' => format!("\\{character}"),
        control if control.is_control() => format!("\\u{:04X}", u32::from(control)),
        other => other.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

/// A value that is not a template, as a TOML string. The loader would take `${NAME}` in it as a variable of the environment.
pub(super) fn literal(text: &str) -> String {
    quoted(&substitute::escape(text))
}

/// A key, quoted if it needs to be.
pub(super) fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { quoted(name) }
}

/// An array of texts, or a single text without one.
pub(super) fn one_or_list(texts: &[String]) -> String {
    match texts {
        [one] => literal(one),
        several => format!("[{}]", several.iter().map(|text| literal(text)).collect::<Vec<_>>().join(", ")),
    }
}

/// `{ file = "..." }`
pub(super) fn file(path: &str) -> String {
    format!("{{ file = {} }}", literal(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sections_stand_in_their_order_and_keys_in_that_of_their_coming() {
        let mut document = Document::default();
        document.set(Section::Kafka, quoted("linger.ms"), "5", "producer.override.linger.ms");
        document.set(Section::Postgres, "slot", quoted("b"), "slot.name");
        document.set(Section::Postgres, "publication", quoted("a"), "");
        assert_eq!(
            document.text(),
            "preset = \"debezium\"\n\n[postgres]\nslot = \"b\"  # slot.name\npublication = \"a\"\n\n[kafka]\n\
             \"linger.ms\" = 5  # producer.override.linger.ms\n"
        );
    }

    #[test]
    fn a_text_with_backslashes_stays_readable() {
        assert_eq!(quoted(r"/a\.b/"), r"'/a\.b/'");
        assert_eq!(quoted(r"it's \"), r#""it's \\""#);
        assert_eq!(key("event-type"), "event-type");
        assert_eq!(key("event.type"), "\"event.type\"");
    }

    proptest! {
        #[test]
        fn toml_reads_it_back(name in "\\PC{0,8}", value in ".{0,12}") {
            let table: toml::Table = format!("{} = {}", key(&name), quoted(&value)).parse().unwrap();
            prop_assert_eq!(table.get(&name).and_then(toml::Value::as_str), Some(value.as_str()));
        }
    }
}
