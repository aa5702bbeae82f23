//! The outbox table and the function that fills it, from templates with the configured names.

use pg_logical::quoting::literal;
use pg_logical::session::Session;
use pg_logical::{Oid, quoting};

use super::business_key::{self, FIRST_EVENT};
use super::object::{Object, router_function};
use super::{partitions, polling};
use crate::cli::init::Period;
use crate::commands::columns;
use crate::config::{Columns, Config, Outbox as OutboxConfig, TableName};
use crate::error::{Error, ErrorCode};
use crate::outbox::{FIELDS, Field, Outbox, OutboxError, named_by};
use crate::postgres::catalog::{self, Catalog};
use crate::postgres::polling::table::wake_trigger;

const ID_DEFAULT: &str = "DEFAULT outbox_router.uuid_v7()";

/// A column's type and constraints.
fn definition(field: Field, name: &str) -> String {
    let fixed = match field {
        Field::Id => return format!("uuid PRIMARY KEY {ID_DEFAULT}"),
        Field::AggregateType | Field::AggregateId | Field::EventType => "text NOT NULL",
        Field::Payload => "jsonb",
        Field::Headers => "jsonb NOT NULL DEFAULT '{}'",
        Field::CreatedAt => "timestamptz NOT NULL DEFAULT clock_timestamp()",
        Field::TracingSpanContext => "text",
        Field::IdempotencyKey => return business_key::definition(name),
    };
    fixed.to_owned()
}

/// The columns of the table. A column that serves several fields is listed once.
fn columns(columns: &Columns) -> Vec<(Field, &str)> {
    let mut found: Vec<(Field, &str)> = Vec::new();
    for field in FIELDS {
        if let Some(name) = field.column(columns)
            && !found.iter().any(|(_, known)| *known == name)
        {
            found.push((field, name));
        }
    }
    found
}

pub(super) fn object(config: &Config, table: &TableName, partitioned: Option<Period>) -> Object {
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
        make: create(config, table, partitioned),
        done: if partitioned.is_some() { "created, with partitions" } else { "created" },
        ..Object::default()
    }
}

/// The function `outbox_router.emit`. `None`: there are several tables, so it is unclear which one to fill.
pub(super) fn emit(outbox: &OutboxConfig) -> Option<Object> {
    let [table] = outbox.tables.as_slice() else { return None };
    let body = emit_body(outbox, table);
    let keyed = match outbox.columns.idempotency_key {
        Some(_) => ",\n  idempotency_key text DEFAULT NULL, on_duplicate text DEFAULT 'error'",
        None => "",
    };
    let function = router_function("emit");
    Some(Object {
        name: "function outbox_router.emit".to_owned(),
        purpose: "One call for an application instead of an INSERT; it runs with the rights of its caller"
            .to_owned(),
        there: format!("EXISTS (SELECT {function})"),
        as_wanted: Some((
            // earlier versions quoted only the names that need it
            format!("EXISTS (SELECT {function} AND replace(p.prosrc, '\"', '') = {})", literal(&body.replace('"', ""))),
            "it was created for another table, other columns or another version. To replace it, DROP FUNCTION \
             outbox_router.emit and run init again"
                .to_owned(),
        )),
        possible: Some((
            emit_fits(outbox, table),
            "it cannot fill the columns of the table".to_owned(),
        )),
        make: format!(
            "CREATE FUNCTION outbox_router.emit(\n  aggregate_type text, aggregate_id text, event_type text, payload jsonb,\n  \
             headers jsonb DEFAULT '{{}}'{keyed}\n) RETURNS uuid\nLANGUAGE plpgsql VOLATILE SECURITY INVOKER\n\
             SET search_path = pg_catalog, pg_temp\nAS {};",
            quoting::dollar_quoted(&body)
        ),
        ..Object::default()
    })
}

