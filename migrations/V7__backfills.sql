-- Rows of an outbox that were committed before a slot existed: which they are, and how many of them the router has sent. before_slot is a
-- condition made of the slot's first snapshot: every row either meets it or is in the slot. The last row that need not be sent again is
-- stored by its time, also as text, and by the texts of what orders rows of the same time. Without slot_start, init is still creating the
-- slot, or was interrupted.
CREATE TABLE IF NOT EXISTS outbox_router.backfills (
  slot text PRIMARY KEY,
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  begun_at timestamptz NOT NULL,
  slot_start pg_lsn,
  outbox text,
  files text[],
  time_column text,
  ties text[],
  by_statement boolean,
  conditions text[],
  snapshot text,
  before_slot text,
  since timestamptz,
  until timestamptz,
  rows bigint,
  done bigint NOT NULL DEFAULT 0,
  last_inserted_at timestamptz,
  last_created_at text,
  last_ties text[],
  finished_at timestamptz
);
COMMENT ON TABLE outbox_router.backfills IS 'Rows from before a slot that the router sends first: outbox-router init --backfill';
COMMENT ON COLUMN outbox_router.backfills.files IS 'OID and file of the table or its partitions: rows of a rewritten table are not found again';
