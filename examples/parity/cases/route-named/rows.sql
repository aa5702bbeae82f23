INSERT INTO outbox VALUES (n(1), 'order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(2), 'Order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(3), 'eu.order.v1', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(4), 'us.order.v1', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(5), 'eu.order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(6), 'xeu.order.v1x', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(7), 'prefix-order', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(8), 'order-1', 'k', 'T', '{}');
INSERT INTO outbox VALUES (n(9), 'a', 'k', 'T', '{}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
