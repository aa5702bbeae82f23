//! Relations below the outbox whose rows the stream does not show under the name of the outbox: tables that inherit from it, and partitions
//! that are foreign or unlogged. Only one session sees the rows of a temporary table, so these do not count.

use pg_logical::quoting::{dollar_quoted, identifier, literal, with_suffix};

use super::{Catalog, first_slot};
use crate::config::{OutboxSource, TableName};
use crate::error::{Remedy, Step};
use crate::shards;

/// The relation that is deepest below the outbox, and how many more there are.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub(super) struct RowsElsewhere {
    schema: String,
    name: String,
    /// Its parent, quoted.
    parent: String,
    /// `FOR VALUES ...`; `None` for a table that inherits.
    bound: Option<String>,
    /// `foreign` or `unlogged`; `None` for an ordinary table.
    kind: Option<String>,
    more: u64,
}

/// An SQL expression: the value for `c`, a row of `pg_class`, as JSON.
pub(super) const COLUMN: &str = "(WITH RECURSIVE below (oid, parent, depth) AS (\
     SELECT i.inhrelid, i.inhparent, 1 FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid UNION ALL \
     SELECT i.inhrelid, i.inhparent, b.depth + 1 FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid) \
     SELECT pg_catalog.json_build_object('schema', s.nspname, 'name', x.relname, 'parent', pg_catalog.format('%I.%I', t.nspname, y.relname), \
     'bound', pg_catalog.pg_get_expr(x.relpartbound, x.oid), \
     'kind', CASE WHEN x.relkind = 'f' THEN 'foreign' WHEN x.relpersistence = 'u' THEN 'unlogged' END, \
     'more', pg_catalog.count(*) OVER () - 1) FROM below b \
     JOIN pg_catalog.pg_class x ON x.oid = b.oid JOIN pg_catalog.pg_namespace s ON s.oid = x.relnamespace \
     JOIN pg_catalog.pg_class y ON y.oid = b.parent JOIN pg_catalog.pg_namespace t ON t.oid = y.relnamespace \
     WHERE x.relpersistence <> 't' AND (c.relkind = 'r' OR x.relkind NOT IN ('r', 'p') OR x.relkind = 'r' AND x.relpersistence = 'u') \
     ORDER BY b.depth DESC, s.nspname, x.relname LIMIT 1)";

impl RowsElsewhere {
    pub(super) fn what(&self, outbox: &TableName) -> String {
        let table = self.table();
        let what = match (&self.kind, &self.bound) {
            (Some(kind), Some(_)) => format!("{table} is a partition of it and {kind}"),
            _ => format!("{table} inherits from it"),
        };
        let more = match self.more {
            0 => String::new(),
            1 => ", and there is another one".to_owned(),
            more => format!(", and there are {more} others"),
        };
        format!("the stream lacks rows of the outbox table {outbox}: {what}{more}")
    }

    fn table(&self) -> TableName {
        TableName { schema: self.schema.clone(), name: self.name.clone() }
    }

    /// Moves its rows into the outbox, which sends them.
    pub(super) fn remedy(&self, catalog: &Catalog, source: OutboxSource<'_>, outbox: &TableName) -> Remedy {
        let (table, outbox, parent) = (self.table().in_sql(), outbox.in_sql(), &self.parent);
        let separate = match &self.bound {
            None => format!("ALTER TABLE {table} NO INHERIT {parent}"),
            Some(bound) => {
                let new = TableName { name: with_suffix(&self.name, "_logged"), ..self.table() }.in_sql();
                format!(
                    "ALTER TABLE {parent} DETACH PARTITION {table}; CREATE TABLE {new} PARTITION OF {parent} {bound}"
                )
            }
        };
        let order = match &source.outbox.columns.created_at {
            Some(column) if catalog.named.iter().all(|named| named.has_created_at) => {
                format!(" ORDER BY {}", identifier(column))
            }
            _ => String::new(),
        };
        // a trigger or a rule that is still there would put them elsewhere again
        let block = format!(
            "BEGIN SET LOCAL row_security = off; LOCK TABLE {outbox} IN SHARE ROW EXCLUSIVE MODE; \
             CREATE TEMP TABLE moved ON COMMIT DROP AS SELECT * FROM {outbox} WHERE tableoid = {}::regclass; {separate}; \
             INSERT INTO {outbox} OVERRIDING SYSTEM VALUE SELECT * FROM moved{order}; \
             IF NOT FOUND AND EXISTS (SELECT FROM moved) THEN RAISE 'the rows went elsewhere'; END IF; END",
            literal(&table)
        );
        let stop = match self.bound {
            None => {
                "Drop the trigger or rule that puts rows there; a table that an extension distributes, such as a hypertable, cannot be the \
                 outbox. "
            }
            Some(_) => "",
        };
        let each = if self.more > 0 { ". The next attempt names the next one" } else { "" };
        let text = format!(
            "{stop}Move its rows into the outbox, as the owner: their events come after newer ones of their aggregates. {table} itself stays as \
             it is"
        );
        let sql = format!("DO {}", dollar_quoted(&block));
        if catalog.slot.is_none() {
            let moved = Remedy::steps([Step::new("").sql(sql)]);
            return first_slot::create(
                catalog,
                source,
                &format!("{text}. Then create the slot{each}"),
                &moved,
            );
        }
        let run = format!("outbox-router run{}", shards::argument(source.shard));
        Remedy::steps([Step::new(text).sql(sql), Step::new(format!("Start the router{each}")).typing(&run)])
            .or(
                "To go on without these rows",
                [Step::new("Take it out of the outbox, and start the router").sql(separate).typing(run)],
            )
    }
}
