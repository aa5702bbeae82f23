//! Suggestions for misspelled names.

/// The known name that is most similar to `typed`, if any is similar enough.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_ascii_lowercase();
    // two letters of a short name in the wrong order make it look very different
    let score = |name: &'a str| match strsim::osa_distance(&typed, name) {
        ..=1 => (name, 1.0),
        _ => (name, strsim::jaro_winkler(&typed, name)),
    };
    let best = known.into_iter().map(score).max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.filter(|(_, score)| *score >= 0.8).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_name_is_suggested() {
        let known = ["slot", "publication", "url"];
        assert_eq!(nearest("slott", known), Some("slot"));
        assert_eq!(nearest("Publications", known), Some("publication"));
        assert_eq!(nearest("ulr", known), Some("url"));
        assert_eq!(nearest("frobnicate", known), None);
    }
}
