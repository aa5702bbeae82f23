-- Time-ordered ids (UUID version 7) for the default of the outbox's id: they keep its index small. In one session each id is higher
-- than the one before, also within a microsecond and after the clock was set back. The last time is kept in a setting; where a
-- pooler resets it, only that is lost.
DO $$
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN
    EXECUTE 'CREATE OR REPLACE FUNCTION outbox_router.uuid_v7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS ''SELECT pg_catalog.uuidv7()''';
  ELSE
    CREATE OR REPLACE FUNCTION outbox_router.uuid_v7() RETURNS uuid LANGUAGE plpgsql VOLATILE AS $body$
    DECLARE
      micros bigint := extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000;
      last bigint := nullif(pg_catalog.current_setting('outbox_router.uuid_v7', true), '');
    BEGIN
      IF micros <= last THEN
        micros := last + 1;
      END IF;
      PERFORM pg_catalog.set_config('outbox_router.uuid_v7', micros::text, false);
      -- 48 bits of milliseconds, 4 of version, 12 of microseconds; the rest is that of a random one (RFC 9562)
      RETURN pg_catalog.encode(pg_catalog.overlay(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()),
        pg_catalog.int8send(((micros / 1000) << 16) | 28672 | (micros % 1000 * 4096 / 1000)), 1, 8), 'hex')::uuid;
    END $body$;
  END IF;
END $$;
COMMENT ON FUNCTION outbox_router.uuid_v7() IS 'A time-ordered id, monotonic within a session';
