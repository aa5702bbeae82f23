INSERT INTO outbox VALUES (n(1), 'order', 'a', 'T', '{}');
INSERT INTO outbox VALUES (n(2), 'order', 'b', 'T', '{}');
INSERT INTO outbox VALUES (n(3), 'order', 'c', 'T', '{}');
INSERT INTO outbox VALUES (n(4), 'order', '1', 'T', '{}');
INSERT INTO outbox VALUES (n(5), 'order', '2', 'T', '{}');
INSERT INTO outbox VALUES (n(6), 'order', '42', 'T', '{}');
INSERT INTO outbox VALUES (n(7), 'order', 'order-1', 'T', '{}');
INSERT INTO outbox VALUES (n(8), 'order', 'order-2', 'T', '{}');
INSERT INTO outbox VALUES (n(9), 'order', 'ü', 'T', '{}');
INSERT INTO outbox VALUES (n(10), 'order', '😀', 'T', '{}');
INSERT INTO outbox VALUES (n(11), 'order', '', 'T', '{}');
INSERT INTO outbox VALUES (n(12), 'order', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx', 'T', '{}');
INSERT INTO outbox VALUES (n(13), 'order', '00000000-0000-0000-0000-000000000001', 'T', '{}');
INSERT INTO outbox VALUES (n(14), 'order', 'A', 'T', '{}');
INSERT INTO outbox VALUES (n(15), 'order', 'a ', 'T', '{}');
INSERT INTO outbox VALUES (n(16), 'order', 'customer/7', 'T', '{}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
