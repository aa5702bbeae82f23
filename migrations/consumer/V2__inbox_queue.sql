-- The inbox as a queue. A row that was neither leased nor tried has no due_at. With due_at it is under a lease, waits for its next
-- attempt, or has failed (infinity). It is deleted when it is done.

-- CACHE 1, so that positions are drawn in the order of the calls
CREATE SEQUENCE outbox_router.inbox_position;

CREATE TABLE outbox_router.inbox_queue (
  consumer text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  put_at timestamptz NOT NULL DEFAULT now(),
  due_at timestamptz,
  token uuid,
  attempts integer NOT NULL DEFAULT 0,
  event_id text COLLATE "C" NOT NULL,
  aggregate text COLLATE "C",
  sequence text COLLATE "C",
  payload bytea NOT NULL,
  error text,
  PRIMARY KEY (consumer, position)
);
CREATE INDEX inbox_queue_due ON outbox_router.inbox_queue (consumer, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX inbox_queue_aggregate ON outbox_router.inbox_queue (consumer, aggregate, position) WHERE aggregate IS NOT NULL;
CREATE INDEX inbox_queue_started ON outbox_router.inbox_queue (consumer, aggregate, due_at)
  WHERE aggregate IS NOT NULL AND due_at IS NOT NULL;
COMMENT ON TABLE outbox_router.inbox_queue IS 'Events that wait for a worker';

-- Where inbox_next starts to look. While a snapshot is held, deleted rows cannot be vacuumed, and a scan from the beginning of
-- an index would walk over all of them. No row that has not been taken has a lower position, and no other row an earlier due_at.
-- next_position and next_due_at become the next such bounds when every transaction before next_xid has ended: until then one
-- of them may still commit a row below. Rows are only added, and the last one is read backwards, for the same reason.
CREATE TABLE outbox_router.inbox_marks (
  consumer text COLLATE "C" NOT NULL,
  id bigint GENERATED ALWAYS AS IDENTITY,
  position bigint NOT NULL,
  due_at timestamptz NOT NULL,
  next_position bigint NOT NULL,
  next_due_at timestamptz NOT NULL,
  next_xid xid8 NOT NULL,
  set_at timestamptz NOT NULL,
  PRIMARY KEY (consumer, id)
);
COMMENT ON TABLE outbox_router.inbox_marks IS 'Where inbox_next starts to look';

CREATE SEQUENCE outbox_router.inbox_put_total;
CREATE SEQUENCE outbox_router.inbox_duplicate_total;
CREATE SEQUENCE outbox_router.inbox_processed_total;
CREATE SEQUENCE outbox_router.inbox_retried_total;
CREATE SEQUENCE outbox_router.inbox_failed_total;

-- Stores an event for a worker.
CREATE FUNCTION outbox_router.inbox_put(
  consumer text, event_id text, payload bytea, aggregate text DEFAULT NULL, sequence text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  drawn bigint;
  counted bigint;
  own_xid xid8;
  found_row record;
BEGIN
  IF (length(inbox_put.event_id) BETWEEN 1 AND 1000) IS NOT TRUE
    OR NOT EXISTS (SELECT FROM outbox_router.inbox_consumers c WHERE c.consumer = inbox_put.consumer)
  THEN
    PERFORM outbox_router.inbox_check(inbox_put.consumer, inbox_put.event_id);
  END IF;
  IF (length(inbox_put.aggregate) NOT BETWEEN 1 AND 1000) THEN
    PERFORM outbox_router.inbox_check_name('aggregate', inbox_put.aggregate, 1000);
  END IF;
  IF length(inbox_put.sequence) > 255 THEN
    PERFORM outbox_router.inbox_check_name('sequence', inbox_put.sequence, 255);
  END IF;
  IF inbox_put.payload IS NULL OR length(inbox_put.payload) > 16777216 THEN
    RAISE 'the payload %', coalesce('has ' || length(inbox_put.payload) || ' bytes, more than 16 MiB', 'is NULL')
      USING ERRCODE = '22023', HINT = 'Pass the body of the event, or a reference to where it is stored.';
  END IF;
  -- before the position: see inbox_marks
  own_xid := pg_current_xact_id();
  drawn := nextval('outbox_router.inbox_position');
  LOOP
    INSERT INTO outbox_router.inbox (consumer, event_id, position) VALUES (inbox_put.consumer, inbox_put.event_id, drawn)
      ON CONFLICT DO NOTHING;
    EXIT WHEN FOUND;
    SELECT i.lease_until INTO found_row FROM outbox_router.inbox i
      WHERE i.consumer = inbox_put.consumer AND i.event_id = inbox_put.event_id;
    CONTINUE WHEN NOT FOUND;
    IF found_row.lease_until IS NULL THEN
      PERFORM nextval('outbox_router.inbox_duplicate_total');
      RETURN 'duplicate';
    ELSIF found_row.lease_until > clock_timestamp() THEN
      RAISE 'the event "%" is under a lease until %', inbox_put.event_id, found_row.lease_until
        USING ERRCODE = '55P03', HINT = 'Put it again then: if the lease expires, the event is not processed yet.';
    END IF;
    -- nobody has taken the expired lease over
    UPDATE outbox_router.inbox i SET lease_until = NULL, token = NULL, position = drawn, seen_at = now()
      WHERE i.consumer = inbox_put.consumer AND i.event_id = inbox_put.event_id AND i.lease_until <= clock_timestamp();
    EXIT WHEN FOUND;
  END LOOP;
  INSERT INTO outbox_router.inbox_queue (consumer, position, event_id, aggregate, sequence, payload)
    VALUES (inbox_put.consumer, drawn, inbox_put.event_id, inbox_put.aggregate, inbox_put.sequence, inbox_put.payload);
  counted := nextval('outbox_router.inbox_put_total');
  RETURN 'new';
END $$;

CREATE FUNCTION outbox_router.inbox_put(consumer text, event_id text, payload bytea, aggregate text, sequence bigint)
RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox_router.inbox_put(consumer, event_id, payload, aggregate, sequence::text) $$;

-- The key of the transaction-level advisory lock for an aggregate.
CREATE FUNCTION outbox_router.inbox_lock_key(consumer text, aggregate text) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT pg_catalog.hashtextextended(aggregate, pg_catalog.hashtextextended('outbox_router ' || consumer, 0)) $$;

-- Takes up to max_events events: in the caller's transaction without a lease, else under a lease with a token.
-- Statistics may say that the queue is nearly empty, and then another index looks as good as the right one. So each subquery asks
-- for an order that only the right one has, and plans must not sort.
CREATE FUNCTION outbox_router.inbox_next(consumer text, max_events integer DEFAULT 1, lease interval DEFAULT NULL)
RETURNS TABLE (event_id text, payload bytea, aggregate text, sequence text, attempt integer, token uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
  me constant text := inbox_next.consumer;
  in_order boolean;
  mark record;
  -- row identifiers: the rows are locked, and no plan is simpler
  picked tid[];
  fresh tid[];
  batch_token uuid;
  given_up bigint;
  wanted integer := max_events;
  -- rows above are not handed out
  settled bigint := 9223372036854775807;
  -- an index cannot be searched for a volatile function
  moment constant timestamptz := clock_timestamp();
BEGIN
  PERFORM outbox_router.inbox_check_consumer(me);
  IF (max_events BETWEEN 1 AND 500) IS NOT TRUE THEN
    RAISE 'max_events is %', coalesce(max_events::text, 'NULL') USING ERRCODE = '22023', HINT = 'Pass 1 to 500.';
  END IF;
  IF lease IS NOT NULL THEN
    PERFORM outbox_router.inbox_check_lease(lease);
    batch_token := gen_random_uuid();
  END IF;
  SELECT c.ordered INTO in_order FROM outbox_router.inbox_consumers c WHERE c.consumer = me;
  in_order := coalesce(in_order, true);
  IF in_order THEN
    -- each takes an advisory lock, of which a server has a limited number
    wanted := least(wanted, 100);
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      -- What is committed after the snapshot stays invisible. Below this no earlier row of an aggregate can be.
      settled := coalesce((SELECT m.next_position FROM outbox_router.inbox_marks m
        WHERE m.consumer = me AND outbox_router.inbox_settled(m.next_xid) ORDER BY m.id DESC LIMIT 1), 0);
    END IF;
  END IF;
  SELECT * INTO mark FROM outbox_router.inbox_mark(me);

  picked := ARRAY(
    SELECT q.ctid FROM outbox_router.inbox_queue q
      WHERE q.consumer = me AND q.due_at >= mark.from_due AND q.due_at <= moment AND q.position < settled
        AND (NOT in_order OR q.aggregate IS NULL OR (SELECT true FROM outbox_router.inbox_queue e
          WHERE e.consumer = me AND e.aggregate IS NOT NULL AND e.due_at IS NOT NULL AND e.position < q.position
            AND (e.aggregate, e.due_at) >= (q.aggregate, mark.from_due) AND e.aggregate <= q.aggregate
          ORDER BY e.aggregate, e.due_at LIMIT 1) IS NULL)
      ORDER BY q.due_at LIMIT wanted FOR UPDATE OF q SKIP LOCKED);
  IF cardinality(picked) > 0 THEN
    -- a worker died under its last lease
    WITH given_up AS (
      UPDATE outbox_router.inbox_queue q SET due_at = 'infinity', token = NULL, error = 'the lease of the last attempt expired'
        WHERE q.ctid = ANY (picked) AND q.attempts >= 8
        RETURNING nextval('outbox_router.inbox_failed_total')
    ) SELECT count(*) INTO given_up FROM given_up;
    IF given_up > 0 THEN
      picked := ARRAY(SELECT q.ctid FROM outbox_router.inbox_queue q
        WHERE q.ctid = ANY (picked) AND q.attempts < 8);
    END IF;
  END IF;
  IF cardinality(picked) < wanted THEN
    fresh := ARRAY(
      SELECT q.ctid FROM outbox_router.inbox_queue q
        WHERE q.consumer = me AND q.position >= mark.from_position AND q.position < settled AND q.due_at IS NULL
          AND (NOT in_order OR q.aggregate IS NULL OR (SELECT true FROM outbox_router.inbox_queue e
            WHERE e.consumer = me AND e.aggregate IS NOT NULL AND e.due_at IS NOT NULL
              AND (e.aggregate, e.due_at) >= (q.aggregate, mark.from_due) AND e.aggregate <= q.aggregate
            ORDER BY e.aggregate, e.due_at LIMIT 1
          ) IS NULL AND (SELECT true FROM outbox_router.inbox_queue e
            WHERE e.consumer = me AND e.aggregate IS NOT NULL AND e.due_at IS NULL
              AND (e.aggregate, e.position) >= (q.aggregate, mark.from_position) AND (e.aggregate, e.position) < (q.aggregate, q.position)
            ORDER BY e.aggregate, e.position LIMIT 1) IS NULL)
        ORDER BY q.position LIMIT wanted - cardinality(picked) FOR UPDATE OF q SKIP LOCKED);
    picked := picked || fresh;
  END IF;

  IF in_order AND cardinality(picked) > 0 THEN
    -- An earlier row of an aggregate may have been committed, and taken by another worker, since the snapshot above: of
    -- the workers one has the lock, and it looks again.
    picked := ARRAY(
      SELECT q.ctid FROM outbox_router.inbox_queue q WHERE q.ctid = ANY (picked)
        AND (q.aggregate IS NULL OR pg_try_advisory_xact_lock(outbox_router.inbox_lock_key(me, q.aggregate))));
    picked := ARRAY(
      SELECT q.ctid FROM outbox_router.inbox_queue q WHERE q.ctid = ANY (picked)
        AND (q.aggregate IS NULL OR (SELECT true FROM outbox_router.inbox_queue e
          WHERE e.consumer = me AND e.aggregate IS NOT NULL AND e.due_at IS NOT NULL AND (q.due_at IS NULL OR e.position < q.position)
            AND (e.aggregate, e.due_at) >= (q.aggregate, mark.from_due) AND e.aggregate <= q.aggregate
          ORDER BY e.aggregate, e.due_at LIMIT 1
        ) IS NULL AND (q.due_at IS NOT NULL OR (SELECT true FROM outbox_router.inbox_queue e
          WHERE e.consumer = me AND e.aggregate IS NOT NULL AND e.due_at IS NULL
            AND (e.aggregate, e.position) >= (q.aggregate, mark.from_position) AND (e.aggregate, e.position) < (q.aggregate, q.position)
          ORDER BY e.aggregate, e.position LIMIT 1) IS NULL)));
  END IF;
  IF cardinality(picked) = 0 THEN
    NULL;
  ELSIF lease IS NULL THEN
    -- for inbox_done: the transaction, and the positions that it has taken
    PERFORM set_config('outbox_router.taken', CASE WHEN outbox_router.inbox_took() IS NULL THEN pg_current_xact_id() || ' '
        ELSE current_setting('outbox_router.taken') END || string_agg(q.position::text, ' ') || ' ', true)
      FROM outbox_router.inbox_queue q WHERE q.ctid = ANY (picked);
    RETURN QUERY WITH taken AS MATERIALIZED (
      SELECT q.position, q.event_id, q.payload, q.aggregate, q.sequence, q.attempts FROM outbox_router.inbox_queue q
        WHERE q.ctid = ANY (picked)
    ) SELECT t.event_id, t.payload, t.aggregate, t.sequence, t.attempts + 1, NULL::uuid FROM taken t ORDER BY t.position;
  ELSE
    RETURN QUERY WITH taken AS (
      UPDATE outbox_router.inbox_queue q SET token = batch_token, attempts = q.attempts + 1,
          due_at = greatest(clock_timestamp(), mark.next_due_at) + lease
        WHERE q.ctid = ANY (picked)
        RETURNING q.position, q.event_id, q.payload, q.aggregate, q.sequence, q.attempts, q.token
    ) SELECT t.event_id, t.payload, t.aggregate, t.sequence, t.attempts, t.token FROM taken t ORDER BY t.position;
  END IF;
END $$;

-- The lowest position that has not been drawn.
CREATE FUNCTION outbox_router.inbox_upcoming() RETURNS bigint LANGUAGE sql
AS $$ SELECT s.last_value + s.is_called::integer FROM outbox_router.inbox_position s $$;

-- The positions that this transaction has taken without a lease, each between two spaces. NULL: none.
CREATE FUNCTION outbox_router.inbox_took() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT substr(t.taken, strpos(t.taken, ' ')) FROM (SELECT current_setting('outbox_router.taken', true)) t (taken)
    WHERE split_part(t.taken, ' ', 1) = pg_current_xact_id_if_assigned()::text
$$;

-- Whether every transaction before this one, which has set a mark, has ended. If its id has not been given yet, it is that of the
-- cluster from which the database was restored.
CREATE FUNCTION outbox_router.inbox_settled(next_xid xid8) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT next_xid <= pg_snapshot_xmin(s) OR (next_xid >= pg_snapshot_xmax(s) AND next_xid IS DISTINCT FROM pg_current_xact_id_if_assigned())
    FROM pg_current_snapshot() s
$$;

-- The current mark. Sets the next one if a quarter of a second has passed. The time in a mark older than a minute is not used:
-- the clock may have been set back meanwhile.
CREATE FUNCTION outbox_router.inbox_mark(consumer text, OUT from_position bigint, OUT from_due timestamptz, OUT next_due_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  me constant text := inbox_mark.consumer;
  last record;
  first_position bigint;
  first_due timestamptz;
  reached bigint;
  reached_at timestamptz;
BEGIN
  SELECT * INTO last FROM outbox_router.inbox_marks m WHERE m.consumer = me ORDER BY m.id DESC LIMIT 1;
  from_position := coalesce(last.position, 0);
  IF last.set_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() THEN
    from_due := last.due_at;
    next_due_at := last.next_due_at;
    IF last.set_at > clock_timestamp() - interval '250 milliseconds' THEN
      RETURN;
    END IF;
  ELSE
    from_due := '-infinity';
    next_due_at := '-infinity';
    IF last.set_at > clock_timestamp() THEN
      -- The clock was set back. When it has caught up, the times of that mark must not be used again.
      INSERT INTO outbox_router.inbox_marks (consumer, position, due_at, next_position, next_due_at, next_xid, set_at)
        VALUES (me, last.position, from_due, last.next_position, next_due_at, last.next_xid, clock_timestamp());
      RETURN;
    END IF;
  END IF;
  -- The transaction must get its id below.
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RETURN;
  END IF;
  IF outbox_router.inbox_settled(last.next_xid) THEN
    SELECT q.position INTO first_position FROM outbox_router.inbox_queue q
      WHERE q.consumer = me AND q.position >= from_position AND q.due_at IS NULL ORDER BY q.position LIMIT 1;
    from_position := greatest(from_position, least(first_position, last.next_position));
    SELECT q.due_at INTO first_due FROM outbox_router.inbox_queue q
      WHERE q.consumer = me AND q.due_at >= from_due ORDER BY q.due_at LIMIT 1;
    from_due := greatest(from_due, least(first_due, next_due_at));
    IF coalesce(first_due, 'infinity') = 'infinity' AND last.position >= outbox_router.inbox_upcoming() THEN
      -- idle workers write nothing
      RETURN;
    END IF;
  ELSIF last.next_xid IS NOT NULL THEN
    -- a transaction of then still runs
    IF next_due_at > '-infinity' AND last.set_at < clock_timestamp() - interval '10 seconds' THEN
      INSERT INTO outbox_router.inbox_marks (consumer, position, due_at, next_position, next_due_at, next_xid, set_at)
        VALUES (me, last.position, last.due_at, last.next_position, last.next_due_at, last.next_xid, clock_timestamp());
    END IF;
    RETURN;
  END IF;
  reached := outbox_router.inbox_upcoming();
  reached_at := clock_timestamp();
  INSERT INTO outbox_router.inbox_marks (consumer, position, due_at, next_position, next_due_at, next_xid, set_at)
    -- Whoever drew a position already had a transaction id, so this one is higher. The xmax of a snapshot may not be.
    VALUES (me, from_position, from_due, reached, reached_at, pg_current_xact_id(), clock_timestamp());
  DELETE FROM outbox_router.inbox_marks m WHERE m.ctid = ANY (ARRAY(SELECT o.ctid FROM outbox_router.inbox_marks o
    WHERE o.consumer = me AND o.id < last.id - 100 ORDER BY o.id LIMIT 20 FOR UPDATE SKIP LOCKED));
  next_due_at := reached_at;
END $$;

-- Finds an event for the worker that has taken it: the row in the queue, locked. NULL: it is done, or with another worker.
CREATE FUNCTION outbox_router.inbox_taken(consumer text, event_id text, token uuid) RETURNS outbox_router.inbox_queue
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  at bigint;
  taken outbox_router.inbox_queue;
BEGIN
  PERFORM outbox_router.inbox_check(inbox_taken.consumer, inbox_taken.event_id);
  -- no join: while statistics say that the queue is empty, it would read all of it
  SELECT i.position INTO at FROM outbox_router.inbox i
    WHERE i.consumer = inbox_taken.consumer AND i.event_id = inbox_taken.event_id;
  IF inbox_taken.token IS NULL THEN
    -- Another worker may have taken the event in a transaction that has not ended. The token of a lease that has expired stays.
    SELECT q.* INTO taken FROM outbox_router.inbox_queue q
      WHERE q.consumer = inbox_taken.consumer AND q.position = at AND (q.token IS NULL OR q.due_at <= clock_timestamp())
      FOR UPDATE SKIP LOCKED;
  ELSE
    -- Another worker may have locked the row although this lease is valid: an inbox_next with an older snapshot locks it,
    -- finds that it is taken, and keeps the lock until its transaction ends.
    SELECT q.* INTO taken FROM outbox_router.inbox_queue q
      WHERE q.consumer = inbox_taken.consumer AND q.position = at AND q.token = inbox_taken.token FOR UPDATE;
  END IF;
  RETURN taken;
END $$;

-- Ends the processing of an event: true. False: it was done before, or another worker has it.
CREATE FUNCTION outbox_router.inbox_done(consumer text, event_id text, token uuid DEFAULT NULL, result jsonb DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  taken outbox_router.inbox_queue := outbox_router.inbox_taken(inbox_done.consumer, inbox_done.event_id, inbox_done.token);
  took constant text := outbox_router.inbox_took();
BEGIN
  PERFORM outbox_router.inbox_check_no_array(inbox_done.event_id);
  IF inbox_done.token IS NULL
    AND (took IS NULL OR (taken.position IS NOT NULL AND strpos(took, ' ' || taken.position || ' ') = 0))
  THEN
    RAISE 'the event "%" was not taken in this transaction', inbox_done.event_id
      USING ERRCODE = '55000', HINT = 'Call inbox_next first in this transaction, or pass the token of its lease.';
  ELSIF taken.position IS NULL THEN
    RETURN false;
  END IF;
  PERFORM outbox_router.inbox_check_result(inbox_done.result);
  DELETE FROM outbox_router.inbox_queue q WHERE q.consumer = taken.consumer AND q.position = taken.position;
  IF inbox_done.result IS NOT NULL THEN
    UPDATE outbox_router.inbox i SET result = inbox_done.result
      WHERE i.consumer = inbox_done.consumer AND i.event_id = inbox_done.event_id;
  END IF;
  PERFORM nextval('outbox_router.inbox_processed_total');
  RETURN true;
END $$;

-- Ends a batch that one call of inbox_next returned, and returns how many of its events were not ended before.
CREATE FUNCTION outbox_router.inbox_done(consumer text, event_ids text[], token uuid DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
  SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
  taken tid[];
  took constant text := outbox_router.inbox_took();
  ended bigint;
BEGIN
  PERFORM outbox_router.inbox_check_consumer(inbox_done.consumer);
  IF cardinality(inbox_done.event_ids) > 0 IS NOT TRUE THEN
    -- inbox_next returned nothing
    RETURN 0;
  ELSIF inbox_done.token IS NULL AND took IS NULL THEN
    RAISE 'the events were not taken in this transaction'
      USING ERRCODE = '55000', HINT = 'Call inbox_next first in this transaction, or pass the token of its lease.';
  END IF;
  -- One row at a time: while statistics say that the queue is empty, a join, or a list of positions, would read all of it. Which rows
  -- are locked is explained in inbox_taken.
  IF inbox_done.token IS NULL THEN
    taken := ARRAY(SELECT one.ctid FROM unnest(inbox_done.event_ids) u (id)
      CROSS JOIN LATERAL (SELECT m.position FROM outbox_router.inbox m
        WHERE m.consumer = inbox_done.consumer AND m.event_id = u.id OFFSET 0) i
      CROSS JOIN LATERAL (SELECT q.ctid FROM outbox_router.inbox_queue q
        WHERE q.consumer = inbox_done.consumer AND q.position = i.position AND strpos(took, ' ' || q.position || ' ') > 0
        FOR UPDATE SKIP LOCKED) one);
  ELSE
    taken := ARRAY(SELECT one.ctid FROM unnest(inbox_done.event_ids) u (id)
      CROSS JOIN LATERAL (SELECT m.position FROM outbox_router.inbox m
        WHERE m.consumer = inbox_done.consumer AND m.event_id = u.id OFFSET 0) i
      CROSS JOIN LATERAL (SELECT q.ctid FROM outbox_router.inbox_queue q
        WHERE q.consumer = inbox_done.consumer AND q.position = i.position AND q.token = inbox_done.token
        FOR UPDATE) one);
  END IF;
  WITH deleted AS (
    DELETE FROM outbox_router.inbox_queue q WHERE q.ctid = ANY (taken) RETURNING nextval('outbox_router.inbox_processed_total')
  ) SELECT count(*) INTO ended FROM deleted;
  RETURN ended;
END $$;

-- Puts an event off, and returns until when; infinity after 8 attempts. NULL: it is done, or another worker has it.
CREATE FUNCTION outbox_router.inbox_fail(consumer text, event_id text, error text, token uuid DEFAULT NULL)
RETURNS timestamptz LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  taken outbox_router.inbox_queue := outbox_router.inbox_taken(inbox_fail.consumer, inbox_fail.event_id, inbox_fail.token);
  attempt integer := taken.attempts + (inbox_fail.token IS NULL)::integer;
  due timestamptz;
BEGIN
  IF taken.position IS NULL OR taken.due_at = 'infinity' THEN
    RETURN NULL;
  END IF;
  -- before the clock is read: see inbox_marks
  PERFORM pg_current_xact_id();
  IF attempt >= 8 THEN
    due := 'infinity';
    PERFORM nextval('outbox_router.inbox_failed_total');
  ELSE
    SELECT greatest(clock_timestamp(), m.next_due_at)
      + (ARRAY[interval '5 s', '30 s', '5 min', '30 min', '4 h'])[least(attempt, 5)] INTO due
      FROM outbox_router.inbox_mark(taken.consumer) m;
    PERFORM nextval('outbox_router.inbox_retried_total');
  END IF;
  UPDATE outbox_router.inbox_queue q
    SET due_at = due, token = NULL, attempts = attempt, error = left(inbox_fail.error, 10000)
    WHERE q.consumer = taken.consumer AND q.position = taken.position;
  RETURN due;
END $$;

-- Prolongs a lease of inbox_start or inbox_next, and returns until when. NULL: it has expired, or another worker has it.
CREATE FUNCTION outbox_router.inbox_extend(consumer text, event_id text, token uuid, lease interval) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  at bigint;
  not_before timestamptz;
  until timestamptz;
BEGIN
  PERFORM outbox_router.inbox_check(inbox_extend.consumer, inbox_extend.event_id);
  PERFORM outbox_router.inbox_check_lease(inbox_extend.lease);
  IF inbox_extend.token IS NULL THEN
    RAISE 'the token is NULL' USING ERRCODE = '22023', HINT = 'Pass the token that came with the lease.';
  END IF;
  PERFORM pg_current_xact_id();
  UPDATE outbox_router.inbox i SET lease_until = clock_timestamp() + inbox_extend.lease
    WHERE i.consumer = inbox_extend.consumer AND i.event_id = inbox_extend.event_id
      AND i.token = inbox_extend.token AND i.lease_until > clock_timestamp()
    RETURNING i.lease_until INTO until;
  IF NOT FOUND THEN
    SELECT i.position INTO at FROM outbox_router.inbox i
      WHERE i.consumer = inbox_extend.consumer AND i.event_id = inbox_extend.event_id;
    SELECT m.next_due_at INTO not_before FROM outbox_router.inbox_mark(inbox_extend.consumer) m;
    UPDATE outbox_router.inbox_queue q SET due_at = greatest(clock_timestamp(), not_before) + inbox_extend.lease
      WHERE q.consumer = inbox_extend.consumer AND q.position = at
        AND q.token = inbox_extend.token AND q.due_at > clock_timestamp()
      RETURNING q.due_at INTO until;
  END IF;
  RETURN until;
END $$;

-- Returns those of these aggregates that have an event in the queue, and none if the queue is not ordered. A consumer that reads
-- events from elsewhere, too, must not let them overtake.
CREATE FUNCTION outbox_router.inbox_waiting(consumer text, aggregates text[]) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
  IF inbox_waiting.aggregates IS NULL OR cardinality(inbox_waiting.aggregates) > 10000 THEN
    RAISE 'there are % aggregates', coalesce(cardinality(inbox_waiting.aggregates)::text, 'NULL as')
      USING ERRCODE = '22023', HINT = 'Pass an array of at most 10000 aggregates.';
  END IF;
  PERFORM outbox_router.inbox_check_name('consumer name', inbox_waiting.consumer, 255);
  -- ordered as in inbox_next
  RETURN QUERY SELECT DISTINCT u.a FROM unnest(inbox_waiting.aggregates) u (a)
    WHERE (SELECT true FROM outbox_router.inbox_queue q
        WHERE q.consumer = inbox_waiting.consumer AND q.aggregate >= u.a AND q.aggregate <= u.a
        ORDER BY q.aggregate, q.position LIMIT 1)
      AND NOT EXISTS (SELECT FROM outbox_router.inbox_consumers c WHERE c.consumer = inbox_waiting.consumer AND NOT c.ordered);
END $$;

-- What was cleared, discarded or retried by hand.
CREATE TABLE outbox_router.inbox_audit (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  done_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  done_by text NOT NULL DEFAULT session_user,
  action text NOT NULL,
  consumer text NOT NULL,
  event_id text NOT NULL,
  reason text CHECK (reason IS NOT NULL OR action = 'retry')
);
CREATE INDEX inbox_audit_event ON outbox_router.inbox_audit (consumer, event_id);
COMMENT ON TABLE outbox_router.inbox_audit IS 'What inbox_decide has done, and for whom';

-- For operators: retry, discard (it counts as processed) or clear (its next delivery is processed again). False: there is no
-- such event. An event that a worker has is refused. Only retry needs no reason.
CREATE FUNCTION outbox_router.inbox_decide(consumer text, event_id text, action text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  marked outbox_router.inbox;
  waiting outbox_router.inbox_queue;
BEGIN
  PERFORM outbox_router.inbox_check(inbox_decide.consumer, inbox_decide.event_id);
  IF (inbox_decide.action IN ('retry', 'discard', 'clear')) IS NOT TRUE THEN
    RAISE 'the action is %', coalesce(inbox_decide.action, 'NULL')
      USING ERRCODE = '22023', HINT = 'Pass retry, discard or clear.';
  ELSIF inbox_decide.action <> 'retry' OR inbox_decide.reason IS NOT NULL THEN
    PERFORM outbox_router.inbox_check_name('reason', inbox_decide.reason, 1000);
  END IF;
  BEGIN
    SELECT * INTO marked FROM outbox_router.inbox i
      WHERE i.consumer = inbox_decide.consumer AND i.event_id = inbox_decide.event_id FOR UPDATE NOWAIT;
    SELECT * INTO waiting FROM outbox_router.inbox_queue q
      WHERE q.consumer = marked.consumer AND q.position = marked.position FOR UPDATE NOWAIT;
  EXCEPTION WHEN lock_not_available THEN
    RAISE 'a transaction that has not ended has the event "%"', inbox_decide.event_id
      USING ERRCODE = '55P03', HINT = 'Wait until its worker has ended.';
  END;
  IF marked.lease_until > clock_timestamp() OR (waiting.token IS NOT NULL AND waiting.due_at > clock_timestamp()) THEN
    RAISE 'the event "%" is under a lease until %', inbox_decide.event_id, coalesce(marked.lease_until, waiting.due_at)
      USING ERRCODE = '55P03', HINT = 'Wait until its worker has ended.';
  ELSIF marked.event_id IS NULL OR (waiting.position IS NULL AND inbox_decide.action <> 'clear'
    AND (inbox_decide.action = 'retry' OR marked.lease_until IS NULL))
  THEN
    RETURN false;
  END IF;
  PERFORM pg_current_xact_id();
  IF inbox_decide.action = 'retry' THEN
    UPDATE outbox_router.inbox_queue q SET attempts = 0, token = NULL,
        due_at = (SELECT greatest(clock_timestamp(), m.next_due_at) FROM outbox_router.inbox_mark(waiting.consumer) m)
      WHERE q.consumer = waiting.consumer AND q.position = waiting.position AND q.due_at IS NOT NULL;
  ELSE
    DELETE FROM outbox_router.inbox_queue q WHERE q.consumer = waiting.consumer AND q.position = waiting.position;
  END IF;
  IF inbox_decide.action = 'clear' THEN
    DELETE FROM outbox_router.inbox i WHERE i.consumer = marked.consumer AND i.event_id = marked.event_id;
  ELSIF marked.lease_until IS NOT NULL THEN
    -- discarded after its lease: a late inbox_finish returns false
    UPDATE outbox_router.inbox i SET lease_until = NULL, token = NULL
      WHERE i.consumer = marked.consumer AND i.event_id = marked.event_id;
  END IF;
  INSERT INTO outbox_router.inbox_audit (action, consumer, event_id, reason)
    VALUES (inbox_decide.action, inbox_decide.consumer, inbox_decide.event_id, inbox_decide.reason);
  RETURN true;
END $$;

-- For monitoring: reads at most 10000 rows for each consumer and column, so a count of 10000 means that or more. expired: their
-- handler did not end under its lease, and nobody has taken them over. oldest: of the events that wait or are expired.
CREATE FUNCTION outbox_router.inbox_status()
RETURNS TABLE (consumer text, waiting bigint, failed bigint, leased bigint, expired bigint, oldest interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  moment constant timestamptz := clock_timestamp();
BEGIN
  RETURN QUERY SELECT c.consumer, fresh.n + retried.n, failed.n, started.n + retried.held, expired.n,
      moment - least(fresh.since, retried.since, expired.since, moment)
    FROM outbox_router.inbox_consumers c
    CROSS JOIN LATERAL (SELECT coalesce((SELECT m.position FROM outbox_router.inbox_marks m
      WHERE m.consumer = c.consumer ORDER BY m.id DESC LIMIT 1), 0) AS position) mark
    CROSS JOIN LATERAL (SELECT count(*) AS n, min(l.put_at) AS since FROM (SELECT q.put_at FROM outbox_router.inbox_queue q
      WHERE q.consumer = c.consumer AND q.position >= mark.position AND q.due_at IS NULL ORDER BY q.position LIMIT 10000) l) fresh
    CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE NOT l.held) AS n, count(*) FILTER (WHERE l.held) AS held,
        min(l.put_at) FILTER (WHERE NOT l.held) AS since
      FROM (SELECT q.put_at, q.token IS NOT NULL AND q.due_at > moment AS held FROM outbox_router.inbox_queue q
        WHERE q.consumer = c.consumer AND q.due_at < 'infinity' ORDER BY q.due_at DESC LIMIT 10000) l) retried
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT FROM outbox_router.inbox_queue q
      WHERE q.consumer = c.consumer AND q.due_at = 'infinity' LIMIT 10000) l) failed
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT FROM outbox_router.inbox i
      WHERE i.consumer = c.consumer AND i.lease_until > moment LIMIT 10000) l) started
    CROSS JOIN LATERAL (SELECT count(*) AS n, min(l.seen_at) AS since FROM (SELECT i.seen_at FROM outbox_router.inbox i
      WHERE i.consumer = c.consumer AND i.lease_until <= moment ORDER BY i.lease_until LIMIT 10000) l) expired
    ORDER BY c.consumer;
END $$;

DO $$
DECLARE
  f regprocedure;
BEGIN
  FOR f IN SELECT p.oid FROM pg_catalog.pg_proc p
    WHERE p.pronamespace = 'outbox_router'::regnamespace AND p.proname LIKE 'inbox\_%' LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
  END LOOP;
END $$;
