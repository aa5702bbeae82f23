INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{"n": 1}'), (n(2), 'order', '1', 'T', '{"n": 2}');
UPDATE outbox SET payload = '{"n": 9}' WHERE id = n(1);
DELETE FROM outbox WHERE id = n(1);
INSERT INTO outbox VALUES (n(3), 'order', '1', 'T', '{"n": 3}');
TRUNCATE outbox;
INSERT INTO outbox VALUES (n(4), 'order', '1', 'T', '{"n": 4}');
INSERT INTO outbox VALUES (n(4), 'order', '1', 'T', '{"n": 40}') ON CONFLICT (id) DO UPDATE SET payload = excluded.payload;
INSERT INTO outbox VALUES (n(5), 'order', '1', 'T', '{"n": 5}') ON CONFLICT DO NOTHING;

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
