-- Idempotency keys of write APIs: the response to a request, for its repetitions. The scope is the caller and the route, so
-- that nobody gets the response of another caller.

-- status is NULL until idempotency_finish. Its update is HOT: no indexed column changes, and the pages have room.
CREATE TABLE outbox_router.idempotency_keys (
  scope text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  token uuid NOT NULL,
  lease_until timestamptz,
  expires_at timestamptz NOT NULL,
  forget_at timestamptz NOT NULL,
  status smallint,
  request_hash bytea NOT NULL,
  headers jsonb,
  body bytea,
  PRIMARY KEY (scope, key)
) WITH (fillfactor = 50);
CREATE INDEX idempotency_keys_age ON outbox_router.idempotency_keys (forget_at);
COMMENT ON TABLE outbox_router.idempotency_keys IS 'Requests with an idempotency key, and their responses';
COMMENT ON COLUMN outbox_router.idempotency_keys.forget_at IS 'From expires_at until then the key is refused as expired';

CREATE SEQUENCE outbox_router.idempotency_new_total;
CREATE SEQUENCE outbox_router.idempotency_replay_total;
CREATE SEQUENCE outbox_router.idempotency_mismatch_total;
CREATE SEQUENCE outbox_router.idempotency_in_progress_total;
CREATE SEQUENCE outbox_router.idempotency_expired_total;

