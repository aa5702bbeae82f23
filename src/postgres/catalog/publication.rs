//! The publication, and whether it publishes the outbox tables.

use pg_logical::quoting;
use pg_logical::quoting::{literal, with_suffix};

use super::first_slot;
use super::own_publication::own_publication_remedy;
use super::recovery_steps::{log_table, resume_after_alteration, unlogged};
use super::table::Table;
use super::{Catalog, Missing, Unreadable, Values, flag};
use crate::config::{OutboxSource, Postgres, TableName};
use crate::error::{Effect, Error, ErrorCode, Remedy, Step, UNRETAINED};
use crate::postgres::row_filter::with_filtered_tables;

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

pub(super) fn check(catalog: &Catalog, source: OutboxSource<'_>, missing: Missing) -> Result<(), Error> {
    fault(catalog, source).map_err(|Fault { code, what, remedy, rows }| {
        let unpublished = matches!(rows, Rows::Unpublished);
        let beside_others = catalog.is_shared() && source.shard.is_none() && unpublished;
        // without checkpoints, the next start finds nothing altered
        let next_start_finds_rows = missing == Missing::AtStart && source.checkpoints;
        let meaning = match &catalog.slot {
            // nobody can have written to it
            None if code == ErrorCode::TableMissing => Some((Effect::None, "")),
            None => Some((Effect::Lost, UNRETAINED)),
            Some(_) => beside_others.then_some((Effect::Late, OWN_PUBLICATION_SENDS)),
        };
        let remedy = if beside_others {
            own_publication_remedy(catalog, source)
        } else if catalog.slot.is_none() && unpublished {
            first_slot::create(catalog, source, "Publish the table, and create the slot", &remedy)
        } else if catalog.slot.is_none() || next_start_finds_rows || matches!(rows, Rows::Unlogged) {
            remedy
        } else {
            resume_after_alteration(catalog, source, remedy)
        };
        let remedy = match (code, missing) {
            (ErrorCode::PublicationWithoutTable, Missing::AtStart) => correct_names_or(remedy),
            // a router that ran has had the right names
            _ => remedy,
        };
        let refusal = missing.refusal(code, what, remedy);
        match meaning {
            Some((effect, which)) => refusal.meaning(effect, which),
            None => refusal,
        }
    })
}

const OWN_PUBLICATION_SENDS: &str = "those that are not published are in the log, and the steps send them";

fn correct_names_or(remedy: Remedy) -> Remedy {
    let correct = Step::new("Correct it in the configuration");
    Remedy::default()
        .or("If `[postgres] publication` or `[outbox] table` names the wrong one", [correct])
        .and("If both names are right", remedy)
}

/// Why rows are not published.
struct Fault {
    code: ErrorCode,
    what: String,
    remedy: Remedy,
    rows: Rows,
}

/// Where the rows are that the stream lacks.
enum Rows {
    /// In the log, because the publication leaves them out.
    Unpublished,
    /// In the log, because the publication or the table does not exist.
    Missing,
    /// Not in the log.
    Unlogged,
}

impl Fault {
    fn unpublished(code: ErrorCode, what: String, remedy: impl Into<Remedy>) -> Self {
        Fault { code, what, remedy: remedy.into(), rows: Rows::Unpublished }
    }

    fn missing(code: ErrorCode, what: String, remedy: impl Into<Remedy>) -> Self {
        Fault { code, what, remedy: remedy.into(), rows: Rows::Missing }
    }
}

