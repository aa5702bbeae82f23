//! The router's role, with no more rights than it needs.
//!
//! On 14 to 18, LOGIN, REPLICATION and CONNECT are enough for streaming, the watch and `check`: the walsender reads tables
//! without SELECT, and every role can read the catalogues.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::general_remedy;
use super::object::Object;

/// The role, with LOGIN and REPLICATION.
pub(super) fn object(role: &str) -> Object {
    let (name, text) = (quoting::name(role), literal(role));
    Object {
        name: format!("role {name}"),
        purpose: "The role that the router runs as: it may read the log, and no table".to_owned(),
        // pg_has_role counts a superuser as a member of every role, so superusers are checked separately
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {text} AND r.rolcanlogin\n    \
             AND (r.rolsuper OR r.rolreplication OR EXISTS (SELECT FROM pg_catalog.pg_roles g\n      \
             WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER'))))"
        ),
        as_wanted: None,
        possible: None,
        make: grant_replication(&name, &text),
        done: "may log in and replicate now",
        remedy: format!(
            "Connect with --url as a superuser, or have one run CREATE ROLE {name} LOGIN REPLICATION. On managed services \
             it is their administrator: rds_superuser on Amazon RDS and Aurora (GRANT rds_replication), cloudsqlsuperuser \
             on Cloud SQL, azure_pg_admin on Azure"
        ),
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
pub(super) fn connect_privilege(role: &str, database: &str) -> Object {
    let (name, database_name) = (quoting::name(role), quoting::name(database));
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
        as_wanted: None,
        possible: None,
        make: format!("GRANT CONNECT ON DATABASE {database_name} TO {name};"),
        done: "granted",
        remedy:
            "Connect with --url as the owner of the database, or leave out --role and have the owner grant it"
                .to_owned(),
    }
}

/// Privileges on a table of the router's schema.
pub(super) fn table_privilege(role: &str, table: &str, needed: &[&str], purpose: &str) -> Object {
    let (name, text) = (quoting::name(role), literal(role));
    let held: Vec<_> = needed
        .iter()
        .map(|privilege| format!("pg_catalog.has_table_privilege(r.oid, c.oid, '{privilege}')"))
        .collect();
    Object {
        name: format!("privilege of {name} on {table}"),
        purpose: purpose.to_owned(),
        // the script creates the table earlier, but it does not exist yet when the script is parsed
        there: format!(
            "EXISTS (SELECT FROM pg_catalog.pg_roles r, pg_catalog.pg_class c WHERE r.rolname = {text}\n    \
             AND c.oid = pg_catalog.to_regclass({})\n    \
             AND pg_catalog.has_schema_privilege(r.oid, c.relnamespace, 'USAGE')\n    AND {})",
            literal(table),
            held.join(" AND ")
        ),
        as_wanted: None,
        possible: None,
        make: format!(
            "GRANT USAGE ON SCHEMA outbox_router TO {name};\nGRANT {} ON {table} TO {name};",
            needed.join(", ")
        ),
        done: "granted",
        remedy: general_remedy(),
    }
}
