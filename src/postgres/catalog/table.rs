//! The outbox tables, and how the publication publishes them.

use pg_logical::quoting::literal;

use super::rows_elsewhere::{self, RowsElsewhere};
use super::{Unreadable, Values, flag, parsed};
use crate::checkpoint::Traces;

/// An outbox table, and how the publication publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its OID.
    pub oid: u32,
    /// Whether it is partitioned.
    pub partitioned: bool,
    /// Whether it is unlogged, so that its rows are not in the write-ahead log.
    pub unlogged: bool,
    /// Identifies the catalogue rows that make it part of the publication.
    pub(super) membership: String,
    /// Whether the publication publishes it under its own name.
    pub published: bool,
    /// Its row filter, from Postgres 15 on.
    pub row_filter: Option<String>,
    /// Traces of having left the publication and come back.
    pub(super) traces: Traces,
    /// Whether the triggers from `init` watch its partitions.
    pub(super) partitions_watched: bool,
    /// Whether the triggers are those of an earlier version, which altered the publication.
    pub former_triggers: bool,
    /// Whether what was noted of its partitions can be read.
    pub(super) notes_readable: bool,
    /// Whether partitions that are attached with rows are noted without the triggers.
    pub(super) attachments_noted: bool,
    /// A relation below it whose rows are not in the stream.
    pub(super) elsewhere: Option<RowsElsewhere>,
}

/// What the catalogues say about a configured name without a look at the publication, for which Postgres locks the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Named {
    /// It belongs to something else than a table, such as a view.
    pub(super) not_a_table: bool,
    /// It has the column of the event's time.
    pub(super) has_created_at: bool,
}

impl Named {
    /// `o` is the row of the configured name.
    pub(super) fn columns(created_at: Option<&str>) -> String {
        let relation = "FROM pg_catalog.pg_class x JOIN pg_catalog.pg_namespace y ON y.oid = x.relnamespace";
        let named = "y.nspname = o.schema AND x.relname = o.name";
        let column = created_at.map_or_else(|| "NULL".to_owned(), literal);
        format!(
            "EXISTS (SELECT {relation} WHERE {named} AND x.relkind NOT IN ('r', 'p')), \
             EXISTS (SELECT {relation} JOIN pg_catalog.pg_attribute a ON a.attrelid = x.oid \
             WHERE {named} AND a.attname = {column} AND NOT a.attisdropped)"
        )
    }

    pub(super) fn read(next: &mut Values<'_>) -> Self {
        Named { not_a_table: flag(next()), has_created_at: flag(next()) }
    }
}

// `xmin` is the transaction that wrote the row, so it changes with each alteration. RENAME, SET SCHEMA and OWNER TO write the row of the
// row type, and no other command on the table does (tried on 15 and 18).
pub(super) fn columns(version: u32) -> String {
    let schemas = "(SELECT pg_catalog.string_agg(x.oid || '/' || x.xmin, ' ' ORDER BY x.oid) \
         FROM pg_catalog.pg_publication_namespace x WHERE x.pnpubid = p.oid AND x.pnnspid = c.relnamespace)";
    // SET SCHEMA rewrites this dependency, and no other command on the table does (tried on 15 and 18)
    let since = "(SELECT d.xmin FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
         AND d.objid = c.oid AND d.objsubid = 0 AND d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass \
         AND EXISTS (SELECT FROM pg_catalog.pg_publication_namespace x WHERE x.pnpubid = p.oid AND x.pnnspid = c.relnamespace) \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel x WHERE x.prpubid = p.oid AND x.prrelid = c.oid))";
    // what is published as part of a schema or of all tables has no filter
    let filter = "(SELECT pg_catalog.pg_get_expr(x.prqual, x.prrelid) FROM pg_catalog.pg_publication_rel x \
         WHERE x.prpubid = p.oid AND x.prrelid = c.oid AND NOT p.puballtables AND NOT EXISTS \
         (SELECT FROM pg_catalog.pg_publication_namespace y WHERE y.pnpubid = p.oid AND y.pnnspid = c.relnamespace))";
    let (schemas, since, filter) =
        if version >= 150_000 { (schemas, since, filter) } else { ("NULL", "NULL", "NULL") };
    let published = is_published(version);
    let triggers = format!(
        "{}, EXISTS (SELECT FROM pg_catalog.pg_proc f JOIN pg_catalog.pg_namespace y ON y.oid = f.pronamespace \
         WHERE y.nspname = 'outbox_router' AND f.proname = 'partition_brings_rows' AND strpos(f.prosrc, 'rows_not_in_log') = 0), \
         c.relkind = 'p' AND EXISTS (SELECT FROM pg_catalog.pg_class x JOIN pg_catalog.pg_namespace y ON y.oid = x.relnamespace \
         WHERE y.nspname = 'outbox_router' AND x.relname = 'rows_not_in_log' AND pg_catalog.has_schema_privilege(y.oid, 'USAGE') \
         AND pg_catalog.has_table_privilege(x.oid, 'SELECT')), \
         c.relkind = 'p' AND EXISTS (SELECT FROM pg_catalog.pg_proc f JOIN pg_catalog.pg_namespace y ON y.oid = f.pronamespace \
         WHERE y.nspname = 'outbox_router' AND f.proname = 'note_attached' AND pg_catalog.has_schema_privilege(y.oid, 'USAGE') \
         AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE'))",
        partition_triggers_fire()
    );
    let named_at = "(SELECT t.xmin FROM pg_catalog.pg_type t WHERE t.oid = c.reltype) || '/' || n.xmin";
    let traces = format!(
        "{since}, {named_at}, CASE c.relkind WHEN 'r' THEN c.relfilenode END, \
         (SELECT pg_catalog.string_agg(x.oid || '/' || x.xmin, ' ' ORDER BY x.oid) \
         FROM pg_catalog.pg_publication_rel x WHERE x.prrelid = c.oid), {triggers}"
    );
    format!(
        "c.oid, c.relkind = 'p', c.relpersistence = 'u', \
         coalesce((SELECT pg_catalog.string_agg(x.oid || '/' || x.xmin, ' ' ORDER BY x.oid) \
         FROM pg_catalog.pg_publication_rel x WHERE x.prpubid = p.oid AND x.prrelid = c.oid), '') \
         || '; ' || coalesce({schemas}, ''), \
         {published}, {filter}, {traces}, {}",
        rows_elsewhere::COLUMN
    )
}

