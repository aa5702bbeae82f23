-- Deleting old rows of outbox tables that the caller stores in a file. In one transaction, the caller calls prune_rows, stores the rows, and
-- calls prune_renew.

-- Deletes up to max_rows rows that nobody needs, of about max_bytes bytes, inserted from since to before until, the oldest first. Rows that
-- are locked stay. Returns how many were chosen, whether there may be more, how many were deleted, times in microseconds since 1970, the
-- columns, and each deleted row as a JSON object on a line. Its values are texts as Postgres prints them, but those of JSON are not quoted.
-- NULLs are left out.
CREATE OR REPLACE FUNCTION outbox_router.prune_rows(
  outbox text, token uuid, since timestamptz, until timestamptz, max_rows bigint, max_bytes bigint,
  OUT chosen bigint, OUT more boolean, OUT deleted bigint, OUT last_chosen bigint, OUT first_time bigint, OUT last_time bigint,
  OUT columns json, OUT lines text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET row_security = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
  archive regclass := outbox_router.prune_archive(outbox);
  condition text := outbox_router.prune_condition(outbox);
  time_column text := (SELECT min(r.time_column) FROM outbox_router.retention r WHERE r.outbox = prune_rows.outbox);
  lease_end timestamptz;
  size text;
  members text;
BEGIN
  IF archive IS NOT NULL THEN
    RAISE 'rows of % go to the table %, and not to a file', outbox_router.prune_name(outbox), archive
      USING ERRCODE = 'OBR06', HINT = 'Leave out --archive; or remove archive from [retention], and run outbox-router init.';
  END IF;
  lease_end := outbox_router.prune_lease(outbox, token);
  -- nobody changes its columns from here on
  EXECUTE format('LOCK TABLE %s IN ROW EXCLUSIVE MODE', outbox_router.prune_from(outbox));
  -- concat writes a value as its type does; a cast would trim a text of fixed length. Line feeds in a json become spaces, so that a row is one
  -- line. array_to_string leaves out NULLs.
  SELECT json_agg(json_build_object('name', a.attname, 'type', format_type(a.atttypid, NULL), 'json', is_json) ORDER BY a.attnum),
      string_agg(format('CASE WHEN pg_column_compression(q.%1$I) IS NULL THEN coalesce(pg_column_size(q.%1$I), 0) ELSE octet_length(concat(q.%1$I)) END::bigint',
        a.attname), ' + '),
      string_agg(format('CASE num_nulls(d.%1$I) WHEN 0 THEN %2$L || %3$s END', a.attname, to_json(a.attname) || ':',
        format(CASE WHEN is_json THEN 'translate(concat(d.%I), E''\n\r'', ''  '')' ELSE 'to_json(concat(d.%I))::text' END, a.attname)),
        ', ' ORDER BY a.attnum)
    INTO columns, size, members FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid,
    LATERAL (SELECT coalesce(nullif(t.typbasetype, 0), t.oid) IN ('json'::regtype, 'jsonb'::regtype)) j (is_json)
    WHERE a.attrelid = to_regclass(outbox) AND a.attnum > 0 AND NOT a.attisdropped;
  -- the file is synced before the transaction ends; without this, a crash would bring back rows that are in the file
  SET LOCAL synchronous_commit = local;
  EXECUTE format(
    'WITH chosen AS (SELECT q.tableoid AS of_table, q.ctid AS place, q.%2$I AS at, %5$s AS size FROM %1$s q '
    'WHERE ($1 IS NULL OR q.%2$I >= $1) AND q.%2$I < $2 AND %3$s '
    'ORDER BY q.%2$I, q.tableoid, q.ctid LIMIT $3 FOR UPDATE OF q SKIP LOCKED), '
    'fitting AS (SELECT * FROM (SELECT c.*, sum(c.size) OVER (ORDER BY c.at, c.of_table, c.place ROWS UNBOUNDED PRECEDING) - c.size AS before '
    'FROM chosen c) s WHERE s.before < $4), '
    'gone AS (DELETE FROM %1$s d USING fitting f WHERE d.ctid = f.place AND d.tableoid = f.of_table '
    'RETURNING f.at, f.of_table, f.place, ''{'' || array_to_string(ARRAY[%4$s], '','') || E''}\n'' AS line) '
    'SELECT (SELECT count(*) FROM chosen), '
    '(SELECT count(*) FROM chosen) >= $3 OR (SELECT count(*) FROM fitting) < (SELECT count(*) FROM chosen), count(*), '
    '(SELECT (extract(epoch FROM max(f.at) FILTER (WHERE isfinite(f.at))) * 1000000)::bigint FROM fitting f), '
    '(extract(epoch FROM min(g.at) FILTER (WHERE isfinite(g.at))) * 1000000)::bigint, '
    '(extract(epoch FROM max(g.at) FILTER (WHERE isfinite(g.at))) * 1000000)::bigint, '
    'string_agg(g.line, '''' ORDER BY g.at, g.of_table, g.place) FROM gone g',
    outbox_router.prune_from(outbox), time_column, condition, members, size)
    INTO chosen, more, deleted, last_chosen, first_time, last_time, lines USING since, until, max_rows, max_bytes;
  -- nothing has to be stored of a batch that is too late
  IF clock_timestamp() > lease_end - interval '5 s' THEN
    RAISE 'a batch of % rows of % takes too long', max_rows, outbox_router.prune_name(outbox)
      USING ERRCODE = 'OBR06', HINT = 'Give fewer with --batch, or create an index on its time; outbox-router init makes one of the type brin.';
  END IF;
END $$;

-- Renews the lease of a prune that has deleted this number of rows in this transaction.
CREATE OR REPLACE FUNCTION outbox_router.prune_renew(outbox text, token uuid, deleted bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE outbox_router.prunes p SET lease_until = clock_timestamp() + interval '60 s', rows = p.rows + deleted
    WHERE (p.outbox, p.token) = (prune_renew.outbox, prune_renew.token) AND clock_timestamp() <= p.lease_until - interval '5 s';
  -- a replay may begin when the lease ends, and must not lose rows
  IF NOT FOUND THEN
    RAISE 'a batch of rows of % takes too long', outbox_router.prune_name(outbox)
      USING ERRCODE = 'OBR06', HINT = 'Give fewer with --batch, or store them on a faster disk.';
  END IF;
END $$;

REVOKE ALL ON FUNCTION outbox_router.prune_rows, outbox_router.prune_renew FROM PUBLIC;
