-- The slots that init created, and the router that last began to read each. Where no position is remembered, a start uses this to tell a
-- new slot from one whose events were already delivered. IF NOT EXISTS: this step is applied again when the table of an earlier step was
-- dropped.
CREATE TABLE IF NOT EXISTS outbox_router.slots (
  slot text PRIMARY KEY,
  created_at pg_lsn,
  router text
);
COMMENT ON COLUMN outbox_router.slots.created_at IS 'The first position of a slot that outbox-router init has created';
COMMENT ON COLUMN outbox_router.slots.router IS 'The router that last began to read the slot';
