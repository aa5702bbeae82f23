//! The publication, and whether it publishes the outbox tables.

use pg_logical::quoting::literal;
use pg_logical::{Lsn, quoting};

use super::recovery_sql::{self, Recovery};
use super::table::Table;
use super::{Missing, Unreadable, Values, flag};
use crate::config::{OutboxSource, Postgres, TableName};
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::shards;

/// One row of `pg_publication`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Identifies its catalogue row: changes with each alteration that may have left rows unpublished.
    pub(super) fingerprint: String,
    /// `pubinsert`
    pub publishes_inserts: bool,
    /// `pubviaroot`
    pub via_root: bool,
    /// Whether it also publishes updates or deletes, which the router does not need.
    pub publishes_more: bool,
    /// `pubupdate`
    pub publishes_updates: bool,
    /// What it publishes, as `publish` takes it: `insert, update`.
    pub operations: String,
    /// Whether it also publishes other tables, so that somebody else reads it.
    pub shared: bool,
}

// `xmin` is the transaction that wrote the row, so it changes with each alteration
pub(super) fn columns(tables: &[TableName], version: u32) -> String {
    let ours = |table: &TableName| {
        format!("AND (n.nspname, c.relname) <> ({}, {})", literal(&table.schema), literal(&table.name))
    };
    let ours: Vec<String> = tables.iter().map(ours).collect();
    let schemas = if version >= 150_000 {
        " OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace x WHERE x.pnpubid = p.oid)"
    } else {
        ""
    };
    format!(
        "p.oid || '/' || p.xmin, p.pubinsert, p.pubviaroot, p.pubupdate OR p.pubdelete, p.pubupdate, \
         pg_catalog.concat_ws(', ', CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END, \
         CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END), \
         p.puballtables OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel x JOIN pg_catalog.pg_class c ON c.oid = x.prrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE x.prpubid = p.oid {}){schemas}",
        ours.join(" ")
    )
}

impl Publication {
    pub(super) fn read(next: &mut Values<'_>) -> Result<Option<Self>, Unreadable> {
        let fingerprint = next();
        let (publishes_inserts, via_root) = (flag(next()), flag(next()));
        let (publishes_more, publishes_updates) = (flag(next()), flag(next()));
        let (operations, shared) = (next().unwrap_or_default(), flag(next()));
        Ok(fingerprint.map(|fingerprint| Publication {
            fingerprint,
            publishes_inserts,
            via_root,
            publishes_more,
            publishes_updates,
            operations,
            shared,
        }))
    }
}

impl Publication {
    /// What it publishes, and this operation too.
    pub fn publishing(&self, operation: &str) -> String {
        match self.operations.as_str() {
            "" => operation.to_owned(),
            operations => format!("{operations}, {operation}"),
        }
    }
}

pub(super) fn check(
    publication: Option<&Publication>,
    tables: &[Option<Table>],
    source: OutboxSource<'_>,
    missing: Missing,
    confirmed: Lsn,
) -> Result<(), Error> {
    fault(publication, tables, source).map_err(|Fault { code, what, remedy, logged }| match missing {
        Missing::AtStart => Error::refused(code, what, remedy),
        Missing::WhileRunning if logged => {
            let find = resume_after_alteration(tables, source, confirmed);
            // at most three steps
            let remedy = if source.checkpoints { remedy.then_all(find) } else { find.preceded_by(remedy) };
            Error::not_safe(code, what, remedy)
        }
        Missing::WhileRunning => Error::not_safe(code, what, remedy),
    })
}

/// Why rows are not published.
struct Fault {
    code: ErrorCode,
    what: String,
    remedy: Remedy,
    /// Whether these rows are in the log.
    logged: bool,
}

impl Fault {
    fn logged(code: ErrorCode, what: String, remedy: impl Into<Remedy>) -> Self {
        Fault { code, what, remedy: remedy.into(), logged: true }
    }
}

