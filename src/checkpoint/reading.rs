//! What the stream is made of, and whether that was altered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What decides which changes a stream holds. After another one, numbers of changes and the log between are doubtful.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reading {
    /// Identity of the publication's catalogue row.
    pub publication: Option<String>,
    /// Of each outbox table, and of what makes it a part of the publication.
    #[serde(default)]
    pub tables: BTreeMap<String, String>,
    /// `[outbox] message_prefix`: whether messages count as changes.
    pub message_prefix: Option<String>,
    /// Of each outbox table, what tells that it left the publication and came back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub traces: BTreeMap<String, Traces>,
}

/// What a table leaves in the catalogues when it leaves a publication and comes back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traces {
    /// The transaction that put it into its schema, where it is published as one of that schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The file of its rows, of which each rewrite makes a new one. A partitioned table has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The rows of `pg_publication_rel` that name it, of any publication: as long as there is one, Postgres refuses to make the
    /// table unlogged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named_by: Vec<String>,
}

impl Reading {
    /// Whether it is the publication of before, altered or not: one that was made anew may bear another name, and is not known to the
    /// log before it.
    pub fn same_publication(&self, before: &Reading) -> bool {
        let oid = |reading: &Reading| reading.publication.as_ref()?.split('/').next().map(str::to_owned);
        oid(self) == oid(before)
    }

    /// Whether rows may have been written that the stream does not hold: the publication, or a table that both know,
    /// was altered or made again.
    pub fn altered_since(&self, before: &Reading) -> bool {
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

    /// The tables that were rewritten while nothing kept them from being unlogged for a time: whether they were, nobody can tell.
    pub fn rewritten_since<'a>(&'a self, before: &'a Reading) -> impl Iterator<Item = &'a str> {
        let rewritten = |(name, traces): (&'a String, &'a Traces)| {
            let known = before.traces.get(name)?;
            traces.rewritten_since(known).then_some(name.as_str())
        };
        self.traces.iter().filter_map(rewritten)
    }
}

impl Traces {
    /// Whether rows may have been written while the table was not published. A version that did not record a trace says
    /// nothing.
    fn left_since(&self, before: &Traces) -> bool {
        differ(&self.schema, &before.schema)
            // nobody can tell what was done after the last publication that named it was dropped
            || (differ(&self.file, &before.file) && before.is_named() && !self.is_named_since(before))
    }

    /// Whether it was rewritten while nothing kept it from being unlogged for a time.
    fn rewritten_since(&self, before: &Traces) -> bool {
        differ(&self.file, &before.file) && !before.is_named()
    }

    /// Whether Postgres refuses to make it unlogged.
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
    use super::super::record::tests::remembered;
    use super::*;

    #[test]
    fn another_table_in_the_list_is_no_alteration_and_another_publication_is() {
        let before = remembered().reading;
        let mut now = before.clone();
        now.tables.insert("public.more".into(), "9 1/2; ".into());
        now.message_prefix = Some("outbox".into());
        assert!(!now.altered_since(&before));
        assert!(!before.altered_since(&now));
        now.tables.insert("public.outbox".into(), "16385 16409/800; ".into());
        assert!(now.altered_since(&before));
        now = Reading { publication: Some("16400/800".into()), ..before.clone() };
        assert!(now.altered_since(&before));
    }

    #[test]
    fn a_table_that_came_back_to_its_schema_is_an_alteration_unless_an_earlier_version_did_not_record_it() {
        let put_there_by = |xid: &str| {
            let traces = Traces { schema: Some(xid.into()), ..Traces::default() };
            Reading { traces: [("public.outbox".into(), traces)].into(), ..remembered().reading }
        };
        assert!(!put_there_by("745").altered_since(&put_there_by("745")));
        assert!(put_there_by("800").altered_since(&put_there_by("745")));
        assert!(!put_there_by("800").altered_since(&remembered().reading));
    }

    #[test]
    fn a_table_that_is_rewritten_was_not_unlogged_as_long_as_a_publication_names_it() {
        let of = |file: &str, named_by: &[&str]| {
            let named_by = named_by.iter().map(|&row| row.to_owned()).collect();
            let traces = Traces { schema: None, file: Some(file.into()), named_by };
            Reading { traces: [("public.outbox".into(), traces)].into(), ..remembered().reading }
        };
        let told = |now: &Reading, before: &Reading| {
            (now.altered_since(before), now.rewritten_since(before).count())
        };
        assert_eq!(
            told(&of("2", &["7/740", "8/750"]), &of("1", &["7/740"])),
            (false, 0),
            "named all the time"
        );
        assert_eq!(told(&of("1", &[]), &of("1", &["7/740"])), (false, 0), "not rewritten");
        assert_eq!(told(&of("2", &["9/760"]), &of("1", &["7/740"])), (true, 0), "named anew");
        assert_eq!(told(&of("2", &[]), &of("1", &["7/740"])), (true, 0), "no longer named");
        assert_eq!(told(&of("2", &["7/740"]), &of("1", &[])), (false, 1), "nobody can tell");
        assert_eq!(told(&of("2", &[]), &remembered().reading), (false, 0), "not recorded");
    }
}
