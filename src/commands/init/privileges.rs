//! The router's role, with the privileges that it needs and no others.
//!
//! On 14 to 18, LOGIN, REPLICATION and CONNECT are enough for streaming, the watch and `check`: the walsender reads tables
//! without SELECT, and every role can read the catalogues.

use pg_logical::bulk_read::FUNCTIONS;
use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::{Object, table_privilege};
use super::{partition_triggers, partitions, polling, retention};
use crate::checkpoint::SlotRecord;
use crate::config::{CatchUp, Config};
use crate::postgres::{backfills, dead_letters, heartbeat};

/// The role that the router runs as, and what it is granted for this configuration.
pub(super) fn objects(config: &Config, role: &str) -> Vec<Object> {
    let connect = connect_privilege(role, &config.postgres.conninfo.dbname);
    if let Some(polling) = &config.polling {
        let mut objects = polling::privileges(&config.outbox, polling, role);
        objects.insert(1, connect);
        objects.push(retention::privilege(role));
        return objects;
    }
    let mut objects = vec![login_role(role), connect];
    if config.postgres.catch_up == CatchUp::Auto {
        objects.push(bulk_reads_privilege(role));
    }
    if config.heartbeat.is_some() {
        objects.push(heartbeat_privilege(role));
    }
    if config.dead_letters.park() {
        let purpose = "Events that cannot be sent are put there, because `[dead_letters] policy` is \"park\"";
        let (table, needed) = (dead_letters::sql::TABLE, &dead_letters::sql::REQUIRED_PRIVILEGES);
        objects.push(table_privilege(role, table, needed, purpose));
    }
    let purpose = "How far rows from before the slot are sent, after init --backfill";
    objects.push(table_privilege(role, backfills::TABLE, &backfills::REQUIRED_PRIVILEGES, purpose));
    if config.delivery.positions_topic.is_some() {
        let purpose =
            "A start without a checkpoint finds there whether the slot is new or the checkpoint is lost";
        objects.push(table_privilege(role, SlotRecord::TABLE, &SlotRecord::REQUIRED_PRIVILEGES, purpose));
    }
    if !config.outbox.tables.is_empty() {
        objects.extend([
            retention::privilege(role),
            partitions::privilege(role),
            partition_triggers::privilege(role),
        ]);
    }
    objects
}

/// The role, with LOGIN and REPLICATION.
fn login_role(role: &str) -> Object {
    let (name, text) = (quoting::identifier(role), literal(role));
    Object {
        name: format!("role {name}"),
        purpose: "The role that the router runs as: it may read the log, and no table".to_owned(),
        // pg_has_role counts a superuser as a member of every role, so superusers are checked separately
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {text} AND r.rolcanlogin\n    \
             AND (r.rolsuper OR r.rolreplication OR EXISTS (SELECT FROM pg_catalog.pg_roles g\n      \
             WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER'))))"
        ),
        make: grant_replication(&name, &text),
        done: "may log in and replicate now",
        remedy: Some(format!(
            "Connect with --url as a superuser, or have one run CREATE ROLE {name} LOGIN REPLICATION. On managed services \
             it is their administrator: rds_superuser on Amazon RDS and Aurora (GRANT rds_replication), cloudsqlsuperuser \
             on Cloud SQL, azure_pg_admin on Azure"
        )),
        ..Object::default()
    }
}

/// Grants REPLICATION to a role that may not exist yet. Managed services that reserve REPLICATION have a role to grant
/// instead.
fn grant_replication(name: &str, text: &str) -> String {
    let block = format!(
        "\nBEGIN\n  \
         IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'rds_replication') THEN -- Amazon RDS, Aurora\n    \
         IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {text}) THEN\n      \
         CREATE ROLE {name} LOGIN;\n    \
         END IF;\n    \
         GRANT rds_replication TO {name};\n  \
         ELSIF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {text}) THEN\n    \
         CREATE ROLE {name} LOGIN REPLICATION;\n  \
         ELSE\n    \
         ALTER ROLE {name} LOGIN REPLICATION;\n  \
         END IF;\n\
         END\n"
    );
    format!("DO {};", quoting::dollar_quoted(&block))
}

/// CONNECT, granted by name: PUBLIC has it until somebody revokes it.
fn connect_privilege(role: &str, database: &str) -> Object {
    let (name, database_name) = (quoting::identifier(role), quoting::identifier(database));
    Object {
        name: format!("privilege of {name} to connect to {database_name}"),
        purpose: "PUBLIC may connect unless somebody revoked it".to_owned(),
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_database d JOIN pg_catalog.pg_roles r ON r.rolname = {}\n    \
             WHERE d.datname = {} AND (r.rolsuper OR d.datdba = r.oid OR EXISTS (\n      \
             SELECT FROM pg_catalog.aclexplode(d.datacl) a WHERE a.grantee = r.oid AND a.privilege_type = 'CONNECT')))",
            literal(role),
            literal(database)
        ),
        make: format!("GRANT CONNECT ON DATABASE {database_name} TO {name};"),
        done: "granted",
        remedy: Some("Connect with --url as the owner of the database, or leave out --role and have the owner grant it".to_owned()),
        ..Object::default()
    }
}

