//! The publication and the table that it has to publish.

use super::{Missing, Unreadable, Values, flag, parsed};
use crate::config::{Outbox, Postgres};
use crate::error::Error;
use crate::postgres::quoting;

/// One row of `pg_publication`, and whether it publishes the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Identity of its catalogue rows: changes with each alteration that could have let rows pass unpublished.
    pub(super) fingerprint: String,
    /// `pubinsert`
    pub publishes_inserts: bool,
    /// Whether the outbox is one of its tables, under its own name.
    pub publishes_table: bool,
    /// `pubviaroot`
    pub via_root: bool,
    /// The row filter on the outbox, from 15 on.
    pub row_filter: Option<String>,
    /// Whether it also publishes updates or deletes, which the router has no use for.
    pub publishes_more: bool,
}

/// The outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its OID.
    pub oid: u32,
    /// Whether it is partitioned.
    pub partitioned: bool,
    /// Whether it is unlogged: then its rows are not in the write-ahead log.
    pub unlogged: bool,
}

pub(super) const TABLE_COLUMNS: &str = "c.oid, c.relkind = 'p', c.relpersistence = 'u'";

pub(super) fn columns(version: u32) -> String {
    // `xmin` is the transaction that wrote the row, so it changes with each alteration
    let schemas = "(SELECT pg_catalog.string_agg(x.oid || '/' || x.xmin, ' ' ORDER BY x.oid) \
         FROM pg_catalog.pg_publication_namespace x WHERE x.pnpubid = p.oid AND x.pnnspid = c.relnamespace)";
    let (schemas, filter) = if version >= 150_000 {
        (
            schemas,
            "(SELECT t.rowfilter FROM pg_catalog.pg_publication_tables t WHERE t.pubname = p.pubname \
             AND t.schemaname = n.nspname AND t.tablename = c.relname)",
        )
    } else {
        ("NULL", "NULL")
    };
    format!(
        "p.oid || '/' || p.xmin || '; ' || coalesce((SELECT pg_catalog.string_agg(x.oid || '/' || x.xmin, ' ' \
         ORDER BY x.oid) FROM pg_catalog.pg_publication_rel x WHERE x.prpubid = p.oid AND x.prrelid = c.oid), '') \
         || '; ' || coalesce({schemas}, ''), p.pubinsert, \
         EXISTS (SELECT FROM pg_catalog.pg_publication_tables t WHERE t.pubname = p.pubname \
         AND t.schemaname = n.nspname AND t.tablename = c.relname), \
         p.pubviaroot, {filter}, p.pubupdate OR p.pubdelete"
    )
}

impl Publication {
    pub(super) fn read(next: &mut Values<'_>) -> Result<Option<Self>, Unreadable> {
        let fingerprint = next();
        let (publishes_inserts, publishes_table, via_root) = (flag(next()), flag(next()), flag(next()));
        let (row_filter, publishes_more) = (next(), flag(next()));
        Ok(fingerprint.map(|fingerprint| Publication {
            fingerprint,
            publishes_inserts,
            publishes_table,
            via_root,
            row_filter,
            publishes_more,
        }))
    }
}

impl Table {
    pub(super) fn read(next: &mut Values<'_>) -> Result<Option<Self>, Unreadable> {
        let oid = parsed(next())?;
        let (partitioned, unlogged) = (flag(next()), flag(next()));
        Ok(oid.map(|oid| Table { oid, partitioned, unlogged }))
    }
}

