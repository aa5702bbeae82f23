//! Event triggers for a partitioned outbox. If a partition with rows is attached, or a partition was unlogged for a time, the
//! stream does not contain its rows, and the catalogues do not show it. So the triggers note it in a table, in the same transaction. The
//! router reads that table together with the catalogues, and stops (tried on 14, 15 and 18).

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::{Object, outbox_tables, privilege_to_call};
use crate::config::Config;
use crate::postgres::catalog::{self, PARTITION_TRIGGERS};

const FUNCTION: &str = "outbox_router.partition_brings_rows()";

/// An ALTER TABLE attaches one partition, so only the newest is looked at. Its row belongs to the current transaction if it
/// is visible while its transaction is in progress. Then `age` is 0, or slightly negative for a subtransaction; a frozen row
/// may look much newer, and the server may not know the status of its transaction. An error must not fail the application's
/// ALTER TABLE, so it becomes a warning.
const BODY: &str = "
DECLARE
  part regclass;
  attached_by xid8;
  parts regclass[] := '{}';
  leaf regclass;
  filled boolean := false;
  outboxes oid[];
  hint CONSTANT text := 'Compare the partition with the topics. The owner of function outbox_router.partition_brings_rows has to be a superuser: ''outbox-router init'', run as one, sees to that.';
BEGIN
  IF tg_event = 'table_rewrite' THEN
    -- 1: it becomes unlogged, or logged again
    IF pg_event_trigger_table_rewrite_reason() & 1 = 0 THEN
      RETURN;
    END IF;
    filled := true;
    parts := ARRAY[pg_event_trigger_table_rewrite_oid()::regclass];
  ELSE
    FOR part, attached_by IN
      SELECT newest.inhrelid, (pg_current_xact_id()::text::numeric - age(newest.xmin))::text::xid8
      FROM pg_event_trigger_ddl_commands() d CROSS JOIN LATERAL (
        SELECT i.inhrelid, i.xmin FROM pg_inherits i
        WHERE i.inhparent = d.objid AND age(i.xmin) BETWEEN -1000000 AND 0
        ORDER BY age(i.xmin), i.cmin::text::bigint DESC LIMIT 1) newest
      WHERE d.classid = 'pg_class'::regclass AND EXISTS (SELECT FROM pg_partition_ancestors(d.objid))
    LOOP
      BEGIN
        CONTINUE WHEN pg_xact_status(attached_by) IS DISTINCT FROM 'in progress';
      EXCEPTION WHEN invalid_parameter_value THEN
        CONTINUE;
      END;
      parts := parts || part;
    END LOOP;
  END IF;
  FOREACH part IN ARRAY parts LOOP
    -- a publication is not asked for its tables by name, because that would wait for locks of others
    EXECUTE 'SELECT array_agg(c.oid) FROM pg_partition_ancestors($1) a JOIN pg_class c ON c.oid = a.relid
      WHERE EXISTS (SELECT FROM pg_publication p WHERE p.pubviaroot AND (p.puballtables
      OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)'
      || CASE WHEN current_setting('server_version_num')::int >= 150000
      THEN ' OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace)' ELSE '' END
      || '))' INTO outboxes USING part;
    -- tables of others are not read, and neither are foreign ones, with the rights of a superuser
    CONTINUE WHEN outboxes IS NULL;
    FOR leaf IN
      SELECT t.relid FROM pg_partition_tree(part) t JOIN pg_class c ON c.oid = t.relid WHERE c.relkind = 'r'
    LOOP
      EXIT WHEN filled;
      EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', leaf) INTO filled;
    END LOOP;
    CONTINUE WHEN NOT filled;
    INSERT INTO outbox_router.rows_not_in_log (outbox, partition) SELECT o, part::text FROM unnest(outboxes) o;
    RAISE WARNING 'not all rows of partition % are in the log of its table: outbox-router stops here', part;
    RETURN;
  END LOOP;
EXCEPTION WHEN OTHERS THEN
  RAISE WARNING 'outbox-router may not see the rows of %: %', coalesce('partition ' || part, 'a partition'), SQLERRM
    USING HINT = hint;
END
";

/// The partitions that exist. The routers look only at later ones, whether there are triggers or not. `None`: there is no outbox table.
pub(super) fn known_partitions(config: &Config) -> Option<Object> {
    let partitioned = format!("{} AND c.relkind = 'p'", outbox_tables(config)?);
    Some(Object {
        name: "partitions that exist".to_owned(),
        purpose: "Routers look at partitions that are attached later, for rows that no stream holds"
            .to_owned(),
        there: format!(
            "NOT EXISTS (SELECT {partitioned}\n    AND c.oid NOT IN (SELECT s.partition FROM outbox_router.partitions_seen s))"
        ),
        make: format!(
            "DO {};",
            quoting::dollar_quoted(&format!("BEGIN\n  PERFORM {NOTE_ATTACHED}(c.oid) {partitioned};\nEND"))
        ),
        done: "stored",
        ..Object::default()
    })
}

/// The function with which routers look at new partitions.
const NOTE_ATTACHED: &str = "outbox_router.note_attached";

/// The privilege to call it.
pub(super) fn privilege(role: &str) -> Object {
    privilege_to_call(
        role,
        "look at partitions",
        "It may call the function that notes partitions which were attached with rows",
        &[&format!("{NOTE_ATTACHED}(oid)")],
    )
}

/// `None`: there is no outbox table.
pub(super) fn object(config: &Config) -> Option<Object> {
    let tables = outbox_tables(config)?;
    let partitioned = format!("EXISTS (SELECT {tables} AND c.relkind = 'p')");
    let [attach, rewrite] = PARTITION_TRIGGERS;
    let as_made = format!(
        "EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace\n    \
         WHERE n.nspname = 'outbox_router' AND p.proname = 'partition_brings_rows' AND p.prosrc = {})",
        literal(BODY)
    );
    Some(Object {
        name: format!("event triggers {attach} and {rewrite}"),
        purpose: "Made only for a partitioned outbox. A partition that is attached with rows, or is unlogged for a time, brings rows \
                  that no stream holds: these note it in outbox_router.rows_not_in_log, which stops the router"
            .to_owned(),
        there: format!(
            "(NOT {partitioned}\n  OR {as_made}\n  AND {})",
            catalog::partition_triggers_fire()
        ),
        possible: Some((
            "pg_catalog.current_setting('is_superuser') = 'on'".to_owned(),
            "only a superuser can create them. Without them, events of a partition that is made unlogged for a time are lost unnoticed: run \
             init again as a superuser, with --url"
                .to_owned(),
        )),
        make: format!(
            "DROP EVENT TRIGGER IF EXISTS {attach};\nDROP EVENT TRIGGER IF EXISTS {rewrite};\n\
             CREATE OR REPLACE FUNCTION {FUNCTION} RETURNS event_trigger\nLANGUAGE plpgsql SECURITY DEFINER\n\
             SET search_path = pg_catalog, pg_temp\nAS {};\n\
             ALTER FUNCTION {FUNCTION} OWNER TO CURRENT_USER;\n\
             REVOKE ALL ON FUNCTION {FUNCTION} FROM PUBLIC;\n\
             CREATE EVENT TRIGGER {attach} ON ddl_command_end WHEN TAG IN ('ALTER TABLE')\n  EXECUTE FUNCTION {FUNCTION};\n\
             CREATE EVENT TRIGGER {rewrite} ON table_rewrite\n  EXECUTE FUNCTION {FUNCTION};",
            quoting::dollar_quoted(BODY),
        ),
        done: "created; they stop the router when a partition contains rows that are not in the stream",
        ..Object::default()
    })
}
