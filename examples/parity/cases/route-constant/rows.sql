INSERT INTO outbox VALUES (n(1), 'order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(2), 'Order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(9), '', 'k', 'T', '{}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
