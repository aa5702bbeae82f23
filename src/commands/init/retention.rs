//! What `prune` needs: its role and functions, who reads each outbox, and the archive.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::{Object, privilege_and_update, privilege_to_call};
use crate::config::{Config, TableName};
use crate::outbox::Field;
use crate::postgres::prunes::{FUNCTIONS, INNER_FUNCTIONS, OWNER};
use crate::postgres::rows::text_array;

/// The objects for the configured tables.
pub(super) fn objects(config: &Config) -> Vec<Object> {
    let Some(created_at) = Field::CreatedAt.column(&config.outbox.columns) else { return Vec::new() };
    let Some(first) = config.outbox.tables.first() else { return Vec::new() };
    let archive = config.retention.archive.as_ref();
    let mut objects = vec![owner_role(), owner_of_functions()];
    if let Some(archive) = archive {
        objects.push(archive_table(archive, first, created_at));
        let needed: &[&str] = match config.retention.keep_archived {
            Some(_) => &["SELECT", "INSERT", "DELETE"],
            None => &["INSERT"],
        };
        objects.push(privilege_on(archive, needed, &[]));
    }
    for table in &config.outbox.tables {
        // locking a row needs UPDATE on some column, and the id is hardly ever part of a partition key
        objects.push(privilege_on(table, &["SELECT", "DELETE"], &[&config.outbox.columns.id]));
        objects.push(readers(config, table, created_at));
    }
    objects
}

/// An expression: the current role may create roles.
const MAY_CREATE_ROLES: &str = "EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = current_user AND (r.rolsuper OR r.rolcreaterole))";

/// An expression: the role of the functions exists, and the current role is a member of it or may become one.
fn may_act_for_owner() -> String {
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_roles o, pg_catalog.pg_roles r WHERE o.rolname = '{OWNER}' AND r.rolname = current_user\n    \
         AND (r.rolsuper OR pg_catalog.pg_has_role(o.oid, 'MEMBER WITH ADMIN OPTION')\n    \
         OR r.rolcreaterole AND current_setting('server_version_num')::int < 160000))"
    )
}

fn owner_role() -> Object {
    Object {
        name: format!("role {OWNER}"),
        purpose: "Deletes old rows when prune asks for it. Nobody can log in as it".to_owned(),
        there: format!("EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = '{OWNER}')"),
        possible: Some((
            MAY_CREATE_ROLES.to_owned(),
            "only a superuser or a role with CREATEROLE can create it. Until one has run init, prune is not possible".to_owned(),
        )),
        // other databases of the server have the same role, and init may run in one of them too
        make: format!(
            "DO $$ BEGIN CREATE ROLE {OWNER} NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;"
        ),
        ..Object::default()
    }
}

/// Code of the table's owner, such as a trigger, runs with the rights of the functions' owner, which are therefore no more than it needs.
fn owner_of_functions() -> Object {
    let functions: Vec<&str> = INNER_FUNCTIONS.into_iter().chain(FUNCTIONS).collect();
    let owned: Vec<String> = functions
        .iter()
        .map(|function| {
            format!(
                "EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_roles r ON r.oid = p.proowner\n    \
                 WHERE p.oid = pg_catalog.to_regprocedure('{function}') AND r.rolname = '{OWNER}')"
            )
        })
        .collect();
    let alter: Vec<String> =
        functions.iter().map(|function| format!("ALTER FUNCTION {function} OWNER TO {OWNER};")).collect();
    Object {
        name: "functions of prune".to_owned(),
        purpose: "They run with the rights of a role that can do nothing else".to_owned(),
        there: format!("({})", owned.join("\n  AND ")),
        possible: Some((
            may_act_for_owner(),
            format!(
                "a superuser has to run init once, or to grant {OWNER} with ADMIN OPTION. Until then, prune is not possible"
            ),
        )),
        make: format!(
            "DO $$ BEGIN\n  IF NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) THEN\n    \
             EXECUTE pg_catalog.format('GRANT {OWNER} TO %I', current_user);\n  END IF;\nEND $$;\n\
             GRANT USAGE, CREATE ON SCHEMA outbox_router TO {OWNER};\n{}\n\
             REVOKE CREATE ON SCHEMA outbox_router FROM {OWNER};\n\
             GRANT SELECT ON outbox_router.retention, outbox_router.backfills TO {OWNER};\n\
             GRANT SELECT (event_id) ON outbox_router.dead_letters TO {OWNER};\n\
             GRANT SELECT (id, outbox, requested_at, since, until, selection, last_inserted_at, lease_until, finished_at) ON outbox_router.replays TO {OWNER};\n\
             GRANT SELECT, INSERT, UPDATE ON outbox_router.prunes TO {OWNER};",
            alter.join("\n")
        ),
        done: "given to this role",
        ..Object::default()
    }
}

/// An expression: the table has a column of this name with times.
fn has_times(table: &TableName, column: &str) -> String {
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = pg_catalog.to_regclass({})\n  \
         AND a.attname = {} AND NOT a.attisdropped\n  \
         AND a.atttypid IN ('timestamptz'::pg_catalog.regtype, 'timestamp'::pg_catalog.regtype))",
        literal(&table.in_sql()),
        literal(column)
    )
}

