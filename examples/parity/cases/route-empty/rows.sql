INSERT INTO outbox VALUES (n(1), '', 'k', 'T', '{}'), (n(2), 'order', 'k', 'x', '{}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
