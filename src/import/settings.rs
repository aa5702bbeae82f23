//! The settings of a connector. Each is taken out when it is understood, so that what is left is what was not.

use std::collections::BTreeMap;

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    /// Its name as the file has it.
    pub(super) name: String,
    /// Its value, without blanks around it, as Connect reads it.
    pub(super) value: String,
}

impl Setting {
    /// Whether it is on; Java takes nothing but `true` for that.
    pub(super) fn is_true(&self) -> bool {
        self.value.eq_ignore_ascii_case("true")
    }
}

/// Settings by the names that they have in Connect.
#[derive(Debug, Default)]
pub(super) struct Settings(BTreeMap<String, Setting>);

impl Settings {
    /// Adds one, in place of an earlier one.
    pub(super) fn set(&mut self, connect: impl Into<String>, name: impl Into<String>, value: &str) {
        self.0.insert(connect.into(), Setting { name: name.into(), value: value.trim().to_owned() });
    }

    /// The same, unless it is there.
    pub(super) fn set_default(&mut self, connect: &str, name: impl Into<String>, value: &str) {
        if self.get(connect).is_none() {
            self.set(connect, name, value);
        }
    }

    /// Looks at one.
    pub(super) fn get(&self, connect: &str) -> Option<&Setting> {
        self.0.get(connect)
    }

    /// Takes one out.
    pub(super) fn take(&mut self, connect: &str) -> Option<Setting> {
        self.0.remove(connect)
    }

    /// Takes out all whose names begin like this; the names are what comes behind it, in their order.
    pub(super) fn take_prefix(&mut self, prefix: &str) -> Settings {
        let names: Vec<String> = self.0.keys().filter(|name| name.starts_with(prefix)).cloned().collect();
        let taken = names.into_iter().filter_map(|name| {
            let setting = self.0.remove(&name)?;
            Some((name.get(prefix.len()..).unwrap_or_default().to_owned(), setting))
        });
        Settings(taken.collect())
    }

    /// Those that are left, by their names in Connect.
    pub(super) fn into_rest(self) -> impl Iterator<Item = (String, Setting)> {
        self.0.into_iter()
    }

    /// The names in Connect.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// The members of a comma-separated list.
pub(super) fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|member| !member.is_empty())
}
