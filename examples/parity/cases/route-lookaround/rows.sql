INSERT INTO outbox VALUES (n(1), 'order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(2), 'internal', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(3), 'order.x', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(4), 'a.b.c', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(5), 'order.', 'k', 'T', '{}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
