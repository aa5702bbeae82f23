//! The outbox tables: from a relation and a tuple to an [`OutboxEvent`], which still borrows from the receive buffer.
//!
//! Columns are looked up by name once per Relation message. So the cost per row does not depend on names, and each row of a
//! table that is altered during streaming is read with the columns of its time.

mod cursor;
mod error;
mod event;
mod field;
mod layout;
mod message;
mod owned;
mod stored;

use std::collections::{BTreeMap, HashMap};

use crate::config::{Columns, Config, RecordTimestamp, TableName};
use crate::dead_letters::OriginalEvent;
use crate::shards::{Ids, Shard};
pub use cursor::Cursor;
pub use error::{OutboxError, named_by};
pub use event::{ColumnType, OutboxEvent, printable, printable_id};
pub use field::{
    ExtraColumn, FIELDS, Field, IN_CLOUDEVENTS, IN_ENVELOPE, IN_PARTITION, IN_ROUTE_HEADERS, IN_ROUTE_RULES,
    IN_TOPIC,
};
use layout::Layout;
pub use owned::OwnedRow;
use pg_logical::Oid;
use pg_logical::pgoutput::{Insert, LogicalMessage, Relation, TypeName};

/// The layouts of the outbox tables at the current position of the stream.
#[derive(Debug)]
pub struct Outbox {
    tables: Vec<Table>,
    wanted: Wanted,
    /// `None` for a table that is not an outbox. Looked up for each row: a few comparisons are faster than a hash.
    relations: BTreeMap<Oid, Option<Layout>>,
    /// Outbox tables that cannot be read, none of whose rows has arrived yet.
    unreadable: HashMap<Oid, OutboxError>,
    /// The types that do not belong to Postgres.
    types: HashMap<Oid, Named>,
    /// `None` if messages are not events.
    messages: Option<OwnedRow>,
    /// The shard whose messages are events, because every slot receives all messages.
    shard: Option<(Shard, Ids)>,
}

/// What the stream says about a type.
#[derive(Debug, Clone)]
enum Named {
    /// A domain over this type of Postgres, with its name where Kafka Connect's form depends on the domain's modifier, which the stream
    /// lacks: there the value is written as text.
    Domain(Oid, Option<String>),
    /// Another type, of this name.
    Own(String),
}

#[derive(Debug)]
struct Table {
    name: TableName,
    /// The OID of the table that has the name now, from the catalogues.
    current_oid: Option<Oid>,
    /// The OID of the table that had the name when the stream last described it.
    described_oid: Option<Oid>,
}

/// What is needed from each table.
#[derive(Debug)]
struct Wanted {
    columns: Columns,
    extra: Vec<ExtraColumn>,
    /// Whether a wrong type of `created_at` is an error.
    created_at: bool,
}

impl Outbox {
    /// The outbox of `config`, with these additional columns, which its routes name.
    pub fn of(config: &Config, extra: &[ExtraColumn]) -> Self {
        let needs_created_at = config.route.timestamp == RecordTimestamp::CreatedAt;
        let (tables, columns) = (config.outbox.tables.clone(), config.outbox.columns.clone());
        Self::new(tables, columns, extra.to_vec(), needs_created_at)
            .with_messages(config.outbox.message_prefix.as_deref())
    }

    /// Reads `tables` with `columns`. `extra` names additional columns whose values are needed; with `needs_created_at`, a
    /// wrong type of that column is an error.
    pub fn new(
        tables: Vec<TableName>,
        columns: Columns,
        extra: Vec<ExtraColumn>,
        needs_created_at: bool,
    ) -> Self {
        Outbox {
            tables: tables
                .into_iter()
                .map(|name| Table { name, current_oid: None, described_oid: None })
                .collect(),
            wanted: Wanted { columns, extra, created_at: needs_created_at },
            relations: BTreeMap::new(),
            unreadable: HashMap::new(),
            types: HashMap::new(),
            messages: None,
            shard: None,
        }
    }

    /// Logical messages with this prefix are events too.
    pub fn with_messages(mut self, prefix: Option<&str>) -> Self {
        self.messages = prefix.map(|prefix| {
            OwnedRow::new(TableName { schema: message::SCHEMA.to_owned(), name: prefix.to_owned() })
        });
        self
    }

    /// Only messages of this shard are events. Postgres itself filters the rows.
    pub fn of_shard(mut self, shard: Option<(Shard, Ids)>) -> Self {
        self.shard = shard;
        self
    }

    /// The shard of this outbox.
    pub fn shard(&self) -> Option<Shard> {
        self.shard.map(|(shard, _)| shard)
    }

    /// Sets the OIDs of the tables that have the names now. Rows written before such a table got its present name belong to
    /// the outbox too.
    pub fn with_oids(mut self, oids: impl IntoIterator<Item = Option<Oid>>) -> Self {
        for (table, oid) in self.tables.iter_mut().zip(oids) {
            table.current_oid = oid;
        }
        self
    }

