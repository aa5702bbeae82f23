-- The inbox: which events a consumer has processed. The functions run in the caller's own transaction and keep no state in
-- the session. They run with the rights of their owner, so that a consumer's role needs EXECUTE and no right on a table.

CREATE TABLE outbox_router.inbox_consumers (
  consumer text COLLATE "C" PRIMARY KEY,
  keep interval NOT NULL DEFAULT '14 days',
  ordered boolean NOT NULL DEFAULT true,
  since timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE outbox_router.inbox_consumers IS 'The consumers that have called the inbox, and their settings';
COMMENT ON COLUMN outbox_router.inbox_consumers.keep IS 'How long a processed event is remembered';
COMMENT ON COLUMN outbox_router.inbox_consumers.ordered IS 'Queue: one worker per aggregate at a time, in order';

-- A row without lease_until and without position is an event that was processed. A row with a position waits in inbox_queue
-- as long as there is a row with that position, and is processed afterwards.
CREATE TABLE outbox_router.inbox (
  consumer text COLLATE "C" NOT NULL,
  event_id text COLLATE "C" NOT NULL,
  seen_at timestamptz NOT NULL DEFAULT now(),
  lease_until timestamptz,
  token uuid,
  position bigint,
  result jsonb,
  PRIMARY KEY (consumer, event_id)
);
-- Partial, so that an event is never looked for in it: for a consumer that is not in the statistics yet, it would look as good as
-- the primary key.
CREATE INDEX inbox_age ON outbox_router.inbox (consumer, seen_at) WHERE lease_until IS NULL;
CREATE INDEX inbox_leased ON outbox_router.inbox (consumer, lease_until) WHERE lease_until IS NOT NULL;
COMMENT ON TABLE outbox_router.inbox IS 'Events that were processed, are leased, or wait in inbox_queue';

CREATE TABLE outbox_router.inbox_sequences (
  consumer text COLLATE "C" NOT NULL,
  aggregate text COLLATE "C" NOT NULL,
  version bigint,
  log_sequence text COLLATE "C",
  PRIMARY KEY (consumer, aggregate),
  CHECK (num_nonnulls(version, log_sequence) = 1)
) WITH (fillfactor = 70);
COMMENT ON TABLE outbox_router.inbox_sequences IS 'The last sequence that inbox_newer accepted for an aggregate';

-- Counters. A sequence is neither locked nor rolled back, and leaves no dead rows; after a crash it may be up to 32 too high.
CREATE SEQUENCE outbox_router.inbox_fresh_total;
CREATE SEQUENCE outbox_router.inbox_done_total;
CREATE SEQUENCE outbox_router.inbox_busy_total;
CREATE SEQUENCE outbox_router.inbox_skipped_total;

CREATE FUNCTION outbox_router.inbox_check_name(what text, value text, maximum integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF value IS NULL THEN
    RAISE 'the % is NULL', what USING ERRCODE = '22023', HINT = 'Pass a text of 1 to ' || maximum || ' characters.';
  ELSIF value = '' THEN
    RAISE 'the % is empty', what USING ERRCODE = '22023', HINT = 'Pass a text of 1 to ' || maximum || ' characters.';
  ELSIF length(value) > maximum AND what = 'reason' THEN
    RAISE 'the reason has % characters, more than %', length(value), maximum USING ERRCODE = '22023', HINT = 'Shorten it.';
  ELSIF length(value) > maximum THEN
    RAISE 'the % has % characters, more than %', what, length(value), maximum
      USING ERRCODE = '22023', HINT = 'Pass its SHA-256 instead, for example outbox_router.inbox_body_key(...).';
  END IF;
END $$;

-- For functions that also take an array: a driver that does not know the type of a parameter would call the wrong one.
CREATE FUNCTION outbox_router.inbox_check_no_array(event_id text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF event_id LIKE '{%}' THEN
    RAISE 'the event id has the form of an array' USING ERRCODE = '22023',
      HINT = 'For several ids, or one in braces, cast the parameter: inbox_claim($1, $2::text[]).';
  END IF;
END $$;

CREATE FUNCTION outbox_router.inbox_check_lease(lease interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF lease IS NULL OR lease < interval '1 second' OR lease > interval '1 day' THEN
    RAISE 'the lease is %', coalesce(lease::text, 'NULL')
      USING ERRCODE = '22023', HINT = 'Pass 1 second to 1 day; inbox_extend prolongs a lease while the work goes on.';
  END IF;
END $$;

CREATE FUNCTION outbox_router.inbox_check_result(result jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_column_size(result) > 16777216 THEN
    RAISE 'the result has % bytes, more than 16 MiB', pg_column_size(result)
      USING ERRCODE = '22023', HINT = 'Store it in a table of your own and pass its key.';
  END IF;
END $$;

-- Checks the name, and remembers a consumer that is called for the first time. Of several concurrent first calls one does
-- that and none waits.
CREATE FUNCTION outbox_router.inbox_check_consumer(consumer text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  IF (length(inbox_check_consumer.consumer) BETWEEN 1 AND 255) IS NOT TRUE THEN
    PERFORM outbox_router.inbox_check_name('consumer name', inbox_check_consumer.consumer, 255);
  END IF;
  IF NOT EXISTS (SELECT FROM outbox_router.inbox_consumers c WHERE c.consumer = inbox_check_consumer.consumer)
    AND pg_try_advisory_xact_lock(hashtextextended('outbox_router.inbox_consumers ' || inbox_check_consumer.consumer, 0))
  THEN
    INSERT INTO outbox_router.inbox_consumers (consumer) VALUES (inbox_check_consumer.consumer) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RAISE LOG 'outbox_router: first call of the inbox by the consumer "%"', inbox_check_consumer.consumer;
    END IF;
  END IF;
END $$;

CREATE FUNCTION outbox_router.inbox_check(consumer text, event_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM outbox_router.inbox_check_consumer(consumer);
  IF (length(event_id) BETWEEN 1 AND 1000) IS NOT TRUE THEN
    PERFORM outbox_router.inbox_check_name('event id', event_id, 1000);
  END IF;
END $$;

CREATE FUNCTION outbox_router.inbox_body_key(body bytea) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$ SELECT 'body_' || encode(sha256(body), 'hex') $$;

-- Claims an event in the caller's transaction: fresh means that this transaction does the work. An event under a lease that
-- has expired is fresh too.
CREATE FUNCTION outbox_router.inbox_claim(
  consumer text, event_id text, OUT outcome text, OUT result jsonb, OUT busy_until timestamptz
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  found_row record;
  -- an assignment is faster than PERFORM
  counted bigint;
BEGIN
  IF length(inbox_claim.consumer) <= 255 AND length(inbox_claim.event_id) BETWEEN 1 AND 1000
    AND inbox_claim.event_id NOT LIKE '{%}'
  THEN
    -- nearly always all that is needed
    INSERT INTO outbox_router.inbox (consumer, event_id)
      SELECT c.consumer, inbox_claim.event_id FROM outbox_router.inbox_consumers c WHERE c.consumer = inbox_claim.consumer
      ON CONFLICT DO NOTHING;
    IF FOUND THEN
      counted := nextval('outbox_router.inbox_fresh_total');
      outcome := 'fresh';
      RETURN;
    END IF;
  END IF;
  PERFORM outbox_router.inbox_check(inbox_claim.consumer, inbox_claim.event_id);
  PERFORM outbox_router.inbox_check_no_array(inbox_claim.event_id);
  LOOP
    INSERT INTO outbox_router.inbox (consumer, event_id) VALUES (inbox_claim.consumer, inbox_claim.event_id)
      ON CONFLICT DO NOTHING;
    IF FOUND THEN
      counted := nextval('outbox_router.inbox_fresh_total');
      outcome := 'fresh';
      RETURN;
    END IF;
    -- Subqueries, because while statistics say that the queue is empty, a join would read all of it.
    SELECT i.lease_until, i.result,
        (SELECT true FROM outbox_router.inbox_queue q WHERE q.consumer = i.consumer AND q.position = i.position) AS queued,
        (SELECT q.due_at FROM outbox_router.inbox_queue q WHERE q.consumer = i.consumer AND q.position = i.position) AS due_at
      INTO found_row FROM outbox_router.inbox i WHERE i.consumer = inbox_claim.consumer AND i.event_id = inbox_claim.event_id;
    -- deleted since: once more
    CONTINUE WHEN NOT FOUND;
    IF found_row.queued THEN
      outcome := 'busy';
      busy_until := found_row.due_at;
    ELSIF found_row.lease_until IS NULL THEN
      outcome := 'done';
      result := found_row.result;
    ELSIF found_row.lease_until > clock_timestamp() THEN
      outcome := 'busy';
      busy_until := found_row.lease_until;
    ELSE
      UPDATE outbox_router.inbox i SET lease_until = NULL, token = NULL, seen_at = now()
        WHERE i.consumer = inbox_claim.consumer AND i.event_id = inbox_claim.event_id
          AND i.lease_until <= clock_timestamp();
      CONTINUE WHEN NOT FOUND;
      PERFORM nextval('outbox_router.inbox_fresh_total');
      outcome := 'fresh';
      RETURN;
    END IF;
    IF outcome = 'done' THEN
      PERFORM nextval('outbox_router.inbox_done_total');
    ELSE
      PERFORM nextval('outbox_router.inbox_busy_total');
    END IF;
    RETURN;
  END LOOP;
END $$;

-- Claims a batch and returns the fresh ids in the given order. An event that waits in the queue is not among them. Ids are
-- inserted in one order, so that two batches wait for each other only in one direction.
CREATE FUNCTION outbox_router.inbox_claim(consumer text, event_ids text[]) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
  ids text[];
  fresh text[];
  rest text[];
  leased record;
BEGIN
  IF inbox_claim.event_ids IS NULL OR cardinality(inbox_claim.event_ids) > 10000 THEN
    RAISE 'the batch has % event ids', coalesce(cardinality(inbox_claim.event_ids)::text, 'NULL as its')
      USING ERRCODE = '22023', HINT = 'Pass an array of at most 10000 ids.';
  END IF;
  PERFORM outbox_router.inbox_check_consumer(inbox_claim.consumer);
  PERFORM outbox_router.inbox_check_name('event id', u.id, 1000) FROM unnest(inbox_claim.event_ids) u (id)
    WHERE (length(u.id) BETWEEN 1 AND 1000) IS NOT TRUE;
  ids := ARRAY(SELECT DISTINCT u.id COLLATE "C" FROM unnest(inbox_claim.event_ids) u (id) ORDER BY 1);
  WITH claimed AS (
    INSERT INTO outbox_router.inbox (consumer, event_id)
      SELECT inbox_claim.consumer, u.id FROM unnest(ids) WITH ORDINALITY u (id, n) ORDER BY u.n
      ON CONFLICT DO NOTHING RETURNING event_id
  ) SELECT array_agg(event_id) INTO fresh FROM claimed;
  IF cardinality(fresh) IS DISTINCT FROM cardinality(ids) THEN
    rest := ARRAY(SELECT u.id FROM unnest(ids) u (id) EXCEPT SELECT u.id FROM unnest(fresh) u (id));
    -- Subqueries by the primary key alone, here and below, as in the other inbox_claim.
    SELECT u.id, (SELECT l.lease_until FROM outbox_router.inbox l
        WHERE l.consumer = inbox_claim.consumer AND l.event_id = u.id) AS lease_until
      INTO leased FROM unnest(rest) u (id) ORDER BY lease_until DESC NULLS LAST LIMIT 1;
    IF leased.lease_until > clock_timestamp() THEN
      PERFORM nextval('outbox_router.inbox_busy_total');
      RAISE 'the event "%" is under a lease until %', leased.id, leased.lease_until
        USING ERRCODE = '55P03', HINT = 'Roll back and claim the batch again then: the event may become fresh.';
    END IF;
    -- Expired leases are taken over, and events that were forgotten since the insert are inserted, in the same order.
    FOR leased IN SELECT u.id FROM unnest(rest) u (id)
      WHERE (SELECT l.lease_until IS NULL FROM outbox_router.inbox l
        WHERE l.consumer = inbox_claim.consumer AND l.event_id = u.id) IS NOT TRUE
      ORDER BY u.id COLLATE "C"
    LOOP
      UPDATE outbox_router.inbox i SET lease_until = NULL, token = NULL, seen_at = now()
        WHERE i.consumer = inbox_claim.consumer AND i.event_id = leased.id AND i.lease_until <= clock_timestamp();
      IF NOT FOUND THEN
        INSERT INTO outbox_router.inbox (consumer, event_id) VALUES (inbox_claim.consumer, leased.id) ON CONFLICT DO NOTHING;
      END IF;
      IF FOUND THEN
        fresh := fresh || leased.id;
      ELSIF (SELECT l.lease_until FROM outbox_router.inbox l
        WHERE l.consumer = inbox_claim.consumer AND l.event_id = leased.id) IS NOT NULL
      THEN
        RAISE 'another session has started the event "%" meanwhile', leased.id
          USING ERRCODE = '40001', HINT = 'Roll back and claim the batch again.';
      END IF;
    END LOOP;
    PERFORM nextval('outbox_router.inbox_done_total') FROM generate_series(1, cardinality(ids) - coalesce(cardinality(fresh), 0));
  END IF;
  PERFORM nextval('outbox_router.inbox_fresh_total') FROM generate_series(1, cardinality(fresh));
  IF cardinality(fresh) = cardinality(inbox_claim.event_ids) THEN
    RETURN QUERY SELECT u.id FROM unnest(inbox_claim.event_ids) u (id);
    RETURN;
  END IF;
  RETURN QUERY SELECT u.id FROM unnest(inbox_claim.event_ids) WITH ORDINALITY u (id, n)
    JOIN unnest(fresh) f (id) ON f.id = u.id GROUP BY u.id ORDER BY min(u.n);
END $$;

-- Those of these events that this transaction has claimed and committed. For a consumer whose transaction has ended unexpectedly: after
-- a crash of the server an id may be given again, but then the claims are gone.
CREATE FUNCTION outbox_router.inbox_claimed_by(consumer text, event_ids text[], xid xid8) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT u.id FROM unnest(event_ids) u (id) WHERE (SELECT i.xmin = inbox_claimed_by.xid::xid FROM outbox_router.inbox i
    WHERE i.consumer = inbox_claimed_by.consumer AND i.event_id = u.id)
$$;

-- Stores, once, what duplicates of a claimed event get.
CREATE FUNCTION outbox_router.inbox_result(consumer text, event_id text, result jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  PERFORM outbox_router.inbox_check(inbox_result.consumer, inbox_result.event_id);
  PERFORM outbox_router.inbox_check_result(inbox_result.result);
  UPDATE outbox_router.inbox i SET result = inbox_result.result
    WHERE i.consumer = inbox_result.consumer AND i.event_id = inbox_result.event_id
      -- so that inbox_age does not look suitable
      AND num_nonnulls(i.lease_until, i.result) = 0;
  IF NOT FOUND THEN
    RAISE 'the event "%" is not claimed, or has a result already', inbox_result.event_id
      USING ERRCODE = '55000', HINT = 'Call inbox_claim first, and this in the same transaction.';
  END IF;
END $$;

-- Leases an event to a handler that works without a transaction. An expired lease is taken over. With a token of the caller's own
-- the call can be repeated if its answer was lost.
CREATE FUNCTION outbox_router.inbox_start(
  consumer text, event_id text, lease interval,
  OUT outcome text, INOUT token uuid DEFAULT NULL, OUT result jsonb, OUT busy_until timestamptz
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  found_row record;
  fresh_token constant uuid := coalesce(inbox_start.token, gen_random_uuid());
BEGIN
  PERFORM outbox_router.inbox_check(inbox_start.consumer, inbox_start.event_id);
  PERFORM outbox_router.inbox_check_lease(inbox_start.lease);
  LOOP
    INSERT INTO outbox_router.inbox AS i (consumer, event_id, lease_until, token)
      VALUES (inbox_start.consumer, inbox_start.event_id, clock_timestamp() + inbox_start.lease, fresh_token)
      ON CONFLICT DO NOTHING RETURNING i.lease_until INTO busy_until;
    EXIT WHEN FOUND;
    -- Subqueries, because while statistics say that the queue is empty, a join would read all of it.
    SELECT i.lease_until, i.token, i.result,
        (SELECT true FROM outbox_router.inbox_queue q WHERE q.consumer = i.consumer AND q.position = i.position) AS queued,
        (SELECT q.due_at FROM outbox_router.inbox_queue q WHERE q.consumer = i.consumer AND q.position = i.position) AS due_at
      INTO found_row FROM outbox_router.inbox i WHERE i.consumer = inbox_start.consumer AND i.event_id = inbox_start.event_id;
    CONTINUE WHEN NOT FOUND;
    token := NULL;
    IF found_row.queued OR (found_row.lease_until > clock_timestamp() AND found_row.token <> fresh_token) THEN
      outcome := 'busy';
      busy_until := coalesce(found_row.lease_until, found_row.due_at);
      PERFORM nextval('outbox_router.inbox_busy_total');
      RETURN;
    ELSIF found_row.lease_until IS NULL THEN
      outcome := 'done';
      result := found_row.result;
      PERFORM nextval('outbox_router.inbox_done_total');
      RETURN;
    END IF;
    UPDATE outbox_router.inbox i SET lease_until = clock_timestamp() + inbox_start.lease, token = fresh_token
      WHERE i.consumer = inbox_start.consumer AND i.event_id = inbox_start.event_id
        AND (i.lease_until <= clock_timestamp() OR (i.lease_until IS NOT NULL AND i.token = fresh_token))
      RETURNING i.lease_until INTO busy_until;
    EXIT WHEN FOUND;
  END LOOP;
  outcome := 'fresh';
  token := fresh_token;
  PERFORM nextval('outbox_router.inbox_fresh_total');
END $$;

-- Marks a leased event as processed, and returns true, also when the call is repeated. False: somebody else took the lease over,
-- and nothing was changed.
CREATE FUNCTION outbox_router.inbox_finish(consumer text, event_id text, token uuid, result jsonb DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  PERFORM outbox_router.inbox_check(inbox_finish.consumer, inbox_finish.event_id);
  PERFORM outbox_router.inbox_check_result(inbox_finish.result);
  IF inbox_finish.token IS NULL THEN
    RAISE 'the token is NULL' USING ERRCODE = '22023', HINT = 'Pass the token that inbox_start returned with fresh.';
  END IF;
  UPDATE outbox_router.inbox i SET lease_until = NULL, result = inbox_finish.result, seen_at = now()
    WHERE i.consumer = inbox_finish.consumer AND i.event_id = inbox_finish.event_id
      AND i.token = inbox_finish.token AND i.lease_until IS NOT NULL;
  RETURN FOUND OR coalesce((SELECT i.token = inbox_finish.token AND i.lease_until IS NULL FROM outbox_router.inbox i
    WHERE i.consumer = inbox_finish.consumer AND i.event_id = inbox_finish.event_id), false);
END $$;

-- True once for a sequence above the last one of the aggregate, in the transaction of the effect.
CREATE FUNCTION outbox_router.inbox_newer(consumer text, aggregate text, sequence bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  is_newer boolean;
BEGIN
  PERFORM outbox_router.inbox_check_consumer(inbox_newer.consumer);
  PERFORM outbox_router.inbox_check_name('aggregate', inbox_newer.aggregate, 1000);
  IF inbox_newer.sequence IS NULL THEN
    RAISE 'the sequence is NULL' USING ERRCODE = '22023', HINT = 'Pass the version of the aggregate in this event.';
  END IF;
  INSERT INTO outbox_router.inbox_sequences AS s (consumer, aggregate, version)
    VALUES (inbox_newer.consumer, inbox_newer.aggregate, inbox_newer.sequence)
    ON CONFLICT (consumer, aggregate) DO UPDATE SET version = excluded.version WHERE s.version < excluded.version;
  is_newer := FOUND;
  PERFORM outbox_router.inbox_skipped(inbox_newer.consumer, inbox_newer.aggregate, false) WHERE NOT is_newer;
  RETURN is_newer;
END $$;

-- The same with the text of ${source.sequence}. It starts again when the outbox moves to another cluster: then call
-- inbox_forget_sequences, or every event is stale.
CREATE FUNCTION outbox_router.inbox_newer(consumer text, aggregate text, sequence text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  is_newer boolean;
BEGIN
  PERFORM outbox_router.inbox_check_consumer(inbox_newer.consumer);
  PERFORM outbox_router.inbox_check_name('aggregate', inbox_newer.aggregate, 1000);
  IF (length(inbox_newer.sequence) = 32 AND inbox_newer.sequence !~ '[^0-9a-f]') IS NOT TRUE THEN
    RAISE 'the sequence is not a text of 32 hexadecimal digits' USING ERRCODE = '22023',
      HINT = 'Pass the text of ${source.sequence}, or cast a version of your own: $3::bigint.';
  END IF;
  INSERT INTO outbox_router.inbox_sequences AS s (consumer, aggregate, log_sequence)
    VALUES (inbox_newer.consumer, inbox_newer.aggregate, inbox_newer.sequence)
    ON CONFLICT (consumer, aggregate) DO UPDATE SET log_sequence = excluded.log_sequence
    WHERE s.log_sequence < excluded.log_sequence;
  is_newer := FOUND;
  PERFORM outbox_router.inbox_skipped(inbox_newer.consumer, inbox_newer.aggregate, true) WHERE NOT is_newer;
  RETURN is_newer;
END $$;

-- Counts a stale event. An aggregate has sequences of one kind.
CREATE FUNCTION outbox_router.inbox_skipped(consumer text, aggregate text, of_the_log boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  IF EXISTS (SELECT FROM outbox_router.inbox_sequences s WHERE s.consumer = inbox_skipped.consumer
      AND s.aggregate = inbox_skipped.aggregate AND (s.log_sequence IS NOT NULL) <> of_the_log) THEN
    RAISE 'the last sequence of the aggregate "%" is of the other kind', inbox_skipped.aggregate
      USING ERRCODE = '22023', HINT = 'Use versions or ${source.sequence}, not both; inbox_forget_sequences starts again.';
  END IF;
  PERFORM nextval('outbox_router.inbox_skipped_total');
END $$;

-- For operators: forgets the last sequences of one aggregate, or of all if NULL, and returns how many.
CREATE FUNCTION outbox_router.inbox_forget_sequences(consumer text, aggregate text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  forgotten bigint;
BEGIN
  PERFORM outbox_router.inbox_check_name('consumer name', inbox_forget_sequences.consumer, 255);
  DELETE FROM outbox_router.inbox_sequences s WHERE s.consumer = inbox_forget_sequences.consumer
    AND (inbox_forget_sequences.aggregate IS NULL OR s.aggregate = inbox_forget_sequences.aggregate);
  GET DIAGNOSTICS forgotten = ROW_COUNT;
  RETURN forgotten;
END $$;

-- For operators: sets how long a consumer's processed events are remembered, and whether its queue keeps the order of an
-- aggregate. sender_window is how long the sender may repeat or replay an event.
CREATE FUNCTION outbox_router.inbox_configure(
  consumer text, keep interval DEFAULT NULL, sender_window interval DEFAULT NULL, ordered boolean DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  wanted constant interval := coalesce(inbox_configure.keep,
    (SELECT c.keep FROM outbox_router.inbox_consumers c WHERE c.consumer = inbox_configure.consumer), interval '14 days');
BEGIN
  PERFORM outbox_router.inbox_check_consumer(inbox_configure.consumer);
  IF inbox_configure.keep < interval '7 days' AND sender_window IS NULL THEN
    RAISE 'keep is %, less than 7 days', inbox_configure.keep USING ERRCODE = '22023',
      HINT = 'Pass sender_window too, how long the sender may repeat or replay an event; keep must be longer.';
  ELSIF inbox_configure.keep < interval '1 hour' OR wanted <= sender_window THEN
    RAISE 'keep is %, which must be at least 1 hour and longer than the sender''s window', wanted
      USING ERRCODE = '22023', HINT = 'An event that is repeated after it was forgotten is processed again.';
  END IF;
  UPDATE outbox_router.inbox_consumers c SET keep = coalesce(inbox_configure.keep, c.keep),
    ordered = coalesce(inbox_configure.ordered, c.ordered) WHERE c.consumer = inbox_configure.consumer;
  IF NOT FOUND THEN
    RAISE 'the consumer "%" is being created', inbox_configure.consumer USING ERRCODE = '55P03', HINT = 'Try again.';
  END IF;
END $$;

-- Deletes up to max_rows processed events that are older than their consumer's keep, the oldest first.
CREATE FUNCTION outbox_router.inbox_expire(max_rows integer DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
  SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
  c record;
  moment constant timestamptz := clock_timestamp();
  deleted bigint;
  total bigint := 0;
BEGIN
  IF (max_rows BETWEEN 1 AND 1000000) IS NOT TRUE THEN
    RAISE 'max_rows is %', coalesce(max_rows::text, 'NULL') USING ERRCODE = '22023', HINT = 'Pass 1 to 1000000.';
  END IF;
  FOR c IN SELECT k.consumer, k.keep FROM outbox_router.inbox_consumers k LOOP
    -- never waits for a lock
    DELETE FROM outbox_router.inbox d WHERE d.ctid = ANY (ARRAY(
      SELECT i.ctid FROM outbox_router.inbox i
        WHERE i.consumer = c.consumer AND i.seen_at < moment - c.keep AND i.lease_until IS NULL
          AND (i.position IS NULL OR NOT EXISTS (
            SELECT FROM outbox_router.inbox_queue q WHERE q.consumer = i.consumer AND q.position = i.position))
        ORDER BY i.seen_at LIMIT max_rows - total FOR UPDATE OF i SKIP LOCKED));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    total := total + deleted;
    EXIT WHEN total >= max_rows;
  END LOOP;
  RETURN total;
END $$;

-- Nobody but those to whom init grants it may call anything here.
DO $$
DECLARE
  f regprocedure;
BEGIN
  FOR f IN SELECT p.oid FROM pg_catalog.pg_proc p
    WHERE p.pronamespace = 'outbox_router'::regnamespace AND p.proname LIKE 'inbox\_%' LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
  END LOOP;
END $$;
