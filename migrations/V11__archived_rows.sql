-- Deleting old rows of the table that is the archive of an outbox.

-- The archive of an outbox. Raises an error if it has none, or if its rows may not be deleted.
CREATE OR REPLACE FUNCTION outbox_router.prune_from_archive(outbox text) RETURNS regclass
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  target regclass := outbox_router.prune_archive(outbox);
  other text;
BEGIN
  IF target IS NULL THEN
    RAISE '% has no archive', outbox_router.prune_name(outbox)
      USING ERRCODE = 'OBR06', HINT = 'Name one as archive under [retention], and run outbox-router init.';
  END IF;
  SELECT outbox_router.prune_name(r.outbox) INTO other FROM outbox_router.retention r
    WHERE to_regclass(r.outbox) = target OR (to_regclass(r.archive) = target AND to_regclass(r.outbox) IS DISTINCT FROM to_regclass(prune_from_archive.outbox));
  IF other IS NOT NULL THEN
    RAISE 'rows of the archive % are not deleted, because % uses it too', target, other
      USING ERRCODE = 'OBR06', HINT = 'Give each outbox an archive of its own, or remove keep_archived from [retention].';
  END IF;
  IF EXISTS (SELECT FROM pg_constraint c WHERE c.contype = 'f' AND c.confdeltype = 'c' AND c.conrelid = target AND c.confrelid = target) THEN
    RAISE 'a foreign key of % deletes other rows of it with a row', target USING ERRCODE = 'OBR06', HINT = 'Drop its ON DELETE CASCADE.';
  END IF;
  IF NOT (has_table_privilege(target, 'SELECT') AND has_table_privilege(target, 'DELETE')) THEN
    RAISE 'the role % lacks privileges on the archive %', current_user, target
      USING ERRCODE = 'OBR06', HINT = format('As the owner of the table: GRANT SELECT, INSERT, DELETE ON %s TO %I;', target, current_user);
  END IF;
  IF row_security_active(target) THEN
    RAISE 'row-level security of % may hide rows from the role %', target, current_user
      USING ERRCODE = 'OBR06', HINT = format('As a superuser: ALTER ROLE %I BYPASSRLS;', current_user);
  END IF;
  RETURN target;
END $$;

-- Counts the rows of the archive inserted before until, up to max_rows, with the times of the first and the last one in microseconds since
-- 1970.
CREATE OR REPLACE FUNCTION outbox_router.count_archived(
  outbox text, until timestamptz, max_rows bigint, OUT deletable bigint, OUT first_time bigint, OUT last_time bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET row_security = off SET jit = off SET lock_timeout = '1s' AS $$
BEGIN
  EXECUTE format(
    'SELECT count(*), (extract(epoch FROM min(at) FILTER (WHERE isfinite(at))) * 1000000)::bigint, '
    '(extract(epoch FROM max(at) FILTER (WHERE isfinite(at))) * 1000000)::bigint '
    'FROM (SELECT q.%2$I AS at FROM %1$s q WHERE q.%2$I < $1 LIMIT $2) r',
    outbox_router.prune_from(outbox_router.prune_from_archive(outbox)::text),
    (SELECT min(r.time_column) FROM outbox_router.retention r WHERE r.outbox = count_archived.outbox))
    INTO deletable, first_time, last_time USING until, max_rows;
END $$;

-- Deletes up to max_rows rows of the archive inserted from since to before until, the oldest first, but none that an interrupted replay may
-- still send. Returns how many were chosen and deleted, and the time of the last one, in microseconds since 1970.
CREATE OR REPLACE FUNCTION outbox_router.prune_archived(
  outbox text, token uuid, since timestamptz, until timestamptz, max_rows bigint, OUT chosen bigint, OUT deleted bigint, OUT last_time bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO'
SET row_security = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
  archive regclass := outbox_router.prune_from_archive(outbox);
  time_column text := (SELECT min(r.time_column) FROM outbox_router.retention r WHERE r.outbox = prune_archived.outbox);
  condition text := (SELECT coalesce(string_agg(format(' AND NOT (q.%1$I >= %2$L::timestamptz AND q.%1$I < %3$L::timestamptz)', time_column,
      coalesce(p.last_inserted_at, p.since, '-infinity'), p.until), ''), '')
    FROM outbox_router.replays p WHERE p.outbox = prune_archived.outbox AND p.finished_at IS NULL AND p.selection ? 'archive'
    AND p.requested_at > now() - interval '7 days');
  lease_end timestamptz := outbox_router.prune_lease(outbox, token);
BEGIN
  SET LOCAL synchronous_commit = off;
  EXECUTE format(
    'WITH chosen AS (SELECT q.tableoid AS of_table, q.ctid AS place, q.%2$I AS at FROM %1$s q '
    'WHERE ($1 IS NULL OR q.%2$I >= $1) AND q.%2$I < $2%3$s ORDER BY q.%2$I, q.tableoid, q.ctid LIMIT $3), '
    'gone AS (DELETE FROM %1$s d USING chosen c WHERE d.ctid = c.place AND d.tableoid = c.of_table RETURNING 1) '
    'SELECT (SELECT count(*) FROM chosen), (SELECT count(*) FROM gone), '
    '(SELECT (extract(epoch FROM max(c.at) FILTER (WHERE isfinite(c.at))) * 1000000)::bigint FROM chosen c)',
    outbox_router.prune_from(archive::text), time_column, condition)
    INTO chosen, deleted, last_time USING since, until, max_rows;
  IF clock_timestamp() > lease_end - interval '5 s' THEN
    RAISE 'a batch of % rows of % takes too long', max_rows, archive
      USING ERRCODE = 'OBR06', HINT = format('Create an index: CREATE INDEX CONCURRENTLY ON %s USING brin (%I);', archive, time_column);
  END IF;
  UPDATE outbox_router.prunes p SET lease_until = clock_timestamp() + interval '60 s', rows = p.rows + deleted WHERE p.outbox = prune_archived.outbox;
END $$;

REVOKE ALL ON FUNCTION outbox_router.prune_from_archive, outbox_router.count_archived, outbox_router.prune_archived FROM PUBLIC;