fn fault(
    publication: Option<&Publication>,
    tables: &[Option<Table>],
    source: OutboxSource<'_>,
) -> Result<(), Fault> {
    let outbox = source.outbox;
    let (name, sql) = (&source.postgres.publication, quoting::identifier(&source.postgres.publication));
    for (table_name, table) in outbox.tables.iter().zip(tables) {
        if table.is_none() {
            return Err(Fault::logged(
                ErrorCode::TableMissing,
                format!("the outbox table {table_name} does not exist in this database"),
                match publication {
                    Some(_) if source.shard.is_none() => created_and_published(&sql, name, table_name),
                    _ => table_missing(),
                },
            ));
        }
    }
    let Some(publication) = publication else {
        return Err(Fault::logged(
            ErrorCode::PublicationMissing,
            format!("the publication {name} does not exist"),
            Remedy::steps([Step::new(
                "Correct `[postgres] publication` if that is wrong, or create the publication",
            )
            .typing("outbox-router init")]),
        ));
    };
    for (table_name, table) in outbox.tables.iter().zip(tables.iter().flatten()) {
        table_fault(publication, table, table_name, source)?;
    }
    if !publication.publishes_inserts && !outbox.tables.is_empty() {
        return Err(Fault::logged(
            ErrorCode::PublicationWithoutInserts,
            format!("the publication {name} does not publish inserts"),
            publish(format!(
                "ALTER PUBLICATION {sql} SET (publish = '{}')",
                publication.publishing("insert")
            )),
        ));
    }
    Ok(())
}

fn table_fault(
    publication: &Publication,
    table: &Table,
    table_name: &TableName,
    source: OutboxSource<'_>,
) -> Result<(), Fault> {
    let name = &source.postgres.publication;
    let (sql, table_sql) = (quoting::identifier(name), table_name.in_sql());
    if table.unlogged {
        let alter = Step::new(
            "Make it an ordinary table, which rewrites the table and locks it meanwhile. At once, as an administrator, save all of its rows: \
             those written while it was unlogged are nowhere else",
        )
        .sql(format!("ALTER TABLE {table_sql} SET LOGGED"));
        return Err(Fault {
            code: ErrorCode::TableNotLogged,
            what: format!(
                "the outbox table {table_name} is unlogged, so its rows are not in the write-ahead log"
            ),
            remedy: Remedy::steps(recovery_sql::send_from_table(source, None, alter, "").unwrap_or_default()),
            logged: false,
        });
    }
    if table.partitioned && !publication.via_root {
        return Err(Fault::logged(
            ErrorCode::PublishedByPartition,
            format!(
                "the outbox table {table_name} is partitioned, and the publication {name} names its partitions"
            ),
            publish(format!("ALTER PUBLICATION {sql} SET (publish_via_partition_root = true)")),
        ));
    }
    if !table.published {
        return Err(Fault::logged(
            ErrorCode::PublicationWithoutTable,
            format!("the publication {name} does not publish the outbox table {table_name}"),
            if source.shard.is_some() {
                // without its row filter, it would send events of other shards
                Remedy::steps([Step::new(
                    "While no router runs, drop the publication and let `init` create it with its row filters",
                )
                .sql(format!("DROP PUBLICATION {sql}"))
                .typing("outbox-router init")])
            } else {
                publish(format!("ALTER PUBLICATION {sql} ADD TABLE {table_sql}"))
            },
        ));
    }
    Ok(())
}

/// For each table that can leave the publication and come back unnoticed: how, and how to prevent it. `tables` are the outbox
/// tables in the order of the configuration.
pub fn unwatched(source: OutboxSource<'_>, tables: &[Option<Table>]) -> Vec<(String, String)> {
    let guard = quoting::identifier(&guard(source.postgres));
    let of_table = |(name, table): (&TableName, &Option<Table>)| {
        let table = table.as_ref()?;
        match table.partitioned {
            true if !table.partitions_watched => Some((
                format!(
                    "a partition of {name} can be attached with rows, or be unlogged for a time: these rows are not in the stream, \
                     and the router cannot tell"
                ),
                "Run `outbox-router init` as a role that stays a superuser: it creates event triggers that stop the router in that case"
                    .to_owned(),
            )),
            false if !table.traces.is_named() => Some((
                format!(
                    "the table {name} can be made unlogged for a time, because no publication names it: rows that are written then \
                     are not in the stream, and the router cannot tell"
                ),
                format!(
                    "Run `outbox-router init`, or CREATE PUBLICATION {guard} FOR TABLE {} WITH (publish = ''): it publishes nothing, \
                     and Postgres refuses to make a table unlogged that a publication names",
                    name.in_sql()
                ),
            )),
            _ => None,
        }
    };
    source.outbox.tables.iter().zip(tables).filter_map(of_table).collect()
}

