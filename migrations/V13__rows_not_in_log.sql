-- Partitions whose rows are not all in the log under the name of the outbox. The event triggers of outbox-router init write them; a router
-- whose outbox has a new row here stops.
CREATE TABLE IF NOT EXISTS outbox_router.rows_not_in_log (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  outbox oid NOT NULL,
  partition text NOT NULL,
  noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox_router.rows_not_in_log IS 'Partitions that were attached with rows, or were unlogged for a time';
-- every router and every check looks there
GRANT SELECT ON outbox_router.rows_not_in_log TO PUBLIC;
