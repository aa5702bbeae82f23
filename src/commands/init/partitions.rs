//! `init --partitioned`: an outbox that is partitioned by the time of its rows, and its partitions.

use pg_logical::quoting::{dollar_quoted, literal};

use super::object::{Object, owner_of, privilege_to_call};
use crate::cli::init::Period;
use crate::config::{Config, Outbox as OutboxConfig, TableName};
use crate::error::{Error, ErrorCode};
use crate::outbox::Field;
use crate::postgres::partitions::{FUNCTIONS, INNER_FUNCTIONS, TABLE};
use crate::postgres::prunes::PARTITION_ROWS;

/// Refuses a configuration that fits no partitioned outbox.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    let columns = &config.outbox.columns;
    let (what, remedy) = if config.outbox.tables.is_empty() {
        ("no outbox table is configured", "Name one as `[outbox] table`")
    } else if config.polling.is_some() {
        ("this router polls, and only a table without partitions can be polled", "Leave out --partitioned")
    } else if Field::CreatedAt.column(columns).is_none() {
        (
            "`[outbox.columns] created_at` is false, and the time of the insert decides about the partition",
            "Name the column with that time",
        )
    } else if columns.idempotency_key_required {
        (
            "`[outbox.columns] idempotency_key` is set, and Postgres cannot keep a key unique across partitions",
            "Remove it, or leave out --partitioned",
        )
    } else {
        return Ok(());
    };
    Err(Error::usage(ErrorCode::CommandLine, format!("--partitioned: {what}"), remedy))
}

/// The outbox without the column that would have to be unique.
pub(super) fn without_keys(outbox: &OutboxConfig) -> OutboxConfig {
    let mut outbox = outbox.clone();
    outbox.columns.idempotency_key = None;
    outbox
}

/// An expression: the router creates the partitions of this outbox.
pub(super) fn are_managed(table: &TableName) -> String {
    let outbox = literal(&table.in_sql());
    format!(
        "(EXISTS (SELECT FROM {TABLE} p WHERE p.outbox = {outbox})\n  AND outbox_router.partition_column({outbox}) IS NOT NULL)"
    )
}

/// The statements that make the router create the partitions.
pub(super) fn register(table: &TableName, period: Period) -> String {
    format!(
        "INSERT INTO {TABLE} VALUES ({}, '{}')\n  ON CONFLICT (outbox) DO UPDATE SET period = excluded.period;",
        literal(&table.in_sql()),
        period.name()
    )
}

/// The statements that create all partitions that are missing.
pub(super) fn create_all(table: &TableName) -> String {
    let outbox = literal(&table.in_sql());
    let block =
        format!("BEGIN\n  WHILE outbox_router.create_partition({outbox}) IS NOT NULL LOOP END LOOP;\nEND");
    format!("DO {};", dollar_quoted(&block))
}

/// Registers a table that exists.
pub(super) fn registration(config: &Config, table: &TableName, period: Period) -> Object {
    let column = Field::CreatedAt.column(&config.outbox.columns).unwrap_or_default();
    Object {
        name: format!("partitioning of {}", table.in_sql()),
        purpose: "The router creates the partitions of this table, and drops old ones".to_owned(),
        there: format!(
            "EXISTS (SELECT FROM {TABLE} p WHERE (p.outbox, p.period) = ({}, '{}'))",
            literal(&table.in_sql()),
            period.name()
        ),
        possible: Some((
            format!(
                "(outbox_router.partition_column({}) IS NOT DISTINCT FROM {})",
                literal(&table.in_sql()),
                literal(column)
            ),
            format!("it is not partitioned by a range of its column {column}, of the type timestamptz"),
        )),
        make: register(table, period),
        done: "stored",
        ..Object::default()
    }
}

/// What the partitions of a table are called.
pub(super) fn name(table: &TableName) -> String {
    format!("partitions of {}", table.in_sql())
}

/// The same for the script.
pub(super) fn ahead(table: &TableName) -> Object {
    Object {
        name: name(table),
        purpose: "The partitions of the next days or months, and one for all other rows".to_owned(),
        there: format!(
            "(SELECT c.missing IS NOT TRUE FROM outbox_router.count_partitions({}, now()) c)",
            literal(&table.in_sql())
        ),
        make: create_all(table),
        ..Object::default()
    }
}