/// The name of the publication for outbox tables that no other publication names.
pub fn guard(postgres: &Postgres) -> String {
    // names have at most 63 bytes
    let mut name = postgres.publication.clone();
    while name.len() > 57 {
        name.pop();
    }
    name + "_guard"
}

/// The remedy for a table that does not exist.
pub fn table_missing() -> Remedy {
    Remedy::steps([correct_name()]).or("If there never was a table, or it was dropped", [create()])
}

/// The same if there is a publication, to which `init` adds nothing.
fn created_and_published(publication: &str, name: &str, table: &TableName) -> Remedy {
    let published = format!(
        "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = {}",
        quoting::literal(name)
    );
    let create = create().sql(format!("ALTER PUBLICATION {publication} ADD TABLE {}", table.in_sql()));
    Remedy::steps([
        Step::new("Look whether the table was renamed: the publication still has it, under its new name")
            .sql(published),
        correct_name(),
    ])
    .or(
        "If it was dropped: `init` stops with OBR-4002 then, and the second command adds the new table",
        [create],
    )
}

fn correct_name() -> Step {
    Step::new(
        "Name the table as it is now called in `[outbox] table`, or correct the database in `[postgres] url`, and start the router again",
    )
}

fn create() -> Step {
    Step::new("Create the table").typing("outbox-router init")
}

fn publish(alteration: String) -> Remedy {
    Remedy::steps([Step::new("Publish the table again").sql(alteration)])
}

/// What to do after an alteration while the router ran, whose slot is `confirmed`. Its position may be later, so a start gives the
/// statements if it stops there.
pub(super) fn resume_after_alteration(
    tables: &[Option<Table>],
    source: OutboxSource<'_>,
    confirmed: Lsn,
) -> Remedy {
    if !source.checkpoints {
        return recovery_steps(tables, source, confirmed);
    }
    Remedy::steps([Step::new(format!(
        "{}Start the router: it stops again, and prints with its position how to find and send the rows that were not published",
        why_altered(tables)
    ))
    .typing(format!("outbox-router run{}", shards::argument(source.shard)))])
}

/// The steps that send rows which were written while no publication published them. The router has delivered up to `position`.
pub(super) fn recovery_steps(tables: &[Option<Table>], source: OutboxSource<'_>, position: Lsn) -> Remedy {
    let Recovery { store, show, send } = recovery_sql::in_commit_order(source, tables, position);
    Remedy::steps([
        Step::new(format!(
            "{}Stop all routers, and create the publication if it does not exist. As an administrator, in one psql session, save what was \
             committed after {position}, in commit order and with rows deleted since. The result has the number of rows, and a \
             `slot advance` command for step 3",
            why_altered(tables)
        ))
        .typing("outbox-router init")
        .sql(store),
        Step::new(format!(
            "Look at the saved rows. What was sent in the last moments before the router stopped is sent twice, and so is the sent part of \
             a transaction. Rows written while the table was unlogged are not among them: they are only in the table. {}",
            recovery_sql::of_which_shards(source)
        ).trim_end().trim_end_matches('.'))
        .sql(show),
        Step::new(
            "Run the `slot advance` command of step 1. The events that it counts as never sent are the saved ones: the router goes on \
             after them. Start it, and insert them again, in place of rows that are still there: these are deleted first, with what references \
             them ON DELETE CASCADE. Their events come after newer ones of their aggregates",
        )
        .typing(format!("outbox-router run{}", shards::argument(source.shard)))
        .sql(send),
    ])
}

