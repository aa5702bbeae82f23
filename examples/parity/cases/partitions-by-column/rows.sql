INSERT INTO outbox VALUES (n(1), 'order', 'a', 'T', '{}', 0);
INSERT INTO outbox VALUES (n(2), 'order', 'a', 'T', '{}', 1);
INSERT INTO outbox VALUES (n(3), 'order', 'b', 'T', '{}', 5);
INSERT INTO outbox VALUES (n(4), 'order', 'a', 'T', '{}', NULL);
INSERT INTO outbox VALUES (n(5), 'order', NULL, 'T', '{}', 2);
INSERT INTO outbox VALUES (n(6), 'order', 'b', 'T', '{}', NULL);

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
