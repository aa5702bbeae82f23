-- Stores a webhook, and prints the answer with status 200. The program that runs this has verified the signature.
-- psql --set event_id=... --set body=... --file receive_webhook.sql
\set ON_ERROR_STOP on
\pset tuples_only on
\pset format unaligned
SELECT CASE outbox_router.inbox_put('payments', :'event_id', convert_to(:'body', 'UTF8'))
  WHEN 'new' THEN '{"status":"ok"}'
  ELSE '{"status":"ok","already_processed":true}' END;
