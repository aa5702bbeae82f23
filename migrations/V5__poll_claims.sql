-- For routers that poll the outbox table. A claim holds rows, and their aggregates, for one router under a lease. Claims of an
-- outbox are made one at a time, so that each sees all earlier ones. Its newest claim is always kept: there the next one learns
-- which is the oldest claim that may not have ended, and from which position to look for rows. A scan from the beginning of the
-- index would walk over every published row that cannot be vacuumed yet.
--
-- No new row without next_attempt_at has a lower position than from_position. candidate_position becomes the next such bound when
-- every transaction before candidate_xid has ended: until then one of them may still commit a row below.
CREATE TABLE IF NOT EXISTS outbox_router.poll_claims (
  outbox text COLLATE "C" NOT NULL,
  id bigint NOT NULL,
  token uuid NOT NULL,
  lease_until timestamptz NOT NULL,
  ended boolean NOT NULL,
  oldest bigint NOT NULL,
  positions bigint[] NOT NULL,
  aggregate_hashes bigint[] NOT NULL,
  from_position bigint NOT NULL,
  candidate_position bigint,
  candidate_xid xid8,
  PRIMARY KEY (outbox, id)
);
COMMENT ON TABLE outbox_router.poll_claims IS 'Rows of an outbox that a router has claimed';

-- CACHE 1, so that positions are drawn in the order of the inserts
CREATE SEQUENCE IF NOT EXISTS outbox_router.outbox_position;

-- The default of an outbox's column "position". Applications have no privileges on the sequence.
CREATE OR REPLACE FUNCTION outbox_router.next_position() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- before the position: see poll_claims
  PERFORM pg_current_xact_id();
  RETURN nextval('outbox_router.outbox_position');
END $$;
COMMENT ON FUNCTION outbox_router.next_position() IS 'The place of an event in the order of the inserts';
