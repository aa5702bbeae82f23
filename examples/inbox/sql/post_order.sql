-- Places an order once for each key of a caller, and prints the response.
-- psql --set user=... --set key=... --set body=... --file post_order.sql
\set ON_ERROR_STOP on
\pset tuples_only on
\pset format unaligned
SELECT :'user' || ' POST /orders' AS scope \gset
BEGIN;
SELECT outcome, outcome = 'new' AS is_new, outcome = 'replay' AS is_replay, token, status, convert_from(body, 'UTF8') AS response
  FROM outbox_router.idempotency_begin(:'scope', :'key', sha256(convert_to('POST /orders ' || :'body', 'UTF8'))) \gset
\if :is_new
  WITH placed AS (INSERT INTO orders (customer, total)
    SELECT o->>'customer', (o->>'total')::numeric FROM (SELECT :'body'::jsonb) AS request (o) RETURNING *
  ), event AS (INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', id, 'order.placed', jsonb_build_object('orderId', id, 'customer', customer) FROM placed
  ) SELECT jsonb_build_object('orderId', id) AS response FROM placed \gset
  SELECT outbox_router.idempotency_finish(:'scope', :'key', :'token', 201, '{"Content-Type": "application/json"}',
    convert_to(:'response', 'UTF8')) AS finished \gset
  COMMIT;
  \echo 201 :response
\elif :is_replay
  COMMIT;
  \echo :status :response replayed
\else
  COMMIT;
  -- mismatch: 409; in_progress: 409 with Retry-After; expired: 410
  \echo :outcome
\endif
