//! Tables in the publication that look like outbox tables and that the configuration does not name. The router drops their rows.

use pg_logical::QueryError;
use pg_logical::quoting::{self, literal};
use pg_logical::session::Session;

use super::server_version;
use super::table::is_published;
use crate::config::{OutboxSource, TableName};
use crate::outbox::FIELDS;

/// How many of them a message names.
const NAMED: usize = 5;

/// What is dropped, and what to do about it; `None` if nothing looks like that.
///
/// # Errors
/// The query fails.
pub async fn unnamed_outboxes(
    session: &mut Session,
    source: OutboxSource<'_>,
) -> Result<Option<(String, String)>, QueryError> {
    let version = server_version(session).await?;
    let rows = session.query(&query(source, version)).await?;
    let table = |row: &pg_logical::session::Row| {
        Some(TableName { schema: row.get(0)?.into(), name: row.get(1)?.into() })
    };
    let tables: Vec<TableName> = rows.iter().filter_map(table).collect();
    Ok(in_words(&source.postgres.publication, &tables))
}

fn in_words(publication: &str, tables: &[TableName]) -> Option<(String, String)> {
    let named: Vec<String> = tables.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match tables.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!(
        "{} also publishes {}{more}, with the columns of an outbox table, and `[outbox] table` does not name it: its rows are dropped",
        quoting::identifier(publication),
        named.join(", ")
    );
    let remedy = "If its rows are events for this router, name it in `[outbox] table` and restart; rows that were dropped are not \
                  sent then. If not, nothing needs to be done";
    (!tables.is_empty()).then(|| (what, remedy.to_owned()))
}

/// Published tables with the columns that every outbox needs. A partition belongs to its table, and the router's own schema has
/// tables with such columns too.
fn query(source: OutboxSource<'_>, version: u32) -> String {
    let columns = &source.outbox.columns;
    let mut needed: Vec<&str> = FIELDS
        .into_iter()
        .filter(|field| !field.optional(columns))
        .filter_map(|field| field.column(columns))
        .collect();
    needed.sort_unstable();
    needed.dedup();
    let named = source.outbox.tables.iter().map(|table| {
        format!("(o.nspname, r.relname) = ({}, {}) OR ", literal(&table.schema), literal(&table.name))
    });
    let published = is_published(version);
    format!(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_publication p CROSS JOIN pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE p.pubname = {} AND n.nspname NOT IN ('outbox_router', 'pg_catalog', 'information_schema') AND {published} \
         AND {} = (SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 \
         AND NOT a.attisdropped AND a.attname IN ({})) \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_class r JOIN pg_catalog.pg_namespace o ON o.oid = r.relnamespace \
         WHERE ({}false) AND (r.oid = c.oid \
         OR r.oid IN (SELECT x.relid FROM pg_catalog.pg_partition_ancestors(c.oid) x))) ORDER BY 1, 2",
        literal(&source.postgres.publication),
        needed.len(),
        needed.into_iter().map(literal).collect::<Vec<_>>().join(", "),
        named.collect::<String>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_tables_are_named_and_the_others_counted() {
        let table = |number| TableName { schema: "s".into(), name: format!("t{number}") };
        let words = |count| in_words("p", &(0..count).map(table).collect::<Vec<_>>()).map(|(what, _)| what);
        assert_eq!(words(0), None);
        assert!(words(5).unwrap().contains("s.t3, s.t4, with"));
        assert!(words(7).unwrap().contains("s.t4 and 2 more, with"));
    }
}
