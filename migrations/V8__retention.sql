-- The readers of each outbox: which of them must have delivered a row before it may be deleted. One row for each base slot; that of a router
-- that polls is empty. outbox-router init writes them.
CREATE TABLE IF NOT EXISTS outbox_router.retention (
  outbox text NOT NULL,
  slot text NOT NULL,
  router text NOT NULL,
  slots text[] NOT NULL,
  id_column text NOT NULL,
  time_column text NOT NULL,
  status_column text,
  published text,
  archive text,
  PRIMARY KEY (outbox, slot)
);
COMMENT ON TABLE outbox_router.retention IS 'The readers of each outbox, and the archive that its old rows go to';
-- prune compares its configuration
GRANT SELECT ON outbox_router.retention TO PUBLIC;
