//! `init --print-sql`: the same objects as a script for psql, which can be run repeatedly like `init` itself.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::grants;
use super::object::{self, Object};
use super::{
    business_key, emit_message, outbox_table, partition_triggers, partitions, polling, privileges,
    publication, retention, router_schema,
};
use crate::cli::init::Period;
use crate::commands::server::FAILOVER_SLOTS;
use crate::config::Config;
use crate::postgres::{backfills, slot_record};

/// The whole script.
pub(super) fn script(config: &Config, role: &str, partitioned: Option<Period>) -> String {
    let shards = if config.polling.is_none() { config.every_shard() } else { Vec::new() };
    let mut text = format!(
        "-- What outbox-router {} needs in Postgres, for the router {}.\n\
         -- Run it as an administrator in the database {}, and not in a single transaction:\n\
         --   psql -X -v ON_ERROR_STOP=1 -d {} -f FILE\n\
         -- Existing objects are left unchanged, so it can be run again.{}\n",
        env!("CARGO_PKG_VERSION"),
        one_line(&config.name),
        one_line(&config.postgres.conninfo.dbname),
        one_line(&config.postgres.conninfo.dbname),
        if shards.is_empty() { "" } else { " wal_level must be logical." },
    );
    let mut add = |purpose: &str, statements: &str| {
        text.push_str(&format!("\n-- {}.\n{statements}\n", one_line(purpose)));
    };
    for shard in &shards {
        add(
            "Checks first that no other database or plugin has the slot",
            &slot_is_ours(&shard.postgres.slot),
        );
    }
    let router_schema = object::router_schema();
    add(&router_schema.purpose, &guarded(&router_schema));
    for (purpose, statements) in router_schema::MIGRATIONS.script() {
        add(&purpose, &statements);
    }
    let mut parts: Vec<Object> = object::outbox_schemas(config);
    parts.extend(polling::wakes(config).then(polling::wake_function));
    let mut emit_outbox = config.outbox.clone();
    if partitioned.is_some() {
        emit_outbox = partitions::without_keys(&emit_outbox);
    }
    for table in &config.outbox.tables {
        parts.push(outbox_table::object(config, table, partitioned));
        parts.extend(partitioned.map(|period| partitions::registration(config, table, period)));
    }
    parts.extend(partitioned.map(|_| partitions::assertion(config)));
    parts.extend(business_key::object(&emit_outbox));
    parts.extend(outbox_table::emit(&emit_outbox));
    parts.extend(emit_message::objects(&config.outbox));
    parts.extend(retention::objects(config));
    if let (Some(_), Some(first)) = (partitioned, config.outbox.tables.first()) {
        parts.push(partitions::owner_of_functions(first));
        parts.extend(config.outbox.tables.iter().map(partitions::ahead));
    }
    parts.extend(privileges::objects(config, role));
    parts.extend(shards.iter().map(publication::object));
    if !shards.is_empty() {
        parts.extend(publication::guard(config));
        parts.extend(partition_triggers::object(config));
        parts.extend(partition_triggers::known_partitions(config));
    }
    for object in &parts {
        add(&object.purpose, &guarded(object));
    }
    let create = |failover: &str| {
        let statements = shards.iter().map(|shard| {
            let slot = literal(&shard.postgres.slot);
            format!(
                "SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = {slot}) AS is_missing \\gset\n\
                 \\if :is_missing\n{};\n\
                 {};\n\
                 SELECT lsn AS created_at FROM pg_catalog.pg_create_logical_replication_slot({slot}, 'pgoutput'{failover}) \\gset\n\
                 {};\n\\endif",
                slot_record::forget(&shard.postgres.slot),
                backfills::forget(&shard.postgres.slot),
                slot_record::created(&shard.postgres.slot, ":'created_at'"),
            )
        });
        statements.collect::<Vec<_>>().join("\n")
    };
    if !shards.is_empty() {
        // psql decides this, because creating a slot in a DO block can fail ("snapshot reference is not owned by resource owner")
        add(
            "The slot, after the publication; from 17 on standbys may keep a copy of it. This waits until all transactions that \
             are open now have ended",
            &format!(
                "SELECT current_setting('server_version_num')::int >= {FAILOVER_SLOTS} AS failover_slots \\gset\n\
                 \\if :failover_slots\n{}\n\\else\n{}\n\\endif",
                create(", failover => true"),
                create("")
            ),
        );
    }
    text.push_str(&format!(
        "\n-- Still to do: a password for the role (\\password {}), unless it logs in without one, and the application's \
         privileges:\n",
        one_line(&quoting::identifier(role)),
    ));
    for grant in grants(config, outbox_table::emit(&config.outbox).is_some()) {
        text.push_str(&format!("--   GRANT {} TO your_application;\n", one_line(&grant)));
    }
    if config.outbox.message_prefix.is_some() {
        text.push_str(
            "-- To stop every role from writing messages without these functions, run this as a superuser for each signature of \
             \\df pg_logical_emit_message:\n\
             --   REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(...) FROM PUBLIC;\n",
        );
    }
    text
}

/// A statement that ends the script if another database or plugin has a slot of this name.
fn slot_is_ours(slot: &str) -> String {
    let block = format!(
        "\nBEGIN\nIF EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = {slot}\n    \
         AND (s.database, s.plugin) IS DISTINCT FROM (pg_catalog.current_database(), 'pgoutput')) THEN\n\
         RAISE 'the slot % belongs to another database or plugin; nothing was changed', {slot}\n  \
         USING HINT = 'Choose another name for `[postgres] slot`, or drop the slot if nobody needs it';\n\
         END IF;\nEND\n",
        slot = literal(slot)
    );
    format!("DO {};", quoting::dollar_quoted(&block))
}

/// Statements that do nothing if the object exists or cannot be created.
pub(super) fn guarded(object: &Object) -> String {
    let mut condition = format!("NOT {}", object.there);
    if let Some((possible, _)) = &object.possible {
        condition += &format!("\n  AND {possible}");
    }
    // not indented, because a name may contain a line break, and the function's body must match exactly
    let block = format!("\nBEGIN\nIF {condition} THEN\n{}\nEND IF;\nEND\n", object.make);
    format!("DO {};", quoting::dollar_quoted(&block))
}

/// Replaces line breaks, which would end a comment.
pub(super) fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
