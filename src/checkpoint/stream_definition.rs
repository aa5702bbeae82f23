//! Identifies what a stream contains, and detects that it was altered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What decides which changes a stream contains. If it was altered, change numbers and the log in between cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamDefinition {
    /// The identity of the publication's catalogue row.
    pub publication: Option<String>,
    /// For each outbox table, its identity and that of what makes it part of the publication.
    #[serde(default)]
    pub tables: BTreeMap<String, String>,
    /// `[outbox] message_prefix`: whether messages count as changes.
    pub message_prefix: Option<String>,
    /// For each outbox table, evidence that it left the publication and came back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub traces: BTreeMap<String, Traces>,
}

/// What shows in the catalogues that a table left a publication and came back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traces {
    /// The transaction that moved the table into its schema, if it is published through its schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The table's data file: each rewrite creates a new one. A partitioned table has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The rows of `pg_publication_rel` for the table, of any publication: while there is one, Postgres refuses to make the table
    /// unlogged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named_by: Vec<String>,
}

impl StreamDefinition {
    /// Whether both have the same publication, even if it was altered. A publication that was created again is unknown to the log
    /// before that.
    pub fn same_publication(&self, before: &StreamDefinition) -> bool {
        let oid = |definition: &StreamDefinition| {
            definition.publication.as_ref()?.split('/').next().map(str::to_owned)
        };
        oid(self) == oid(before)
    }

    /// Whether both list a table with the same OID: those of another database have others.
    pub fn has_table_of(&self, before: &StreamDefinition) -> bool {
        let oid = |identity: &String| identity.split(' ').next().map(str::to_owned);
        self.tables
            .iter()
            .any(|(name, now)| before.tables.get(name).is_some_and(|known| oid(known) == oid(now)))
    }

    /// Whether rows may be missing from the stream: the publication, or a table that both list, was altered or created again.
    pub fn altered_since(&self, before: &StreamDefinition) -> bool {
        let table = |(name, identity): (&String, &String)| {
            before.tables.get(name).is_some_and(|known| known != identity)
        };
        let traces = |(name, traces): (&String, &Traces)| {
            before.traces.get(name).is_some_and(|known| traces.left_since(known))
        };
        self.publication != before.publication
            || self.tables.iter().any(table)
            || self.traces.iter().any(traces)
    }

    /// The tables that were rewritten while Postgres would have let them be unlogged: nobody can tell whether they were.
    pub fn rewritten_since<'a>(&'a self, before: &'a StreamDefinition) -> impl Iterator<Item = &'a str> {
        let rewritten = |(name, traces): (&'a String, &'a Traces)| {
            let known = before.traces.get(name)?;
            traces.rewritten_since(known).then_some(name.as_str())
        };
        self.traces.iter().filter_map(rewritten)
    }
}

impl Traces {
    /// Whether rows may have been written while the table was not published. If either version recorded no trace, it does not
    /// count.
    fn left_since(&self, before: &Traces) -> bool {
        differ(&self.schema, &before.schema)
            // once the last publication that named the table is dropped, nobody can tell what happened
            || (differ(&self.file, &before.file) && before.is_named() && !self.is_named_since(before))
    }

    /// Whether it was rewritten while Postgres would have let it be unlogged.
    fn rewritten_since(&self, before: &Traces) -> bool {
        differ(&self.file, &before.file) && !before.is_named()
    }

    /// Whether Postgres refuses to make the table unlogged.
    pub fn is_named(&self) -> bool {
        !self.named_by.is_empty()
    }

    fn is_named_since(&self, before: &Traces) -> bool {
        self.named_by.iter().any(|row| before.named_by.contains(row))
    }
}

fn differ(now: &Option<String>, before: &Option<String>) -> bool {
    now.is_some() && before.is_some() && now != before
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::sample_checkpoint;
    use super::*;

    #[test]
    fn another_publication_is_an_alteration_and_another_table_in_the_list_is_not() {
        let before = sample_checkpoint().definition;
        let mut now = before.clone();
        now.tables.insert("public.more".into(), "9 1/2; ".into());
        now.message_prefix = Some("outbox".into());
        assert!(!now.altered_since(&before));
        assert!(!before.altered_since(&now));
        now.tables.insert("public.outbox".into(), "16385 16409/800; ".into());
        assert!(now.altered_since(&before));
        now = StreamDefinition { publication: Some("16400/800".into()), ..before.clone() };
        assert!(now.altered_since(&before));
    }

    #[test]
    fn a_table_that_came_back_to_its_schema_is_an_alteration_unless_an_earlier_version_did_not_record_it() {
        let put_there_by = |xid: &str| {
            let traces = Traces { schema: Some(xid.into()), ..Traces::default() };
            StreamDefinition {
                traces: [("public.outbox".into(), traces)].into(),
                ..sample_checkpoint().definition
            }
        };
        assert!(!put_there_by("745").altered_since(&put_there_by("745")));
        assert!(put_there_by("800").altered_since(&put_there_by("745")));
        assert!(!put_there_by("800").altered_since(&sample_checkpoint().definition));
    }

    #[test]
    fn a_table_that_is_rewritten_was_not_unlogged_as_long_as_a_publication_names_it() {
        let of = |file: &str, named_by: &[&str]| {
            let named_by = named_by.iter().map(|&row| row.to_owned()).collect();
            let traces = Traces { schema: None, file: Some(file.into()), named_by };
            StreamDefinition {
                traces: [("public.outbox".into(), traces)].into(),
                ..sample_checkpoint().definition
            }
        };
        let result = |now: &StreamDefinition, before: &StreamDefinition| {
            (now.altered_since(before), now.rewritten_since(before).count())
        };
        assert_eq!(result(&of("2", &["7/740", "8/750"]), &of("1", &["7/740"])), (false, 0), "always named");
        assert_eq!(result(&of("1", &[]), &of("1", &["7/740"])), (false, 0), "not rewritten");
        assert_eq!(result(&of("2", &["9/760"]), &of("1", &["7/740"])), (true, 0), "named again");
        assert_eq!(result(&of("2", &[]), &of("1", &["7/740"])), (true, 0), "no longer named");
        assert_eq!(result(&of("2", &["7/740"]), &of("1", &[])), (false, 1), "nobody can tell");
        assert_eq!(result(&of("2", &[]), &sample_checkpoint().definition), (false, 0), "not recorded");
    }
}
