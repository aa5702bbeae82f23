-- Deleting old rows of outbox tables. The router's role has no right to delete: it calls functions that decide which rows may go. They
-- belong to a role without a login that can do nothing else, because triggers and other code of the table's owner run with its rights.

-- The last prune of each outbox. The process that runs it has a lease, which each batch renews.
CREATE TABLE IF NOT EXISTS outbox_router.prunes (
  outbox text PRIMARY KEY,
  token uuid NOT NULL,
  lease_until timestamptz NOT NULL,
  rows bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE outbox_router.prunes IS 'The last prune of each outbox: outbox-router prune';
-- a replay must not run beside one
GRANT SELECT (outbox, lease_until) ON outbox_router.prunes TO PUBLIC;

-- The name of a table, for messages.
CREATE OR REPLACE FUNCTION outbox_router.prune_name(name text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT coalesce(to_regclass(name)::text, name) $$;

-- A condition on q, a row of the outbox: every router has delivered it, and nobody else needs it. Raises an error if that is not known.
CREATE OR REPLACE FUNCTION outbox_router.prune_condition(outbox text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  reader record;
  replay record;
  time_columns text[] := ARRAY(SELECT DISTINCT r.time_column FROM outbox_router.retention r WHERE r.outbox = prune_condition.outbox);
  names text[];
  unusable text;
  slot_xids xid[];
  newest bigint;
  oldest bigint;
  conditions text[] := '{}';
BEGIN
  -- otherwise a row that was parked meanwhile would not be seen
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE 'rows are deleted only in transactions with the isolation level READ COMMITTED' USING ERRCODE = 'OBR06';
  END IF;
  IF to_regclass(outbox) IS NULL THEN
    RAISE 'the outbox table % does not exist', outbox USING ERRCODE = 'OBR06', HINT = 'Run outbox-router init.';
  END IF;
  IF cardinality(time_columns) <> 1 THEN
    RAISE 'it is not stored which routers read %, or they disagree about its column created_at', outbox_router.prune_name(outbox)
      USING ERRCODE = 'OBR06', HINT = 'Run outbox-router init with the configuration of each of them.';
  END IF;
  FOR reader IN SELECT * FROM outbox_router.retention r WHERE r.outbox = prune_condition.outbox LOOP
    IF reader.status_column IS NOT NULL THEN
      conditions := conditions || format('concat(q.%I) = %L', reader.status_column, reader.published);
      CONTINUE;
    END IF;
    -- those of another number of shards may have events of this table too; if one of them is there, all have to be
    names := ARRAY(SELECT unnest(reader.slots) UNION
      SELECT coalesce(reader.slot || '_' || n || '_of_' || m.shards[1], s.slot_name) FROM pg_replication_slots s
      LEFT JOIN LATERAL regexp_match(s.slot_name, '_[0-9]{1,3}_of_([0-9]{1,3})$') m (shards) ON s.slot_name <> reader.slot
      LEFT JOIN LATERAL generate_series(0, m.shards[1]::int - 1) n ON true
      WHERE s.database = current_database() AND s.plugin = 'pgoutput' AND NOT s.temporary
      AND s.slot_name ~ ('^' || reader.slot || '(_[0-9]{1,3}_of_[0-9]{1,3})?$'));
    SELECT string_agg(n.name, ', ' ORDER BY n.name) FILTER (WHERE s.catalog_xmin IS NULL OR s.wal_status = 'lost'), array_agg(s.catalog_xmin)
      INTO unusable, slot_xids
      FROM unnest(names) n (name)
      LEFT JOIN pg_replication_slots s ON s.slot_name = n.name AND s.database = current_database();
    IF unusable IS NOT NULL THEN
      RAISE 'it is not known which rows of % the router % has delivered, because a slot does not exist or is lost: %',
        outbox_router.prune_name(outbox), reader.router, unusable
        USING ERRCODE = 'OBR06', HINT = format('outbox-router check says what is wrong. If that router is gone for good: '
          'DELETE FROM outbox_router.retention WHERE (outbox, slot) = (%L, %L);', outbox, reader.slot);
    END IF;
    IF EXISTS (SELECT FROM outbox_router.backfills b WHERE b.slot = ANY (names) AND b.finished_at IS NULL) THEN
      RAISE 'the router % still has to send rows of % from before its slot', reader.router, outbox_router.prune_name(outbox)
        USING ERRCODE = 'OBR06', HINT = 'Let it send them first; outbox-router status shows how far it is.';
    END IF;
    -- Whatever has an older transaction had ended before the confirmed position of each slot. A row keeps 32 bits of the id of its
    -- transaction, also once it is frozen: the id is the latest one that ends in these bits. The slots are read first, so that none is ahead.
    newest := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    oldest := (SELECT min(i.id::text::bigint + ((newest - i.id::text::bigint) >> 32 << 32)) FROM unnest(slot_xids) i (id));
    conditions := conditions || format('q.xmin::text::bigint + ((((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint) '
      '- q.xmin::text::bigint) >> 32) << 32) < %s', oldest)
      || format('q.%1$I IS NOT NULL AND NOT EXISTS (SELECT FROM outbox_router.dead_letters d WHERE d.event_id = concat(q.%1$I))',
        reader.id_column);
  END LOOP;
  FOR replay IN SELECT p.id, p.lease_until > clock_timestamp() AS runs, coalesce(p.last_inserted_at, p.since, '-infinity') AS since, p.until
    FROM outbox_router.replays p WHERE p.outbox = prune_condition.outbox AND p.finished_at IS NULL
    AND (p.lease_until > clock_timestamp() OR p.requested_at > now() - interval '7 days' AND NOT p.selection ?| ARRAY['archive', 'file']) LOOP
    IF replay.runs THEN
      RAISE 'replay % of % is running', replay.id, outbox_router.prune_name(outbox)
        USING ERRCODE = 'OBR07', HINT = 'Prune once it has ended; outbox-router replay --list shows how far it is.';
    END IF;
    -- somebody may still continue one that was interrupted, and that does not read an archive
    conditions := conditions || format('NOT (q.%1$I >= %2$L::timestamptz AND q.%1$I < %3$L::timestamptz)',
      time_columns[1], replay.since, replay.until);
  END LOOP;
  RETURN array_to_string(conditions, ' AND ');
END $$;

-- The table as after FROM: a stream has the rows of partitions, but none of tables that inherit from it.
CREATE OR REPLACE FUNCTION outbox_router.prune_from(outbox text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT concat(CASE c.relkind WHEN 'p' THEN '' ELSE 'ONLY ' END, c.oid::regclass) FROM pg_class c WHERE c.oid = to_regclass(outbox)
$$;

-- The archive of an outbox, as in SQL; NULL if it has none. Raises an error if it cannot take the rows.
CREATE OR REPLACE FUNCTION outbox_router.prune_archive(outbox text) RETURNS regclass
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  source regclass := to_regclass(outbox);
  archives text[] := ARRAY(SELECT DISTINCT r.archive FROM outbox_router.retention r WHERE r.outbox = prune_archive.outbox AND r.archive IS NOT NULL);
  target regclass := to_regclass(archives[1]);
  problem text;
BEGIN
  IF cardinality(archives) = 0 THEN
    RETURN NULL;
  END IF;
  problem := CASE
    WHEN cardinality(archives) > 1 THEN 'the routers that read the outbox name several'
    WHEN target IS NULL THEN 'it does not exist'
    WHEN target = source OR target IN (SELECT p.relid FROM pg_partition_tree(source) p) THEN 'it is the outbox'
    WHEN EXISTS (SELECT FROM pg_class c WHERE (c.oid = target OR c.oid IN (SELECT p.relid FROM pg_partition_tree(target) p))
      AND c.relkind NOT IN ('r', 'p')) THEN 'it is not a table'
    WHEN EXISTS (SELECT FROM pg_class c WHERE (c.oid = target OR c.oid IN (SELECT p.relid FROM pg_partition_tree(target) p))
      AND c.relpersistence <> 'p') THEN 'a crash empties it, because it is unlogged'
    ELSE (SELECT 'it lacks columns of the outbox, or they have other types: ' || string_agg(quote_ident(a.attname), ', ') FROM pg_attribute a
      WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped AND NOT EXISTS (SELECT FROM pg_attribute b
      WHERE b.attrelid = target AND b.attname = a.attname AND b.attnum > 0 AND (b.atttypid, b.atttypmod) = (a.atttypid, a.atttypmod)))
    END;
  IF problem IS NOT NULL THEN
    RAISE '% cannot be the archive of %: %', outbox_router.prune_name(archives[1]), source, problem
      USING ERRCODE = 'OBR06', HINT = 'Correct it, or name another table as archive under [retention] and run outbox-router init.';
  END IF;
  RETURN target;
END $$;

-- Raises an error if this role may not read and delete the rows, or store them in the archive.
CREATE OR REPLACE FUNCTION outbox_router.prune_check(outbox text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  source regclass := to_regclass(outbox);
  archive regclass := outbox_router.prune_archive(outbox);
BEGIN
  IF NOT (has_table_privilege(source, 'SELECT') AND has_table_privilege(source, 'DELETE') AND has_any_column_privilege(source, 'UPDATE')) THEN
    RAISE 'the role % lacks privileges on %', current_user, source
      USING ERRCODE = 'OBR06', HINT = format('As the owner of the table: GRANT SELECT, DELETE, UPDATE (%I) ON %s TO %I;',
        (SELECT min(r.id_column) FROM outbox_router.retention r WHERE r.outbox = prune_check.outbox), source, current_user);
  END IF;
  IF NOT has_table_privilege(archive, 'INSERT') THEN
    RAISE 'the role % lacks the privilege INSERT on the archive %', current_user, archive
      USING ERRCODE = 'OBR06', HINT = format('As the owner of the table: GRANT INSERT ON %s TO %I;', archive, current_user);
  END IF;
  -- a row that is delivered would take others with it
  IF EXISTS (SELECT FROM pg_constraint c WHERE c.contype = 'f' AND c.confdeltype = 'c' AND c.conrelid = source AND c.confrelid = source) THEN
    RAISE 'a foreign key of % deletes other rows of it with a row', source
      USING ERRCODE = 'OBR06', HINT = 'Drop its ON DELETE CASCADE.';
  END IF;
  IF row_security_active(source) OR row_security_active(archive) THEN
    RAISE 'row-level security of % applies to the role %', CASE WHEN row_security_active(source) THEN source ELSE archive END, current_user
      USING ERRCODE = 'OBR06', HINT = format('As a superuser: ALTER ROLE %I BYPASSRLS;', current_user);
  END IF;
END $$;

-- When the lease with this token ends. Locks it; raises an error if another prune has taken over.
CREATE OR REPLACE FUNCTION outbox_router.prune_lease(outbox text, token uuid) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  lease_end timestamptz;
BEGIN
  SELECT p.lease_until INTO lease_end FROM outbox_router.prunes p WHERE p.outbox = prune_lease.outbox AND p.token = prune_lease.token FOR UPDATE;
  IF lease_end IS NULL THEN
    RAISE 'another prune of % has taken over', outbox_router.prune_name(outbox) USING ERRCODE = 'OBR07', HINT = 'Wait until it has ended.';
  END IF;
  RETURN lease_end;
END $$;

-- Begins a prune, unless another one or a replay of the outbox runs. Returns the token of its lease.
CREATE OR REPLACE FUNCTION outbox_router.prune_begin(outbox text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET lock_timeout = '5s' AS $$
DECLARE
  begun uuid;
BEGIN
  -- replays take it too
  PERFORM pg_advisory_xact_lock(hashtextextended('outbox-router replay', 0));
  PERFORM outbox_router.prune_condition(outbox);
  PERFORM outbox_router.prune_check(outbox);
  -- without waiting for the end of a batch
  IF EXISTS (SELECT FROM outbox_router.prunes p WHERE p.outbox = prune_begin.outbox AND p.lease_until > clock_timestamp()) THEN
    RAISE 'another prune of % is running', outbox_router.prune_name(outbox)
      USING ERRCODE = 'OBR07', HINT = 'Wait until it has ended, or for a minute if its process was killed.';
  END IF;
  INSERT INTO outbox_router.prunes AS p (outbox, token, lease_until)
    VALUES (prune_begin.outbox, gen_random_uuid(), clock_timestamp() + interval '60 s')
    ON CONFLICT ON CONSTRAINT prunes_pkey DO UPDATE
    SET token = excluded.token, lease_until = excluded.lease_until, rows = 0
    RETURNING p.token INTO begun;
  RETURN begun;
END $$;

-- Deletes up to max_rows rows that nobody needs, inserted from since to before until, the oldest first, and stores them in the archive in
-- the same transaction. Rows that are locked stay. Returns how many were chosen and deleted, and the time of the last one, in microseconds
-- since 1970.
CREATE OR REPLACE FUNCTION outbox_router.prune(
  outbox text, token uuid, since timestamptz, until timestamptz, max_rows bigint, OUT chosen bigint, OUT deleted bigint, OUT last_time bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET row_security = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
  archive regclass := outbox_router.prune_archive(outbox);
  condition text := outbox_router.prune_condition(outbox);
  time_column text := (SELECT min(r.time_column) FROM outbox_router.retention r WHERE r.outbox = prune.outbox);
  lease_end timestamptz := outbox_router.prune_lease(outbox, token);
  columns text;
  to_archive text := '';
BEGIN
  -- nobody changes its columns from here on
  EXECUTE format('LOCK TABLE %s IN ROW EXCLUSIVE MODE', outbox_router.prune_from(outbox));
  IF archive IS NOT NULL THEN
    SELECT string_agg(format('%I', a.attname), ', ') INTO columns FROM pg_attribute a
      JOIN pg_attribute b ON b.attrelid = archive AND b.attname = a.attname AND b.attnum > 0 AND b.attgenerated = ''
      WHERE a.attrelid = to_regclass(outbox) AND a.attnum > 0 AND NOT a.attisdropped;
    to_archive := format(', archived AS (INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM gone)', archive, columns);
  END IF;
  -- a crash may bring back the rows that were deleted last, and takes them out of the archive
  SET LOCAL synchronous_commit = off;
  EXECUTE format(
    'WITH chosen AS (SELECT q.tableoid AS of_table, q.ctid AS place, q.%2$I AS at FROM %1$s q '
    'WHERE ($1 IS NULL OR q.%2$I >= $1) AND q.%2$I < $2 AND %3$s '
    'ORDER BY q.%2$I, q.tableoid, q.ctid LIMIT $3 FOR UPDATE OF q SKIP LOCKED), '
    'gone AS (DELETE FROM %1$s d USING chosen c WHERE d.ctid = c.place AND d.tableoid = c.of_table RETURNING d.*)%4$s '
    'SELECT (SELECT count(*) FROM chosen), (SELECT count(*) FROM gone), '
    '(SELECT (extract(epoch FROM max(c.at) FILTER (WHERE isfinite(c.at))) * 1000000)::bigint FROM chosen c)',
    outbox_router.prune_from(outbox), time_column, condition, to_archive)
    INTO chosen, deleted, last_time USING since, until, max_rows;
  -- a replay may begin when the lease ends, and must not lose rows
  IF clock_timestamp() > lease_end - interval '5 s' THEN
    RAISE 'a batch of % rows of % takes too long', max_rows, outbox_router.prune_name(outbox)
      USING ERRCODE = 'OBR06', HINT = 'Give fewer with --batch, or create an index on its time; outbox-router init makes one of the type brin.';
  END IF;
  UPDATE outbox_router.prunes p SET lease_until = clock_timestamp() + interval '60 s', rows = p.rows + deleted WHERE p.outbox = prune.outbox;
END $$;

-- Ends the lease of a prune.
CREATE OR REPLACE FUNCTION outbox_router.prune_end(outbox text, token uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE outbox_router.prunes p SET lease_until = clock_timestamp() WHERE (p.outbox, p.token) = (prune_end.outbox, prune_end.token)
$$;

-- Counts the rows inserted before until, up to max_rows if that is not NULL: those that may be deleted, with the times of the first and the
-- last one in microseconds since 1970, and those that have to stay; and where they would go. The caller sets lock_timeout.
CREATE OR REPLACE FUNCTION outbox_router.count_prunable(
  outbox text, until timestamptz, max_rows bigint,
  OUT deletable bigint, OUT first_time bigint, OUT last_time bigint, OUT others bigint, OUT archive text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET row_security = off SET jit = off AS $$
DECLARE
  condition text := outbox_router.prune_condition(outbox);
  time_column text := (SELECT min(r.time_column) FROM outbox_router.retention r WHERE r.outbox = count_prunable.outbox);
BEGIN
  PERFORM outbox_router.prune_check(outbox);
  EXECUTE format(
    'SELECT count(*) FILTER (WHERE free), (extract(epoch FROM min(at) FILTER (WHERE free AND isfinite(at))) * 1000000)::bigint, '
    '(extract(epoch FROM max(at) FILTER (WHERE free AND isfinite(at))) * 1000000)::bigint, count(*) FILTER (WHERE free IS NOT TRUE) '
    'FROM (SELECT q.%2$I AS at, %3$s AS free FROM %1$s q WHERE q.%2$I < $1 LIMIT $2) r',
    outbox_router.prune_from(outbox), time_column, condition)
    INTO deletable, first_time, last_time, others USING until, max_rows;
  archive := outbox_router.prune_archive(outbox);
END $$;

REVOKE ALL ON FUNCTION outbox_router.prune_name, outbox_router.prune_condition, outbox_router.prune_from, outbox_router.prune_archive,
  outbox_router.prune_check, outbox_router.prune_lease, outbox_router.prune_begin, outbox_router.prune, outbox_router.prune_end, outbox_router.count_prunable FROM PUBLIC;
