//! What applications do to rows of the outbox after their insert.

use pg_logical::quoting;
use pg_logical::session::{Row, Session};

use super::finding::Findings;
use crate::config::{Config, TableName};
use crate::error::Error;
use crate::postgres::catalog::Table;

/// Warns if Postgres refuses UPDATE or DELETE on the table, because a publication that publishes them needs a replica identity.
pub(super) async fn check_replica_identity(
    session: &mut Session,
    config: &Config,
    name: &TableName,
    table: &Table,
    findings: &mut Findings,
) -> Result<(), Error> {
    let sql = format!(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind = 'r' AND (c.oid = {0} OR c.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree({0}) t)) \
         AND (c.relreplident = 'n' OR c.relreplident IN ('d', 'i') AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i \
         WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate \
         AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)) ORDER BY 1, 2",
        table.oid
    );
    let named = |row: &Row| Some(TableName { schema: row.get(0)?.to_owned(), name: row.get(1)?.to_owned() });
    let without: Vec<TableName> = session.query(&sql).await?.iter().filter_map(named).collect();
    if without.is_empty() {
        return Ok(());
    }
    let full: Vec<String> =
        without.iter().map(|table| format!("ALTER TABLE {} REPLICA IDENTITY FULL", table.in_sql())).collect();
    findings.warning(
        "replica_identity",
        format!(
            "{} publishes updates or deletes, and {name} has no primary key or other replica identity: Postgres refuses an UPDATE or \
             DELETE that the publication would publish",
            quoting::identifier(&config.postgres.publication)
        ),
        format!("Create a primary key, or run as the owner {}", full.join("; ")),
    );
    Ok(())
}

/// Warns of roles that may change the partition key: an UPDATE that moves a row to another partition is an INSERT in the stream,
/// and its event is sent again. The owner and superusers may always do that, and no remedy takes it from them.
pub(super) async fn check_row_movement(
    session: &mut Session,
    name: &TableName,
    table: &Table,
    findings: &mut Findings,
) -> Result<(), Error> {
    // partitions may be partitioned by other columns
    let sql = format!(
        "WITH k AS (SELECT DISTINCT a.attname FROM pg_catalog.pg_partition_tree({0}) t \
         JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = t.relid \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs::int2[]) WHERE a.attnum > 0), \
         g AS (SELECT x.grantee, NULL::name AS attname FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) x \
         WHERE c.oid = {0} AND x.privilege_type = 'UPDATE' AND x.grantee <> c.relowner \
         UNION SELECT x.grantee, a.attname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
         JOIN k ON k.attname = a.attname, pg_catalog.aclexplode(a.attacl) x \
         WHERE c.oid = {0} AND x.privilege_type = 'UPDATE' AND x.grantee <> c.relowner) \
         SELECT r.rolname, pg_catalog.bool_or(g.attname IS NULL), \
         (SELECT pg_catalog.string_agg(pg_catalog.format('%I', k.attname), ', ' ORDER BY k.attname) FROM k), \
         (SELECT pg_catalog.string_agg(pg_catalog.format('%I', a.attname), ', ' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a \
         WHERE a.attrelid = {0} AND a.attnum > 0 AND NOT a.attisdropped AND a.attname NOT IN (SELECT k.attname FROM k)) \
         FROM g LEFT JOIN pg_catalog.pg_roles r ON r.oid = g.grantee WHERE r.rolsuper IS NOT TRUE AND EXISTS (SELECT FROM k) \
         GROUP BY g.grantee, r.rolname ORDER BY 1",
        table.oid
    );
    for row in session.query(&sql).await? {
        let role = row.get(0).map_or_else(|| "PUBLIC".to_owned(), quoting::identifier);
        let (keys, others) = (row.get(2).unwrap_or_default(), row.get(3).unwrap_or_default());
        let table = name.in_sql();
        let keep = match row.get(1) {
            Some("t") if !others.is_empty() => {
                format!("REVOKE UPDATE ON {table} FROM {role}; GRANT UPDATE ({others}) ON {table} TO {role}")
            }
            Some("t") => format!("REVOKE UPDATE ON {table} FROM {role}"),
            _ => format!("REVOKE UPDATE ({keys}) ON {table} FROM {role}"),
        };
        findings.warning(
            "row_movement",
            format!(
                "{role} may update {keys}, by which {name} is partitioned: an UPDATE that moves a row to another partition sends its \
                 event again"
            ),
            format!("As the owner let it update only other columns, in one transaction: BEGIN; {keep}; COMMIT"),
        );
    }
    Ok(())
}
