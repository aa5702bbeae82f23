INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