/// Who may have altered the publication.
fn why_altered(tables: &[Option<Table>]) -> &'static str {
    if tables.iter().flatten().any(|table| table.partitioned) {
        "The event triggers of `outbox-router init` alter the publication when a partition is attached with rows or becomes \
         unlogged; its rows are then not in the stream. "
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Traces;
    use crate::config::{Config, Outbox};
    use crate::error::Exit;
    use crate::postgres::catalog::slot::tests::config;
    use crate::shards::Shard;

    fn publication() -> Publication {
        Publication {
            fingerprint: "1/2".into(),
            publishes_inserts: true,
            via_root: true,
            publishes_more: false,
            publishes_updates: false,
            operations: "insert".into(),
            shared: false,
        }
    }

    fn table() -> Table {
        Table {
            oid: 9,
            partitioned: false,
            unlogged: false,
            membership: "3/4; ".into(),
            published: true,
            row_filter: None,
            traces: Traces::default(),
            partitions_watched: false,
        }
    }

    /// Judges the second of two tables, the first of which is faultless.
    fn judge(
        publication: Option<Publication>,
        second: Option<Table>,
        missing: Missing,
        shard: Option<Shard>,
    ) -> Option<(Exit, String)> {
        let named = |schema: &str| TableName { schema: schema.into(), name: "outbox".into() };
        let tables = vec![named("orders"), named("public")];
        let config = Config { outbox: Outbox { tables, ..config().outbox }, shard, ..config() };
        match check(publication.as_ref(), &[Some(table()), second], config.source(), missing, Lsn(1)) {
            Ok(()) => None,
            Err(Error::Definite(definite)) => Some((definite.exit, definite.to_string())),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_publication_of_inserts_is_enough() {
        assert_eq!(judge(Some(publication()), Some(table()), Missing::AtStart, None), None);
    }

    #[test]
    fn no_guessing_about_a_publication_that_lets_rows_pass() {
        for (publication, table, part) in [
            (None, Some(table()), "does not exist"),
            (Some(publication()), None, "table public.outbox does not exist"),
            (
                Some(publication()),
                Some(Table { published: false, ..table() }),
                "ADD TABLE \"public\".\"outbox\"",
            ),
            (
                Some(Publication { publishes_inserts: false, operations: "delete".into(), ..publication() }),
                Some(table()),
                "publish = 'delete, insert'",
            ),
            (Some(publication()), Some(Table { unlogged: true, ..table() }), "SET LOGGED"),
            (
                Some(Publication { via_root: false, ..publication() }),
                Some(Table { partitioned: true, ..table() }),
                "publish_via_partition_root",
            ),
        ] {
            for (missing, exit) in [(Missing::AtStart, Exit::Refused), (Missing::WhileRunning, Exit::Unsafe)]
            {
                let (seen, text) = judge(publication.clone(), table.clone(), missing, None).unwrap();
                assert!(seen == exit && text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn three_steps_suffice_without_checkpoints() {
        let without_inserts =
            Publication { publishes_inserts: false, operations: "delete".into(), ..publication() };
        let config = config();
        let source = OutboxSource { checkpoints: false, ..config.source() };
        let found = check(Some(&without_inserts), &[Some(table())], source, Missing::WhileRunning, Lsn(1));
        let Err(Error::Definite(definite)) = found else { panic!("{found:?}") };
        let lines = definite.remedy.in_lines();
        let alter = lines.find("ALTER PUBLICATION").unwrap();
        assert!(alter < lines.find("outbox-router init").unwrap(), "{lines}");
        assert!(lines.contains("  3. ") && !lines.contains("  4. "), "{lines}");
    }

    #[test]
    fn a_table_is_not_added_to_the_publication_of_a_shard_without_its_row_filter() {
        let shard = Some(Shard { number: 1, of: 2 });
        let unpublished = || Some(Table { published: false, ..table() });
        let (_, text) = judge(Some(publication()), unpublished(), Missing::AtStart, shard).unwrap();
        assert!(text.contains("with its row filters") && !text.contains("ADD TABLE"), "{text}");
        let (_, text) = judge(Some(publication()), unpublished(), Missing::WhileRunning, shard).unwrap();
        assert!(text.contains("`outbox-router run --shard 1`"), "{text}");
    }
}
