//! What the publication leaves out of the stream, or publishes needlessly.
//!
//! A remedy alters only a publication that is the router's alone: it publishes the outbox tables and nothing else. Beside any other
//! one the router gets a publication of its own.

use pg_logical::quoting;

use super::finding::Findings;
use crate::config::{Config, OnUpdate, TableName};
use crate::error::{Remedy, Step};
use crate::outbox::{FIELDS, Outbox};
use crate::postgres::catalog::{Catalog, Columns, Publication, Table, check_column_lists};

/// What an alteration of the publication does to the router. It may have left rows out, which the router cannot rule out.
const AFTERWARDS: &str = "the router then stops with exit code 3, because the publication was altered, and refuses its next start. No row is \
     left out by this command: run the `--accept-gap` command that the start prints";

pub(super) fn check(config: &Config, publication: &Publication, catalog: &Catalog, findings: &mut Findings) {
    let name = quoting::identifier(&config.postgres.publication);
    let acts_on_updates = config.outbox.on_update != OnUpdate::Warn;
    if acts_on_updates && !publication.publishes_updates {
        let remedy = if publication.shared {
            Remedy::from("Remove on_update").or(
                "To keep it, give the router a publication of its own, and let that publish updates",
                catalog.own_publication(config.source()),
            )
        } else {
            let alter =
                format!("ALTER PUBLICATION {name} SET (publish = '{}')", publication.publishing("update"));
            Remedy::from("Remove on_update").or(
                "To keep it",
                [Step::new(format!("Let the publication publish updates; {AFTERWARDS}")).sql(alter)],
            )
        };
        findings.warning(
            "on_update",
            format!("`[outbox] on_update` has no effect: {name} does not publish updates"),
            remedy,
        );
    } else if publication.publishes_more && !acts_on_updates {
        findings.warning(
            "publication_content",
            format!("{name} also publishes updates or deletes, which the router reads and drops"),
            alter_or_own(
                config,
                publication,
                catalog,
                "For a stream of inserts alone",
                "SET (publish = 'insert')",
            ),
        );
    }
}

pub(super) fn check_row_filter(
    config: &Config,
    publication: &Publication,
    catalog: &Catalog,
    name: &TableName,
    table: &Table,
    findings: &mut Findings,
) {
    let sql = quoting::identifier(&config.postgres.publication);
    if let Some(filter) = &table.row_filter {
        findings.warning(
            "publication_row_filter",
            format!("{sql} publishes only the rows with {filter}; other rows are never sent"),
            alter_or_own(
                config,
                publication,
                catalog,
                "To publish all rows",
                &set_tables(config, catalog, Some(name)),
            ),
        );
    }
}

/// Reports columns that the publication's column lists leave out.
pub(super) fn check_column_list(
    config: &Config,
    publication: &Publication,
    catalog: &Catalog,
    outbox: &Outbox,
    columns: &[Columns],
    findings: &mut Findings,
) {
    if let Err(refused) = check_column_lists(outbox, config.source(), columns, catalog) {
        return findings.failure("publication_columns", refused, "");
    }
    let name = quoting::identifier(&config.postgres.publication);
    for table in columns {
        let left_out = |column: &&str| table.left_out.iter().any(|name| name == column);
        let fields = FIELDS.into_iter().filter_map(|field| field.column(&config.outbox.columns));
        let left_out: Vec<&str> = fields.filter(left_out).collect();
        if !left_out.is_empty() {
            let what = format!(
                "the column list of {name} leaves out {}, so events are sent without",
                left_out.join(", ")
            );
            let remedy = alter_or_own(
                config,
                publication,
                catalog,
                "To publish all columns",
                &set_tables(config, catalog, None),
            );
            findings.warning("publication_columns", what, remedy);
        }
    }
}

/// The remedy: this alteration, or a publication of the router's own. Those of shards have row filters, which must stay.
fn alter_or_own(
    config: &Config,
    publication: &Publication,
    catalog: &Catalog,
    purpose: &str,
    alteration: &str,
) -> Remedy {
    let name = quoting::identifier(&config.postgres.publication);
    if publication.shared || config.shard.is_some() {
        Remedy::default().or(
            format!(
                "The router works as it is, and others may read {name}: leave it unaltered. {purpose}, give the router a publication of its own"
            ),
            catalog.own_publication(config.source()),
        )
    } else {
        Remedy::steps([Step::new(format!("{purpose}, alter the publication; {AFTERWARDS}"))
            .sql(format!("ALTER PUBLICATION {name} {alteration}"))])
    }
}

/// `SET TABLE`, which replaces the whole list, with the row filters of all tables but one.
fn set_tables(config: &Config, catalog: &Catalog, without_filter: Option<&TableName>) -> String {
    let tables = config.outbox.tables.iter().zip(&catalog.tables).map(|(name, table)| {
        let filter = table.as_ref().and_then(|table| table.row_filter.as_ref());
        match filter.filter(|_| without_filter != Some(name)) {
            Some(filter) => format!("{} WHERE ({filter})", name.in_sql()),
            None => name.in_sql(),
        }
    });
    format!("SET TABLE {}", tables.collect::<Vec<_>>().join(", "))
}
