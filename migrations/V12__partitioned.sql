-- Outbox tables whose partitions the router creates and drops. Its role owns none of them: it calls functions that belong to the owner of the
-- outbox. They let the role of prune decide which rows nobody needs.

-- One row for each outbox that is partitioned by its time. outbox-router init --partitioned writes them.
CREATE TABLE IF NOT EXISTS outbox_router.partitioned (
  outbox text PRIMARY KEY,
  period text NOT NULL CHECK (period IN ('day', 'week', 'month'))
);
COMMENT ON TABLE outbox_router.partitioned IS 'Outbox tables whose partitions the router creates and drops, and how long a partition is';
-- prune deletes rows of whole periods
GRANT SELECT ON outbox_router.partitioned TO PUBLIC;

-- The column by which an outbox is partitioned; NULL if it is not partitioned by a range of one column with times.
CREATE OR REPLACE FUNCTION outbox_router.partition_column(outbox text) RETURNS name
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT a.attname FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
  WHERE p.partrelid = to_regclass(outbox) AND p.partstrat = 'r' AND p.partnatts = 1 AND a.atttypid = 'timestamptz'::regtype
$$;

-- The partitions of an outbox with their bounds.
CREATE OR REPLACE FUNCTION outbox_router.partitions_of(outbox text)
RETURNS TABLE (part regclass, is_default boolean, lower timestamptz, upper timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' AS $$
  SELECT c.oid::regclass, b.bound = 'DEFAULT',
    CASE m.bounds[1] WHEN 'MINVALUE' THEN '-infinity' ELSE trim(m.bounds[1], '''')::timestamptz END,
    CASE m.bounds[2] WHEN 'MAXVALUE' THEN 'infinity' ELSE trim(m.bounds[2], '''')::timestamptz END
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
  CROSS JOIN LATERAL pg_get_expr(c.relpartbound, c.oid) b (bound)
  LEFT JOIN LATERAL regexp_match(b.bound, '^FOR VALUES FROM \((.*)\) TO \((.*)\)$') m (bounds) ON true
  WHERE i.inhparent = to_regclass(outbox) AND NOT i.inhdetachpending
$$;

-- Whether the router creates and drops the partitions of an outbox. Raises an error if it should, and this role cannot.
CREATE OR REPLACE FUNCTION outbox_router.partition_check(outbox text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  parent regclass := to_regclass(outbox);
BEGIN
  IF NOT EXISTS (SELECT FROM outbox_router.partitioned p WHERE p.outbox = partition_check.outbox) THEN
    RETURN false;
  END IF;
  IF outbox_router.partition_column(outbox) IS NULL THEN
    RAISE 'the table % does not exist, or is not partitioned by a range of its time', coalesce(parent::text, outbox) USING ERRCODE = 'OBR08',
      HINT = format('If the router should not create its partitions: DELETE FROM outbox_router.partitioned WHERE outbox = %L;', outbox);
  END IF;
  IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = parent AND pg_has_role(c.relowner, 'USAGE')) THEN
    RAISE 'the functions that create and drop partitions belong to the role %, which is not the owner of %', current_user, parent
      USING ERRCODE = 'OBR08', HINT = 'As a superuser, run outbox-router init; if several outbox tables have partitions, they need one owner.';
  END IF;
  IF NOT (SELECT has_schema_privilege(c.relnamespace, 'CREATE') FROM pg_class c WHERE c.oid = parent) THEN
    RAISE 'the role % may not create partitions of %', current_user, parent USING ERRCODE = 'OBR08',
      HINT = (SELECT format('As the owner of the schema: GRANT CREATE ON SCHEMA %s TO %I;', c.relnamespace::regnamespace, current_user)
        FROM pg_class c WHERE c.oid = parent);
  END IF;
  RETURN true;
END $$;

-- The next partition to create: the default one, or the first that is missing until 7 days, 3 weeks or 3 months from now. All NULL: none is.
-- Rows are never moved, because the stream would contain them a second time: if the default partition has rows of a period, they stay there.
CREATE OR REPLACE FUNCTION outbox_router.next_partition(outbox text, OUT lower timestamptz, OUT upper timestamptz, OUT is_default boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET row_security = off AS $$
DECLARE
  period text := (SELECT p.period FROM outbox_router.partitioned p WHERE p.outbox = next_partition.outbox);
  last_begin timestamptz := now() + CASE period WHEN 'day' THEN interval '7 days' WHEN 'week' THEN interval '3 weeks' ELSE interval '3 months' END;
  default_part regclass := (SELECT p.part FROM outbox_router.partitions_of(outbox) p WHERE p.is_default);
  place timestamptz := now();
  ends timestamptz;
  has_rows boolean;
BEGIN
  IF default_part IS NULL THEN
    is_default := true;
    RETURN;
  END IF;
  WHILE place <= last_begin LOOP
    ends := (SELECT p.upper FROM outbox_router.partitions_of(outbox) p WHERE p.lower <= place AND p.upper > place);
    IF ends IS NULL THEN
      -- between those that are there, if somebody else has created some
      SELECT greatest(date_trunc(period, place), max(p.upper) FILTER (WHERE p.upper <= place)),
          least(date_trunc(period, place) + ('1 ' || period)::interval, min(p.lower) FILTER (WHERE p.lower > place))
        INTO lower, upper FROM outbox_router.partitions_of(outbox) p;
      EXECUTE format('SELECT EXISTS (SELECT FROM %s q WHERE q.%I >= $1 AND q.%2$I < $2)', default_part, outbox_router.partition_column(outbox))
        INTO has_rows USING lower, upper;
      IF NOT has_rows THEN
        is_default := false;
        RETURN;
      END IF;
      ends := upper;
    END IF;
    place := ends;
  END LOOP;
  lower := NULL;
  upper := NULL;
END $$;

-- A name for a partition that no table and no type has yet, as in SQL.
CREATE OR REPLACE FUNCTION outbox_router.partition_name(outbox text, suffix text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  parent pg_class := (SELECT c FROM pg_class c WHERE c.oid = to_regclass(outbox));
  base text;
  ending text := suffix;
  numbered int := 1;
BEGIN
  LOOP
    base := parent.relname;
    -- names have at most 63 bytes
    WHILE octet_length(base) + octet_length(ending) > 63 LOOP
      base := left(base, -1);
    END LOOP;
    EXIT WHEN NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = parent.relnamespace AND c.relname = base || ending)
      AND NOT EXISTS (SELECT FROM pg_type t WHERE t.typnamespace = parent.relnamespace AND t.typname = base || ending);
    numbered := numbered + 1;
    ending := suffix || '_' || numbered;
  END LOOP;
  RETURN format('%s.%I', parent.relnamespace::regnamespace, base || ending);
END $$;

-- Creates the next partition, and returns its name; NULL if none is missing, or if somebody else is creating it. It is created as a table and
-- then attached: only those who use the default partition wait for that.
CREATE OR REPLACE FUNCTION outbox_router.create_partition(outbox text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET row_security = off
SET lock_timeout = '1s' AS $$
DECLARE
  parent pg_class := (SELECT c FROM pg_class c WHERE c.oid = to_regclass(outbox));
  next record;
  created text;
BEGIN
  IF NOT outbox_router.partition_check(outbox) THEN
    RETURN NULL;
  END IF;
  IF NOT pg_try_advisory_xact_lock(hashtextextended('outbox-router partitions ' || outbox, 0)) THEN
    RETURN NULL;
  END IF;
  FOR attempt IN 1..5 LOOP
    BEGIN
      PERFORM set_config('lock_timeout', 25 * 2 ^ attempt || 'ms', true);
      next := outbox_router.next_partition(outbox);
      IF next.is_default IS NULL THEN
        RETURN NULL;
      END IF;
      created := outbox_router.partition_name(outbox, CASE WHEN next.is_default THEN '_default' ELSE to_char(next.lower, '_YYYYMMDD') END);
      EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION)%s',
        created, parent.oid::regclass, (SELECT format(' TABLESPACE %I', t.spcname) FROM pg_tablespace t WHERE t.oid = parent.reltablespace));
      -- otherwise the owner could not alter the outbox, and code of indexes would run with the rights of this role
      EXECUTE format('ALTER TABLE %s OWNER TO %s', created, parent.relowner::regrole);
      IF parent.relreplident = 'f' THEN
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', created);
      END IF;
      EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s %s', parent.oid::regclass, created,
        CASE WHEN next.is_default THEN 'DEFAULT' ELSE format('FOR VALUES FROM (%L) TO (%L)', next.lower, next.upper) END);
      RETURN created;
    -- somebody uses the default partition, or has inserted such a row into it meanwhile
    EXCEPTION WHEN lock_not_available OR check_violation THEN
      IF attempt = 5 THEN
        RAISE;
      END IF;
    END;
    PERFORM pg_sleep(0.2 * attempt);
  END LOOP;
END $$;

-- The beginning of the period in which a time is, in microseconds since 1970: rows of whole periods are deleted. NULL if the router does not
-- drop the partitions of this outbox.
CREATE OR REPLACE FUNCTION outbox_router.period_begin(outbox text, until timestamptz) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
  SELECT (extract(epoch FROM date_trunc(p.period, until)) * 1000000)::bigint FROM outbox_router.partitioned p WHERE p.outbox = period_begin.outbox
$$;

-- Counts the rows of a partition, and those that have to stay: all, if the outbox has an archive or a trigger that a drop would not fire. Renews
-- the lease. If counts_for_drop is true, no replay and no prune begins until the end of the transaction.
CREATE OR REPLACE FUNCTION outbox_router.partition_rows(
  outbox text, token uuid, part regclass, lower timestamptz, upper timestamptz, counts_for_drop boolean, OUT all_rows bigint, OUT kept bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET row_security = off SET jit = off AS $$
DECLARE
  condition text;
  -- a partition may have partitions
  tables oid[] := ARRAY(SELECT t.relid FROM pg_partition_tree(part) t);
BEGIN
  IF counts_for_drop THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox-router replay', 0));
  END IF;
  condition := outbox_router.prune_condition(outbox);
  PERFORM outbox_router.prune_check(outbox);
  PERFORM outbox_router.prune_lease(outbox, token);
  EXECUTE format('SELECT count(*), count(*) FILTER (WHERE (%s) IS NOT TRUE) FROM %s q WHERE q.tableoid = ANY ($1) AND q.%I >= $2 AND q.%3$I < $3',
    condition, to_regclass(outbox), outbox_router.partition_column(outbox)) INTO all_rows, kept USING tables, lower, upper;
  -- 8: triggers of DELETE
  IF outbox_router.prune_archive(outbox) IS NOT NULL
      OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = ANY (tables || to_regclass(outbox)::oid) AND NOT t.tgisinternal AND t.tgtype & 8 <> 0) THEN
    kept := all_rows;
  END IF;
  UPDATE outbox_router.prunes p SET lease_until = clock_timestamp() + interval '60 s',
    rows = p.rows + CASE WHEN counts_for_drop AND kept = 0 THEN all_rows ELSE 0 END WHERE p.outbox = partition_rows.outbox;
END $$;

-- Who has an outbox locked for a second, so that writers would have to wait behind a request for a stronger lock; NULL if nobody has.
CREATE OR REPLACE FUNCTION outbox_router.partition_lock_holder(outbox text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  transactions text[];
  process int;
BEGIN
  FOR check_number IN 1..6 LOOP
    SELECT array_agg(l.virtualtransaction), min(l.pid) INTO transactions, process FROM pg_locks l
      WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND l.relation = to_regclass(outbox) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND (transactions IS NULL OR l.virtualtransaction = ANY (transactions));
    IF transactions IS NULL THEN
      RETURN NULL;
    END IF;
    PERFORM pg_sleep(0.2);
  END LOOP;
  RETURN coalesce('a transaction of process ' || process, 'a prepared transaction');
END $$;

-- Drops the first partition from since to until, unless it has rows that somebody needs; any row, if only_empty is true or old rows go to an
-- archive. Returns its end in microseconds since 1970, whether it was dropped, and how many rows it had; if it cannot be dropped, also why, and
-- whether that is because it is locked. NULL if there is none.
CREATE OR REPLACE FUNCTION outbox_router.drop_partition(
  outbox text, token uuid, since timestamptz, until timestamptz, only_empty boolean,
  OUT ends bigint, OUT dropped boolean, OUT deleted bigint, OUT problem text, OUT locked boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET lock_timeout = '1s' AS $$
DECLARE
  chosen record;
  counted record;
  holder text;
BEGIN
  IF NOT outbox_router.partition_check(outbox) THEN
    RETURN;
  END IF;
  SELECT p.part, p.lower, p.upper INTO chosen FROM outbox_router.partitions_of(outbox) p
    WHERE NOT p.is_default AND p.upper <= until AND (since IS NULL OR p.lower >= since) ORDER BY p.lower LIMIT 1;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  ends := (extract(epoch FROM chosen.upper) * 1000000)::bigint;
  dropped := false;
  deleted := 0;
  counted := outbox_router.partition_rows(outbox, token, chosen.part, chosen.lower, chosen.upper, false);
  IF counted.kept > 0 OR only_empty AND counted.all_rows > 0 THEN
    RETURN;
  END IF;
  holder := outbox_router.partition_lock_holder(outbox);
  IF holder IS NOT NULL THEN
    problem := format('%s: %s is locked by %s', chosen.part, to_regclass(outbox), holder);
    locked := true;
    RETURN;
  END IF;
  -- a standby does not keep writers waiting
  SET LOCAL synchronous_commit = local;
  FOR attempt IN 1..3 LOOP
    problem := NULL;
    locked := false;
    -- a failed attempt releases its locks, so that no writer waits for them
    BEGIN
      -- from here on, nobody can insert into this partition
      EXECUTE format('LOCK TABLE %s IN SHARE MODE', chosen.part);
      IF NOT EXISTS (SELECT FROM outbox_router.partitions_of(outbox) p WHERE (p.part, p.lower, p.upper) = (chosen.part, chosen.lower, chosen.upper)) THEN
        RETURN;
      END IF;
      counted := outbox_router.partition_rows(outbox, token, chosen.part, chosen.lower, chosen.upper, true);
      IF counted.kept > 0 OR only_empty AND counted.all_rows > 0 THEN
        RETURN;
      END IF;
      -- whoever waits for this partition may have the outbox locked, and would be the victim of a deadlock
      IF EXISTS (SELECT FROM pg_locks l WHERE l.relation IN (SELECT t.relid FROM pg_partition_tree(chosen.part) t) AND l.locktype = 'relation' AND NOT l.granted) THEN
        RAISE lock_not_available USING MESSAGE = format('somebody writes to %s', chosen.part);
      END IF;
      -- writers queue behind this request
      PERFORM set_config('lock_timeout', 50 * attempt || 'ms', true);
      EXECUTE format('DROP TABLE %s', chosen.part);
      dropped := true;
      deleted := counted.all_rows;
      RETURN;
    EXCEPTION
      WHEN lock_not_available THEN
        problem := format('%s: %s', chosen.part, SQLERRM);
        locked := true;
      WHEN dependent_objects_still_exist OR wrong_object_type OR insufficient_privilege THEN
        problem := format('%s: %s', chosen.part, SQLERRM);
        RETURN;
    END;
  END LOOP;
END $$;

-- The partitions of an outbox: when those that are not over begin, in microseconds since 1970; how many end by until; whether one is missing;
-- and how many rows the default one has: 10,000 stands for that or more. NULL if the router does not create the partitions of this outbox.
CREATE OR REPLACE FUNCTION outbox_router.count_partitions(
  outbox text, until timestamptz, OUT begins text, OUT old bigint, OUT missing boolean, OUT in_default bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET row_security = off SET lock_timeout = '1s' AS $$
DECLARE
  default_part regclass;
BEGIN
  IF NOT outbox_router.partition_check(outbox) THEN
    RETURN;
  END IF;
  SELECT string_agg(((extract(epoch FROM p.lower) * 1000000)::bigint)::text, ' ') FILTER (WHERE p.upper > now() AND isfinite(p.lower)),
      count(*) FILTER (WHERE p.upper <= until), min(p.part::oid) FILTER (WHERE p.is_default)
    INTO begins, old, default_part FROM outbox_router.partitions_of(outbox) p;
  missing := (SELECT n.is_default IS NOT NULL FROM outbox_router.next_partition(outbox) n);
  in_default := 0;
  IF default_part IS NOT NULL THEN
    EXECUTE format('SELECT count(*) FROM (SELECT FROM %s LIMIT 10000) r', default_part) INTO in_default;
  END IF;
END $$;

REVOKE ALL ON FUNCTION outbox_router.partitions_of, outbox_router.partition_check, outbox_router.next_partition, outbox_router.partition_name,
  outbox_router.create_partition, outbox_router.period_begin, outbox_router.partition_rows, outbox_router.partition_lock_holder,
  outbox_router.drop_partition, outbox_router.count_partitions FROM PUBLIC;
