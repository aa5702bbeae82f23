//! Named values in the order in which the names first occurred.

use std::borrow::Cow;
use std::collections::HashMap;

/// With this many members or more, names are looked up by hash.
const INDEX_FROM: usize = 16;

/// The members of a JSON object, or the fields of its schema.
#[derive(Debug)]
pub(super) struct Members<'a, T> {
    entries: Vec<(Cow<'a, str>, T)>,
    /// Boxed to keep small objects small: a thousand of them may be on the stack.
    #[expect(clippy::box_collection)]
    index: Option<Box<HashMap<Cow<'a, str>, usize>>>,
}

impl<'a, T> Members<'a, T> {
    pub(super) fn new() -> Self {
        Members { entries: Vec::new(), index: None }
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = (Cow<'a, str>, T)> {
        self.entries.into_iter()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.entries.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// The value of a name; `hint` is the position where it probably is.
    pub(super) fn get(&self, name: &str, hint: usize) -> Option<&T> {
        if let Some((_, value)) = self.entries.get(hint).filter(|(here, _)| here == name) {
            return Some(value);
        }
        let position = self.position(name)?;
        self.entries.get(position).map(|(_, value)| value)
    }

    /// Adds a value, or replaces the one with this name.
    pub(super) fn insert(&mut self, name: Cow<'a, str>, value: T) {
        if let Some((_, former)) = self.position(&name).and_then(|position| self.entries.get_mut(position)) {
            *former = value;
            return;
        }
        if self.index.is_none() && self.entries.len() >= INDEX_FROM {
            let names = self.entries.iter().enumerate();
            let index = names.map(|(position, (name, _))| (name.clone(), position)).collect();
            self.index = Some(Box::new(index));
        }
        if let Some(index) = &mut self.index {
            index.insert(name.clone(), self.entries.len());
        }
        self.entries.push((name, value));
    }

    fn position(&self, name: &str) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(name).copied(),
            None => self.entries.iter().position(|(here, _)| here == name),
        }
    }
}

impl<T: PartialEq> PartialEq for Members<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_place_of_the_first_and_the_value_of_the_last() {
        let mut members = Members::new();
        for value in 0..100 {
            members.insert(Cow::Owned(format!("m{}", value % 40)), value);
        }
        let expected: Vec<_> =
            (0..40).map(|name| (format!("m{name}"), if name < 20 { name + 80 } else { name + 40 })).collect();
        let found: Vec<_> = members.iter().map(|(name, value)| (name.to_owned(), *value)).collect();
        assert_eq!(found, expected);
        assert_eq!(members.get("m39", 0), Some(&79));
        assert_eq!(members.get("m39", 39), Some(&79));
        assert_eq!(members.get("other", 0), None);
    }
}
