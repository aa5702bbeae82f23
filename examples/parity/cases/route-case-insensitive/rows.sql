INSERT INTO outbox VALUES (n(1), 'order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(2), 'Order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(3), 'eu.order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(4), 'EU.x', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(5), 'other', 'k', 'T', '{}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