    /// The faults of a table whose columns have these types: everything for which a Relation message would be refused.
    pub fn faults(&self, table: &TableName, type_of: impl Fn(&str) -> Option<Oid>) -> Vec<OutboxError> {
        layout::faults(&self.wanted, table, type_of)
    }

    /// Handles a Type message. It names the base type of a domain, and precedes the tables that use it.
    pub fn type_name(&mut self, named: &TypeName<'_>) {
        let of_postgres = matches!(named.namespace, "" | "pg_catalog");
        let known = if of_postgres {
            let as_text = connect_values::needs_modifier(named.name).then(|| named.name.to_owned());
            connect_values::oid_of(named.name).map(|base| Named::Domain(Oid(base), as_text))
        } else {
            Some(Named::Own(named.name.to_owned()))
        };
        match known {
            Some(known) => self.types.insert(named.id, known),
            None => self.types.remove(&named.id),
        };
    }

    /// Handles a Relation message, for any table. In log from before the session (`before_session`), an outbox table may have had
    /// any name.
    pub fn relation(&mut self, relation: &Relation<'_>, before_session: bool) -> Result<(), OutboxError> {
        self.unreadable.remove(&relation.id);
        let named =
            |table: &Table| relation.namespace == table.name.schema && relation.name == table.name.name;
        // an earlier name, unless the stream has already described the table under its present name; then it is a later one
        let once_named = |table: &Table| {
            table.current_oid == Some(relation.id)
                && (before_session || table.described_oid != table.current_oid)
        };
        let by_name = self.tables.iter().position(named);
        let Some(number) = by_name.or_else(|| self.tables.iter().position(once_named)) else {
            if let Some(table) = self.tables.iter().find(|table| table.described_oid == Some(relation.id)) {
                let now = format!("{}.{}", relation.namespace, relation.name);
                return Err(OutboxError::Renamed { table: table.name.to_string(), now });
            }
            self.relations.insert(relation.id, None);
            return Ok(());
        };
        let Some(table) = self.tables.get_mut(number) else { return Ok(()) };
        let layout = Layout::new(&self.wanted, &self.types, &table.name, number, relation)?;
        if by_name.is_some() {
            table.described_oid = Some(relation.id);
        }
        self.relations.insert(relation.id, Some(layout));
        Ok(())
    }

    /// Stores the error of a relation until one of its rows is read.
    pub fn unreadable(&mut self, relation: Oid, error: OutboxError) {
        self.relations.remove(&relation);
        self.unreadable.insert(relation, error);
    }

    /// Decodes one new row; `None` if its table is not an outbox.
    pub fn event<'a>(&'a self, insert: &Insert<'a>) -> Result<Option<OutboxEvent<'a>>, OutboxError> {
        let mismatch = || OutboxError::Mismatch(insert.relation.0);
        let Some(layout) = self.relations.get(&insert.relation) else {
            return Err(self.unreadable.get(&insert.relation).cloned().unwrap_or_else(mismatch));
        };
        let Some(layout) = layout else { return Ok(None) };
        let table = self.tables.get(layout.table).ok_or_else(mismatch)?;
        layout.read(&self.wanted, &table.name, insert).map(Some)
    }

    /// Whether messages with this prefix are events.
    pub fn is_event(&self, prefix: &str) -> bool {
        self.messages.as_ref().is_some_and(|row| row.source().name == prefix)
    }

    /// Decodes one message; `None` if it is not an event, or belongs to another shard.
    pub fn message<'a>(
        &'a mut self,
        message: &LogicalMessage<'_>,
    ) -> Result<Option<OutboxEvent<'a>>, OutboxError> {
        match &mut self.messages {
            Some(row) if row.source().name == message.prefix => {
                message::read(&self.wanted, message.content, row)?;
                let event = row.event();
                let aggregate = event.field(Field::AggregateId);
                let ours = self.shard.is_none_or(|(shard, ids)| shard.holds(ids, aggregate));
                Ok(ours.then_some(event))
            }
            _ => Ok(None),
        }
    }

    /// The complete row, with its own memory, of an event that [`Outbox::event`] has read.
    pub fn complete_row(&self, insert: &Insert<'_>) -> OriginalEvent {
        let layout = self.relations.get(&insert.relation).and_then(Option::as_ref);
        OriginalEvent::Columns(layout.map_or_else(Vec::new, |layout| layout.all_columns(insert)))
    }

    /// The outbox table of this relation; `None` if its rows are not events.
    pub fn table_of(&self, relation: Oid) -> Option<&TableName> {
        let layout = self.relations.get(&relation)?.as_ref()?;
        self.tables.get(layout.table).map(|table| &table.name)
    }
}

#[cfg(test)]
mod tests;
