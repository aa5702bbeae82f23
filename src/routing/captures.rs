//! What the groups of a pattern matched.

/// What the groups in a rule's patterns matched, for `${match.x}`.
#[derive(Debug, Default)]
pub(super) struct Captures(Vec<(String, Option<String>)>);

impl Captures {
    /// The groups of no rule.
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
