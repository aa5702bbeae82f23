//! The columns of an outbox table whose rows are read by queries, and the messages with which a stream would describe it.

use pg_logical::pgoutput::wire::Wire;
use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};
use pg_logical::{Oid, QueryError};

use crate::config::{Outbox, TableName};
use crate::error::{Error, ErrorCode};
use crate::outbox::{ExtraColumn, FIELDS, Field};
use crate::postgres::catalog::BASE_TYPE;

const DATE: u32 = 1082;
const TIMESTAMP: u32 = 1114;
const TIMESTAMPTZ: u32 = 1184;

/// A table, as its catalogues describe it.
#[derive(Debug)]
pub struct TableLayout {
    oid: u32,
    name: TableName,
    columns: Vec<Column>,
    partitioned: bool,
}

#[derive(Debug)]
struct Column {
    name: String,
    type_id: u32,
    modifier: i32,
    /// The schema and name of a user-defined type, or of the base type of a domain.
    named: Option<(String, String)>,
}

impl TableLayout {
    /// Looks the table up; `None` if it does not exist.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn query(session: &mut Session, name: &TableName) -> Result<Option<Self>, QueryError> {
        let sql = format!(
            "SELECT c.oid, a.attname, a.atttypid::pg_catalog.oid, a.atttypmod, \
             CASE WHEN a.atttypid >= 16384 THEN CASE b.typnamespace WHEN 'pg_catalog'::pg_catalog.regnamespace THEN '' \
             ELSE b.typnamespace::pg_catalog.regnamespace::text END END, b.typname, c.relkind \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             JOIN pg_catalog.pg_type b ON b.oid = {BASE_TYPE} WHERE n.nspname = {} AND c.relname = {} AND c.relkind IN ('r', 'p') ORDER BY a.attnum",
            literal(&name.schema),
            literal(&name.name)
        );
        let rows = session.query(&sql).await?;
        let Some(oid) = rows.first().and_then(|row| row.get(0)?.parse().ok()) else { return Ok(None) };
        Ok(Some(TableLayout {
            oid,
            name: name.clone(),
            columns: rows.iter().filter_map(Column::of).collect(),
            partitioned: rows.iter().any(|row| row.get(6) == Some("p")),
        }))
    }

    /// Looks the table up.
    ///
    /// # Errors
    /// It does not exist, or those of the query.
    pub async fn existing(session: &mut Session, name: &TableName) -> Result<Self, Error> {
        Self::query(session, name).await?.ok_or_else(|| {
            Error::refused(
                ErrorCode::TableMissing,
                format!("the outbox table {name} does not exist in this database"),
                "Correct `[outbox] table`, or the database in `[postgres] url`",
            )
        })
    }

    /// The column with the time of the insert.
    ///
    /// # Errors
    /// Why there is none, as a clause.
    pub fn time_column<'a>(&self, outbox: &'a Outbox) -> Result<&'a str, String> {
        let created_at = Field::CreatedAt.column(&outbox.columns).filter(|name| self.has_timestamp(name));
        created_at.ok_or_else(|| {
            format!(
                "{} has no column of the type timestamptz or timestamp with the time of the insert, which `[outbox.columns]` names as \
                 `created_at`",
                self.name
            )
        })
    }

    /// The same columns as those of a table with this name.
    pub fn named(self, name: &TableName) -> Self {
        TableLayout { name: name.clone(), ..self }
    }

    /// The table's OID.
    pub fn oid(&self) -> Oid {
        Oid(self.oid)
    }

    /// As after FROM: a stream has the rows of partitions, but none of tables that inherit from this one.
    pub fn in_from(&self) -> String {
        let only = if self.partitioned { "" } else { "ONLY " };
        format!("{only}{}", self.name.in_sql())
    }

    /// Whether it has partitions.
    pub fn is_partitioned(&self) -> bool {
        self.partitioned
    }

    /// Whether it has this column.
    pub fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name)
    }

    /// The OID of the type of this column.
    pub fn type_of(&self, name: &str) -> Option<u32> {
        self.columns.iter().find(|column| column.name == name).map(|column| column.type_id)
    }

    /// Whether it has this column, and its values are dates or times.
    pub fn has_time(&self, name: &str) -> bool {
        self.is_of(name, &[DATE, TIMESTAMP, TIMESTAMPTZ])
    }

    /// Whether it has this column, and its values are times of a day.
    pub fn has_timestamp(&self, name: &str) -> bool {
        self.is_of(name, &[TIMESTAMP, TIMESTAMPTZ])
    }

    /// Whether they have no time zone.
    pub fn has_local_timestamp(&self, name: &str) -> bool {
        self.is_of(name, &[TIMESTAMP])
    }

    fn is_of(&self, name: &str, types: &[u32]) -> bool {
        self.columns.iter().any(|column| column.name == name && types.contains(&column.type_id))
    }

    /// The names of those columns that events are made of, in the order of the table.
    pub fn of_events(&self, outbox: &Outbox, extra: &[ExtraColumn]) -> Vec<String> {
        let columns = &outbox.columns;
        let wanted = |name: &str| {
            FIELDS.iter().any(|field| field.column(columns) == Some(name))
                || extra.iter().any(|extra| extra.name == name)
        };
        self.columns.iter().map(|column| column.name.clone()).filter(|name| wanted(name)).collect()
    }

    /// The messages with which a stream would describe a table of these columns.
    pub fn messages(&self, columns: &[String]) -> Vec<Vec<u8>> {
        let columns: Vec<&Column> =
            self.columns.iter().filter(|column| columns.contains(&column.name)).collect();
        let mut messages: Vec<Vec<u8>> = columns
            .iter()
            .filter_map(|column| {
                let (schema, name) = column.named.as_ref()?;
                Some(Wire::of(b'Y').u32(column.type_id).string(schema).string(name).0)
            })
            .collect();
        let count = i16::try_from(columns.len()).unwrap_or(i16::MAX);
        let TableName { schema, name } = &self.name;
        let head = Wire::of(b'R').u32(self.oid).string(schema).string(name).u8(b'd').i16(count);
        let relation = columns.iter().fold(head, |wire, column| {
            wire.u8(0).string(&column.name).u32(column.type_id).u32(column.modifier.cast_unsigned())
        });
        messages.push(relation.0);
        messages
    }
}

impl Column {
    fn of(row: &Row) -> Option<Self> {
        let named = row.get(4).map(str::to_owned).zip(row.get(5).map(str::to_owned));
        Some(Column {
            name: row.get(1)?.to_owned(),
            type_id: row.get(2)?.parse().ok()?,
            modifier: row.get(3)?.parse().ok()?,
            named,
        })
    }
}

/// Writes the Insert message of a row into `message`.
pub fn write_insert(message: &mut Vec<u8>, table: Oid, values: &[Option<String>]) {
    message.clear();
    message.push(b'I');
    message.extend(table.0.to_be_bytes());
    message.push(b'N');
    message.extend(u16::try_from(values.len()).unwrap_or(u16::MAX).to_be_bytes());
    for value in values {
        match value {
            None => message.push(b'n'),
            Some(text) => {
                message.push(b't');
                message.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
                message.extend(text.as_bytes());
            }
        }
    }
}