/// EXECUTE on the functions of bulk reads: PUBLIC has it until somebody revokes it.
fn bulk_reads_privilege(role: &str) -> Object {
    let name = quoting::identifier(role);
    let may = |whose: &str, what: &str| {
        let may =
            |function: &&str| format!("pg_catalog.has_function_privilege({whose}, '{function}', '{what}')");
        FUNCTIONS.iter().map(may).collect::<Vec<_>>().join("\n    AND ")
    };
    Object {
        name: format!("privilege of {name} to read the slot in bulk"),
        purpose: "To catch up fast. PUBLIC may call these unless somebody revoked it".to_owned(),
        // the script creates the role earlier, but it does not exist yet when the script is parsed
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {}\n    AND {})",
            literal(role),
            may("r.oid", "EXECUTE")
        ),
        possible: Some((
            may("current_user", "EXECUTE WITH GRANT OPTION"),
            "only a superuser can grant it; until then the router streams a lagging slot, which is slower"
                .to_owned(),
        )),
        make: format!("GRANT EXECUTE ON FUNCTION {} TO {name};", FUNCTIONS.join(",\n  ")),
        done: "granted",
        remedy: Some(
            "Connect with --url as a superuser, or set `catch_up = \"stream\"` under [postgres]".to_owned(),
        ),
        ..Object::default()
    }
}

/// EXECUTE on the function that writes heartbeats: PUBLIC has it until somebody revokes it.
fn heartbeat_privilege(role: &str) -> Object {
    let name = quoting::identifier(role);
    // the script creates the role earlier, but it does not exist yet when the script is parsed
    let there = format!(
        "EXISTS (SELECT FROM pg_catalog.pg_roles r, LATERAL ({}) f (function, granted)\n    \
         WHERE r.rolname = {} AND f.granted)",
        heartbeat::privilege("r.oid"),
        literal(role)
    );
    let block = format!(
        "\nDECLARE\n  function regprocedure;\nBEGIN\n  \
         FOR function IN SELECT f.function FROM ({}) f (function, granted) LOOP\n    \
         EXECUTE 'GRANT EXECUTE ON FUNCTION ' || function || {};\n  \
         END LOOP;\nEND\n",
        heartbeat::privilege("current_user"),
        literal(&format!(" TO {name}"))
    );
    Object {
        name: format!("privilege of {name} to write heartbeats"),
        purpose: "PUBLIC may call pg_logical_emit_message unless somebody revoked it".to_owned(),
        there,
        make: format!("DO {};", quoting::dollar_quoted(&block)),
        done: "granted",
        remedy: Some("Connect with --url as a superuser, because pg_logical_emit_message belongs to one, or remove `[heartbeat] interval`".to_owned()),
        ..Object::default()
    }
}