pub(super) fn verdict(
    publication: Option<&Publication>,
    table: Option<&Table>,
    postgres: &Postgres,
    outbox: &Outbox,
    missing: Missing,
) -> Result<(), Error> {
    let (name, table_name) = (&postgres.publication, &outbox.table);
    let (sql, table_sql) = (quoting::name(name), quoting::table(table_name));
    let Some(table) = table else {
        return Err(missing.error(
            format!("the outbox table {table_name} does not exist in this database"),
            "Correct `[outbox] table` or the database in `[postgres] url`, or run `outbox-router init`"
                .to_owned(),
        ));
    };
    let Some(publication) = publication else {
        let remedy = match missing {
            Missing::AtStart => "Run `outbox-router init`, or correct `[postgres] publication`",
            Missing::WhileRunning => WAY_OUT,
        };
        return Err(missing.error(format!("the publication {name} does not exist"), remedy.to_owned()));
    };
    if table.unlogged {
        let remedy = match missing {
            Missing::AtStart => format!("Run ALTER TABLE {table_sql} SET LOGGED"),
            Missing::WhileRunning => format!(
                "Run ALTER TABLE {table_sql} SET LOGGED. Rows committed meanwhile are in the table only, and will not be \
                 sent: compare it with the topics before you start the router again"
            ),
        };
        return Err(missing.error(
            format!("the outbox table {table_name} is unlogged, so its rows are not in the write-ahead log"),
            remedy,
        ));
    }
    if table.partitioned && !publication.via_root {
        return Err(missing.error(
            format!("the outbox table {table_name} is partitioned, and the publication {name} names its partitions"),
            format!("Run ALTER PUBLICATION {sql} SET (publish_via_partition_root = true)"),
        ));
    }
    if !publication.publishes_table {
        return Err(missing.error(
            format!("the publication {name} does not publish the outbox table {table_name}"),
            format!("Run ALTER PUBLICATION {sql} ADD TABLE {table_sql}; rows written before it are not sent"),
        ));
    }
    if !publication.publishes_inserts {
        return Err(missing.error(
            format!("the publication {name} does not publish inserts"),
            format!(
                "Run ALTER PUBLICATION {sql} SET (publish = 'insert'); rows written before it are not sent"
            ),
        ));
    }
    Ok(())
}

/// What an operator can do about rows that were written while nothing published them.
pub const WAY_OUT: &str = "Rows committed meanwhile may be missing in Kafka. The slot was not moved past the \
     last good look, so they can be read in commit order from a copy of it: \
     pg_copy_logical_replication_slot(slot, 'rescue', true, 'test_decoding')";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Columns, TableName};
    use crate::error::Exit;
    use crate::postgres::catalog::slot::tests::postgres;

    fn publication() -> Publication {
        Publication {
            fingerprint: "1/2; 3/4; ".into(),
            publishes_inserts: true,
            publishes_table: true,
            via_root: true,
            row_filter: None,
            publishes_more: false,
        }
    }

    const TABLE: Table = Table { oid: 9, partitioned: false, unlogged: false };

    fn judge(
        publication: Option<Publication>,
        table: Option<Table>,
        missing: Missing,
    ) -> Option<(Exit, String)> {
        let table_name = TableName { schema: "public".into(), name: "outbox".into() };
        let outbox = Outbox { table: table_name, columns: Columns::default() };
        match verdict(publication.as_ref(), table.as_ref(), &postgres(), &outbox, missing) {
            Ok(()) => None,
            Err(Error::Definite(definite)) => Some((definite.exit, definite.to_string())),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_publication_of_inserts_is_enough() {
        assert_eq!(judge(Some(publication()), Some(TABLE), Missing::AtStart), None);
    }

    #[test]
    fn no_guessing_about_a_publication_that_lets_rows_pass() {
        for (publication, table, part) in [
            (None, Some(TABLE), "does not exist"),
            (Some(publication()), None, "table public.outbox does not exist"),
            (Some(Publication { publishes_table: false, ..publication() }), Some(TABLE), "ADD TABLE"),
            (
                Some(Publication { publishes_inserts: false, ..publication() }),
                Some(TABLE),
                "publish = 'insert'",
            ),
            (Some(publication()), Some(Table { unlogged: true, ..TABLE }), "SET LOGGED"),
            (
                Some(Publication { via_root: false, ..publication() }),
                Some(Table { partitioned: true, ..TABLE }),
                "publish_via_partition_root",
            ),
        ] {
            for (missing, exit) in [(Missing::AtStart, Exit::Refused), (Missing::WhileRunning, Exit::Unsafe)]
            {
                let (seen, text) = judge(publication.clone(), table.clone(), missing).unwrap();
                assert!(seen == exit && text.contains(part), "{text}");
            }
        }
    }
}
