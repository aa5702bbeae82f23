//! The columns of the table that is polled.

use pg_logical::QueryError;
use pg_logical::conninfo::ConnInfo;
use pg_logical::quoting::{identifier, literal};
use pg_logical::session::Session;

use super::sql::PolledTable;
use crate::config::polling::StatusColumns;
use crate::config::{Outbox, Polling, TableName};
use crate::error::{Effect, Error, ErrorCode, Remedy, Step};
use crate::postgres::administrator::init_remedy;
use crate::postgres::row_security::see_all_rows;
use crate::postgres::rows::layout::TableLayout;

/// The channel on which inserts are notified.
pub const WAKE_CHANNEL: &str = "outbox_router";

/// The function of the trigger that notifies it, in the router's schema.
pub const WAKE_FUNCTION: &str = "wake_pollers";

/// An expression: the next position.
const NEXT_POSITION: &str = "outbox_router.next_position()";

/// The statement that creates the trigger.
pub fn wake_trigger(table: &TableName) -> String {
    format!(
        "CREATE TRIGGER outbox_router_wake_pollers AFTER INSERT ON {} FOR EACH STATEMENT EXECUTE FUNCTION outbox_router.{WAKE_FUNCTION}();",
        table.in_sql()
    )
}

/// An expression: does the table with this OID have the trigger?
pub fn wakes(oid: &str) -> String {
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid WHERE g.tgrelid = {oid} \
         AND g.tgenabled IN ('O', 'A') AND f.pronamespace = pg_catalog.to_regnamespace('outbox_router') AND f.proname = '{WAKE_FUNCTION}')"
    )
}

/// A table that can be polled.
#[derive(Debug)]
pub struct Found {
    /// Its columns.
    pub layout: TableLayout,
    /// The default of the positions, as an expression.
    next_position: Option<String>,
    /// Whether it calls the router's `next_position`.
    bounded: bool,
    /// Whether inserts wake pollers.
    wakes: bool,
}