fn fault(catalog: &Catalog, source: OutboxSource<'_>) -> Result<(), Fault> {
    let (outbox, Catalog { publication, tables, .. }) = (source.outbox, catalog);
    let init = catalog.init(source);
    let (name, sql) = (&source.postgres.publication, quoting::identifier(&source.postgres.publication));
    for ((table_name, table), number) in outbox.tables.iter().zip(tables).zip(0..) {
        if catalog.named.get(number).is_some_and(|named| named.not_a_table) {
            return Err(Fault::missing(
                ErrorCode::TableMissing,
                not_a_table(table_name),
                "Name the table itself as `[outbox] table`",
            ));
        }
        if table.is_none() {
            return Err(Fault::missing(
                ErrorCode::TableMissing,
                format!("the outbox table {table_name} does not exist in this database"),
                match publication {
                    Some(_) if source.shard.is_none() => created_and_published(&init, &sql, name, table_name),
                    _ => table_missing(&init),
                },
            ));
        }
    }
    let Some(publication) = publication else {
        return Err(Fault::missing(
            ErrorCode::PublicationMissing,
            format!("the publication {name} does not exist"),
            Remedy::steps([Step::new(
                "Correct `[postgres] publication` if that is wrong, or create the publication",
            )
            .typing(init)]),
        ));
    };
    for (table_name, table) in outbox.tables.iter().zip(tables.iter().flatten()) {
        table_fault(catalog, publication, table, table_name, source)?;
    }
    if !publication.publishes_inserts && !outbox.tables.is_empty() {
        return Err(Fault::unpublished(
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
    catalog: &Catalog,
    publication: &Publication,
    table: &Table,
    table_name: &TableName,
    source: OutboxSource<'_>,
) -> Result<(), Fault> {
    let name = &source.postgres.publication;
    let (sql, table_sql) = (quoting::identifier(name), table_name.in_sql());
    if table.unlogged {
        return Err(Fault {
            code: ErrorCode::TableNotLogged,
            what: unlogged(table_name),
            remedy: log_table(catalog, source, table_name, None),
            rows: Rows::Unlogged,
        });
    }
    if let Some(elsewhere) = &table.elsewhere {
        return Err(Fault {
            code: ErrorCode::RowsElsewhere,
            what: elsewhere.what(table_name),
            remedy: elsewhere.remedy(catalog, source, table_name),
            rows: Rows::Unlogged,
        });
    }
    if table.partitioned && !publication.via_root {
        return Err(Fault::unpublished(
            ErrorCode::PublishedByPartition,
            format!(
                "the outbox table {table_name} is partitioned, and the publication {name} names its partitions"
            ),
            publish(format!("ALTER PUBLICATION {sql} SET (publish_via_partition_root = true)")),
        ));
    }
    if !table.published {
        return Err(Fault::unpublished(
            ErrorCode::PublicationWithoutTable,
            format!("the publication {name} does not publish the outbox table {table_name}"),
            publish(match source.shard {
                Some(shard) => {
                    // without its row filter, it would send events of other shards
                    let (begins, column) =
                        (format!("ALTER PUBLICATION {sql} ADD TABLE "), &source.outbox.columns.aggregate_id);
                    with_filtered_tables(&begins, std::slice::from_ref(table_name), column, shard, "", " ")
                }
                None => format!("ALTER PUBLICATION {sql} ADD TABLE {table_sql}"),
            }),
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
                    "a partition of {name} can {}be unlogged for a time: these rows are not in the stream, and the router cannot tell",
                    if table.attachments_noted { "" } else { "be attached with rows, or " }
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
    with_suffix(&postgres.publication, "_guard")
}

/// The finding about a view or the like.
pub fn not_a_table(name: &TableName) -> String {
    format!("{name} is not a table, and only a table's rows are in the write-ahead log")
}

/// The remedy for a table that does not exist. `init` is the command that creates it.
fn table_missing(init: &str) -> Remedy {
    Remedy::steps([correct_name()]).or("If there never was a table, or it was dropped", [create(init)])
}

/// The same if there is a publication, to which `init` adds nothing.
fn created_and_published(init: &str, publication: &str, name: &str, table: &TableName) -> Remedy {
    let published = format!(
        "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = {}",
        quoting::literal(name)
    );
    let create = Step::new(
        "Create the table. `init` ends with OBR-4002, because the publication lacks the new table; the second command adds it",
    );
    let create =
        create.typing(init).sql(format!("ALTER PUBLICATION {publication} ADD TABLE {}", table.in_sql()));
    Remedy::steps([
        Step::new("Look which tables the publication has: one that was renamed is there under its new name")
            .sql(published),
        correct_name(),
    ])
    .or("If it was dropped", [create])
}

fn correct_name() -> Step {
    Step::new(
        "Name the table as it is now called in `[outbox] table`, or correct the database in `[postgres] url`, and start the router again",
    )
}

fn create(init: &str) -> Step {
    Step::new("Create the table").typing(init)
}

fn publish(alteration: String) -> Remedy {
    Remedy::steps([Step::new("Publish the table again").sql(alteration)])
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
            former_triggers: false,
            notes_readable: false,
            attachments_noted: false,
            elsewhere: None,
        }
    }

    fn catalog(publication: Option<Publication>, tables: Vec<Option<Table>>) -> Catalog {
        let slot = Some(crate::postgres::catalog::slot::tests::slot());
        Catalog { slot, publication, tables, superuser: true, ..Catalog::default() }
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
        match check(&catalog(publication, vec![Some(table()), second]), config.source(), missing) {
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
        let found =
            check(&catalog(Some(without_inserts), vec![Some(table())]), source, Missing::WhileRunning);
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
        assert!(text.contains("WHERE (") && text.contains("% 2 = 1"), "{text}");
        let (_, text) = judge(Some(publication()), unpublished(), Missing::WhileRunning, shard).unwrap();
        assert!(text.contains("`outbox-router run --shard 1`"), "{text}");
    }
}