/// The functions belong to the owner of the table: nobody else can create partitions, and code of the table, such as an expression of an
/// index, runs with no other rights.
pub(super) fn owner_of_functions(table: &TableName) -> Object {
    let outbox = literal(&table.in_sql());
    let functions: Vec<&str> = INNER_FUNCTIONS.into_iter().chain(FUNCTIONS).collect();
    let owned: Vec<String> = functions
        .iter()
        .map(|function| {
            format!(
                "EXISTS (SELECT FROM pg_catalog.pg_proc p, pg_catalog.pg_class c WHERE p.oid = pg_catalog.to_regprocedure('{function}')\n    \
                 AND c.oid = pg_catalog.to_regclass({outbox}) AND p.proowner = c.relowner)"
            )
        })
        .collect();
    let alter: Vec<String> = functions
        .iter()
        .map(|function| format!("  EXECUTE 'ALTER FUNCTION {function} OWNER TO ' || owner;"))
        .collect();
    let block = format!(
        "DECLARE\n  owner CONSTANT regrole := {};\n  \
         may_create CONSTANT boolean := pg_catalog.has_schema_privilege(owner, 'outbox_router', 'CREATE');\nBEGIN\n  \
         EXECUTE 'GRANT USAGE, CREATE ON SCHEMA outbox_router TO ' || owner;\n{}\n  \
         IF NOT may_create THEN\n    EXECUTE 'REVOKE CREATE ON SCHEMA outbox_router FROM ' || owner;\n  END IF;\n  \
         EXECUTE 'GRANT EXECUTE ON FUNCTION {PARTITION_ROWS} TO ' || owner;\nEND",
        owner_of(table),
        alter.join("\n")
    );
    Object {
        name: "functions of partitions".to_owned(),
        purpose: "They run with the rights of the outbox's owner".to_owned(),
        there: format!(
            "(NOT {}\n  OR {}\n  AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass({outbox})\n    \
             AND pg_catalog.has_function_privilege(c.relowner, pg_catalog.to_regprocedure('{PARTITION_ROWS}'), 'EXECUTE')\n    \
             AND pg_catalog.has_schema_privilege(c.relowner, pg_catalog.to_regnamespace('outbox_router'), 'USAGE')))",
            are_managed(table),
            owned.join("\n  AND ")
        ),
        possible: Some((
            "pg_catalog.current_setting('is_superuser') = 'on'".to_owned(),
            "a superuser has to run init once, because the table belongs to another role. Until then, partitions are not created".to_owned(),
        )),
        make: format!("DO {};", dollar_quoted(&block)),
        done: "given to the owner of the table",
        ..Object::default()
    }
}

/// Ends the script if no table is partitioned.
pub(super) fn assertion(config: &Config) -> Object {
    let managed: Vec<String> = config.outbox.tables.iter().map(are_managed).collect();
    Object {
        name: "partitions".to_owned(),
        purpose: "Ends here if no table is partitioned: existing ones are not changed".to_owned(),
        there: format!("({})", managed.join("\n  OR ")),
        make: format!("RAISE {};", literal(&not_partitioned(config).replace('%', "%%"))),
        ..Object::default()
    }
}

fn not_partitioned(config: &Config) -> String {
    format!("{} exists, and is not partitioned by the time of its rows", config.outbox.table_names())
}

/// No table is partitioned, though that was asked for.
pub(super) fn refused(config: &Config) -> Error {
    Error::refused(
        ErrorCode::PartitionsImpossible,
        not_partitioned(config),
        "Let init create a partitioned table beside it, and have applications write to that one: the documentation about partitions has the \
         steps",
    )
}

/// EXECUTE on the functions that create and drop partitions.
pub(super) fn privilege(role: &str) -> Object {
    privilege_to_call(
        role,
        "create partitions",
        "It may call the functions that create and drop partitions of an outbox, and owns no partition",
        &FUNCTIONS,
    )
}
