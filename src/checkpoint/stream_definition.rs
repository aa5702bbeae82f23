//! Identifies what a stream contains, and detects that it was altered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What decides which changes a stream contains. If it was altered, the stream may lack rows of the log in between.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamDefinition {
    /// The publication's OID, and the transaction that wrote its catalogue row: `16400/745`.
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

/// What the catalogues show about the time between two definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alteration {
    /// Every row of the log is in the stream.
    None,
    /// A table or its schema may have had another name for a time, and another table this name.
    Renamed,
    /// What is published may have been altered, and altered back.
    Touched,
    /// The publication or a table is another one, or a table's rows may be missing from the log.
    Replaced,
}

/// Rows of the outbox that are in the log after the slot's position, and not in the stream. A comparison finds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftOut {
    /// There are none.
    None,
    /// Some are missing.
    Rows {
        /// How many are not in the stream at all.
        missing: u64,
        /// How many are, but without columns that are published now.
        incomplete: u64,
    },
    /// Log and stream cannot be compared, for this reason.
    Unknown(String),
}

impl LeftOut {
    fn in_words(&self) -> String {
        match self {
            LeftOut::None => String::new(),
            LeftOut::Rows { missing: 1, incomplete: 0 } => {
                "; one row that was committed since is not in the stream".to_owned()
            }
            LeftOut::Rows { missing, incomplete: 0 } => {
                format!("; {missing} rows that were committed since are not in the stream")
            }
            LeftOut::Rows { missing: 0, incomplete } => {
                format!("; in the stream, {incomplete} of the rows that were committed since lack columns")
            }
            LeftOut::Rows { missing, incomplete } => {
                format!(
                    "; of the rows that were committed since, {missing} are not in the stream, and {incomplete} lack columns there"
                )
            }
            LeftOut::Unknown(why) => {
                format!("; whether rows are missing from the stream is not known: {why}")
            }
        }
    }
}

/// What shows in the catalogues that a table left a publication and came back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traces {
    /// The transaction that moved the table into its schema, if it is published through its schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The transactions that wrote the catalogue rows of its row type and of its schema: a new name of either writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_at: Option<String>,
    /// The table's data file: each rewrite creates a new one. A partitioned table has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Of a partitioned table, the last partition that brought rows which are not in the log: the id of its row in
    /// `outbox_router.rows_not_in_log`, and its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_in_log: Option<String>,
    /// The rows of `pg_publication_rel` for the table, of any publication: while there is one, Postgres refuses to make the table
    /// unlogged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named_by: Vec<String>,
}

impl StreamDefinition {
    /// Whether both have the same publication, even if it was altered. A publication that was created again is unknown to the log
    /// before that.
    pub fn same_publication(&self, before: &StreamDefinition) -> bool {
        let of = |definition: &StreamDefinition| {
            definition.publication.as_ref().map(|publication| oid(publication, '/').to_owned())
        };
        of(self) == of(before)
    }

    /// Whether both list a table with the same OID: those of another database have others.
    pub fn has_table_of(&self, before: &StreamDefinition) -> bool {
        self.tables
            .iter()
            .any(|(name, now)| before.tables.get(name).is_some_and(|known| oid(known, ' ') == oid(now, ' ')))
    }

    /// Whether rows may be missing from the stream because the publication, or a table that both list, was altered.
    pub fn alteration_since(&self, before: &StreamDefinition) -> Alteration {
        let tables = self.tables.iter().filter_map(|(name, now)| {
            let known = before.tables.get(name)?;
            Some(if oid(now, ' ') != oid(known, ' ') {
                Alteration::Replaced
            } else if now != known {
                Alteration::Touched
            } else {
                Alteration::None
            })
        });
        let traces =
            self.traces.iter().filter_map(|(name, now)| Some(now.alteration_since(before.traces.get(name)?)));
        let publication = if !self.same_publication(before) {
            Alteration::Replaced
        } else if self.publication != before.publication {
            Alteration::Touched
        } else {
            Alteration::None
        };
        tables.chain(traces).fold(publication, Alteration::max)
    }

