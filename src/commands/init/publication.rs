//! The publications that the router streams, and one that makes Postgres refuse to make outbox tables unlogged.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::{Object, outbox_tables};
use crate::config::{Config, TableName};
use crate::postgres::catalog;
use crate::postgres::row_filter::with_filtered_tables;

/// The router's publication, or that of a shard.
pub(super) fn object(config: &Config) -> Object {
    let name = &config.postgres.publication;
    let sql = quoting::identifier(name);
    let tables: Vec<String> = config.outbox.tables.iter().map(TableName::in_sql).collect();
    let tables = tables.join(", ");
    let of_tables = if tables.is_empty() { String::new() } else { format!(" FOR TABLE {tables}") };
    let owner = if tables.is_empty() { String::new() } else { format!(" and the ownership of {tables}") };
    Object {
        name: format!("publication {sql}"),
        purpose: match config.shard {
            None => "What the stream holds: the inserts of the outbox, and nothing else".to_owned(),
            Some(shard) => format!("What the stream of {shard} holds: the inserts of its aggregates"),
        },
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = {})",
            literal(name)
        ),
        make: match config.shard {
            Some(shard) if !tables.is_empty() => {
                let (begins, ends) = (
                    format!("CREATE PUBLICATION {sql} FOR TABLE "),
                    " WITH (publish = 'insert', publish_via_partition_root = true)",
                );
                let outbox = &config.outbox;
                with_filtered_tables(&begins, &outbox.tables, &outbox.columns.aggregate_id, shard, ends, "\n")
                    + ";"
            }
            _ => format!(
                "CREATE PUBLICATION {sql}{of_tables}\n  \
                 WITH (publish = 'insert', publish_via_partition_root = true);"
            ),
        },
        remedy: Some(format!(
            "Creating it needs CREATE on the database{owner}: connect with --url as its owner or as an administrator, or have one \
             run what `outbox-router init --print-sql` prints"
        )),
        ..Object::default()
    }
}

/// A publication for outbox tables that no other publication names, as with `FOR ALL TABLES` or `FOR TABLES IN SCHEMA`. It
/// publishes nothing, but Postgres refuses to make a table unlogged while a publication names it (tried on 14, 15 and 18).
/// `None`: there is no outbox table.
pub(super) fn guard(config: &Config) -> Option<Object> {
    let tables = outbox_tables(config)?;
    let unnamed = format!(
        "{tables} AND c.relkind = 'r'\n    \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel x WHERE x.prrelid = c.oid)"
    );
    let guard = catalog::guard(&config.postgres);
    let (name, publication) = (quoting::identifier(&guard), literal(&guard));
    let block = format!(
        "\nDECLARE\n  unnamed regclass;\nBEGIN\n  \
         IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = {publication}) THEN\n    \
         CREATE PUBLICATION {name} WITH (publish = '');\n  \
         END IF;\n  \
         FOR unnamed IN SELECT c.oid {unnamed} LOOP\n    \
         EXECUTE {} || unnamed;\n  \
         END LOOP;\nEND\n",
        literal(&format!("ALTER PUBLICATION {name} ADD TABLE ")),
    );
    Some(Object {
        name: format!("publication {name}"),
        purpose: "It publishes nothing, and is made only for outbox tables that no publication names: Postgres refuses to make a table \
                  unlogged that one names"
            .to_owned(),
        there: format!("NOT EXISTS (SELECT {unnamed})"),
        possible: Some((
            format!(
                "pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')\n  \
                 AND NOT EXISTS (SELECT {unnamed}\n    AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE'))"
            ),
            "creating it needs CREATE on the database and ownership of the outbox table. Without it, events of a table that is made \
             unlogged for a time are lost unnoticed: run init again as the owner, with --url"
                .to_owned(),
        )),
        make: format!("DO {};", quoting::dollar_quoted(&block)),
        done: "created; it publishes nothing, and prevents the table from being made unlogged",
        ..Object::default()
    })
}
