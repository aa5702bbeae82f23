-- Events that could not be sent, and those of their aggregates that came after them ([dead_letters] policy = "park").
CREATE TABLE outbox_router.dead_letters (
  router text NOT NULL,
  final_lsn pg_lsn NOT NULL,
  change bigint NOT NULL,
  xid bigint NOT NULL,
  committed_at timestamptz NOT NULL,
  source text NOT NULL,
  event_id text,
  aggregate_type text,
  aggregate_id text,
  event_type text,
  reason text NOT NULL,
  detail text NOT NULL,
  event json NOT NULL,
  replay text,
  parked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempts integer NOT NULL DEFAULT 0,
  decision text CHECK (decision IN ('retry', 'discard')),
  decided_at timestamptz,
  PRIMARY KEY (router, final_lsn, change)
);
CREATE INDEX dead_letters_aggregate ON outbox_router.dead_letters (router, aggregate_id, final_lsn, change);
CREATE INDEX dead_letters_decided ON outbox_router.dead_letters (router, final_lsn, change) WHERE decision IS NOT NULL;
COMMENT ON TABLE outbox_router.dead_letters IS 'Parked events: outbox-router dead-letters --help';