/// The statements that create a table, its indexes and its partitions.
fn create(config: &Config, table: &TableName, partitioned: Option<Period>) -> String {
    let outbox = &match partitioned {
        Some(_) => partitions::without_keys(&config.outbox),
        None => config.outbox.clone(),
    };
    let name = table.in_sql();
    let mut lines: Vec<String> = columns(&outbox.columns)
        .into_iter()
        .map(|(field, name)| {
            let definition = match (field, partitioned) {
                (Field::Id, Some(_)) => format!("uuid NOT NULL {ID_DEFAULT}"),
                _ => definition(field, name),
            };
            format!("  {} {definition}", quoting::identifier(name))
        })
        .collect();
    lines.extend(config.polling.iter().flat_map(polling::columns));
    let mut partition_by = String::new();
    if let (Some(_), Some(created_at)) = (partitioned, Field::CreatedAt.column(&outbox.columns)) {
        let (id, created_at) = (quoting::identifier(&outbox.columns.id), quoting::identifier(created_at));
        // a unique index has to contain the partition key
        lines.push(format!("  PRIMARY KEY ({id}, {created_at})"));
        partition_by = format!(" PARTITION BY RANGE ({created_at})");
    }
    let mut indexed: Vec<String> = Vec::new();
    for field in [Field::AggregateType, Field::AggregateId, Field::CreatedAt] {
        let column = field.column(&outbox.columns).map(quoting::identifier);
        indexed.extend(column.filter(|column| !indexed.contains(column)));
    }
    let mut statements = vec![
        format!("CREATE TABLE {name} (\n{}\n){partition_by};", lines.join(",\n")),
        format!("CREATE INDEX ON {name} ({});", indexed.join(", ")),
    ];
    if let Some(column) = Field::CreatedAt.column(&outbox.columns) {
        statements.push(format!("CREATE INDEX ON {name} USING brin ({});", quoting::identifier(column)));
    }
    if let Some(column) = Field::IdempotencyKey.column(&outbox.columns) {
        statements.push(business_key::index(&name, column));
    }
    statements.extend(config.polling.iter().flat_map(|polling| polling::indexes(outbox, polling)));
    if polling::wakes(config) {
        statements.push(wake_trigger(table));
    }
    if let Some(period) = partitioned {
        statements.extend([partitions::register(table, period), partitions::create_all(table)]);
    }
    statements.join("\n")
}

/// The value of a field in a function that writes events. `None`: it is not among the function's arguments.
pub(super) fn argument(field: Field) -> Option<&'static str> {
    match field {
        Field::Id => Some("event_id"),
        Field::AggregateType => Some("aggregate_type"),
        Field::AggregateId => Some("aggregate_id"),
        Field::EventType => Some("event_type"),
        Field::Payload => Some("payload"),
        Field::Headers => Some("coalesce(headers, '{}')"),
        Field::CreatedAt | Field::TracingSpanContext | Field::IdempotencyKey => None,
    }
}

/// The body of `outbox_router.emit`. The id is generated first, because RETURNING needs SELECT on the table.
fn emit_body(outbox: &OutboxConfig, table: &TableName) -> String {
    let mut names = Vec::new();
    let mut values = Vec::new();
    for (field, name) in columns(&outbox.columns) {
        if let Some(value) = argument(field) {
            names.push(quoting::identifier(name));
            values.push(value);
        }
    }
    let insert = |more_names: &str, more_values: &str, conflict: &str| {
        let (names, values) = (names.join(", "), values.join(", "));
        format!(
            "INSERT INTO {} ({names}{more_names})\n  VALUES ({values}{more_values}){conflict};",
            table.in_sql()
        )
    };
    let plain = insert("", "", "");
    let Some(column) = Field::IdempotencyKey.column(&outbox.columns) else {
        return format!(
            "\nDECLARE\n  event_id CONSTANT uuid := outbox_router.uuid_v7();\nBEGIN\n  {plain}\n  RETURN event_id;\nEND\n"
        );
    };
    let key = format!(", {}", quoting::identifier(column));
    let (keyed, skipping) = (
        insert(&key, ", idempotency_key", ""),
        insert(&key, ", idempotency_key", "\n  ON CONFLICT DO NOTHING"),
    );
    format!(
        "\nDECLARE\n  event_id CONSTANT uuid := outbox_router.uuid_v7();\n  first_id uuid;\nBEGIN\n  \
         IF (on_duplicate IN ('error', 'skip')) IS NOT TRUE THEN\n    \
         RAISE invalid_parameter_value USING MESSAGE = 'on_duplicate is neither error nor skip';\n  END IF;\n  \
         IF idempotency_key IS NULL THEN\n  {plain}\n  RETURN event_id;\n  END IF;\n  \
         IF on_duplicate = 'error' THEN\n  {keyed}\n  RETURN event_id;\n  END IF;\n  \
         -- again if the first event was deleted meanwhile\n  \
         FOR attempt IN 1..10 LOOP\n  {skipping}\n  IF FOUND THEN\n    RETURN event_id;\n  END IF;\n  \
         first_id := outbox_router.{FIRST_EVENT}(idempotency_key);\n  IF first_id IS NOT NULL THEN\n    RETURN first_id;\n  \
         END IF;\n  END LOOP;\n  \
         RAISE unique_violation USING MESSAGE = 'another unique constraint of the outbox is violated';\nEND\n"
    )
}

