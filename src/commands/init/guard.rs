//! A publication for outbox tables that no other publication names, as with `FOR ALL TABLES` or `FOR TABLES IN SCHEMA`. It
//! publishes nothing, but Postgres refuses to make a table unlogged while a publication names it (tried on 14, 15 and 18).

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::general_remedy;
use super::object::{Object, outbox_tables};
use crate::config::Config;
use crate::postgres::catalog;

/// `None`: there is no outbox table.
pub(super) fn object(config: &Config) -> Option<Object> {
    let tables = outbox_tables(config)?;
    let unnamed = format!(
        "{tables} AND c.relkind = 'r'\n    \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel x WHERE x.prrelid = c.oid)"
    );
    let guard = catalog::guard(&config.postgres);
    let (name, publication) = (quoting::name(&guard), literal(&guard));
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
        as_wanted: None,
        possible: Some((
            format!(
                "pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')\n  \
                 AND NOT EXISTS (SELECT {unnamed}\n    AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE'))"
            ),
            "it takes CREATE on the database and the ownership of the outbox table. Without it a table that is unlogged for a time loses \
             events unseen: run init again as the owner, with --url"
                .to_owned(),
        )),
        make: format!("DO {};", quoting::dollar_quoted(&block)),
        done: "created; it publishes nothing, and keeps the table from being made unlogged",
        remedy: general_remedy(),
    })
}