    /// What is known of the missing rows, as a part of a sentence that begins with a semicolon. `left_out` is from a comparison.
    pub fn missing_since(&self, before: &StreamDefinition, left_out: Option<&LeftOut>) -> String {
        let partition = |(name, now): (&String, &Traces)| {
            let partition = now.not_in_log_since(before.traces.get(name)?)?;
            Some(format!(
                "; the partition {partition} was attached with rows, or was unlogged for a time: they are not in the stream"
            ))
        };
        let partitions = self.traces.iter().filter_map(partition);
        partitions.chain(left_out.map(LeftOut::in_words)).collect()
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
    /// If either version recorded no trace, it does not count.
    fn alteration_since(&self, before: &Traces) -> Alteration {
        // once the last publication that named the table is dropped, nobody can tell what happened
        if self.not_in_log_since(before).is_some()
            || differ(&self.file, &before.file) && before.is_named() && !self.is_named_since(before)
        {
            Alteration::Replaced
        } else if differ(&self.schema, &before.schema) {
            Alteration::Touched
        } else if differ(&self.named_at, &before.named_at) {
            Alteration::Renamed
        } else {
            Alteration::None
        }
    }

    /// Whether it was rewritten while Postgres would have let it be unlogged.
    fn rewritten_since(&self, before: &Traces) -> bool {
        differ(&self.file, &before.file) && !before.is_named()
    }

    /// A partition that brought rows which are not in the log.
    fn not_in_log_since(&self, before: &Traces) -> Option<&str> {
        let noted = self.not_in_log.as_ref().filter(|_| self.not_in_log != before.not_in_log)?;
        noted.split_once(' ').map(|(_, partition)| partition)
    }

    /// Whether Postgres refuses to make the table unlogged.
    pub fn is_named(&self) -> bool {
        !self.named_by.is_empty()
    }

    fn is_named_since(&self, before: &Traces) -> bool {
        self.named_by.iter().any(|row| before.named_by.contains(row))
    }
}

/// The OID at the beginning of an identity.
fn oid(identity: &str, separator: char) -> &str {
    identity.split(separator).next().unwrap_or_default()
}

fn differ(now: &Option<String>, before: &Option<String>) -> bool {
    now.is_some() && before.is_some() && now != before
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::sample_checkpoint;
    use super::*;

    #[test]
    fn another_publication_or_table_is_told_from_an_altered_one() {
        let before = sample_checkpoint().definition;
        let with = |publication: &str, table: &str| StreamDefinition {
            publication: Some(publication.into()),
            tables: [("public.outbox".into(), table.into()), ("public.more".into(), "9 1/2; ".into())].into(),
            // whether messages are read is no alteration of what is published
            message_prefix: Some("outbox".into()),
            ..before.clone()
        };
        let (publication, table) =
            (before.publication.clone().unwrap(), before.tables.get("public.outbox").unwrap());
        let [publication_oid, table_oid] = [oid(&publication, '/'), oid(table, ' ')];
        for (now, expected) in [
            (with(&publication, table), Alteration::None),
            (with(&format!("{publication_oid}/800"), table), Alteration::Touched),
            (with(&publication, &format!("{table_oid} 16409/800; ")), Alteration::Touched),
            (with("9/745", table), Alteration::Replaced),
            (with(&publication, "9 16409/800; "), Alteration::Replaced),
            (StreamDefinition { publication: None, ..with("", table) }, Alteration::Replaced),
        ] {
            assert_eq!(now.alteration_since(&before), expected, "{now:?}");
        }
    }

    fn with(traces: Traces) -> StreamDefinition {
        StreamDefinition {
            traces: [("public.outbox".into(), traces)].into(),
            ..sample_checkpoint().definition
        }
    }

    #[test]
    fn a_table_that_had_another_name_or_schema_is_an_alteration_unless_an_earlier_version_did_not_record_it()
    {
        let moved = |xid: &str| with(Traces { schema: Some(xid.into()), ..Traces::default() });
        let renamed = |xids: &str| with(Traces { named_at: Some(xids.into()), ..Traces::default() });
        for (now, before, expected) in [
            (moved("745"), moved("745"), Alteration::None),
            (moved("800"), moved("745"), Alteration::Touched),
            (moved("800"), sample_checkpoint().definition, Alteration::None),
            (renamed("745/1"), renamed("745/1"), Alteration::None),
            (renamed("800/1"), renamed("745/1"), Alteration::Renamed),
            (renamed("745/2"), renamed("745/1"), Alteration::Renamed),
            (renamed("800/1"), sample_checkpoint().definition, Alteration::None),
        ] {
            assert_eq!(now.alteration_since(&before), expected, "{now:?}");
        }
    }

    #[test]
    fn a_table_that_is_rewritten_was_not_unlogged_as_long_as_a_publication_names_it() {
        let of = |file: &str, named_by: &[&str]| {
            let named_by = named_by.iter().map(|&row| row.to_owned()).collect();
            with(Traces { file: Some(file.into()), named_by, ..Traces::default() })
        };
        let result = |now: &StreamDefinition, before: &StreamDefinition| {
            (now.alteration_since(before), now.rewritten_since(before).count())
        };
        let (none, replaced) = (Alteration::None, Alteration::Replaced);
        assert_eq!(result(&of("2", &["7/740", "8/750"]), &of("1", &["7/740"])), (none, 0), "always named");
        assert_eq!(result(&of("1", &[]), &of("1", &["7/740"])), (none, 0), "not rewritten");
        assert_eq!(result(&of("2", &["9/760"]), &of("1", &["7/740"])), (replaced, 0), "named again");
        assert_eq!(result(&of("2", &[]), &of("1", &["7/740"])), (replaced, 0), "no longer named");
        assert_eq!(result(&of("2", &["7/740"]), &of("1", &[])), (none, 1), "nobody can tell");
        assert_eq!(result(&of("2", &[]), &sample_checkpoint().definition), (none, 0), "not recorded");
    }
}