/// A table with the columns of the outbox, and no constraints.
fn archive_table(archive: &TableName, outbox: &TableName, created_at: &str) -> Object {
    let (name, table) = (archive.in_sql(), outbox.in_sql());
    Object {
        name: format!("table {name}"),
        purpose: "The archive: old rows of the outbox go there".to_owned(),
        there: format!("pg_catalog.to_regclass({}) IS NOT NULL", literal(&name)),
        possible: Some((has_times(outbox, created_at), no_times(outbox, created_at))),
        make: format!(
            "CREATE TABLE {name} (LIKE {table});\nCREATE INDEX ON {name} USING brin ({});",
            quoting::identifier(created_at)
        ),
        ..Object::default()
    }
}

fn no_times(table: &TableName, created_at: &str) -> String {
    format!(
        "{table} has no column {created_at} of the type timestamptz or timestamp, so its rows cannot be pruned"
    )
}

/// Privileges of the functions' owner on a table, and UPDATE on some columns.
fn privilege_on(table: &TableName, needed: &[&str], updated: &[&str]) -> Object {
    let (name, schema) = (table.in_sql(), quoting::identifier(&table.schema));
    let purpose = "Only for the functions of prune";
    let granted = privilege_and_update(OWNER, (&schema, &name), needed, updated, purpose);
    Object {
        possible: Some((
            format!(
                "EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace, pg_catalog.pg_roles r\n    \
                 WHERE c.oid = pg_catalog.to_regclass({}) AND r.rolname = '{OWNER}' AND pg_catalog.pg_has_role(c.relowner, 'USAGE')\n    \
                 AND (pg_catalog.has_schema_privilege(n.oid, 'USAGE WITH GRANT OPTION') OR pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE')))",
                literal(&name)
            ),
            format!(
                "the role does not exist, or this one may not grant it. For prune run, as the owner: {}",
                granted.make.replace('\n', " ")
            ),
        )),
        ..granted
    }
}

/// The row that says which router reads an outbox: the columns and their values in SQL.
fn reader(config: &Config, table: &TableName, created_at: &str) -> [(&'static str, String); 9] {
    let optional = |text: Option<&str>| text.map_or_else(|| "NULL".to_owned(), literal);
    let (status, published) = match &config.polling {
        Some(polling) => (Some(polling.columns.status.as_str()), Some(polling.status.published.as_str())),
        None => (None, None),
    };
    let (slot, slots) = match &config.polling {
        Some(_) => ("", Vec::new()),
        None => (config.base_slot(), config.slots_of_all_shards()),
    };
    let archive = config.retention.archive.as_ref().map(TableName::in_sql);
    [
        ("outbox", literal(&table.in_sql())),
        ("slot", literal(slot)),
        ("router", literal(config.base_name())),
        ("slots", text_array(&slots)),
        ("id_column", literal(&config.outbox.columns.id)),
        ("time_column", literal(created_at)),
        ("status_column", optional(status)),
        ("published", optional(published)),
        ("archive", optional(archive.as_deref())),
    ]
}

/// An expression: this row is stored.
pub(in crate::commands) fn is_stored(config: &Config, table: &TableName, created_at: &str) -> String {
    let same: Vec<String> = reader(config, table, created_at)
        .iter()
        .map(|(column, value)| format!("r.{column} IS NOT DISTINCT FROM {value}"))
        .collect();
    format!("EXISTS (SELECT FROM outbox_router.retention r WHERE {})", same.join("\n  AND "))
}

fn readers(config: &Config, table: &TableName, created_at: &str) -> Object {
    let (columns, values): (Vec<&str>, Vec<String>) = reader(config, table, created_at).into_iter().unzip();
    let set: Vec<String> = columns.iter().map(|column| format!("{column} = excluded.{column}")).collect();
    // the same router may have polled before, or the other way round
    let other_mode = format!(
        "FROM outbox_router.retention r WHERE r.outbox = {} AND r.router = {} AND (r.slot = '') <> {}",
        literal(&table.in_sql()),
        literal(config.base_name()),
        config.polling.is_some()
    );
    Object {
        name: format!("retention of {}", table.in_sql()),
        purpose: "The routers that must have delivered a row before prune deletes it".to_owned(),
        there: format!("({}\n  AND NOT EXISTS (SELECT {other_mode}))", is_stored(config, table, created_at)),
        possible: Some((has_times(table, created_at), no_times(table, created_at))),
        make: format!(
            "DELETE {other_mode};\nINSERT INTO outbox_router.retention ({}) VALUES\n  ({})\n  ON CONFLICT (outbox, slot) DO UPDATE SET {};",
            columns.join(", "),
            values.join(", "),
            set.join(", ")
        ),
        done: "stored",
        ..Object::default()
    }
}

/// EXECUTE on the functions that delete rows.
pub(super) fn privilege(role: &str) -> Object {
    privilege_to_call(
        role,
        "prune",
        "It may call the functions that delete old rows, and has no privilege to delete others",
        &FUNCTIONS,
    )
}
