-- Replays of rows of an outbox: who asked for which, and how far each has come. The process that sends them renews a lease, and stores
-- the place of the last row that it need not send again: its time, also as text, and the texts of what orders rows of the same time.
-- horizon tells which rows had been delivered when they were counted.
CREATE TABLE IF NOT EXISTS outbox_router.replays (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  router text NOT NULL,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  requested_by text NOT NULL,
  outbox text NOT NULL,
  since timestamptz,
  until timestamptz NOT NULL,
  selection jsonb NOT NULL,
  topic text,
  rate double precision,
  mark text NOT NULL,
  horizon text NOT NULL,
  order_by text NOT NULL,
  rows bigint NOT NULL,
  events bigint NOT NULL,
  bytes bigint NOT NULL,
  done bigint NOT NULL DEFAULT 0,
  left_out bigint NOT NULL DEFAULT 0,
  last_inserted_at timestamptz,
  last_created_at text,
  last_ties text[],
  token uuid NOT NULL,
  lease_until timestamptz NOT NULL,
  finished_at timestamptz
);
COMMENT ON TABLE outbox_router.replays IS 'Replays of rows of an outbox table';
