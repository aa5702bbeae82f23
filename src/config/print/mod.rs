//! The effective configuration as TOML, for `config show`.

mod route;

use std::fmt::{self, Display, Write};

use pg_logical::REDACTED;
use pg_logical::conninfo::Password;

use crate::config::Config;
use crate::config::identifiers::format_table;
use crate::config::kafka_properties::shown;
use crate::config::quoted::{quoted, quoted_as_is};
use crate::config::units::{format_duration, format_size};
use crate::config::words::{CATCH_UP, ON_UPDATE, word};

impl Config {
    /// The effective configuration, including defaults and the environment, as a file that loads as the same configuration.
    /// Passwords, secrets, private keys, what logs in by a URL, and the arguments of `password_command` are replaced by asterisks.
    pub fn to_redacted_toml(&self) -> String {
        let mut text = String::new();
        // writing to a String cannot fail
        let _ = self.write_toml(&mut text);
        text
    }

    fn write_toml(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "name = {}", quoted(&self.name))?;

        let postgres = &self.postgres;
        writeln!(out, "\n[postgres]")?;
        writeln!(out, "url = {}", quoted(&postgres.conninfo.to_redacted_uri()))?;
        match &postgres.conninfo.password {
            Some(Password::File(file)) => {
                writeln!(out, "password_file = {}", quoted(&file.display().to_string()))?;
            }
            Some(Password::Command(words)) => {
                // an argument may be a token
                let shown =
                    (0..).zip(words).map(|(number, word)| if number == 0 { word.as_str() } else { REDACTED });
                let words: Vec<String> = shown.map(quoted).collect();
                writeln!(out, "password_command = [{}]", words.join(", "))?;
            }
            Some(Password::Given(_)) | None => {}
        }
        let reads_log = self.polling.is_none();
        if reads_log {
            writeln!(out, "slot = {}", quoted(&postgres.slot))?;
            writeln!(out, "publication = {}", quoted(&postgres.publication))?;
            writeln!(out, "wal_sender_timeout = {}", quoted(&format_duration(postgres.wal_sender_timeout)))?;
            writeln!(out, "catch_up = {}", word(&CATCH_UP, postgres.catch_up))?;
            let lag = u64::try_from(postgres.catch_up_lag).unwrap_or(u64::MAX);
            writeln!(out, "catch_up_lag = {}", quoted(&format_size(lag)))?;
        }

        crate::config::polling::write_toml(self, out)?;

        writeln!(out, "\n[outbox]")?;
        let tables: Vec<String> =
            self.outbox.tables.iter().map(|table| quoted(&format_table(table))).collect();
        match tables.as_slice() {
            [table] => writeln!(out, "table = {table}")?,
            tables => writeln!(out, "table = [{}]", tables.join(", "))?,
        }
        if reads_log {
            writeln!(out, "on_update = {}", word(&ON_UPDATE, self.outbox.on_update))?;
            optional_name(out, "message_prefix", self.outbox.message_prefix.as_deref())?;
        }
        let columns = &self.outbox.columns;
        writeln!(out, "\n[outbox.columns]")?;
        writeln!(out, "id = {}", quoted(&columns.id))?;
        writeln!(out, "aggregate_type = {}", quoted(&columns.aggregate_type))?;
        writeln!(out, "aggregate_id = {}", quoted(&columns.aggregate_id))?;
        optional_name(out, "event_type", columns.event_type.as_deref())?;
        writeln!(out, "payload = {}", quoted(&columns.payload))?;
        for (key, column, named) in [
            ("headers", &columns.headers, columns.headers_required),
            ("created_at", &columns.created_at, columns.created_at_required),
            ("idempotency_key", &columns.idempotency_key, columns.idempotency_key_required),
        ] {
            match column {
                None => writeln!(out, "{key} = false")?,
                Some(column) if named => writeln!(out, "{key} = {}", quoted(column))?,
                // a comment, because as a setting it would require the column to exist
                Some(column) => writeln!(out, "# {key} = {}, if the table has it", quoted(column))?,
            }
        }
        optional_name(out, "tracing_span_context", columns.tracing_span_context.as_deref())?;
        if let Some(polling) = &self.polling {
            crate::config::polling::write_columns(polling, out)?;
        }

        route::write(out, &self.route)?;

        writeln!(out, "\n[kafka]")?;
        for (name, value) in &self.kafka.properties {
            writeln!(out, "{} = {}", quoted_as_is(name), quoted(&shown(name, value.reveal())))?;
        }

        writeln!(out, "\n[topics]")?;
        writeln!(out, "create = {}", self.topics.create)?;
        optional(out, "partitions", self.topics.partitions)?;
        optional(out, "replication_factor", self.topics.replication_factor)?;
        if !self.topics.allow.is_empty() {
            let allowed: Vec<String> =
                self.topics.allow.iter().map(|pattern| quoted(&pattern.to_string())).collect();
            writeln!(out, "allow = [{}]", allowed.join(", "))?;
        }
        if !self.topics.config.is_empty() {
            writeln!(out, "\n[topics.config]")?;
        }
        for (name, value) in &self.topics.config {
            writeln!(out, "{} = {}", quoted_as_is(name), quoted(&shown(name, value)))?;
        }

        writeln!(out, "\n[delivery]")?;
        writeln!(out, "mode = {}", quoted(self.delivery.mode.name()))?;
        writeln!(out, "window.records = {}", self.delivery.window_records)?;
        let bytes = u64::try_from(self.delivery.window_bytes).unwrap_or(u64::MAX);
        writeln!(out, "window.bytes = {}", quoted(&format_size(bytes)))?;
        optional_name(out, "positions_topic", self.delivery.positions_topic.as_deref())?;
        writeln!(out, "shutdown_timeout = {}", quoted(&format_duration(self.delivery.shutdown_timeout)))?;

        writeln!(out, "\n[admin]")?;
        optional_name(out, "listen", self.admin.listen.as_deref())?;

        if reads_log {
            crate::config::bookmarks::write_toml(self, out)?;
            crate::config::heartbeat::write_toml(self, out)?;
            crate::config::dead_letters::write_toml(self, out)?;
        }
        crate::config::replay::write_toml(self, out)?;
        crate::config::retention::write_toml(self, out)?;
        crate::config::contracts::write_toml(self, out)?;
        if reads_log {
            crate::config::shards::write_toml(self, out)?;
        }
        crate::config::log::write_toml(self, out)
    }
}

fn optional_name(out: &mut String, key: &str, name: Option<&str>) -> fmt::Result {
    match name {
        Some(name) => writeln!(out, "{key} = {}", quoted(name)),
        None => writeln!(out, "{key} = false"),
    }
}

fn optional(out: &mut String, key: &str, value: Option<impl Display>) -> fmt::Result {
    match value {
        Some(value) => writeln!(out, "{key} = {value}"),
        None => writeln!(out, "# {key}: the broker's default"),
    }
}
