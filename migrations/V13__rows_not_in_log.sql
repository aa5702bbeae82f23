-- Partitions whose rows are not all in the log under the name of the outbox. A router whose outbox has a new row here stops. The event triggers of
-- outbox-router init write them, and so does the function below.
CREATE TABLE IF NOT EXISTS outbox_router.rows_not_in_log (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  outbox oid NOT NULL,
  partition text NOT NULL,
  noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox_router.rows_not_in_log IS 'Partitions that were attached with rows, or were unlogged for a time';
-- The partitions that note_attached has looked at, and the outbox itself once it has.
CREATE TABLE IF NOT EXISTS outbox_router.partitions_seen (
  partition oid PRIMARY KEY,
  attached_by xid NOT NULL
);
COMMENT ON TABLE outbox_router.partitions_seen IS 'Partitions that are known, and the transactions that attached them';
-- every router, check and init looks there
GRANT SELECT ON outbox_router.rows_not_in_log, outbox_router.partitions_seen TO PUBLIC;

-- Looks for rows that are older than the attachment of their partition, and notes them. Those that exist at the first call are not looked at.
-- The routers call it where init could not create event triggers. Returns why it cannot look; NULL if it can.
CREATE OR REPLACE FUNCTION outbox_router.note_attached(outbox oid) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  first_time boolean;
  attached record;
  leaf regclass;
  filled boolean;
BEGIN
  IF EXISTS (SELECT FROM outbox_router.partitions_seen s WHERE s.partition = outbox) AND NOT EXISTS (
    WITH RECURSIVE below (part, attached_by) AS (
      SELECT i.inhrelid, i.xmin FROM pg_inherits i WHERE i.inhparent = outbox UNION ALL
      SELECT i.inhrelid, i.xmin FROM below b JOIN pg_inherits i ON i.inhparent = b.part)
    SELECT FROM below b LEFT JOIN outbox_router.partitions_seen s ON s.partition = b.part AND s.attached_by = b.attached_by
    WHERE s.partition IS NULL) THEN
    RETURN NULL;
  END IF;
  -- the router must not wait for a standby because of this
  PERFORM set_config('synchronous_commit', 'local', true);
  -- several routers may look at once
  PERFORM pg_advisory_xact_lock(hashtextextended('outbox_router.note_attached', outbox::bigint));
  first_time := NOT EXISTS (SELECT FROM outbox_router.partitions_seen s WHERE s.partition = outbox);
  FOR attached IN
    WITH RECURSIVE below (part, attached_by, command) AS (
      SELECT i.inhrelid, i.xmin, i.cmin::text::bigint FROM pg_inherits i WHERE i.inhparent = outbox UNION ALL
      SELECT i.inhrelid, i.xmin, i.cmin::text::bigint FROM below b JOIN pg_inherits i ON i.inhparent = b.part)
    SELECT b.* FROM below b LEFT JOIN outbox_router.partitions_seen s ON s.partition = b.part AND s.attached_by = b.attached_by
    WHERE s.partition IS NULL
  LOOP
    filled := false;
    FOR leaf IN
      WITH RECURSIVE below (part) AS (
        SELECT attached.part UNION ALL SELECT i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.part)
      SELECT c.oid FROM below b JOIN pg_class c ON c.oid = b.part WHERE c.relkind = 'r' AND NOT first_time
    LOOP
      EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s r
        WHERE age(r.xmin) > age($1) OR r.xmin = $1 AND r.xmax = 0 AND r.cmin::text::bigint < $2)', leaf)
        INTO filled USING attached.attached_by, attached.command;
      EXIT WHEN filled;
    END LOOP;
    -- an event trigger has noted it in the transaction that attached it
    IF filled AND NOT EXISTS (
      SELECT FROM outbox_router.rows_not_in_log n WHERE n.outbox = note_attached.outbox AND n.xmin = attached.attached_by) THEN
      INSERT INTO outbox_router.rows_not_in_log (outbox, partition) VALUES (note_attached.outbox, attached.part::regclass::text);
    END IF;
    INSERT INTO outbox_router.partitions_seen VALUES (attached.part, attached.attached_by)
      ON CONFLICT (partition) DO UPDATE SET attached_by = excluded.attached_by;
  END LOOP;
  INSERT INTO outbox_router.partitions_seen VALUES (outbox, '0') ON CONFLICT DO NOTHING;
  RETURN NULL;
EXCEPTION WHEN insufficient_privilege THEN
  RETURN SQLERRM;
END $$;
REVOKE ALL ON FUNCTION outbox_router.note_attached(oid) FROM PUBLIC;
