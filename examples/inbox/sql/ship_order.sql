-- Ships an order once. psql --set event_id=... --set event=... --file ship_order.sql
\set ON_ERROR_STOP on
BEGIN;
-- If another session is processing the same event, this waits until that one commits or rolls back.
SELECT outcome = 'fresh' AS fresh, outcome = 'busy' AS busy FROM outbox_router.inbox_claim('shipping', :'event_id') \gset
\if :fresh
  INSERT INTO shipments (order_id, customer)
    SELECT (event->>'orderId')::bigint, event->>'customer' FROM (SELECT :'event'::jsonb) AS message (event);
  COMMIT;
  \echo shipped :event_id
\elif :busy
  -- Only if the same consumer name is used with leases or the queue: the event is not processed yet.
  ROLLBACK;
  \warn the event is processed elsewhere
\else
  COMMIT;
  \echo skipped :event_id
\endif