impl Found {
    /// Looks the table up; `None` if it does not exist.
    async fn query(
        session: &mut Session,
        outbox: &Outbox,
        polling: &Polling,
    ) -> Result<Option<Self>, QueryError> {
        let Some(name) = outbox.tables.first() else { return Ok(None) };
        let Some(layout) = TableLayout::query(session, name).await? else { return Ok(None) };
        let oid = layout.oid().0;
        let sql = format!(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
             JOIN pg_catalog.pg_depend e ON e.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND e.objid = d.oid \
             AND e.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass \
             JOIN pg_catalog.pg_proc p ON p.oid = e.refobjid JOIN pg_catalog.pg_namespace s ON s.oid = p.pronamespace \
             WHERE a.attrelid = {oid} AND a.attname = {} AND s.nspname = 'outbox_router' AND p.proname = 'next_position'), {}, \
             (SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attrdef d \
             ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attrelid = {oid} AND a.attname = {})",
            literal(&polling.columns.position),
            wakes(&oid.to_string()),
            literal(&polling.columns.position)
        );
        let rows = session.query(&sql).await?;
        let is_true = |column| rows.first().and_then(|row| row.get(column)) == Some("t");
        let next_position = rows.first().and_then(|row| row.get(2)).map(str::to_owned);
        Ok(Some(Found { layout, next_position, bounded: is_true(0), wakes: is_true(1) }))
    }

    /// Looks the table up, and refuses one that cannot be polled.
    ///
    /// # Errors
    /// The table, a column or the table of claims is missing, or a privilege.
    pub async fn usable(
        session: &mut Session,
        outbox: &Outbox,
        polling: &Polling,
        conninfo: &ConnInfo,
    ) -> Result<Self, Error> {
        let name = outbox.table_names();
        let Some(found) = Self::query(session, outbox, polling).await? else {
            return Err(Error::refused(
                ErrorCode::NotPrepared,
                format!("the outbox table {name} does not exist, or is not a table"),
                init_remedy("Create it", conninfo),
            ));
        };
        if found.layout.is_partitioned() {
            return Err(Error::refused(
                ErrorCode::NotPrepared,
                format!("{name} is partitioned, and only a table without partitions can be polled"),
                "Use such a table, or read the log",
            ));
        }
        found.verify_columns(outbox, polling)?;
        let rows = session.query(&found.privileges(&polling.columns)).await?;
        let is_true = |column| rows.first().and_then(|row| row.get(column)) == Some("t");
        let refused =
            |what: String, remedy: Remedy| Err(Error::refused(ErrorCode::NotPrepared, what, remedy));
        if is_true(0) {
            return refused(
                "the table outbox_router.poll_claims does not exist".to_owned(),
                init_remedy("Create it", conninfo),
            );
        }
        let role = &conninfo.user;
        if !is_true(1) {
            return refused(
                format!("the role {role} may not claim and mark rows of {name}"),
                init_remedy("Grant the privileges", conninfo),
            );
        }
        if is_true(2) {
            return refused(
                format!(
                    "row-level security of {name} may hide rows from the role {role}, which would not be sent"
                ),
                Remedy::steps([see_all_rows(role)]),
            );
        }
        let Some(table) = found.statements(outbox, polling) else { return Ok(found) };
        let unplaced = session.query_one(&format!("SELECT {}", table.has_unplaced())).await?;
        if unplaced.as_deref() == Some("t") {
            let position = &polling.columns.position;
            return refused(
                format!("rows of {name} wait to be sent and have no {position}, so that their order is unknown"),
                Remedy::steps([Step::new(
                    "As the table's owner, give them one; applications have to leave this column out of their inserts",
                )
                .sql(table.place(found.next_position.as_deref().unwrap_or(NEXT_POSITION)))]),
            );
        }
        Ok(found)
    }

    /// Refuses a table that lacks columns for the state of a row.
    ///
    /// # Errors
    /// The refusal, or those of the query.
    pub async fn check_columns(
        session: &mut Session,
        outbox: &Outbox,
        polling: &Polling,
    ) -> Result<(), Error> {
        match Self::query(session, outbox, polling).await? {
            Some(found) => found.verify_columns(outbox, polling),
            None => Ok(()),
        }
    }

    fn verify_columns(&self, outbox: &Outbox, polling: &Polling) -> Result<(), Error> {
        let missing = self.missing(&polling.columns);
        if missing.is_empty() {
            return Ok(());
        }
        let what =
            format!("{} lacks columns that polling needs: {}", outbox.table_names(), missing.join(", "));
        let error =
            Error::refused(ErrorCode::ColumnUnusable, what, self.add_columns(outbox, polling, &missing));
        Err(error.meaning(Effect::Late, "they wait in the table until the router runs"))
    }

    /// Whether the table of claims is missing, whether the role has the privileges, and whether row-level security applies to it.
    fn privileges(&self, columns: &StatusColumns) -> String {
        let updated = columns.by_key().filter(|(key, _)| *key != "position");
        let updated: Vec<String> = updated
            .map(|(_, name)| {
                format!(
                    "pg_catalog.has_column_privilege({}::pg_catalog.oid, {}, 'UPDATE')",
                    self.layout.oid().0,
                    literal(name)
                )
            })
            .collect();
        format!(
            "SELECT c.oid IS NULL, pg_catalog.has_table_privilege({oid}::pg_catalog.oid, 'SELECT') AND {} \
             AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT') \
             AND pg_catalog.has_table_privilege(c.oid, 'INSERT') AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') \
             AND pg_catalog.has_table_privilege(c.oid, 'DELETE') AND pg_catalog.has_sequence_privilege(s.oid, 'SELECT'), \
             pg_catalog.row_security_active({oid}::pg_catalog.oid) \
             FROM (VALUES (1)) one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'outbox_router' \
             LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'poll_claims' \
             LEFT JOIN pg_catalog.pg_class s ON s.relnamespace = n.oid AND s.relname = 'outbox_position'",
            updated.join(" AND "),
            oid = self.layout.oid().0
        )
    }

    /// The statements for the table as it is.
    pub fn statements(&self, outbox: &Outbox, polling: &Polling) -> Option<PolledTable> {
        let has_time = outbox.columns.created_at.as_ref().is_some_and(|name| self.layout.has_time(name));
        Some(PolledTable::of(outbox, polling)?.with(self.bounded, has_time))
    }

    /// How to add the columns and indexes that an existing table lacks. Its rows count as published, unless it has a status.
    fn add_columns(&self, outbox: &Outbox, polling: &Polling, missing: &[&str]) -> Remedy {
        let table = outbox.tables.first().map(TableName::in_sql).unwrap_or_default();
        let Some(statements) = self.statements(outbox, polling) else { return Remedy::default() };
        let added: Vec<String> = definitions(polling)
            .into_iter()
            .filter(|(name, _)| missing.contains(name))
            .map(|(name, definition)| {
                // the rows that are there were published before, and get no position: the table would be written anew
                let definition = match name {
                    name if name == polling.columns.status => {
                        format!("text NOT NULL DEFAULT {}", literal(&polling.status.published))
                    }
                    name if name == polling.columns.position => "bigint".to_owned(),
                    _ => definition,
                };
                format!("ADD COLUMN {} {definition}", identifier(name))
            })
            .collect();
        let defaults: Vec<String> = definitions(polling)
            .into_iter()
            .filter(|(name, _)| missing.contains(name))
            .filter_map(|(name, definition)| {
                let default = definition.split_once(" DEFAULT ")?.1.to_owned();
                let late = name == polling.columns.status || name == polling.columns.position;
                late.then(|| format!("ALTER COLUMN {} SET DEFAULT {default}", identifier(name)))
            })
            .collect();
        // one statement, since no row may be inserted in between
        let alter = format!("ALTER TABLE {table} {}", [added, defaults].concat().join(", "));
        let lacks = |name: &str| missing.contains(&name);
        let mut step = if lacks(&polling.columns.position) && !lacks(&polling.columns.status) {
            // before anybody inserts a row with a position
            Step::new("As the table's owner, add them, and give positions to the rows that wait to be sent")
                .sql(format!("BEGIN; {alter}; {}; COMMIT", statements.place(NEXT_POSITION)))
        } else {
            Step::new("As the table's owner, add them; rows that are there count as published").sql(alter)
        };
        for index in statements.indexes(true) {
            step = step.sql(index.trim_end_matches(';'));
        }
        Remedy::steps([step])
    }

    /// The columns for the state of a row that the table lacks.
    fn missing<'a>(&self, columns: &'a StatusColumns) -> Vec<&'a str> {
        columns.by_key().map(|(_, name)| name).filter(|name| !self.layout.has(name)).collect()
    }

    /// Whether a trigger on the table notifies [`WAKE_CHANNEL`] of inserts.
    pub fn wakes(&self) -> bool {
        self.wakes
    }
}

/// The columns for the state of a row, with type and default.
pub fn definitions(polling: &Polling) -> [(&str, String); 7] {
    let StatusColumns { position, status, attempts, refusals, next_attempt_at, published_at, last_error } =
        &polling.columns;
    [
        (position, format!("bigint NOT NULL DEFAULT {NEXT_POSITION}")),
        (status, format!("text NOT NULL DEFAULT {}", literal(&polling.status.new))),
        (attempts, "integer NOT NULL DEFAULT 0".to_owned()),
        (refusals, "integer NOT NULL DEFAULT 0".to_owned()),
        (next_attempt_at, "timestamptz".to_owned()),
        (published_at, "timestamptz".to_owned()),
        (last_error, "text".to_owned()),
    ]
}