/// An expression: can `emit` fill the existing table, and does no other column require a value?
fn emit_fits(outbox: &OutboxConfig, table: &TableName) -> String {
    let filled = |field: &Field| argument(*field).is_some();
    let written: Vec<(Field, &str)> =
        columns(&outbox.columns).into_iter().filter(|(field, _)| filled(field)).collect();
    let named = FIELDS.into_iter().filter(filled);
    // with one column for two fields it is unclear which value to store
    if named.filter_map(|field| field.column(&outbox.columns)).count() != written.len() {
        return "false".to_owned();
    }
    let types = |field| match field {
        Field::Id => "'uuid', 'text', 'varchar'",
        Field::Payload | Field::Headers => "'jsonb', 'json', 'text', 'varchar'",
        _ => "'text', 'varchar'",
    };
    let typed: Vec<String> = written
        .iter()
        .map(|(field, name)| format!("a.attname = {} AND t.typname IN ({})", literal(name), types(*field)))
        .collect();
    let names: Vec<String> = written.iter().map(|(_, name)| literal(name)).collect();
    format!(
        "(SELECT count(*) FILTER (WHERE ({}) AND a.attidentity <> 'a' AND a.attgenerated = '') = {}\n  \
         AND count(*) FILTER (WHERE a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attname NOT IN ({})) = 0\n  \
         FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid AND t.typnamespace = 'pg_catalog'::regnamespace\n  \
         JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace\n  \
         WHERE n.nspname = {} AND c.relname = {} AND a.attnum > 0 AND NOT a.attisdropped)",
        typed.join(" OR "),
        written.len(),
        names.join(", "),
        literal(&table.schema),
        literal(&table.name),
    )
}

/// Whether an existing table can be read as an outbox.
pub(super) async fn verify(
    session: &mut Session,
    config: &Config,
    outbox: &Outbox,
    table: &TableName,
) -> Result<(), Error> {
    let kind = session
        .query(&format!(
            "SELECT c.relkind, c.relpersistence FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = {} AND c.relname = {}",
            literal(&table.schema),
            literal(&table.name)
        ))
        .await?;
    let kind = kind.first().map(|row| (row.get(0), row.get(1)));
    if !matches!(kind, Some((Some("r" | "p"), _))) {
        return Err(Error::refused(
            ErrorCode::TableMissing,
            catalog::not_a_table(table),
            "Name the table itself as `[outbox] table`",
        ));
    }
    if !matches!(kind, Some((_, Some("p")))) {
        let (postgres, source) = (&config.postgres, config.source());
        let found = Catalog::query(session, postgres, &config.outbox).await?;
        return Err(Error::refused(
            ErrorCode::TableNotLogged,
            catalog::unlogged(table),
            catalog::log_table(&found, source, table, Some("outbox-router init")),
        ));
    }
    let columns = columns::columns(session, config, table).await?;
    let faults = outbox.faults(table, |name| columns::find(&columns, name).map(|column| column.type_id));
    let Some(first) = faults.first() else { return Ok(()) };
    let what: Vec<String> = faults.iter().map(OutboxError::to_string).collect();
    let remedy = match first {
        OutboxError::MissingColumn { key, .. } if FIELDS.iter().all(|field| field.key() != *key) => {
            "Correct the template that names it, or add the column; init does not alter an existing table"
        }
        OutboxError::MissingColumn { .. } => {
            "Name the table's columns under `[outbox] columns`, or add the missing columns; init does not alter an existing table"
        }
        _ => "Change the column's type, or the configuration; init does not alter an existing table",
    };
    Err(Error::refused(ErrorCode::ColumnUnusable, what.join("; "), remedy))
}

/// Refuses a topic template that needs columns which `init` would not create.
pub(super) fn refuse_unknown_columns(
    config: &Config,
    outbox: &Outbox,
    table: &TableName,
) -> Result<(), Error> {
    let known = columns(&config.outbox.columns);
    // the types do not matter here; this one belongs to no type
    const UNKNOWN: Oid = Oid(u32::MAX);
    let faults =
        outbox.faults(table, |name| known.iter().any(|(_, known)| *known == name).then_some(UNKNOWN));
    match faults.first() {
        Some(OutboxError::MissingColumn { column, key, .. }) => Err(Error::refused(
            ErrorCode::ColumnUnusable,
            format!(
                "{} the column {column:?}, and init would create the table {table} without it",
                named_by(key)
            ),
            "Create the table yourself, with all columns that you need, and run init again",
        )),
        _ => Ok(()),
    }
}
