//! The captured groups of a rule.

/// The texts that the groups of a rule's patterns captured, for `${match.x}`.
#[derive(Debug, Default)]
pub(super) struct Captures(Vec<(String, Option<String>)>);

impl Captures {
    /// Without groups.
    pub(super) const NONE: &'static Captures = &Captures(Vec::new());

    pub(super) fn get(&self, group: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == group).and_then(|(_, text)| text.as_deref())
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn add(&mut self, group: String, text: Option<String>) {
        self.0.push((group, text));
    }
}
