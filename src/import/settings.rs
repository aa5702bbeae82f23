//! The settings of a connector. Each is removed once it is understood, so that what remains was not understood.

use std::collections::BTreeMap;

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    /// Its name in the file.
    pub(super) name: String,
    /// Its value, trimmed as Connect does.
    pub(super) value: String,
}

impl Setting {
    /// Whether it is on; Java accepts only `true`.
    pub(super) fn is_true(&self) -> bool {
        self.value.eq_ignore_ascii_case("true")
    }
}

/// Settings by their names in Connect.
#[derive(Debug, Default)]
pub(super) struct Settings(BTreeMap<String, Setting>);

impl Settings {
    /// Adds a setting, or replaces it.
    pub(super) fn set(&mut self, connect: impl Into<String>, name: impl Into<String>, value: &str) {
        self.0.insert(connect.into(), Setting { name: name.into(), value: value.trim().to_owned() });
    }

    /// Adds a setting unless it exists.
    pub(super) fn set_default(&mut self, connect: &str, name: impl Into<String>, value: &str) {
        if self.get(connect).is_none() {
            self.set(connect, name, value);
        }
    }

    /// The setting of this name.
    pub(super) fn get(&self, connect: &str) -> Option<&Setting> {
        self.0.get(connect)
    }

    /// Removes the setting of this name.
    pub(super) fn take(&mut self, connect: &str) -> Option<Setting> {
        self.0.remove(connect)
    }

    /// Removes all settings with this prefix, and returns them in order, without the prefix.
    pub(super) fn take_prefix(&mut self, prefix: &str) -> Settings {
        let names: Vec<String> = self.0.keys().filter(|name| name.starts_with(prefix)).cloned().collect();
        let taken = names.into_iter().filter_map(|name| {
            let setting = self.0.remove(&name)?;
            Some((name.get(prefix.len()..).unwrap_or_default().to_owned(), setting))
        });
        Settings(taken.collect())
    }

    /// The remaining settings, by their names in Connect.
    pub(super) fn into_rest(self) -> impl Iterator<Item = (String, Setting)> {
        self.0.into_iter()
    }

    /// The names in Connect.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Whether a pattern names a setting; an asterisk at its end stands for anything.
pub(super) fn matches_pattern(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

/// Splits as Java's `String.split` does: without the empty parts at the end.
pub(super) fn split(text: &str, separator: char) -> Vec<&str> {
    let mut parts: Vec<&str> = text.split(separator).collect();
    while parts.last() == Some(&"") && !text.is_empty() {
        parts.pop();
    }
    parts
}

/// The entries of a comma-separated list.
pub(super) fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|member| !member.is_empty())
}

/// Whether this word is in the list that the setting contains, in either case.
pub(super) fn lists(setting: &Setting, word: &str) -> bool {
    list(&setting.value).any(|listed| listed.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_as_by_java() {
        for (text, parts) in [
            ("a:b", &["a", "b"][..]),
            ("a:b:", &["a", "b"]),
            ("a:b::", &["a", "b"]),
            ("a:b: ", &["a", "b", " "]),
            ("a::b", &["a", "", "b"]),
            (":a", &["", "a"]),
            (":", &[]),
            ("", &[""]),
        ] {
            assert_eq!(split(text, ':'), parts, "{text}");
        }
    }
}