CREATE FUNCTION outbox_router.idempotency_check(scope text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF (length(scope) BETWEEN 1 AND 255) IS NOT TRUE THEN
    RAISE 'the scope %', coalesce('has ' || length(scope) || ' characters', 'is NULL') USING ERRCODE = '22023',
      HINT = 'Pass the caller (user, tenant) and the route, 1 to 255 characters.';
  ELSIF (length(key) BETWEEN 1 AND 255) IS NOT TRUE THEN
    RAISE 'the idempotency key %', coalesce('has ' || length(key) || ' characters', 'is NULL')
      USING ERRCODE = '22023', HINT = 'Answer 400. A key has 1 to 255 characters of printable ASCII.';
  ELSIF key ~ '[^ -~]' THEN
    RAISE 'the idempotency key is not printable ASCII'
      USING ERRCODE = '22023', HINT = 'Answer 400. A key has 1 to 255 characters of printable ASCII.';
  END IF;
END $$;

-- Begins a request. new: do the work, in this transaction if there is no lease, and call idempotency_finish. Waits up to
-- max_wait for a request with the same key that is in progress, without a lock on its row. With a token of the caller's own the
-- call can be repeated if its answer was lost.
CREATE FUNCTION outbox_router.idempotency_begin(
  scope text, key text, request_hash bytea, ttl interval DEFAULT '24 hours', max_wait interval DEFAULT '2 seconds',
  lease interval DEFAULT NULL,
  OUT outcome text, INOUT token uuid DEFAULT NULL, OUT status integer, OUT headers jsonb, OUT body bytea, OUT retry_after interval
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  give_up timestamptz;
  own_token constant uuid := coalesce(idempotency_begin.token, gen_random_uuid());
  known outbox_router.idempotency_keys;
  locked boolean := false;
  -- an assignment is faster than PERFORM
  counted bigint;
BEGIN
  token := NULL;
  IF (length(idempotency_begin.scope) BETWEEN 1 AND 255 AND length(idempotency_begin.key) BETWEEN 1 AND 255
    AND idempotency_begin.key !~ '[^ -~]') IS NOT TRUE THEN
    PERFORM outbox_router.idempotency_check(idempotency_begin.scope, idempotency_begin.key);
  END IF;
  IF (length(idempotency_begin.request_hash) BETWEEN 16 AND 64) IS NOT TRUE THEN
    RAISE 'the request hash has % bytes', coalesce(length(idempotency_begin.request_hash)::text, 'NULL')
      USING ERRCODE = '22023', HINT = 'Pass the SHA-256 of method, path and body.';
  ELSIF (ttl BETWEEN interval '1 hour' AND interval '72 hours') IS NOT TRUE THEN
    RAISE 'the ttl is %', coalesce(ttl::text, 'NULL') USING ERRCODE = '22023', HINT = 'Pass 1 to 72 hours.';
  ELSIF (max_wait BETWEEN interval '0' AND interval '1 minute') IS NOT TRUE THEN
    RAISE 'max_wait is %', coalesce(max_wait::text, 'NULL') USING ERRCODE = '22023', HINT = 'Pass 0 to 1 minute.';
  ELSIF lease IS NOT NULL AND lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
    RAISE 'the lease is %', lease USING ERRCODE = '22023', HINT = 'Pass 1 second to 1 day, or NULL.';
  END IF;
  LOOP
    -- Held until the end of the transaction. Whoever inserts a key has it, so that the insert does not wait.
    locked := locked OR pg_try_advisory_xact_lock(
      hashtextextended(idempotency_begin.key, hashtextextended(idempotency_begin.scope, 1)));
    IF locked THEN
      INSERT INTO outbox_router.idempotency_keys AS k (scope, key, request_hash, token, lease_until, expires_at, forget_at)
        VALUES (idempotency_begin.scope, idempotency_begin.key, idempotency_begin.request_hash, own_token,
          clock_timestamp() + lease, now() + ttl, now() + ttl + ttl)
        ON CONFLICT DO NOTHING RETURNING k.token INTO token;
      IF FOUND THEN
        outcome := 'new';
        EXIT;
      END IF;
    END IF;
    SELECT * INTO known FROM outbox_router.idempotency_keys k
      WHERE k.scope = idempotency_begin.scope AND k.key = idempotency_begin.key;
    IF NOT FOUND THEN
      -- not committed yet, or deleted since
      NULL;
    ELSIF (known.forget_at <= clock_timestamp() AND (known.lease_until > clock_timestamp()) IS NOT TRUE)
      OR (known.status IS NULL AND known.request_hash = idempotency_begin.request_hash
        AND known.lease_until IS NOT NULL AND (known.lease_until <= clock_timestamp() OR known.token = own_token))
    THEN
      -- A new request, unless its finish or another begin is faster. With another body it would repeat in other systems what the
      -- first one has begun.
      UPDATE outbox_router.idempotency_keys k
        SET request_hash = idempotency_begin.request_hash, token = own_token,
          lease_until = clock_timestamp() + lease, expires_at = now() + ttl, forget_at = now() + ttl + ttl,
          status = NULL, headers = NULL, body = NULL
        WHERE locked AND k.scope = idempotency_begin.scope AND k.key = idempotency_begin.key AND k.token = known.token
          AND ((k.forget_at <= clock_timestamp() AND (k.lease_until > clock_timestamp()) IS NOT TRUE)
            OR (k.status IS NULL AND k.lease_until IS NOT NULL AND (k.lease_until <= clock_timestamp() OR k.token = own_token)))
        RETURNING k.token INTO token;
      IF FOUND THEN
        outcome := 'new';
        EXIT;
      END IF;
    ELSIF known.expires_at <= clock_timestamp() THEN
      outcome := 'expired';
      EXIT;
    ELSIF known.request_hash <> idempotency_begin.request_hash THEN
      outcome := 'mismatch';
      EXIT;
    ELSIF known.status IS NOT NULL THEN
      outcome := 'replay';
      status := known.status;
      headers := known.headers;
      body := known.body;
      EXIT;
    END IF;
    give_up := coalesce(give_up, clock_timestamp() + max_wait);
    IF clock_timestamp() >= give_up OR give_up > clock_timestamp() + max_wait THEN
      outcome := 'in_progress';
      retry_after := greatest(interval '1 second', known.lease_until - clock_timestamp());
      EXIT;
    END IF;
    PERFORM pg_sleep(0.02);
  END LOOP;
  counted := CASE outcome
    WHEN 'new' THEN nextval('outbox_router.idempotency_new_total')
    WHEN 'replay' THEN nextval('outbox_router.idempotency_replay_total')
    WHEN 'mismatch' THEN nextval('outbox_router.idempotency_mismatch_total')
    WHEN 'in_progress' THEN nextval('outbox_router.idempotency_in_progress_total')
    ELSE nextval('outbox_router.idempotency_expired_total') END;
END $$;

-- Stores the final response, and returns true, also when the call is repeated. A status of 500 or more frees the key instead,
-- under a lease. False: the lease expired and another request has the key, or it was freed; nothing was changed.
CREATE FUNCTION outbox_router.idempotency_finish(
  scope text, key text, token uuid, status integer, headers jsonb DEFAULT NULL, body bytea DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  known outbox_router.idempotency_keys;
BEGIN
  IF (length(idempotency_finish.scope) BETWEEN 1 AND 255 AND length(idempotency_finish.key) BETWEEN 1 AND 255
    AND idempotency_finish.key !~ '[^ -~]') IS NOT TRUE THEN
    PERFORM outbox_router.idempotency_check(idempotency_finish.scope, idempotency_finish.key);
  END IF;
  IF idempotency_finish.token IS NULL THEN
    RAISE 'the token is NULL' USING ERRCODE = '22023', HINT = 'Pass the token that idempotency_begin returned with new.';
  ELSIF (idempotency_finish.status BETWEEN 200 AND 599) IS NOT TRUE THEN
    RAISE 'the status is %', coalesce(idempotency_finish.status::text, 'NULL')
      USING ERRCODE = '22023', HINT = 'Pass the final status of the response, 200 to 599.';
  ELSIF length(idempotency_finish.body) > 16777216 OR pg_column_size(idempotency_finish.headers) > 65536 THEN
    RAISE 'the response is larger than 16 MiB, or its headers than 64 KiB'
      USING ERRCODE = '22023', HINT = 'Store the document elsewhere, and answer with its address.';
  END IF;
  IF idempotency_finish.status < 500 THEN
    UPDATE outbox_router.idempotency_keys k SET status = idempotency_finish.status, headers = idempotency_finish.headers,
        body = idempotency_finish.body, lease_until = NULL
      WHERE k.scope = idempotency_finish.scope AND k.key = idempotency_finish.key
        AND k.token = idempotency_finish.token AND k.status IS NULL;
    IF FOUND THEN
      RETURN true;
    END IF;
  END IF;
  SELECT * INTO known FROM outbox_router.idempotency_keys k
    WHERE k.scope = idempotency_finish.scope AND k.key = idempotency_finish.key AND k.token = idempotency_finish.token
    FOR UPDATE;
  IF NOT FOUND OR idempotency_finish.status < 500 OR known.status IS NOT NULL THEN
    RETURN coalesce(known.status = idempotency_finish.status, false);
  ELSIF known.lease_until IS NULL THEN
    RAISE 'a response with status % is not stored', idempotency_finish.status
      USING ERRCODE = '55000', HINT = 'Roll back the transaction: that frees the key and undoes the work.';
  END IF;
  DELETE FROM outbox_router.idempotency_keys k WHERE k.scope = known.scope AND k.key = known.key AND k.token = known.token;
  RETURN true;
END $$;

-- Deletes up to max_rows keys that are forgotten, the oldest first.
CREATE FUNCTION outbox_router.idempotency_expire(max_rows integer DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
  SET enable_sort = off AS $$
DECLARE
  moment constant timestamptz := clock_timestamp();
  deleted bigint;
BEGIN
  IF (max_rows BETWEEN 1 AND 1000000) IS NOT TRUE THEN
    RAISE 'max_rows is %', coalesce(max_rows::text, 'NULL') USING ERRCODE = '22023', HINT = 'Pass 1 to 1000000.';
  END IF;
  -- never waits for a lock
  DELETE FROM outbox_router.idempotency_keys d WHERE d.ctid = ANY (ARRAY(
    SELECT k.ctid FROM outbox_router.idempotency_keys k
      WHERE k.forget_at <= moment AND (k.lease_until IS NULL OR k.lease_until <= moment)
      ORDER BY k.forget_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS deleted = ROW_COUNT;
  RETURN deleted;
END $$;

-- For monitoring: what the functions counted since they were created. They count calls that were rolled back, too.
CREATE FUNCTION outbox_router.consumer_counters() RETURNS TABLE (name text, value bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  s record;
BEGIN
  FOR s IN SELECT c.oid, c.relname FROM pg_class c WHERE c.relnamespace = 'outbox_router'::regnamespace
    AND c.relkind = 'S' AND c.relname ~ '^(inbox|idempotency)_.*_total$' ORDER BY c.relname LOOP
    name := s.relname;
    value := coalesce(pg_sequence_last_value(s.oid), 0);
    RETURN NEXT;
  END LOOP;
END $$;

DO $$
DECLARE
  f regprocedure;
BEGIN
  FOR f IN SELECT p.oid FROM pg_catalog.pg_proc p
    WHERE p.pronamespace = 'outbox_router'::regnamespace AND p.proname ~ '^(idempotency|consumer)_' LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
  END LOOP;
END $$;
