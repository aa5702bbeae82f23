-- A worker of the queue that receive_webhook.sql fills: takes one event, and ends it in the transaction of its effect.
-- If this fails or the connection ends before COMMIT, the event is in the queue again.
\set ON_ERROR_STOP on
BEGIN;
-- one row, also if there is no event
SELECT event_id, convert_from(payload, 'UTF8') AS payment
  FROM (VALUES (1)) AS one LEFT JOIN outbox_router.inbox_next('payments') ON true \gset
\if :{?event_id}
  INSERT INTO payments (order_id) SELECT (payment->>'orderId')::bigint FROM (SELECT :'payment'::jsonb) AS message (payment);
  SELECT outbox_router.inbox_done('payments', :'event_id') AS done \gset
  COMMIT;
  \echo processed :event_id
\else
  ROLLBACK;
\endif
