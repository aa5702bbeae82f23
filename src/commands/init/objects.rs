//! The objects that `init` creates, as SQL with the configured names.

use pg_logical::quoting::literal;
use pg_logical::{Secret, quoting};

use super::emit_message::{self, Payload};
use super::object::Object;
use super::{
    bulk_reads, dead_letters, general_remedy, guard, heartbeat, outbox_table, partitions, role, shards,
};
use crate::checkpoint::SlotRecord;
use crate::config::{CatchUp, Config, DeliveryMode, TableName};
use crate::postgres::slot_record;

/// The configured names, and the router's role if it is to be set up.
pub(super) struct Objects<'a> {
    pub(super) config: &'a Config,
    role: Option<&'a str>,
}

impl<'a> Objects<'a> {
    pub(super) fn new(config: &'a Config, role: Option<&'a str>) -> Self {
        Objects { config, role }
    }

    pub(super) fn router_schema(&self) -> Object {
        schema("outbox_router", "The router's own objects".to_owned())
    }

    /// The schemas of the outbox tables, except `public`, which every database has unless somebody dropped it.
    pub(super) fn outbox_schemas(&self) -> Vec<Object> {
        let mut names: Vec<&str> = Vec::new();
        for table in &self.config.outbox.tables {
            if table.schema != "public" && !names.contains(&table.schema.as_str()) {
                names.push(&table.schema);
            }
        }
        names.into_iter().map(|name| schema(name, "The schema of an outbox table".to_owned())).collect()
    }

    pub(super) fn outbox_table(&self, table: &TableName) -> Object {
        Object {
            name: format!("table {}", table.in_sql()),
            purpose: "The outbox: applications insert into it in the transaction that changes their own rows"
                .to_owned(),
            there: format!(
                "EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname = {} AND c.relname = {})",
                literal(&table.schema),
                literal(&table.name)
            ),
            as_wanted: None,
            possible: None,
            make: outbox_table::create(&self.config.outbox, table),
            done: "created",
            remedy: general_remedy(),
        }
    }

    /// `None`: there are several tables, so it is unclear which one to fill.
    pub(super) fn emit(&self) -> Option<Object> {
        let [table] = self.config.outbox.tables.as_slice() else { return None };
        let body = outbox_table::emit_body(&self.config.outbox, table);
        let function = "FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
                        WHERE n.nspname = 'outbox_router' AND p.proname = 'emit'";
        Some(Object {
            name: "function outbox_router.emit".to_owned(),
            purpose: "One call for an application instead of an INSERT; it runs with the rights of its caller".to_owned(),
            there: format!("EXISTS (SELECT {function})"),
            as_wanted: Some((
                format!("EXISTS (SELECT {function} AND p.prosrc = {})", literal(&body)),
                "it was made for another table, other columns or another version. To replace it, DROP FUNCTION \
                 outbox_router.emit and run init again"
                    .to_owned(),
            )),
            possible: Some((
                outbox_table::emit_fits(&self.config.outbox, table),
                "the columns of the table are not those that it could fill in".to_owned(),
            )),
            make: outbox_table::create_emit(&body),
            done: "created",
            remedy: general_remedy(),
        })
    }

    /// The functions that write messages, if messages are read.
    pub(super) fn emit_message(&self) -> Vec<Object> {
        let outbox = &self.config.outbox;
        Payload::ALL.into_iter().filter_map(|payload| emit_message::object(outbox, payload)).collect()
    }

    pub(super) fn role(&self) -> Option<Object> {
        self.role.map(role::object)
    }

    pub(super) fn connect_privilege(&self, role: &str) -> Object {
        role::connect_privilege(role, &self.config.postgres.conninfo.dbname)
    }

    /// `None`: the slot is never read in bulk.
    pub(super) fn bulk_reads_privilege(&self, role: &str) -> Option<Object> {
        let in_bulk = self.config.postgres.catch_up == CatchUp::Auto;
        in_bulk.then(|| bulk_reads::privilege_object(role))
    }

    /// `None`: no heartbeat is written.
    pub(super) fn heartbeat_privilege(&self, role: &str) -> Option<Object> {
        self.config.heartbeat.map(|_| heartbeat::privilege_object(role))
    }

    /// `None`: nothing is parked.
    pub(super) fn dead_letters_privilege(&self, role: &str) -> Option<Object> {
        self.config.dead_letters.park().then(|| dead_letters::privilege_object(role))
    }

    /// `None`: delivery is at least once.
    pub(super) fn slots_privilege(&self, role: &str) -> Option<Object> {
        let exactly_once = self.config.delivery.mode == DeliveryMode::ExactlyOnce;
        exactly_once.then(|| {
            let purpose =
                "A start finds there whether the slot is new, because `[delivery] mode` is \"exactly-once\"";
            role::table_privilege(role, SlotRecord::TABLE, &slot_record::REQUIRED_PRIVILEGES, purpose)
        })
    }

    /// The role that the router runs as.
    pub(super) fn role_name(&self) -> Option<&'a str> {
        self.role
    }

    pub(super) fn publication(&self) -> Object {
        let name = &self.config.postgres.publication;
        let sql = quoting::name(name);
        let tables: Vec<String> = self.config.outbox.tables.iter().map(TableName::in_sql).collect();
        let tables = tables.join(", ");
        let of_tables = if tables.is_empty() { String::new() } else { format!(" FOR TABLE {tables}") };
        let owner = if tables.is_empty() { String::new() } else { format!(" and the ownership of {tables}") };
        Object {
            name: format!("publication {sql}"),
            purpose: match self.config.shard {
                None => "What the stream holds: the inserts of the outbox, and nothing else".to_owned(),
                Some(shard) => format!("What the stream of {shard} holds: the inserts of its aggregates"),
            },
            there: format!(
                "EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = {})",
                literal(name)
            ),
            as_wanted: None,
            possible: None,
            make: match self.config.shard {
                Some(shard) if !tables.is_empty() => shards::create_publication(self.config, shard),
                _ => format!(
                    "CREATE PUBLICATION {sql}{of_tables}\n  \
                     WITH (publish = 'insert', publish_via_partition_root = true);"
                ),
            },
            done: "created",
            remedy: format!(
                "It takes CREATE on the database{owner}: connect as its owner or as an \
                 administrator with --url, or have one run what `outbox-router init --print-sql` prints"
            ),
        }
    }

    /// `None`: there is no outbox table.
    pub(super) fn guard(&self) -> Option<Object> {
        guard::object(self.config)
    }

    /// `None`: there is no outbox table.
    pub(super) fn partition_triggers(&self) -> Option<Object> {
        partitions::object(self.config)
    }

    /// The brokers, for the command lines of the ACLs.
    pub(super) fn brokers(config: &Config) -> &str {
        config.kafka.properties.get("bootstrap.servers").map_or("", Secret::reveal)
    }
}

fn schema(name: &str, purpose: String) -> Object {
    Object {
        name: format!("schema {}", quoting::name(name)),
        purpose,
        there: format!("EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = {})", literal(name)),
        as_wanted: None,
        possible: None,
        make: format!("CREATE SCHEMA {};", quoting::name(name)),
        done: "created",
        remedy: general_remedy(),
    }
}
