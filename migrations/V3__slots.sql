-- The slots that init has created, and the router that last began to read each. By this a start tells a new slot from one that
-- events were delivered from before, where no position is remembered. IF NOT EXISTS, because a step is applied again with one before it whose
-- table was dropped.
CREATE TABLE IF NOT EXISTS outbox_router.slots (
  slot text PRIMARY KEY,
  created_at pg_lsn,
  router text
);
COMMENT ON COLUMN outbox_router.slots.created_at IS 'The first position of a slot that outbox-router init has created';
COMMENT ON COLUMN outbox_router.slots.router IS 'The router that last began to read the slot';