/// An SQL expression: does the publication `p`, a row of `pg_publication`, publish the rows of `c`, a row of `pg_class`, under the name
/// of `c`? It opens no relation, unlike `pg_publication_tables`, which waits for locks of all tables of a schema or database from
/// Postgres 16 on.
pub fn is_published(version: u32) -> String {
    let names = |relation: &str| {
        format!(
            "EXISTS (SELECT FROM pg_catalog.pg_publication_rel x WHERE x.prpubid = p.oid AND x.prrelid = {relation})"
        )
    };
    let has_schema = |relation: &str| {
        format!(
            " OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace x JOIN pg_catalog.pg_class y ON y.relnamespace = x.pnnspid \
             WHERE x.pnpubid = p.oid AND y.oid = {relation})"
        )
    };
    let is_member = |relation: &str| {
        let schemas = if version >= 150_000 { has_schema(relation) } else { String::new() };
        format!("({}{schemas})", names(relation))
    };
    let (itself, above) = (is_member("c.oid"), is_member("a.relid"));
    // a partition is published as the highest of its ancestors in the publication, or each leaf as itself
    format!(
        "(c.relpersistence = 'p' AND c.relkind IN ('r', 'p') AND CASE \
         WHEN p.puballtables THEN CASE WHEN p.pubviaroot THEN NOT c.relispartition ELSE c.relkind = 'r' END \
         WHEN p.pubviaroot THEN {itself} AND NOT EXISTS \
         (SELECT FROM pg_catalog.pg_partition_ancestors(c.oid) a WHERE a.relid <> c.oid AND {above}) \
         ELSE c.relkind = 'r' AND ({itself} OR EXISTS (SELECT FROM pg_catalog.pg_partition_ancestors(c.oid) a WHERE {above})) END)"
    )
}

impl Table {
    /// Whether the publication publishes it as part of a schema or of all tables, so that the table can leave it unnoticed.
    pub(super) fn published_unnamed(&self) -> bool {
        self.published && self.membership.starts_with(';')
    }

    pub(super) fn read(next: &mut Values<'_>) -> Result<Option<Self>, Unreadable> {
        let oid = parsed(next())?;
        let (partitioned, unlogged) = (flag(next()), flag(next()));
        let membership = next().unwrap_or_default();
        let (published, row_filter) = (flag(next()), next());
        let (schema, named_at, file) = (next(), next(), next());
        let named_by = next().unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        let traces = Traces { schema, named_at, file, named_by, not_in_log: None };
        let (fire, former_triggers) = (flag(next()), flag(next()));
        let (notes_readable, may_note) = (flag(next()), flag(next()));
        let elsewhere = next().map(|json| serde_json::from_str(&json)).transpose().map_err(|_| Unreadable)?;
        Ok(oid.map(|oid| Table {
            oid,
            partitioned,
            unlogged,
            membership,
            published,
            row_filter,
            traces,
            partitions_watched: fire && notes_readable && !former_triggers,
            former_triggers,
            notes_readable,
            attachments_noted: notes_readable && may_note,
            elsewhere,
        }))
    }
}

/// The event triggers that `init` creates for a partitioned outbox.
pub const PARTITION_TRIGGERS: [&str; 2] = ["outbox_router_attach", "outbox_router_rewrite"];

/// An SQL expression: do the triggers exist and fire, and does their function have the superuser rights it needs?
pub fn partition_triggers_fire() -> String {
    let [attach, rewrite] = PARTITION_TRIGGERS.map(literal);
    format!(
        "(SELECT pg_catalog.count(*) = 2 FROM pg_catalog.pg_event_trigger e \
         JOIN pg_catalog.pg_proc f ON f.oid = e.evtfoid JOIN pg_catalog.pg_roles r ON r.oid = f.proowner \
         WHERE e.evtname IN ({attach}, {rewrite}) AND e.evtenabled IN ('O', 'A') AND r.rolsuper)"
    )
}
